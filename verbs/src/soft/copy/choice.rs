//! By which way a thread copies long ranges: into the caches, or past them, whichever was faster of late.
//!
//! A line of the target that is in another core's cache too, since a peer has read what was there before, must leave that
//! before it is written, and such stores wait for each other. Stores past the caches do not. What was copied so is read from
//! memory later, which costs as much as it gains where the target is this core's alone. GB/s from and to memory that two cores
//! of an AMD EPYC (Zen 4) copy to and fro, each what the other has just written, near each other (a flag takes 50 ns) and far
//! apart (200 ns):
//!
//! | | 64 KiB | 256 KiB | 1 MiB | 4 MiB | 16 MiB |
//! |---|---|---|---|---|---|
//! | near, into the caches | 7.7 | 7.6 | 13.8 | 26.6 | 13.7 |
//! | near, past them | 15.5 | 16.2 | 19.8 | 20.1 | 15.5 |
//! | far, into the caches | 2.2 | 2.3 | 2.3 | 2.5 | 3.8 |
//! | far, past them | 17.5 | 21.8 | 21.8 | 25.5 | 21.0 |
//!
//! And to memory of this core's alone, which it reads afterwards, both together:
//!
//! | | 64 KiB | 256 KiB | 1 MiB | 4 MiB | 16 MiB |
//! |---|---|---|---|---|---|
//! | near, into the caches | 25.0 | 22.2 | 25.6 | 26.6 | 12.5 |
//! | near, past them | 12.6 | 13.9 | 16.2 | 15.8 | 13.8 |
//! | far, into the caches | 13.1 | 13.8 | 17.4 | 16.4 | 10.1 |
//! | far, past them | 10.6 | 13.4 | 14.3 | 14.6 | 10.5 |
//!
//! Which of the two it is nobody can tell beforehand, so that each thread measures its copies, and now and then some by the
//! other way.

use std::cell::Cell;

use super::long;

/// True if there is a choice for the copy of so many bytes, but for the last eight, which others copy.
pub(super) const fn is_long(len: usize) -> bool {
    len + LAST >= LONG
}

/// Copies `len` bytes, first to last.
///
/// # Safety
/// As [`long::copy`].
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let at = ((len + LAST) / LONG).max(1).ilog2().div_ceil(2).min(SIZES as u32 - 1) as usize;
    let gain = if at == 0 { GAIN_OF_SHORT } else { GAIN };
    CHOICES.with(|choices| {
        let mut choice = choices[at].get();
        let way = choice.next();
        let start = long::cycles();
        // SAFETY: passed on to the caller.
        unsafe {
            match way {
                Way::Cached => long::copy(to, from, len),
                Way::Past => long::copy_past(to, from, len),
            }
        }
        let took = long::cycles().saturating_sub(start);
        choice.note(way, took.saturating_mul(1 << 10) / len.max(1) as u64, gain);
        choices[at].set(choice);
    });
}

thread_local! {
    /// Of each range of sizes.
    static CHOICES: [Cell<Choice>; SIZES] = const { [const { Cell::new(Choice::NEW) }; SIZES] };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cached,
    Past,
}

/// What is known of copies of one range of sizes.
#[derive(Clone, Copy, Debug)]
struct Choice {
    way: Way,
    /// Cycles that 1,024 bytes take by it, on average of late; 0 until it is known.
    cost: u64,
    /// The least that they took of the copies that try the other.
    other: u64,
    /// Copies until the other is tried, [`TRIES`] times in a row, and how many it was the last time.
    left: u32,
    pause: u32,
}

impl Choice {
    const NEW: Choice = Choice { way: Way::Cached, cost: 0, other: u64::MAX, left: LEAST_PAUSE, pause: LEAST_PAUSE };

    fn next(&self) -> Way {
        match self.way {
            way if self.left > TRIES => way,
            Way::Cached => Way::Past,
            Way::Past => Way::Cached,
        }
    }

