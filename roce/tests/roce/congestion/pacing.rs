//! The token bucket.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use qpair_roce::congestion::{Pacer, Rate};

/// A byte in 8 ns.
const GIGABIT: Rate = Rate::from_gbps(1);

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

#[test]
fn a_burst_goes_at_once_and_then_the_rate() {
    let start = Instant::now();
    let mut pacer = Pacer::new(start, GIGABIT, 2000);
    assert_eq!(pacer.available(start), 2000);
    pacer.sent(start, 1000);
    assert_eq!((pacer.next(start, 1000), pacer.next(start, 1001)), (start, start + nanos(8)));
    pacer.sent(start, 1000);
    assert_eq!((pacer.available(start), pacer.next(start, 1000)), (0, start + nanos(8000)));
    assert_eq!(pacer.available(start + nanos(4007)), 500);
}

#[test]
fn a_pause_saves_one_burst_at_most() {
    let start = Instant::now();
    let later = start + Duration::from_secs(1_000_000_000);
    // In a nanosecond the link takes 50 bytes; they do not add to the burst.
    let mut pacer = Pacer::new(start, Rate::from_gbps(400), 2000);
    pacer.sent(start, 2000);
    assert_eq!(pacer.available(later), 2000);
    pacer.sent(later, 2000);
    assert_eq!(pacer.next(later, 2000), later + nanos(39));
}

#[test]
fn a_packet_longer_than_the_burst_goes_at_the_rate() {
    let start = Instant::now();
    let mut pacer = Pacer::new(start, GIGABIT, 100);
    assert_eq!(pacer.next(start, 1000), start);
    pacer.sent(start, 1000);
    assert_eq!(pacer.next(start, 1000), start + nanos(8000));
}

#[test]
fn a_new_rate_counts_from_its_time_on() {
    let start = Instant::now();
    let mut pacer = Pacer::new(start, GIGABIT, 1000);
    pacer.sent(start, 1000);
    pacer.set_rate(start + nanos(4000), Rate::from_mbps(500));
    assert_eq!(pacer.available(start + nanos(4000)), 500);
    assert_eq!(pacer.next(start + nanos(4000), 1000), start + nanos(12_000));
}

#[test]
fn no_value_panics() {
    let start = Instant::now();
    for rate in [0, 1, u64::MAX] {
        for burst in [0, 1, u32::MAX] {
            let mut pacer = Pacer::new(start, Rate::from_bps(rate), burst);
            for _ in 0..4 {
                pacer.sent(start, u32::MAX);
            }
            let next = pacer.next(start, u32::MAX);
            assert!(next >= start && pacer.available(next) <= Pacer::MAX_BURST);
        }
    }
}

proptest! {
    #[test]
    fn never_more_than_the_rate_and_a_burst(
        burst in 1..100_000u32,
        mbps in 1..400_000u32,
        packets in prop::collection::vec((1..9000u32, 0..3_000u64), 1..100),
    ) {
        let mut now = Instant::now();
        let mut pacer = Pacer::new(now, Rate::from_mbps(mbps), burst);
        let mut sent: Vec<(Instant, u32)> = Vec::new();
        for (bytes, pause) in packets {
            now = pacer.next(now + nanos(pause), bytes);
            prop_assert!(pacer.available(now) >= bytes.min(burst));
            pacer.sent(now, bytes);
            sent.push((now, bytes));
            // Back from here, in any time.
            let mut sum = 0;
            for (from, bytes) in sent.iter().rev() {
                sum += u128::from(*bytes);
                let allowed = (now - *from).as_nanos() * u128::from(mbps) / 8000;
                let over = u128::from(burst.max(9000)) + u128::from(mbps).div_ceil(8000);
                prop_assert!(sum <= allowed + over, "{sum} where {allowed} and {over} are allowed");
            }
        }
    }

    #[test]
    fn a_sender_that_always_sends_has_all_of_the_rate(mbps in 1..400_000u32, bytes in 1..9000u32) {
        let start = Instant::now();
        let mut now = start;
        let mut pacer = Pacer::new(start, Rate::from_mbps(mbps), bytes);
        for _ in 0..1000 {
            now = pacer.next(now, bytes);
            pacer.sent(now, bytes);
        }
        // 999 packets after the first; the clock's nanosecond is all that is lost.
        let exact = 999 * u128::from(bytes) * 8000 / u128::from(mbps);
        prop_assert!((now - start).as_nanos() <= exact + 1, "{:?} where {exact} ns are right", now - start);
    }
}
