use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

const MICRO: Duration = Duration::from_micros(1);

fn up(latencies: &[Duration]) -> Rails {
    let mut rails = Rails::new(latencies.len(), Duration::from_millis(250));
    for (rail, &latency) in latencies.iter().enumerate() {
        rails.probing(rail);
        assert!(rails.probed(rail, latency));
    }
    rails
}

/// A link that carries one slice after the other.
#[derive(Clone, Copy)]
struct Wire {
    /// Bytes a microsecond.
    rate: u64,
    latency: Duration,
    free: Duration,
}

impl Wire {
    fn new(rate: u64, latency: u64) -> Self {
        Wire { rate, latency: MICRO * latency as u32, free: Duration::ZERO }
    }

    fn carry(&mut self, len: u64, now: Duration) -> Duration {
        self.free = self.free.max(now) + Duration::from_nanos(len * 1000 / self.rate);
        self.free + self.latency
    }
}

/// How long `count` transfers of `total` bytes take, one after the other, and the bytes that each link carried. `dead`: a
/// link that carries nothing from that time on, and is noticed by its overdue slices.
fn run(wires: &mut [Wire], total: u64, count: usize, dead: Option<(usize, Duration)>) -> (Duration, Vec<u64>) {
    let latencies: Vec<_> = wires.iter().map(|wire| wire.latency).collect();
    let mut rails = up(&latencies);
    let (mut now, mut carried) = (Duration::ZERO, vec![0; wires.len()]);
    let mut begin = Duration::ZERO;
    // A first one shows what each carries.
    for number in 0..=count {
        if number == 1 {
            begin = now;
            carried.fill(0);
        }
        let mut queue = vec![total];
        let slice = slice_len(total, wires.len());
        let mut events = BinaryHeap::new();
        let mut under_way: Vec<VecDeque<u64>> = vec![VecDeque::new(); wires.len()];
        loop {
            while let Some(left) = queue.pop() {
                let len = left.min(slice);
                let Some(rail) = rails.pick(len, queue.iter().sum::<u64>() + left, now, |_| true) else {
                    queue.push(left);
                    break;
                };
                rails.posted(rail, len, now);
                under_way[rail].push_back(len);
                let done = wires[rail].carry(len, now);
                if !dead.is_some_and(|(dead, since)| dead == rail && done >= since) {
                    events.push(Reverse((done, rail)));
                }
                if left > len {
                    queue.push(left - len);
                }
            }
            if under_way.iter().all(VecDeque::is_empty) {
                break;
            }
            match events.pop() {
                Some(Reverse((at, rail))) => {
                    now = now.max(at);
                    rails.done(rail, now);
                    carried[rail] += under_way[rail].pop_front().unwrap();
                }
                // Nothing comes any more but the limit of the dead one.
                None => now += Duration::from_millis(1),
            }
            while let Some(rail) = rails.overdue(now) {
                assert_eq!(Some(rail), dead.map(|(rail, _)| rail), "only the dead one is given up");
                assert!(rails.down(rail, now));
                queue.extend(under_way[rail].drain(..));
            }
        }
    }
    (now - begin, carried)
}

#[test]
fn two_equal_rails_carry_nearly_twice_as_much() {
    for total in [1 << 20, 4 << 20, 64 << 20] {
        let wire = Wire::new(12_500, 2);
        let (one, _) = run(&mut [wire], total, 20, None);
        let (two, carried) = run(&mut [wire, wire], total, 20, None);
        let gain = one.as_secs_f64() / two.as_secs_f64();
        assert!(gain >= 1.8, "{total} bytes: {gain:.2} times as much");
        assert!(carried.iter().all(|&bytes| bytes > total * 20 * 45 / 100), "{carried:?}");
    }
}

#[test]
fn rails_of_unlike_speed_end_together() {
    for rates in [[12_500, 25_000, 50_000], [1000, 12_500, 12_500], [125, 12_500, 25_000]] {
        let mut wires = rates.map(|rate| Wire::new(rate, 3));
        let total = 64 << 20;
        let (took, carried) = run(&mut wires, total, 20, None);
        let all: u64 = rates.iter().sum();
        let ideal = Duration::from_nanos(total * 20 * 1000 / all);
        assert!(took < ideal * 115 / 100, "{rates:?}: {took:?}, ideal is {ideal:?}, {carried:?}");
    }
}

#[test]
fn a_rail_that_dies_gives_its_slices_to_the_others() {
    for dead in 0..2 {
        let wire = Wire::new(12_500, 2);
        let since = Duration::from_millis(2);
        let (took, carried) = run(&mut [wire, wire], 64 << 20, 4, Some((dead, since)));
        assert_eq!(carried.iter().sum::<u64>(), 4 * (64 << 20), "each byte once");
        let alone = Duration::from_nanos(4 * (64 << 20) * 1000 / 12_500);
        assert!(took < alone + Duration::from_millis(251), "{took:?}");
    }
}

