//! Work on many ranks, shared by the cores that there are.

use std::num::NonZero;
use std::ops::Range;
use std::thread::{self, Scope, ScopedJoinHandle};

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
        let others: Vec<_> = (1..threads).map(|i| beside(scope, move || work(range(i)))).collect();
        let own = work(range(0));
        let others = (1..threads).zip(others).map(|(i, other)| other.map_or_else(|| work(range(i)), joined));
        [own].into_iter().chain(others).collect()
    })
}

/// Does two things, beside each other if `steps`, a measure of the work, makes that worth while.
pub(crate) fn both<A: Send, B>(steps: usize, one: impl Fn() -> A + Sync, other: impl FnOnce() -> B) -> (A, B) {
    if threads(steps) == 1 {
        return (one(), other());
    }
    let one = &one;
    thread::scope(|scope| {
        let beside = beside(scope, one);
        let other = other();
        (beside.map_or_else(one, joined), other)
    })
}

/// Starts a thread for the work. `None` where the system has no more of them, and the work is to be done here.
fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().name("qpair-plan".into()).spawn_scoped(scope, work).ok()
}

/// What a thread gives, once it is done. Panics as it did.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// How many threads so much work is worth.
fn threads(steps: usize) -> usize {
    if steps < 2 * WORTH_A_THREAD { 1 } else { cores().min(steps / WORTH_A_THREAD) }
}

/// Steps that take a millisecond or more, some ten times what it takes to start a thread.
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
