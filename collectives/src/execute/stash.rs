//! Messages of operations that this rank has not begun: a peer may be ahead.

use std::collections::VecDeque;

use qpair_transport::Message;

use super::tag::Fields;

/// A message that came early.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) fields: Fields,
    /// The slab that it landed in.
    pub(super) contents: Message,
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
        let at = self.early.iter().position(|early| is_due(sequence, early.fields.sequence))?;
        self.early.remove(at)
    }

    /// The first of `rank`'s.
    pub(super) fn first_of(&self, rank: u32) -> Option<&Early> {
        self.early.iter().find(|early| early.fields.rank == rank)
    }

    pub(super) fn clear(&mut self) {
        self.early.clear();
    }
}

/// Whether what is for operation `other` is due at operation `sequence`, or overdue. The numbers wrap.
fn is_due(sequence: u16, other: u16) -> bool {
    sequence.wrapping_sub(other) < u16::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_seen_also_where_numbers_wrap() {
        assert!(is_due(5, 5) && is_due(5, 4) && !is_due(5, 6));
        assert!(is_due(0, u16::MAX) && !is_due(u16::MAX, 0) && !is_due(u16::MAX, 1));
    }
}