#[test]
fn a_rail_that_failed_waits_longer_each_time_until_it_has_proven_itself() {
    let mut rails = up(&[MICRO, MICRO]);
    let mut now = Duration::ZERO;
    let fail = |rails: &mut Rails, now: &mut Duration| {
        assert!(rails.down(1, *now) && !rails.down(1, *now), "once is enough");
        let began = *now;
        assert_eq!((rails.due(*now, |_| true), rails.up()), (None, 1));
        while rails.due(*now, |_| true).is_none() {
            *now += Duration::from_millis(1);
        }
        rails.renewing(1, *now + Duration::from_secs(1));
        assert_eq!(rails.due(*now, |_| true), None);
        rails.probing(1);
        rails.probed(1, MICRO);
        assert_eq!(rails.up(), 2);
        *now - began
    };
    let pauses: Vec<_> = (0..9).map(|_| fail(&mut rails, &mut now).as_millis()).collect();
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    for _ in 0..PROVEN {
        rails.posted(1, 1000, now);
        rails.done(1, now);
    }
    assert_eq!(fail(&mut rails, &mut now).as_millis(), 100);
}

#[test]
fn a_rail_that_was_slow_once_is_tried_again_and_used_if_it_is_no_more() {
    let mut rails = up(&[MICRO, MICRO]);
    let (len, left) = (1 << 20, 64 << 20);
    let mut now = Duration::ZERO;
    let carry = |rails: &mut Rails, rail: usize, now: &mut Duration, took: Duration| {
        rails.posted(rail, len, *now);
        *now += took;
        rails.done(rail, *now);
    };
    carry(&mut rails, 0, &mut now, 84 * MICRO);
    carry(&mut rails, 1, &mut now, Duration::from_millis(200));
    carry(&mut rails, 0, &mut now, 84 * MICRO);
    let mut tried = 0;
    for _ in 0..20_000 {
        let rail = rails.pick(len, left, now, |_| true).unwrap();
        tried += u32::from(rail == 1);
        carry(&mut rails, rail, &mut now, 84 * MICRO);
    }
    assert!(now > Duration::from_secs(1) && tried == 1, "{tried} in {now:?}");
    // Now it is as fast as the other: with that busy, it is used.
    rails.posted(0, len, now);
    assert_eq!(rails.pick(len, left, now, |_| true), Some(1));
    // What a first probe waited for does not stay.
    let slow = up(&[MICRO, Duration::from_millis(60)]);
    let mut rails = slow;
    rails.probed(1, MICRO);
    rails.posted(0, len, now);
    assert_eq!(rails.pick(len, left, now, |_| true), Some(1));
    for _ in 0..100 {
        rails.probed(1, Duration::from_millis(60));
    }
    let slower = rails.seen().nth(1).unwrap().2;
    assert!(slower > Duration::from_millis(59), "{slower:?}");
}

#[test]
fn tries_that_fail_say_nothing_of_the_rate() {
    let mut rails = up(&[MICRO]);
    rails.posted(0, 1 << 20, Duration::ZERO);
    rails.done(0, 100 * MICRO);
    let rate = |rails: &Rails| rails.seen().next().unwrap().1.unwrap();
    let before = rate(&rails);
    for _ in 0..20 {
        assert!(rails.down(0, Duration::ZERO));
        rails.renewing(0, Duration::ZERO);
    }
    // It failed once, while it was used.
    assert!(rate(&rails).abs_diff(before / 2) <= 1000, "{before}, then {}", rate(&rails));
}

#[test]
fn a_queue_pair_that_is_not_made_in_time_is_given_up() {
    let mut rails = up(&[MICRO, MICRO]);
    rails.down(0, Duration::ZERO);
    assert_eq!((rails.next_try(), rails.next_limit()), (Some(Duration::from_millis(100)), None));
    rails.renewing(0, Duration::from_millis(300));
    assert_eq!((rails.next_try(), rails.next_limit()), (None, Some(Duration::from_millis(300))));
    assert_eq!(rails.overdue(Duration::from_millis(299)), None);
    assert_eq!(rails.overdue(Duration::from_millis(300)), Some(0));
    assert!(rails.down(0, Duration::from_millis(300)));
    assert_eq!(rails.stage(0), RailStage::Down(Duration::from_millis(500)));
    assert!(!Rails::new(2, MICRO).is_carrying() && Rails::new(2, MICRO).pick(1, 1, MICRO, |_| true).is_none());
}

proptest! {
    #[test]
    fn slices_are_neither_short_nor_long(total in SLICED_FROM..1 << 40, rails in 0usize..16) {
        let len = slice_len(total, rails);
        prop_assert!((SHORTEST..=LONGEST).contains(&len) && len.is_multiple_of(PAGE));
    }

    #[test]
    fn no_rail_has_more_than_its_depth_and_none_is_picked_that_is_not_up(
        picks in proptest::collection::vec((0u8..4, 1u64..1 << 20, 0u64..1000), 1..200)
    ) {
        let mut rails = up(&[MICRO, MICRO * 50, MICRO]);
        let (mut now, mut under_way) = (Duration::ZERO, [0; 3]);
        for (what, len, later) in picks {
            now += MICRO * later as u32;
            match what {
                0 | 1 => if let Some(rail) = rails.pick(len, len * 3, now, |rail| rail != 1) {
                    prop_assert_eq!(rails.stage(rail), RailStage::Up);
                    prop_assert!(rail != 1, "it can not");
                    rails.posted(rail, len, now);
                    under_way[rail] += 1;
                    prop_assert!(under_way[rail] <= DEPTH);
                },
                2 => for (rail, count) in under_way.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
                    rails.done(rail, now);
                    *count -= 1;
                },
                _ => {
                    let rail = (len % 3) as usize;
                    rails.down(rail, now);
                    under_way[rail] = 0;
                    if len % 2 == 0 {
                        rails.probing(rail);
                        rails.probed(rail, MICRO);
                    }
                }
            }
        }
    }
}
