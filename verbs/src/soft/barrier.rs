//! Store-load ordering between a frequent side and a rare side.
//!
//! The frequent side stores, calls [`light`], loads; the rare side stores, calls [`heavy`], loads. At least one of the
//! two sees the other's store. With `membarrier(2)` the light side costs nothing: the kernel runs a barrier on every
//! CPU that runs a registered process (MEMBARRIER_CMD_GLOBAL_EXPEDITED). Without it both sides fence.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};
use std::time::Duration;

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
///
/// Ends the process if the system does not do what it was registered for, as where a filter of system calls was put on since:
/// without it memory that a peer writes would be handed out.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    if registered() && !insist(ATTEMPTS, || membarrier(GLOBAL_EXPEDITED) == 0) {
        let error = std::io::Error::last_os_error();
        // Whoever has no log shall see it too.
        eprintln!("qpair: membarrier(2) fails, which worked before: {error}; start again with QPAIR_NO_MEMBARRIER=1");
        std::process::abort();
    }
    fence(Ordering::SeqCst);
}

/// Tries what may lack memory for a moment so often at most; false if it does not work.
fn insist(most: u32, mut attempt: impl FnMut() -> bool) -> bool {
    (0..most).any(|turn| {
        if turn > 0 {
            std::thread::sleep(PAUSE);
        }
        attempt()
    })
}

/// A second or so in all.
const ATTEMPTS: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

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
    fn what_lacks_memory_for_a_moment_is_tried_again() {
        let mut left = 5;
        let mut attempt = || {
            left -= 1;
            left == 0
        };
        assert!(!insist(4, &mut attempt));
        assert!(insist(4, &mut attempt));
        assert_eq!(left, 0);
    }

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
