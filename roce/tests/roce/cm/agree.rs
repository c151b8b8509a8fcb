//! Both ends of each connection come to the same end, whatever the network does.

use std::time::Duration;

use proptest::prelude::*;

use super::pair::{Act, Known, Pair, Plan};
use crate::network::Faults;

fn plan() -> impl Strategy<Value = Plan> {
    let act = || prop_oneof![3 => Just(Act::Agree), 1 => Just(Act::AskForTime), 1 => Just(Act::Dawdle), 1 => Just(Act::Refuse)];
    (0..2usize, act(), act()).prop_map(|(asker, asked, accepted)| Plan { asker, acts: [asked, accepted] })
}

fn faults(worst: f64) -> impl Strategy<Value = Faults> {
    let share = move || prop_oneof![Just(0.0), 0.0..worst];
    (share(), share(), share()).prop_map(|(loss, duplicate, reorder)| Faults {
        loss,
        duplicate,
        reorder,
        ..Faults::default()
    })
}

/// What the two ends know of a plan: the asker, and the asked, who may have been asked more than once.
fn known(pair: &Pair, number: usize, plan: Plan) -> (Known, Vec<Known>) {
    let of = |end: usize| pair.ends[end].known.values().filter(move |known| known.plan == number).cloned();
    let asker = of(plan.asker).find(|known| known.is_asker).expect("who asked knows that");
    (asker, of(1 - plan.asker).filter(|known| !known.is_asker).collect())
}

/// Sets up what is planned; then ends what is established, from one end each, until nothing is.
fn run(seed: u64, faults: Faults, plans: &[Plan], closers: &[usize], check: impl Fn(Known, Vec<Known>, Plan)) {
    let mut pair = Pair::new(seed, faults, plans.to_vec());
    let start = pair.now;
    pair.drive();
    for (number, plan) in plans.iter().enumerate() {
        let (asker, asked) = known(&pair, number, *plan);
        check(asker, asked, *plan);
    }
    // An end that is left alone learns it from its queue pair, and ends the connection too.
    for round in 0.. {
        let end = closers[round % closers.len()];
        let end = if pair.established(end).is_empty() { 1 - end } else { end };
        let Some(id) = pair.established(end).first().copied() else { break };
        pair.disconnect(end, id);
        pair.drive();
    }
    for end in &pair.ends {
        assert_eq!((end.cm.connections(), end.cm.timeout()), (0, None));
        for known in end.known.values() {
            assert!(known.end.is_some(), "{known:?} has not ended");
            assert!(known.released || !known.was_established, "{known:?} did not linger");
        }
    }
    // Each exchange takes 16 times 2 ms and what was asked for at most; three for each connection.
    assert!(pair.now - start < Duration::from_secs(plans.len() as u64 + 1), "{:?}", pair.now - start);
}

fn agree(asker: &Known, asked: &[Known]) {
    let open: Vec<_> = asked.iter().filter(|known| known.was_established && known.end.is_none()).collect();
    assert!(open.len() <= 1, "{open:?}");
    let both = asker.was_established && asker.end.is_none();
    assert_eq!(both, open.len() == 1, "{asker:?}, {asked:?}");
    if let [Known { terms: Some(theirs), .. }] = open[..] {
        let own = asker.terms.expect("it was accepted");
        assert_eq!((own.send_psn, own.receive_psn), (theirs.receive_psn, theirs.send_psn));
        assert_eq!((own.max_reads, own.reads_answered), (theirs.reads_answered, theirs.max_reads));
        assert_eq!((theirs.max_reads, theirs.mtu, theirs.ack_timeout), (3, own.mtu, own.ack_timeout));
    }
    // All others know that it failed.
    assert!(asker.was_established || asker.end.is_some(), "{asker:?}");
    assert!(asked.iter().all(|known| known.was_established || known.end.is_some()), "{asked:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn both_ends_agree(
        seed in any::<u64>(),
        faults in faults(0.2),
        plans in prop::collection::vec(plan(), 1..6),
        closers in prop::collection::vec(0..2usize, 1..6),
    ) {
        run(seed, faults, &plans, &closers, |asker, asked, plan| {
            agree(&asker, &asked);
            // Retries are enough: what both applications want comes about.
            let wanted = !plan.acts.contains(&Act::Refuse);
            assert_eq!(asker.was_established && asker.end.is_none(), wanted, "{asker:?}, {asked:?}");
        });
    }

    #[test]
    fn what_fails_is_over_in_time(
        seed in any::<u64>(),
        faults in faults(0.8),
        plans in prop::collection::vec(plan(), 1..6),
        closers in prop::collection::vec(0..2usize, 1..6),
    ) {
        run(seed, faults, &plans, &closers, |_, _, _| {});
    }
}

#[test]
fn a_peer_that_is_not_there() {
    let faults = Faults { loss: 1.0, ..Faults::default() };
    run(1, faults, &[Plan { asker: 0, acts: [Act::Agree; 2] }], &[0], |asker, asked, _| {
        assert_eq!((asker.end, asked.len()), (Some("timed out"), 0));
    });
}
