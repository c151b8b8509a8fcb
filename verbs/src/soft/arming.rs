//! Arming: how the owner of a completion queue asks to be woken.
//!
//! The owner arms, orders that before its next look at the queues ([`barrier::heavy`](super::barrier)), looks, then
//! sleeps. Whoever completes publishes, orders ([`barrier::light`](super::barrier)), then looks at the arming. So one of
//! them sees the other's store. Each arming has a number, and whoever completes rings once for each: not for every message
//! to an owner that is still waking up.

use crate::sync::{AtomicU32, Ordering};

/// The word in which an owner asks to be woken. All zero: it is awake.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Arming(AtomicU32);

/// What shall wake the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Solicited = 1,
    Any = 2,
}

/// The bits of the word that hold a [`Call`]; the number is above.
const CALL: u32 = 3;

impl Arming {
    /// Asks for one ring. For the owner.
    pub(crate) fn arm(&self, call: Call) {
        let number = self.0.load(Ordering::Relaxed) & !CALL;
        self.0.store(number.wrapping_add(CALL + 1) | call as u32, Ordering::Relaxed);
    }

    /// Asks for no more rings.
    pub(crate) fn disarm(&self) {
        self.0.fetch_and(!CALL, Ordering::Relaxed);
    }

    /// What was asked for.
    pub(crate) fn call(&self) -> Option<Call> {
        match self.0.load(Ordering::Relaxed) & CALL {
            0 => None,
            1 => Some(Call::Solicited),
            _ => Some(Call::Any),
        }
    }

    /// True if a completion is to ring now. `rung` is the caller's: for which arming it rang last.
    #[inline(always)]
    pub(crate) fn must_ring(&self, solicited: bool, rung: &AtomicU32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & CALL != 0 && Self::is_new(word, solicited, rung)
    }

    #[cold]
    fn is_new(word: u32, solicited: bool, rung: &AtomicU32) -> bool {
        let called = solicited || word & CALL != Call::Solicited as u32;
        called && rung.swap(word, Ordering::Relaxed) != word
    }

    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Arming(AtomicU32::new(0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rings_once_for_each_arming_that_wants_it() {
        let (arming, rung) = (Arming::new(), AtomicU32::new(0));
        assert!(!arming.must_ring(true, &rung));
        arming.arm(Call::Solicited);
        assert_eq!(arming.call(), Some(Call::Solicited));
        assert!(!arming.must_ring(false, &rung));
        assert!(arming.must_ring(true, &rung));
        assert!(!arming.must_ring(true, &rung), "rung already");
        arming.arm(Call::Any);
        assert!(arming.must_ring(false, &rung));
        arming.disarm();
        assert_eq!(arming.call(), None);
        assert!(!arming.must_ring(true, &rung));
        arming.arm(Call::Any);
        assert!(arming.must_ring(false, &rung), "a new arming after an old one that was rung");
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::fence;
    use loom::thread;

    use super::*;

    const MESSAGES: u32 = 2;

    /// The owner never sleeps with a message there that nobody rings for.
    #[test]
    fn no_message_is_slept_through() {
        loom::model(|| {
            let shared = Arc::new((Arming::new(), AtomicU32::new(0), AtomicU32::new(0)));
            let theirs = shared.clone();
            let sender = thread::spawn(move || {
                let (arming, sent, bell) = &*theirs;
                let rung = AtomicU32::new(0);
                for message in 1..=MESSAGES {
                    sent.store(message, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if arming.must_ring(false, &rung) {
                        bell.fetch_add(1, Ordering::AcqRel);
                    }
                }
            });
            let (arming, sent, bell) = &*shared;
            let mut seen = sent.load(Ordering::Acquire);
            while seen < MESSAGES {
                let heard = bell.load(Ordering::Acquire);
                arming.arm(Call::Any);
                fence(Ordering::SeqCst);
                let now = sent.load(Ordering::Acquire);
                if now == seen {
                    // Asleep: only the bell ends this, and the model fails if it never rings.
                    while bell.load(Ordering::Acquire) == heard {
                        thread::yield_now();
                    }
                }
                seen = sent.load(Ordering::Acquire);
            }
            sender.join().unwrap();
        });
    }
}
