//! What is promised of each run, and a table of what they came to, as a committed file.

use std::time::Duration;

use qpair_roce::congestion::Rate;

use super::bottleneck::{DEPLOYED, Red};
use super::scenario::{Arrival, FAIR, LINK, Outcome, SETTLING};
use super::world::World;

#[test]
fn senders_share_a_link() {
    let mut table = String::from(Outcome::HEADER);
    for arrival in [Arrival::Staggered, Arrival::Together] {
        for senders in [2, 4, 8] {
            let runs = SEEDS.map(|seed| Outcome::of(senders, arrival, seed));
            let worst = runs.into_iter().reduce(Outcome::worse).expect("there are runs");
            table += &format!("{worst}\n");
            promised(&worst);
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/roce/congestion/sharing.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &table).expect("the table is written");
    }
    assert_eq!(table, std::fs::read_to_string(path).expect("there is a table"), "UPDATE=1 writes the table anew");
}

/// What holds whatever the table says.
fn promised(outcome: &Outcome) {
    let Outcome { shared, left, .. } = outcome;
    assert!(outcome.fair_after <= 60, "{outcome}");
    assert!(u128::from(outcome.taken_after) <= SETTLING.as_millis(), "{outcome}");
    for sharing in [shared, left] {
        assert!(sharing.fairness >= FAIR && sharing.used >= 0.9, "{outcome}");
        assert!(sharing.least >= 0.7 && sharing.most <= 1.3, "within 30 % of the fair share: {outcome}");
        assert!(sharing.queue <= 2 * DEPLOYED.k_max, "{outcome}");
    }
    // Until the first CNPs come all that is too much is queued: that of two times between CNPs, if all send at once.
    let excess = (outcome.senders as u64 - 1) * LINK.bps() / 8 / 10_000;
    assert!(outcome.first_queue <= excess + 2 * DEPLOYED.k_max, "{outcome}");
}

#[test]
fn each_notification_comes_to_its_queue_pair() {
    let mut world = World::new(2, LINK, DEPLOYED, 1);
    world.starts(0, Duration::ZERO, LINK);
    world.starts(1, Duration::ZERO, LINK);
    world.stops(0, Duration::from_millis(5));
    world.stops(1, Duration::from_millis(5));
    world.run(Duration::from_millis(6));
    let counters = world.counters;
    assert!(counters.np_ecn_marked_roce_packets > counters.np_cnp_sent && counters.np_cnp_sent > 4, "{counters:?}");
    assert_eq!((counters.rp_cnp_handled, counters.rp_cnp_ignored), (counters.np_cnp_sent, 0));
}

#[test]
fn without_notifications_the_queue_grows() {
    let blind = Red { k_min: u64::MAX, k_max: u64::MAX, p_max: 0.0 };
    let mut world = World::new(2, LINK, blind, 1);
    world.starts(0, Duration::ZERO, LINK);
    world.starts(1, Duration::ZERO, LINK);
    let sample = world.run(Duration::from_millis(2));
    assert_eq!((sample.usage.peak / 1_000_000, sample.usage.idle), (10, Duration::ZERO));
}

#[test]
fn one_sender_alone_has_the_link() {
    let mut world = World::new(1, LINK, DEPLOYED, 1);
    world.starts(0, Duration::ZERO, Rate::from_gbps(1));
    world.run(Duration::from_millis(60));
    let sample = world.run(Duration::from_millis(2));
    // All of it: one packet more than goes into the time.
    assert_eq!((sample.sent[0].div_ceil(1106), world.counters.np_cnp_sent), (10_000_000u64.div_ceil(1106), 0));
}

const SEEDS: [u64; 3] = [1, 2, 3];
