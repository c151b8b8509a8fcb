//! The choice of algorithms.

use qpair_collectives::cost::{CostModel, Link, Seats};
use qpair_collectives::tune::{Tuner, Tuning};
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
    let auto = |collective, ranks, bytes| {
        let spec = Spec::new(collective, Ranks(ranks), Elements(bytes), 1);
        Tuner::default().choose(&spec, Algorithm::Auto).unwrap()
    };
    let broadcast = Collective::Broadcast { root: 1 };
    assert_eq!(auto(Collective::AllReduce, 2, 8), Algorithm::Exchange);
    assert_eq!(auto(Collective::AllReduce, 16, 8), Algorithm::RecursiveDoubling);
    assert_eq!(auto(Collective::AllReduce, 4, 1 << 24), Algorithm::Direct);
    assert_eq!(auto(broadcast, 3, 8), Algorithm::Flat);
    assert_eq!(auto(broadcast, 512, 8), Algorithm::BinomialTree);
    assert_eq!(auto(Collective::AllToAll, 256, 1), Algorithm::Bruck);
    assert_eq!(auto(Collective::AllToAll, 8, 1 << 20), Algorithm::Direct);
    // Both double what they have with each message.
    let gathered = auto(Collective::AllGather, 512, 8);
    assert!(matches!(gathered, Algorithm::HalvingDoubling | Algorithm::Bruck), "{gathered}");
    assert_eq!(auto(Collective::Barrier, 3, 0), Algorithm::Exchange);
    assert_eq!(auto(Collective::Barrier, 64, 0), Algorithm::Dissemination);
}

#[test]
fn what_is_chosen_is_about_as_fast_as_the_first_of_the_candidates_which_are_in_order() {
    let tuner = Tuner::default();
    for collective in Collective::ALL {
        for elements in [1, 1000, 1 << 20] {
            let spec = Spec::new(collective, Ranks(6), Elements(elements), 4);
            let candidates = tuner.candidates(&spec);
            assert!(candidates.windows(2).all(|pair| pair[0].price.seconds <= pair[1].price.seconds));
            let chosen = tuner.choose(&spec, Algorithm::Auto).unwrap();
            let price = candidates.iter().find(|candidate| candidate.algorithm == chosen).unwrap().price;
            assert!(price.seconds <= 1.05 * candidates[0].price.seconds, "{chosen} {spec}");
            assert!(candidates.iter().all(|candidate| candidate.algorithm.does(collective)));
            assert!(candidates.iter().all(|candidate| candidate.algorithm != Algorithm::Hierarchical));
        }
    }
}

/// Where rails are slow and nodes have several ranks, what goes between nodes counts.
#[test]
fn by_nodes_where_the_rail_is_slow() {
    let model = CostModel { between: Link { latency: 20e-6, speed: 0.2e9 }, ..CostModel::default() };
    let auto = |nodes: &Nodes, bytes: u64| {
        let seats = Seats { nodes: nodes.clone(), ..Seats::default() };
        let tuner = Tuner { model, seats, ..Tuner::default() };
        tuner.recipe(Spec::all_reduce(Ranks(16), Elements(bytes / 4), 4), Algorithm::Auto).unwrap()
    };
    // Ranks are dealt to two nodes in turn, so that neighbours are apart.
    let dealt = Nodes::Listed((0..16).map(|rank| rank % 2).collect::<Vec<_>>().into());
    for bytes in [1 << 16, 1 << 20, 1 << 24] {
        let recipe = auto(&dealt, bytes);
        assert_eq!((recipe.algorithm, &recipe.shape.nodes), (Algorithm::Hierarchical, &dealt), "{bytes}");
        // On one node, or on nodes of one rank, there is nothing to gain.
        assert_ne!(auto(&Nodes::One, bytes).algorithm, Algorithm::Hierarchical);
        assert_ne!(auto(&Nodes::Of(1), bytes).algorithm, Algorithm::Hierarchical);
    }
}