    /// Notes what a copy cost. Past the caches it has to be `gain` quarters as fast.
    fn note(&mut self, way: Way, cost: u64, gain: u64) {
        self.left -= 1;
        if way == self.way {
            // A copy that was interrupted says little; if the first was, the next shows it.
            let is_first = self.cost == 0 || cost < self.cost / 4;
            self.cost = if is_first { cost } else { (3 * self.cost + cost.min(2 * self.cost)) / 4 };
            return;
        }
        self.other = self.other.min(cost);
        if self.left > 0 {
            return;
        }
        let (cached, past) = if self.way == Way::Cached { (self.cost, self.other) } else { (self.other, self.cost) };
        // Once it is so, somewhat less will do: the two do not take turns.
        let gain = if self.way == Way::Past { gain * 5 / 6 } else { gain };
        let best = if past.saturating_mul(gain) < cached.saturating_mul(4) { Way::Past } else { Way::Cached };
        self.pause = if best == self.way { (2 * self.pause).min(GREATEST_PAUSE) } else { LEAST_PAUSE };
        *self = Choice {
            way: best,
            cost: if best == self.way { self.cost } else { self.other },
            other: u64::MAX,
            left: self.pause,
            pause: self.pause,
        };
    }
}

/// Bytes of a range that are stored after all others, by themselves.
const LAST: usize = 8;
/// Shorter copies go into the caches: to measure one costs some ten nanoseconds.
pub(super) const LONG: usize = 16 << 10;
/// Ranges of sizes: from 16 KiB, 32 KiB, 128 KiB, 512 KiB and 2 MiB on.
const SIZES: usize = 5;
/// What is copied past the caches costs its reader later, so that it has to be half as fast again. Of the shortest ranges more: a
/// broadcast of 16 KiB among four ranks on two near cores took 6.4 us instead of 4.6 where half as fast again was enough.
const GAIN: u64 = 6;
const GAIN_OF_SHORT: u64 = 12;
/// Copies that try the other way.
const TRIES: u32 = 2;
/// Copies from one trial to the next, those of the trial among them: twice as many each time that it changes nothing, so that it
/// costs little where the other way is much slower.
const LEAST_PAUSE: u32 = 16;
const GREATEST_PAUSE: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// So many copies where those into the caches cost `cached` and those past them `past`; how many went past them.
    fn copy_where(choice: &mut Choice, copies: usize, cached: u64, past: u64) -> usize {
        let went_past = |_: &usize| {
            let way = choice.next();
            choice.note(way, if way == Way::Cached { cached } else { past }, GAIN);
            way == Way::Past
        };
        (0..copies).filter(went_past).count()
    }

    #[test]
    fn the_faster_way_is_found_and_the_other_is_tried_seldom() {
        let mut choice = Choice::NEW;
        // As near cores have it, and memory of one of them alone.
        assert!(copy_where(&mut choice, 10_000, 100, 140) < 60);
        assert_eq!(choice.way, Way::Cached);
        // Not fast enough for what reading it costs later.
        assert!(copy_where(&mut choice, 10_000, 140, 100) < 60);
        // As far ones have it.
        assert!(copy_where(&mut choice, 10_000, 800, 100) > 9_400);
        assert_eq!(choice.way, Way::Past);
        assert!(
            copy_where(&mut choice, 10_000, 130, 100) > 9_900,
            "once it is so it stays, if it is faster by a quarter"
        );
        assert!(copy_where(&mut choice, 10_000, 100, 140) < 700);
        assert_eq!(choice.way, Way::Cached);
    }

    #[test]
    fn a_copy_that_was_interrupted_changes_nothing() {
        let mut choice = Choice::NEW;
        copy_where(&mut choice, 1000, 100, 140);
        for _ in 0..1000 {
            let way = choice.next();
            choice.note(way, 1_000_000, GAIN);
            copy_where(&mut choice, 20, 100, 140);
            assert_eq!(choice.way, Way::Cached);
        }
    }

    #[test]
    fn long_copies_are_whole_by_either_way() {
        if !long::is_supported() {
            return;
        }
        let from: Vec<u8> = (0..300_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let mut to = vec![0; from.len()];
        for len in [LONG - LAST, 4 * LONG, 15 * LONG] {
            for round in 0..100 {
                to.fill(0);
                // SAFETY: both hold that many bytes; AVX2 is there.
                unsafe { copy(to.as_mut_ptr(), from.as_ptr(), len) };
                assert!(to[..len] == from[..len], "{len} bytes, round {round}");
            }
        }
    }
}
