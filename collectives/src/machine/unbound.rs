//! Work on all cores of the machine, whatever this thread is bound to.

use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};

/// What `work` gives on a thread that may run on every core that this process may be given: launchers bind ranks to a core
/// or a few, and what rank 0 finds out is for all.
pub(crate) fn unbound<T: Send>(work: impl Fn() -> T + Sync) -> T {
    let work = &work;
    thread::scope(|scope| {
        let widened = move || {
            let mut all = CpuSet::new();
            (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
            // The system leaves out what there is not, or is not for this process. If it refuses, the binding stays.
            let _ = sched_setaffinity(None, &all);
            work()
        };
        match thread::Builder::new().name("qpair-measure".into()).spawn_scoped(scope, widened) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => work(),
        }
    })
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;
    use crate::machine::kept::Key;
    use crate::parallel::cores;

    #[test]
    fn a_rank_that_is_bound_to_a_core_counts_all_and_stays_bound() {
        let (all, key) = (unbound(cores), Key::of_this_machine());
        let bound = move || {
            let before = sched_getaffinity(None).unwrap();
            let core = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap();
            let mut one = CpuSet::new();
            one.set(core);
            sched_setaffinity(None, &one).unwrap();
            assert_eq!((cores(), unbound(cores)), (1, all));
            assert_eq!(Key::of_this_machine(), key);
            assert_eq!(sched_getaffinity(None).unwrap(), one);
        };
        // Other tests are on other threads.
        thread::spawn(bound).join().unwrap();
    }
}
