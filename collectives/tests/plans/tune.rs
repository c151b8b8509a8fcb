//! The choice of algorithms.

use qpair_collectives::tune::{Tuning, choose, recipe};
use qpair_collectives::{Algorithm, Collective, Counts, Elements, Nodes, Ranks, RecipeError, Spec};

#[test]
fn names_parse_and_print() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        let json = serde_json::to_string(&algorithm).unwrap();
        assert_eq!(json, format!("\"{algorithm}\""));
    }
    let error = "rign".parse::<Algorithm>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown algorithm `rign`: use one of auto, ring, recursive-doubling, halving-doubling, direct, exchange, flat, \
         binomial-tree, double-tree, chain, bruck, pairwise, parameter-server, hierarchical, dissemination, listed"
    );
}

#[test]
fn automatic_choices() {
    let tuning = Tuning::default();
    let auto = |collective, ranks, bytes| {
        choose(&Spec::new(collective, Ranks(ranks), Elements(bytes), 1), &tuning, Algorithm::Auto).unwrap()
    };
    let (few, flat, edge) = (tuning.exchange_to_ranks, tuning.flat_to_ranks, tuning.recursive_doubling_to);
    let broadcast = Collective::Broadcast { root: 1 };
    assert_eq!(auto(Collective::AllReduce, few, 0), Algorithm::Exchange);
    assert_eq!(auto(Collective::AllReduce, few, edge), Algorithm::Exchange);
    assert_eq!(auto(Collective::AllReduce, few, edge + 1), Algorithm::Direct);
    assert_eq!(auto(Collective::AllReduce, few + 1, edge), Algorithm::RecursiveDoubling);
    assert_eq!(auto(Collective::AllReduce, few + 1, edge + 1), Algorithm::Direct);
    assert_eq!(auto(Collective::AllReduce, 65, 1 << 20), Algorithm::HalvingDoubling);
    assert_eq!(auto(Collective::AllReduce, 65, 1 << 30), Algorithm::Ring);
    assert_eq!(auto(broadcast, flat, 8), Algorithm::Flat);
    assert_eq!(auto(broadcast, flat, 1 << 20), Algorithm::Flat);
    assert_eq!(auto(broadcast, flat + 1, 8), Algorithm::BinomialTree);
    assert_eq!(auto(broadcast, flat + 1, 1 << 20), Algorithm::Chain);
    assert_eq!(auto(Collective::AllToAll, flat + 1, 8), Algorithm::Bruck);
    assert_eq!(auto(Collective::AllToAll, flat + 1, 1 << 20), Algorithm::Direct);
    assert_eq!(auto(Collective::Barrier, flat, 0), Algorithm::Exchange);
    assert_eq!(auto(Collective::Barrier, flat + 1, 0), Algorithm::Dissemination);
}

/// Whatever is asked for, what is chosen can do it, and does it in the canonical order where that is asked for.
#[test]
fn what_is_chosen_does_what_is_asked_for() {
    for deterministic in [false, true] {
        let tuning = Tuning { deterministic, ..Tuning::default() };
        for collective in Collective::ALL {
            for (ranks, elements) in [(1, 3), (2, 10_000), (3, 10), (9, 5), (9, 9000), (66, 40), (66, 9000)] {
                for in_place in [true, false] {
                    let even = Spec { in_place, ..Spec::new(collective, Ranks(ranks), Elements(elements), 4) };
                    let ragged = Counts::Ragged((0..ranks).map(|rank| u64::from(rank) % 3).collect::<Vec<_>>().into());
                    let pairs =
                        Counts::Pairs((0..ranks * ranks).map(|at| u64::from(at) % 3).collect::<Vec<_>>().into());
                    let fits = match collective {
                        Collective::Broadcast { .. } => in_place,
                        Collective::Transfer { .. } => !in_place && ranks > 1,
                        _ => true,
                    };
                    let mut specs = vec![even.clone()];
                    if collective == Collective::AllToAll {
                        specs.extend((!in_place).then(|| even.with_counts(pairs)));
                    } else if collective.has_blocks() {
                        specs.push(even.with_counts(ragged));
                    }
                    for spec in specs.into_iter().filter(|_| fits) {
                        let recipe = recipe(spec, &tuning, Nodes::One, Algorithm::Auto).unwrap();
                        let proof = recipe.plan().verify().unwrap_or_else(|error| panic!("{recipe:?}: {error}"));
                        assert!(proof.canonical || !deterministic, "{recipe:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_wish_is_granted_or_refused() {
    let tuning = Tuning::default();
    for collective in Collective::ALL {
        for wish in Algorithm::ALL.into_iter().filter(|wish| !matches!(wish, Algorithm::Auto | Algorithm::Listed)) {
            let spec = Spec::new(collective, Ranks(3), Elements(100), 8);
            let recipe = recipe(spec, &tuning, Nodes::One, wish);
            if wish.does(collective) {
                let plan = recipe.unwrap().plan();
                assert!(plan.verify().is_ok());
                assert_eq!((plan.spec.collective, plan.algorithm.as_str()), (collective, wish.name()));
            } else {
                let collective = collective.name();
                assert_eq!(recipe, Err(RecipeError::Collective { algorithm: wish, collective }));
            }
        }
    }
    let spec = Spec::new(Collective::AllToAll, Ranks(3), Elements(100), 8);
    let error = recipe(spec, &tuning, Nodes::One, Algorithm::Ring).unwrap_err();
    let words = "ring does no all-to-all: use one of direct, bruck, pairwise, hierarchical";
    assert_eq!(error.to_string(), words);
}

/// What can not have results that are the same whatever the algorithm is refused, and all else has them.
#[test]
fn deterministic_results_are_had_or_refused() {
    let tuning = Tuning { deterministic: true, ..Tuning::default() };
    for collective in Collective::ALL {
        for wish in Algorithm::ALL {
            let named = !matches!(wish, Algorithm::Auto | Algorithm::Listed);
            if !named || !wish.does(collective) {
                continue;
            }
            for ranks in [2, 6, 9] {
                let recipe = recipe(Spec::new(collective, Ranks(ranks), Elements(50), 8), &tuning, Nodes::One, wish);
                if wish.orders(collective) || !collective.reduces() {
                    assert!(recipe.unwrap().plan().verify().unwrap().canonical, "{wish} {collective}");
                } else {
                    let error = recipe.unwrap_err().to_string();
                    assert!(error.contains("name direct, or none, for deterministic ones"), "{error}");
                }
            }
        }
    }
}
