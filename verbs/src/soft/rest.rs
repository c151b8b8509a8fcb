//! Resting: how a poll passes by queue pairs that have nothing for it.
//!
//! A queue pair that was idle for long rests: the poller says so in its word, orders that before one more look at it
//! ([`barrier::heavy`](super::barrier)), and then looks no more. Whoever has something for it publishes that, orders
//! ([`barrier::light`](super::barrier)), then looks at the word. So one of them sees the other's store. Who finds it
//! resting sets its place on a board, which the poller looks at instead of at all who rest. Each rest has a number, and
//! each caller calls once for each.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The word by which a queue pair is known to rest. All zero: polls look at it.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Rest(AtomicU32);

/// Places of queue pairs that are called: a bit each, and a bit for each word that has some.
///
/// Peers write it. A bit too many costs a look, so that boards may be used again while somebody is late with a call.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Board {
    words: AtomicU64,
    bits: [AtomicU64; WORDS],
}

/// The bit of a word that says that it rests; the number is above.
const RESTS: u32 = 1;

impl Rest {
    /// It rests from now on. For the poller, which looks at it once more after a barrier.
    pub(crate) fn begin(&self) {
        let number = self.0.load(Ordering::Relaxed) & !RESTS;
        self.0.store(number.wrapping_add(RESTS + 1) | RESTS, Ordering::Relaxed);
    }

    /// Polls look at it again. For the poller.
    pub(crate) fn end(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !RESTS, Ordering::Relaxed);
    }

    /// True if it is to be called now. `called` is the caller's: for which rest it called last.
    #[inline(always)]
    pub(crate) fn must_call(&self, called: &AtomicU32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & RESTS != 0 && Self::is_new(word, called)
    }

    #[cold]
    fn is_new(word: u32, called: &AtomicU32) -> bool {
        called.swap(word, Ordering::Relaxed) != word
    }

    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Rest(AtomicU32::new(0))
    }
}

impl Board {
    /// Calls who has that place, one of [`PLACES`].
    pub(crate) fn call(&self, place: u32) {
        let (word, bit) = (place / u64::BITS, place % u64::BITS);
        if let Some(bits) = self.bits.get(word as usize) {
            // The poller clears them in the other order, so that no bit is left in a word that is not marked.
            bits.fetch_or(1 << bit, Ordering::AcqRel);
            self.words.fetch_or(1 << word, Ordering::AcqRel);
        }
    }

    /// True if somebody may be called.
    #[inline(always)]
    pub(crate) fn is_marked(&self) -> bool {
        self.words.load(Ordering::Relaxed) != 0
    }

    /// Shows each place that is called to `take`, and clears it.
    pub(crate) fn take(&self, mut take: impl FnMut(u32)) {
        for word in ones(self.words.swap(0, Ordering::AcqRel)) {
            let Some(bits) = self.bits.get(word as usize) else { continue };
            ones(bits.swap(0, Ordering::AcqRel)).for_each(|bit| take(word * u64::BITS + bit));
        }
    }

    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Board { words: AtomicU64::new(0), bits: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// The places of the ones of a word.
fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest)
    })
}

