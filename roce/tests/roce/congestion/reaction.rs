//! The reaction point: one event, and what the paper says comes of it.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use qpair_roce::Counters;
use qpair_roce::congestion::{DcqcnParameters, Rate, ReactionPoint};

const LINE: Rate = Rate::from_gbps(40);
const PAPER: DcqcnParameters = DcqcnParameters::new(LINE);

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A sender that was told of congestion once, and when.
fn limited(parameters: DcqcnParameters) -> (ReactionPoint, Instant) {
    let (mut point, now) = (ReactionPoint::new(parameters), Instant::now());
    point.handle_cnp(now, &mut Counters::default());
    (point, now)
}

#[test]
fn the_values_are_the_papers() {
    assert_eq!((PAPER.r_ai, PAPER.r_hai), (Rate::from_mbps(40), Rate::from_mbps(400)));
    assert_eq!((PAPER.g, PAPER.f, PAPER.byte_counter), (1.0 / 256.0, 5, 10_000_000));
    assert_eq!((PAPER.k, PAPER.timer), (micros(55), micros(55)));
}

#[test]
fn a_sender_begins_at_the_rate_of_the_link() {
    let mut point = ReactionPoint::new(PAPER);
    point.sent(u32::MAX);
    assert_eq!((point.rate(), point.timeout()), (LINE, None));
}

#[test]
fn a_cnp_cuts_by_half_of_alpha_and_what_was_is_the_target() {
    let (point, now) = limited(PAPER);
    assert_eq!((point.rate(), point.target()), (Rate::from_gbps(20), LINE));
    assert_eq!(point.timeout(), Some(now + micros(55)));
}

#[test]
fn a_cnp_raises_alpha_by_g() {
    let (mut point, now) = limited(DcqcnParameters { g: 0.25, ..PAPER });
    assert_eq!(point.alpha(now), 1.0);
    // Four periods of K without one, and the fifth CNP within none: 0.75^4, and of that three quarters and one.
    point.handle_cnp(now + micros(220), &mut Counters::default());
    assert_eq!(point.alpha(now + micros(220)), 0.75f64.powi(5) + 0.25);
}

#[test]
fn alpha_sinks_by_g_for_each_k_without_a_cnp() {
    let (point, now) = limited(DcqcnParameters { g: 0.5, ..PAPER });
    let alphas = [0, 54, 55, 109, 110, 165].map(|at| point.alpha(now + micros(at)));
    assert_eq!(alphas, [1.0, 1.0, 0.5, 0.5, 0.25, 0.125]);
    assert!(point.alpha(now + Duration::from_secs(1 << 32)) < 1e-300);
}

#[test]
fn the_cut_is_by_alpha_of_its_time() {
    let (mut point, now) = limited(DcqcnParameters { g: 0.5, ..PAPER });
    point.handle_cnp(now + micros(110), &mut Counters::default());
    // Fast recovery was at 35 Gb/s, and alpha at 1/4.
    assert_eq!(point.target(), Rate::from_gbps(35));
    assert_eq!(point.rate(), Rate::from_bps(30_625_000_000));
}

#[test]
fn one_cut_in_a_period() {
    let (mut point, now) = limited(PAPER);
    let mut counters = Counters::default();
    point.handle_cnp(now + Duration::from_nanos(3999), &mut counters);
    assert_eq!((point.rate(), counters.rp_cnp_ignored, counters.rp_cnp_handled), (Rate::from_gbps(20), 1, 0));
    point.handle_cnp(now + micros(4), &mut counters);
    assert_eq!((point.rate(), counters.rp_cnp_ignored, counters.rp_cnp_handled), (Rate::from_gbps(10), 1, 1));
}

#[test]
fn no_rate_is_cut_below_the_least() {
    let (mut point, now) = limited(PAPER);
    for cut in 1..100 {
        point.handle_cnp(now + micros(5 * cut), &mut Counters::default());
    }
    assert_eq!(point.rate(), Rate::from_mbps(40));
}

#[test]
fn fast_recovery_goes_half_way_five_times() {
    let (mut point, now) = limited(PAPER);
    let mut rates = Vec::new();
    for end in 1..=5 {
        point.handle_timeout(now + micros(55 * end));
        rates.push(point.rate().bps() / 1_000_000);
        assert_eq!(point.target(), LINE);
    }
    assert_eq!(rates, [30_000, 35_000, 37_500, 38_750, 39_375]);
}

/// A sender at a target of 20 Gb/s, so many ends of the timer and of the byte counter after a cut, and when the timer
/// ends next.
fn after(timers: u32, byte_counters: u32) -> (ReactionPoint, Instant) {
    let (mut point, now) = limited(PAPER);
    point.handle_cnp(now + micros(4), &mut Counters::default());
    for _ in 0..timers {
        let at = point.timeout().expect("it is limited");
        point.handle_timeout(at);
    }
    for _ in 0..byte_counters {
        point.sent(10_000_000);
    }
    (point, point.timeout().expect("it is limited"))
}

/// By how many Mb/s the next end of the timer raises the target.
fn raised(timers: u32, byte_counters: u32) -> u64 {
    let (mut point, at) = after(timers, byte_counters);
    let before = point;
    point.handle_timeout(at);
    assert_eq!(point.rate().bps(), (before.rate().bps() + point.target().bps()).div_ceil(2), "half-way");
    (point.target().bps() - before.target().bps()) / 1_000_000
}

