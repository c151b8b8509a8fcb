//! Work on many ranks, shared by the cores that there are.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

/// Calls `work` with ranges that make up `0..count`, and gives what it gives, in that order. They run beside each other if
/// `steps`, a measure of the work, makes that worth while.
pub(crate) fn in_ranges<T: Send>(count: usize, steps: usize, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    let threads = threads(steps).min(count.max(1));
    let range = |i: usize| count * i / threads..count * (i + 1) / threads;
    if threads == 1 {
        return vec![work(0..count)];
    }
    let work = &work;
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|i| scope.spawn(move || work(range(i)))).collect();
        let own = work(range(0));
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        [own].into_iter().chain(others).collect()
    })
}

/// Does two things, beside each other if `steps`, a measure of the work, makes that worth while.
pub(crate) fn both<A: Send, B>(steps: usize, one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    if threads(steps) == 1 {
        return (one(), other());
    }
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), other)
    })
}

/// How many threads so much work is worth.
fn threads(steps: usize) -> usize {
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    if steps < 2 * WORTH_A_THREAD { 1 } else { cores().min(steps / WORTH_A_THREAD) }
}

/// Steps that take a millisecond, some ten times what it takes to start a thread.
const WORTH_A_THREAD: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_make_up_the_whole_in_order() {
        for count in [0, 1, 2, 7, 1000] {
            for steps in [0, 1 << 30] {
                let all: Vec<usize> = in_ranges(count, steps, |range| range.collect::<Vec<_>>()).concat();
                assert_eq!(all, (0..count).collect::<Vec<_>>());
            }
        }
    }
}
