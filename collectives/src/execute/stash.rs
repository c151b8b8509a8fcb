//! Messages of operations that this rank has not begun: a peer may be ahead.

use std::collections::VecDeque;

use qpair_transport::Message;

/// What came for an operation.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A message, in the slab that it landed in.
    Message(Message),
    /// The offer of a message of so many bytes, which waits in the transport.
    Offer(u64),
}

/// A message that came early.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) rank: u32,
    pub(super) plan: u16,
    pub(super) sequence: u16,
    pub(super) message: u32,
    pub(super) arrival: Arrival,
}

/// Messages that came early, in their order.
///
/// A message keeps its slab, and a peer has but so many, so that the transport bounds how many there are.
#[derive(Debug)]
pub(super) struct Stash {
    early: VecDeque<Early>,
}

impl Stash {
    pub(super) fn new(capacity: usize) -> Self {
        Stash { early: VecDeque::with_capacity(capacity) }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    pub(super) fn push(&mut self, early: Early) {
        self.early.push_back(early);
    }

    /// The first one that is due at operation `sequence`, or overdue.
    pub(super) fn take_due(&mut self, sequence: u16) -> Option<Early> {
        let due = |early: &Early| sequence.wrapping_sub(early.sequence) < u16::MAX / 2;
        let at = self.early.iter().position(due)?;
        self.early.remove(at)
    }

    /// The first of `rank`'s.
    pub(super) fn first_of(&self, rank: u32) -> Option<&Early> {
        self.early.iter().find(|early| early.rank == rank)
    }

    pub(super) fn clear(&mut self) {
        self.early.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_in_order_also_where_numbers_wrap() {
        let mut stash = Stash::new(4);
        for (sequence, message) in [(u16::MAX, 0), (1, 1), (0, 2), (0, 3)] {
            stash.push(Early { rank: 1, plan: 0, sequence, message, arrival: Arrival::Offer(8) });
        }
        let mut take = |sequence| stash.take_due(sequence).map(|early| early.message);
        assert_eq!(take(u16::MAX), Some(0));
        assert_eq!(take(u16::MAX), None);
        assert_eq!((take(0), take(0), take(0)), (Some(2), Some(3), None));
        assert_eq!((take(1), take(1)), (Some(1), None));
    }
}
