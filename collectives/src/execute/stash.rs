//! Messages that nothing takes yet: of operations that this rank has not begun, as a peer may be ahead, and of one that is run
//! straight, for a step that has to wait for others.

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

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Early> {
        self.early.iter()
    }

    /// The first one of `rank`'s for its operation `sequence` with this rank.
    pub(super) fn take(&mut self, rank: u32, sequence: u16) -> Option<Early> {
        let due = |early: &Early| early.fields.rank == rank && early.fields.sequence == sequence;
        let at = self.early.iter().position(due)?;
        self.early.remove(at)
    }

    /// That message.
    pub(super) fn take_message(&mut self, due: Fields) -> Option<Message> {
        let at = self.early.iter().position(|early| early.fields == due)?;
        self.early.remove(at).map(|early| early.contents)
    }
}