#[test]
fn the_phases_are_those_of_the_paper() {
    for (timers, byte_counters) in [(0, 0), (4, 0), (0, 4), (4, 4)] {
        assert_eq!(raised(timers, byte_counters), 0, "fast recovery");
    }
    for (timers, byte_counters) in [(5, 0), (0, 5), (5, 5), (100, 5), (5, 100)] {
        assert_eq!(raised(timers, byte_counters), 40, "additive increase");
    }
    for ((timers, byte_counters), iterations) in [((6, 6), 1), ((6, 9), 1), ((10, 7), 2), ((8, 8), 3)] {
        assert_eq!(raised(timers, byte_counters), 400 * iterations, "hyper increase");
    }
}

#[test]
fn the_target_is_not_raised_above_the_link() {
    let (mut point, now) = limited(PAPER);
    point.handle_timeout(now + micros(55 * 8));
    assert_eq!(point.target(), LINE);
}

#[test]
fn the_byte_counter_raises_too() {
    let (mut point, now) = limited(PAPER);
    point.sent(9_999_999);
    assert_eq!(point.rate(), Rate::from_gbps(20));
    point.sent(1);
    assert_eq!(point.rate(), Rate::from_gbps(30));
    // Its end is not the timer's.
    assert_eq!(point.timeout(), Some(now + micros(55)));
    point.sent(20_000_000);
    assert_eq!(point.rate(), Rate::from_mbps(37_500));
}

#[test]
fn without_a_byte_counter_bytes_raise_nothing() {
    let (mut point, _) = limited(DcqcnParameters { byte_counter: 0, ..PAPER });
    point.sent(u32::MAX);
    assert_eq!(point.rate(), Rate::from_gbps(20));
}

#[test]
fn a_cnp_begins_recovery_anew() {
    let (mut point, at) = after(7, 7);
    point.sent(9_999_999);
    let before = point.rate();
    point.handle_cnp(at - micros(1), &mut Counters::default());
    assert_eq!((point.target(), point.timeout()), (before, Some(at + micros(54))));
    // The byte counter begins anew, and fast recovery has its five iterations.
    let cut = point.rate();
    point.sent(9_999_999);
    assert_eq!(point.rate(), cut);
    point.handle_timeout(at + micros(54 + 4 * 55));
    assert_eq!(point.target(), before);
    point.handle_timeout(at + micros(54 + 5 * 55));
    assert_eq!(point.target().bps(), before.bps() + PAPER.r_ai.bps());
}

#[test]
fn at_the_rate_of_the_link_all_rests() {
    let (mut point, now) = limited(PAPER);
    point.handle_timeout(now + Duration::from_secs(1 << 20));
    assert_eq!((point.rate(), point.timeout()), (LINE, None));
}

#[test]
fn values_that_lead_nowhere_come_to_an_end() {
    let parameters = DcqcnParameters { timer: Duration::ZERO, k: Duration::ZERO, r_ai: Rate::from_bps(0), ..PAPER };
    let now = Instant::now();
    let mut point = ReactionPoint::starting_at(now, Rate::from_gbps(1), parameters);
    let late = now + Duration::from_secs(1 << 20);
    point.handle_timeout(late);
    assert_eq!((point.rate(), point.timeout()), (Rate::from_gbps(1), Some(late)));
    point.handle_cnp(late, &mut Counters::default());
    assert_eq!(point.rate(), Rate::from_mbps(500));
}

#[test]
fn a_late_timeout_does_what_was_due() {
    let (mut late, now) = limited(PAPER);
    let mut prompt = late;
    for end in 1..=20 {
        prompt.handle_timeout(now + micros(55 * end));
    }
    late.handle_timeout(now + micros(55 * 20));
    assert_eq!((late.rate(), late.target(), late.timeout()), (prompt.rate(), prompt.target(), prompt.timeout()));
}

#[test]
fn a_sender_may_begin_lower() {
    let now = Instant::now();
    let mut point = ReactionPoint::starting_at(now, Rate::from_gbps(1), PAPER);
    assert_eq!((point.rate(), point.timeout()), (Rate::from_gbps(1), Some(now + micros(55))));
    point.handle_timeout(now + micros(55));
    assert_eq!((point.target(), point.rate()), (Rate::from_mbps(1040), Rate::from_mbps(1020)));
    let ends = [0, 100].map(|gigabits| ReactionPoint::starting_at(now, Rate::from_gbps(gigabits), PAPER).rate());
    assert_eq!(ends, [PAPER.rpg_min_rate, LINE]);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Cnp,
    Sent(u32),
    Timeout,
}

proptest! {
    #[test]
    fn rates_keep_their_bounds(
        events in prop::collection::vec(
            (0..2_000_000u64, prop_oneof![Just(Event::Cnp), any::<u32>().prop_map(Event::Sent), Just(Event::Timeout)]),
            0..200,
        ),
        g in 0.0..=1.0f64,
        f in 0..10u32,
    ) {
        let parameters = DcqcnParameters { g, f, ..PAPER };
        let (mut point, mut now) = limited(parameters);
        let mut counters = Counters::default();
        let mut cnps = 0;
        for (pause, event) in events {
            now += Duration::from_nanos(pause);
            let before = point.rate();
            match event {
                Event::Cnp => {
                    cnps += 1;
                    point.handle_cnp(now, &mut counters);
                }
                Event::Sent(bytes) => {
                    point.sent(bytes);
                    prop_assert!(point.rate() >= before);
                }
                Event::Timeout => {
                    point.handle_timeout(now);
                    prop_assert!(point.rate() >= before && point.timeout().is_none_or(|at| at > now));
                }
            }
            prop_assert!((parameters.rpg_min_rate..=LINE).contains(&point.rate()));
            prop_assert!(point.rate() <= point.target() && point.target() <= LINE);
            prop_assert!((0.0..=1.0).contains(&point.alpha(now)));
            prop_assert_eq!(point.timeout().is_none(), point.rate() == LINE);
        }
        prop_assert_eq!(counters.rp_cnp_handled + counters.rp_cnp_ignored, cnps);
    }
}
