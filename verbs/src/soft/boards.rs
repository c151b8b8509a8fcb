//! Boards of a device's completion queues. Their memory serves boards alone, for good: somebody may be late with a call after
//! the queue is gone, and one to another queue costs it a look.

use super::at::At;
use super::home::Home;
use super::rest::Board;
use crate::sync::lock;

impl Home {
    /// A board in the shared mapping, with its offset there; `None` if there is no room.
    pub(crate) fn take_board(&self) -> Option<(usize, At<Board>)> {
        let used_before = lock(&self.boards).pop();
        let offset = used_before.or_else(|| self.take_shared(size_of::<Board>()))?;
        // SAFETY: the type is made of atomics, and nothing else is ever laid over a board.
        Some((offset, unsafe { At::new(self.shared(), offset) }?))
    }

    pub(crate) fn give_board(&self, offset: usize) {
        lock(&self.boards).push(offset);
    }
}
