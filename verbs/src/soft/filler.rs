//! How receives are marked while they are filled within this process: those of a queue pair's own queue, and of a shared one.

use std::sync::Arc;

use super::filling::Filling;
use super::peer::Receive;
use super::srq::Lives;

/// Whoever fills receives of a queue within this process marks them by it.
#[derive(Clone, Debug)]
pub(crate) enum Filler {
    /// Receives of a queue pair's own.
    Own(Arc<Filling>),
    /// Those of a shared receive queue.
    Shared(Arc<Lives>),
}

/// A receive that is marked as long as this is there.
#[derive(Debug)]
pub(crate) struct Filled {
    filler: Filler,
    receive: Receive,
}

impl Filler {
    /// Marks a receive. False if it is not to be had: then nothing may be written to it.
    #[inline]
    pub(crate) fn begin(&self, receive: Receive) -> bool {
        match self {
            Filler::Own(filling) => filling.begin(receive.index),
            Filler::Shared(lives) => lives.begin(receive),
        }
    }

    /// Takes the mark away: nothing is written to it any more.
    #[inline]
    pub(crate) fn end(&self, receive: Receive) {
        match self {
            Filler::Own(filling) => filling.end(receive.index),
            Filler::Shared(lives) => lives.end(receive),
        }
    }

    /// Marks a receive for a while; `None` if it is not to be had.
    pub(crate) fn fill(self, receive: Receive) -> Option<Filled> {
        self.begin(receive).then_some(Filled { filler: self, receive })
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        self.filler.end(self.receive);
    }
}
