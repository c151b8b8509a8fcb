//! What cores take with each other: for a bounded time in which each gives way, how long a written word takes to be seen, how long
//! a core takes to go from one thread to another, and the same and how fast memory is copied between two sockets.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use qpair_topology::{Bandwidth, CpuId, Island, Machine};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{PLAUSIBLE_SPEEDS, PLAUSIBLE_TIMES};
use crate::cost::{CostModel, Link};
use crate::parallel::cores;

/// Seconds in which one core copies [`BULK`] bytes.
pub(super) fn bulk() -> f64 {
    let (from, mut to) = (vec![1; BULK], vec![0; BULK]);
    (0..3).map(|_| copied(&from, &mut to)).fold(f64::INFINITY, f64::min)
}

/// Seconds of one copy.
fn copied(from: &[u8], to: &mut [u8]) -> f64 {
    let start = Instant::now();
    to.copy_from_slice(std::hint::black_box(from));
    std::hint::black_box(to);
    start.elapsed().as_secs_f64()
}

/// Until another core sees what this one wrote; `None` if there is none, if threads can not be held to two, or one was not there in
/// time.
pub(super) fn latency() -> Option<f64> {
    let mut each = each().filter(|_| cores() > 1)?;
    ping_pong([&each.next()?, &each.next()?])
}

/// Until this core goes on with another thread, once one gives way; `None` if threads can not be held to it.
pub(super) fn turn() -> Option<f64> {
    let one = each()?.next()?;
    ping_pong([&one; 2])
}

/// Each of the cores that this process may use, alone.
fn each() -> Option<impl Iterator<Item = CpuSet>> {
    let all = sched_getaffinity(None).ok()?;
    let alone = |core| {
        let mut one = CpuSet::new();
        one.set(core);
        one
    };
    Some((0..CpuSet::MAX_CPU).filter(move |&core| all.is_set(core)).map(alone))
}

/// The cores of two sockets that this process may use, and what topology says passes between them, in bytes per second; `None`
/// where there is one.
fn sockets() -> Option<(CpuSet, CpuSet, f64)> {
    let (machine, all) = (Machine::this_without_driver().ok()?, sched_getaffinity(None).ok()?);
    let islands = machine.cpu_islands();
    let cores = |island: &Island<CpuId>| {
        let mut cores = CpuSet::new();
        let nodes = island.members.iter().filter_map(|&node| machine.cpu(node));
        let known = nodes.flat_map(|node| node.cpus.iter()).map(|cpu| cpu as usize);
        known.filter(|&cpu| cpu < CpuSet::MAX_CPU && all.is_set(cpu)).for_each(|cpu| cores.set(cpu));
        cores
    };
    let mut usable =
        islands.iter().map(|island| (cores(island), island.outside)).filter(|(cores, _)| cores.count() > 0);
    let ((one, outside), (other, _)) = (usable.next()?, usable.next()?);
    (outside > Bandwidth::ZERO).then(|| (one, other, outside.bytes() as f64))
}

/// What messages take between two sockets, where there are several; `None` where there is one.
pub(super) fn beside() -> Option<Link> {
    let (one, other, most) = sockets()?;
    between(&one, &other, most)
}

/// Between those cores and the others: how long a written word takes to be seen, and how fast memory is copied that the others
/// have just written, by some cores, and no faster than `most`.
fn between(one: &CpuSet, other: &CpuSet, most: f64) -> Option<Link> {
    let latency = ping_pong([one, other]).unwrap_or(CostModel::default().beside.latency);
    let once = || {
        // The system gives a thread memory that is near it when it first writes there. What was read once is near who read it.
        let far = held_to(one, || vec![1_u8; BULK])?;
        held_to(other, || copied(&far, &mut vec![1; BULK]))
    };
    let seconds = (0..3).map(|_| once()).try_fold(f64::INFINITY, |least, seconds| Some(seconds?.min(least)))?;
    let speed = BULK as f64 / seconds * f64::from(other.count().min(8));
    PLAUSIBLE_SPEEDS.contains(&(BULK as f64 / seconds)).then_some(Link { latency, speed: speed.min(most) })
}

