//! The choice of algorithms.

use qpair_collectives::tune::{Algorithm, TuneError, Tuning, choose, plan};
use qpair_collectives::{Collective, Elements, Ranks};

const BROADCAST: Collective = Collective::Broadcast { root: 1 };

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
        "unknown algorithm `rign`: use one of auto, ring, recursive-doubling, direct, \
         exchange, flat, binomial-tree, chain, dissemination"
    );
}

#[test]
fn automatic_choices() {
    let tuning = Tuning::default();
    let auto = |collective, ranks, bytes| choose(collective, Ranks(ranks), bytes, &tuning, Algorithm::Auto).unwrap();
    let (few, flat, edge) = (tuning.exchange_to_ranks, tuning.flat_to_ranks, tuning.recursive_doubling_to);
    assert_eq!(auto(Collective::AllReduce, few, 0), Algorithm::Exchange);
    assert_eq!(auto(Collective::AllReduce, few, edge), Algorithm::Exchange);
    assert_eq!(auto(Collective::AllReduce, few, edge + 1), Algorithm::Direct);
    assert_eq!(auto(Collective::AllReduce, few + 1, edge), Algorithm::RecursiveDoubling);
    assert_eq!(auto(Collective::AllReduce, few + 1, edge + 1), Algorithm::Direct);
    assert_eq!(auto(Collective::AllReduce, 65, 1 << 20), Algorithm::Ring);
    assert_eq!(auto(BROADCAST, flat, 8), Algorithm::Flat);
    assert_eq!(auto(BROADCAST, flat, 1 << 20), Algorithm::Flat);
    assert_eq!(auto(BROADCAST, flat + 1, 8), Algorithm::BinomialTree);
    assert_eq!(auto(BROADCAST, flat + 1, 1 << 20), Algorithm::Chain);
    assert_eq!(auto(Collective::Barrier, flat, 0), Algorithm::Exchange);
    assert_eq!(auto(Collective::Barrier, flat + 1, 0), Algorithm::Dissemination);
}

#[test]
fn a_wish_is_granted_or_refused() {
    let tuning = Tuning::default();
    for collective in [Collective::AllReduce, BROADCAST, Collective::Barrier] {
        for wish in Algorithm::ALL {
            let plan = plan(collective, Ranks(3), Elements(100), 8, &tuning, wish);
            if wish.does(collective) {
                let elements = if collective == Collective::Barrier { 0 } else { 100 };
                let plan = plan.unwrap();
                assert_eq!(plan.verify(), Ok(()));
                assert_eq!(plan.collective, collective);
                assert_eq!(plan.elements, Elements(elements));
                if wish != Algorithm::Auto {
                    assert_eq!(plan.algorithm, wish.name());
                }
            } else {
                let algorithm = wish;
                assert_eq!(plan, Err(TuneError::Mismatch { algorithm, collective }));
            }
        }
    }
}