#[cfg(not(loom))]
const WORDS: usize = u64::BITS as usize;
#[cfg(loom)]
const WORDS: usize = 1;
/// Places of a board.
pub(crate) const PLACES: u32 = WORDS as u32 * u64::BITS;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_caller_calls_once_for_each_rest() {
        let (rest, called, other) = (Rest::new(), AtomicU32::new(0), AtomicU32::new(0));
        assert!(!rest.must_call(&called));
        rest.begin();
        assert!(rest.must_call(&called));
        assert!(!rest.must_call(&called), "called already");
        assert!(rest.must_call(&other), "another's call does not count");
        rest.end();
        assert!(!rest.must_call(&called));
        rest.begin();
        assert!(rest.must_call(&called), "a new rest after an old one");
    }

    #[test]
    fn a_board_shows_each_place_once_and_in_order() {
        let board = Board::new();
        let taken = || {
            let mut places = Vec::new();
            board.take(|place| places.push(place));
            places
        };
        assert!(!board.is_marked());
        let places = [0, 1, 63, 64, 700, PLACES - 1];
        places.iter().rev().for_each(|&place| board.call(place));
        board.call(700);
        assert!(board.is_marked());
        assert_eq!(taken(), places);
        assert!(!board.is_marked());
        assert!(taken().is_empty());
        board.call(PLACES);
        assert!(taken().is_empty(), "a place that there is not");
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::fence;
    use loom::thread;

    use super::super::arming::{Arming, Call};
    use super::*;

    struct Shared {
        rest: Rest,
        board: Board,
        sent: AtomicU32,
        arming: Arming,
        bell: AtomicU32,
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let (sent, bell) = (AtomicU32::new(0), AtomicU32::new(0));
            Arc::new(Shared { rest: Rest::new(), board: Board::new(), sent, arming: Arming::new(), bell })
        }

        /// What a caller does for each message.
        fn send(&self, message: u32, called: &AtomicU32, rung: &AtomicU32) {
            self.sent.store(message, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.rest.must_call(called) {
                self.board.call(3);
                fence(Ordering::SeqCst);
            }
            if self.arming.must_ring(false, rung) {
                self.bell.fetch_add(1, Ordering::AcqRel);
            }
        }

        /// The poller's: rests unless something came; true if it rests.
        fn rest(&self, seen: u32) -> bool {
            self.rest.begin();
            fence(Ordering::SeqCst);
            let rests = self.sent.load(Ordering::Acquire) == seen;
            if !rests {
                self.rest.end();
            }
            rests
        }

        fn is_called(&self) -> bool {
            let mut called = false;
            if self.board.is_marked() {
                self.board.take(|place| called |= place == 3);
            }
            called
        }
    }

    /// A message to one who rests is always called out.
    #[test]
    fn no_message_is_rested_through() {
        loom::model(|| {
            let shared = Shared::new();
            let theirs = shared.clone();
            let sender = thread::spawn(move || {
                let (called, rung) = (AtomicU32::new(0), AtomicU32::new(0));
                (1..=2).for_each(|message| theirs.send(message, &called, &rung));
            });
            let mut seen = 0;
            while seen < 2 {
                if shared.rest(seen) {
                    // Only the board ends this, and the model fails if nobody is called.
                    while !shared.is_called() {
                        thread::yield_now();
                    }
                    shared.rest.end();
                }
                // A late call may be for what was seen already.
                seen = shared.sent.load(Ordering::Acquire);
            }
            sender.join().unwrap();
        });
    }

    /// An owner that sleeps while all rest is woken, and finds who is called.
    #[test]
    fn no_message_is_slept_through_while_all_rest() {
        loom::model(|| {
            let shared = Shared::new();
            let theirs = shared.clone();
            let sender = thread::spawn(move || theirs.send(1, &AtomicU32::new(0), &AtomicU32::new(0)));
            if shared.rest(0) {
                shared.arming.arm(Call::Any);
                fence(Ordering::SeqCst);
                if !shared.is_called() {
                    while shared.bell.load(Ordering::Acquire) == 0 {
                        thread::yield_now();
                    }
                    assert!(shared.is_called(), "woken, and nobody is called");
                }
            }
            assert_eq!(shared.sent.load(Ordering::Acquire), 1);
            sender.join().unwrap();
        });
    }

    /// Two who call at once, while the poller takes calls: none is lost.
    #[test]
    fn calls_of_several_are_all_taken() {
        loom::model(|| {
            let board = Arc::new(Board::new());
            let callers = [1, 2].map(|place| {
                let board = board.clone();
                thread::spawn(move || board.call(place))
            });
            let mut taken = 0;
            board.take(|place| taken |= 1 << place);
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            assert!(taken == 6 || board.is_marked(), "a bit without a mark");
            board.take(|place| taken |= 1 << place);
            assert_eq!(taken, 6);
        });
    }
}
