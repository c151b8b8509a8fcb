//! Store-load ordering between a frequent side and a rare side.
//!
//! The frequent side stores, calls [`light`], loads; the rare side stores, calls [`heavy`], loads. At least one of the
//! two sees the other's store. With `membarrier(2)` the light side costs nothing: the kernel runs a barrier on every
//! CPU that runs a registered process (MEMBARRIER_CMD_GLOBAL_EXPEDITED). Without it both sides fence.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

const QUERY: i32 = 0;
const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

/// True if this process is registered, so that its light side may do without a fence.
///
/// Peers ask for each other's answer when they link: a light side is free of fences only if both are registered.
pub(crate) fn registered() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        let wanted = (GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED) as i64;
        !super::switches::no_membarrier()
            && membarrier(QUERY) & wanted == wanted
            && membarrier(REGISTER_GLOBAL_EXPEDITED) == 0
    })
}

/// Orders the frequent side's store before its load. `asymmetric` is what both sides agreed on.
#[inline(always)]
pub(crate) fn light(asymmetric: bool) {
    if asymmetric { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
}

/// Orders the rare side's store before its load, and every frequent side's too. Some microseconds.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    if registered() {
        let result = membarrier(GLOBAL_EXPEDITED);
        debug_assert_eq!(result, 0, "membarrier refused after registration");
    }
    fence(Ordering::SeqCst);
}

fn membarrier(command: i32) -> i64 {
    // SAFETY: membarrier takes three integers and touches no memory of the caller.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn one_side_always_sees_the_other() {
        let asymmetric = registered();
        let words: Arc<[AtomicU32; 4]> = Arc::default();
        let gate = Arc::new(Barrier::new(2));
        let rounds = 2000;
        let (their_words, their_gate) = (words.clone(), gate.clone());
        let frequent = std::thread::spawn(move || {
            for round in 1..=rounds {
                their_gate.wait();
                their_words[0].store(round, Ordering::Relaxed);
                light(asymmetric);
                their_words[2].store(their_words[1].load(Ordering::Relaxed), Ordering::Relaxed);
                their_gate.wait();
            }
        });
        for round in 1..=rounds {
            gate.wait();
            words[1].store(round, Ordering::Relaxed);
            heavy();
            let seen = words[0].load(Ordering::Relaxed);
            gate.wait();
            assert!(seen == round || words[2].load(Ordering::Relaxed) == round, "both sides missed in round {round}");
        }
        frequent.join().unwrap();
    }
}