/// GPUs of one host whose links do not join all: what goes between islands goes by PCIe.
#[test]
fn by_islands_where_links_between_them_are_slow() {
    // Neighbours are on two islands in turn.
    let quads = Nodes::Listed((0..8).map(|rank| rank % 2).collect::<Vec<_>>().into());
    let tuner = |islands: Option<Nodes>, beside| {
        let mut model = CostModel::default();
        model.gpu.beside = beside;
        let seats = Seats { gpu_islands: islands, ..Seats::default() };
        Tuner { model, seats, ..Tuner::default() }
    };
    let auto = |tuner: &Tuner, on_gpu: bool, collective, bytes: u64| {
        let spec = Spec::new(collective, Ranks(8), Elements(bytes / 4), 4);
        tuner.where_vectors_are(on_gpu).recipe(spec, Algorithm::Auto).unwrap()
    };
    let slow = tuner(Some(quads.clone()), 16e9);
    for (collective, bytes) in [(Collective::AllReduce, 64 << 20), (Collective::AllReduce, 1 << 30)] {
        let recipe = auto(&slow, true, collective, bytes);
        assert_eq!(
            (recipe.algorithm, recipe.shape.nodes),
            (Algorithm::Hierarchical, quads.clone()),
            "{collective} {bytes}"
        );
        // Vectors of the processor are on one island; links as fast as the GPUs' memory make no difference.
        assert_ne!(auto(&slow, false, collective, bytes).algorithm, Algorithm::Hierarchical);
        let fast = tuner(Some(quads.clone()), CostModel::default().gpu.within);
        assert_ne!(auto(&fast, true, collective, bytes).algorithm, Algorithm::Hierarchical);
        assert_ne!(auto(&tuner(None, 16e9), true, collective, bytes).algorithm, Algorithm::Hierarchical);
    }
    // What takes most of the time is told.
    let spec = Spec::all_reduce(Ranks(8), Elements(1 << 24), 4);
    let priced = slow.where_vectors_are(true).candidates(&spec);
    let ring = priced.iter().find(|candidate| candidate.algorithm == Algorithm::Ring).unwrap().price;
    assert!(ring.beside > 0.9 * ring.seconds && ring.between == 0.0, "{ring:?}");
}

/// Of two levels the one counts between which it is slower; who asks for a hierarchical plan gets that too.
#[test]
fn by_nodes_or_by_islands_whichever_is_faster() {
    // Neighbours are on other nodes, and on other islands.
    let dealt = |count: u32| Nodes::Listed((0..16).map(|rank| rank % count).collect::<Vec<_>>().into());
    let by = |between: f64, beside: f64, wish| {
        let link = |speed| Link { latency: 1e-6, speed };
        let model = CostModel { between: link(between), beside: link(beside), ..CostModel::default() };
        let seats = Seats { nodes: dealt(2), islands: Some(dealt(4)), ..Seats::default() };
        let tuner = Tuner { model, seats, ..Tuner::default() };
        tuner.recipe(Spec::all_reduce(Ranks(16), Elements(1 << 22), 4), wish).unwrap().shape.nodes
    };
    assert_eq!(by(0.5e9, 100e9, Algorithm::Auto), dealt(2));
    assert_eq!(by(0.5e9, 100e9, Algorithm::Hierarchical), dealt(2));
    assert_eq!(by(20e9, 0.5e9, Algorithm::Hierarchical), dealt(4));
}

/// Whatever is asked for, what is chosen can do it, and does it in the canonical order where that is asked for.
#[test]
fn what_is_chosen_does_what_is_asked_for() {
    for deterministic in [false, true] {
        let tuner = Tuner { tuning: Tuning { deterministic, ..Tuning::default() }, ..Tuner::default() };
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
                        let recipe = tuner.recipe(spec, Algorithm::Auto).unwrap();
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
    let tuner = Tuner::default();
    for collective in Collective::ALL {
        for wish in Algorithm::ALL.into_iter().filter(|wish| !matches!(wish, Algorithm::Auto | Algorithm::Listed)) {
            let spec = Spec::new(collective, Ranks(3), Elements(100), 8);
            let recipe = tuner.recipe(spec, wish);
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
    let error = tuner.recipe(spec, Algorithm::Ring).unwrap_err();
    let words = "ring does no all-to-all: use one of direct, flat, bruck, pairwise, hierarchical";
    assert_eq!(error.to_string(), words);
}

/// What can not have results that are the same whatever the algorithm is refused, and all else has them.
#[test]
fn deterministic_results_are_had_or_refused() {
    let tuner = Tuner { tuning: Tuning { deterministic: true, ..Tuning::default() }, ..Tuner::default() };
    for collective in Collective::ALL {
        for wish in Algorithm::ALL {
            let named = !matches!(wish, Algorithm::Auto | Algorithm::Listed);
            if !named || !wish.does(collective) {
                continue;
            }
            for ranks in [2, 6, 9] {
                let recipe = tuner.recipe(Spec::new(collective, Ranks(ranks), Elements(50), 8), wish);
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