/// What a thread does on those cores; `None` if there is none to be had there.
fn held_to<T: Send>(cores: &CpuSet, work: impl FnOnce() -> T + Send) -> Option<T> {
    let held = || sched_setaffinity(None, cores).is_ok().then(work);
    std::thread::scope(|scope| thread().spawn_scoped(scope, held).ok()?.join().ok()?)
}

fn thread() -> std::thread::Builder {
    std::thread::Builder::new().name("qpair-measure".into()).stack_size(STACK)
}

/// The least time that a word takes from one thread to another and back, by two, each on some of those cores.
fn ping_pong(cores: [&CpuSet; 2]) -> Option<f64> {
    let on_one_core = cores[0].count() == 1 && cores[0] == cores[1];
    let word = AtomicU32::new(0);
    let over = AtomicBool::new(false);
    let hold = |end: usize| sched_setaffinity(None, cores[end]).is_ok();
    let until = Instant::now() + BUDGET;
    // Each waits for its turn, and gives way soon: the other may be on this core, or on none.
    let wait = |turn: u32| {
        for polls in 0_u32.. {
            if word.load(Ordering::Acquire) == turn {
                return true;
            }
            if over.load(Ordering::Relaxed) || (polls % 64 == 63 && Instant::now() > until) {
                return false;
            }
            if on_one_core || polls >= SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        false
    };
    let echo = || {
        let rounds = if hold(0) { ROUNDS } else { 0 };
        for turn in 0..rounds {
            if !wait(2 * turn + 1) {
                break;
            }
            word.store(2 * turn + 2, Ordering::Release);
        }
    };
    let serve = || {
        let (mut least, rounds) = (f64::INFINITY, if hold(1) { ROUNDS } else { 0 });
        for turn in 0..rounds {
            let start = Instant::now();
            word.store(2 * turn + 1, Ordering::Release);
            if !wait(2 * turn + 2) {
                break;
            }
            least = least.min(start.elapsed().as_secs_f64());
        }
        over.store(true, Ordering::Relaxed);
        least
    };
    // Both on threads of their own, which are held to a core.
    let least = std::thread::scope(|scope| {
        thread().spawn_scoped(scope, echo).ok()?;
        thread().spawn_scoped(scope, serve).ok()?.join().ok()
    })?;
    // More, and one of the two was not there when its turn came.
    let one_way = least / 2.0;
    (PLAUSIBLE_TIMES.start..LONGEST).contains(&one_way).then_some(one_way)
}

/// Bytes that no core's own caches hold.
pub(super) const BULK: usize = 4 << 20;
/// Of a ping-pong.
const BUDGET: Duration = Duration::from_millis(2);
/// Rounds of a ping-pong.
const ROUNDS: u32 = 300;
/// Polls before a thread gives way that may be on a core of its own: some microseconds.
const SPINS: u32 = 2000;
/// What no word takes from core to core, nor a core from thread to thread.
const LONGEST: f64 = 20e-6;
const STACK: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_islands_it_goes_no_faster_than_topology_says() {
        // Whatever cores there are, as if they were two sockets.
        let all = sched_getaffinity(None).unwrap();
        let of = |parity: usize| {
            let mut some = CpuSet::new();
            (0..CpuSet::MAX_CPU)
                .filter(|&core| all.is_set(core))
                .skip(parity)
                .step_by(2)
                .for_each(|core| some.set(core));
            if some.count() > 0 { some } else { all }
        };
        if all.count() > 1 {
            // Where the system holds no thread to cores there is nothing to be told.
            let links = (between(&of(0), &of(1), f64::MAX), between(&of(0), &of(1), 1e6));
            if let (Some(link), Some(slow)) = links {
                assert!(PLAUSIBLE_TIMES.contains(&link.latency) && link.speed > 1e6, "{link:?}");
                assert_eq!(slow.speed, 1e6);
            }
        }
        // Threads that can not be held there measure nothing.
        assert_eq!(between(&CpuSet::new(), &all, f64::MAX), None);
    }
}
