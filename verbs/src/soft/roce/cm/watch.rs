//! A connection as its owner follows it: what the manager told of it, and a place to wait for more.

use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Instant;

use qpair_roce::Qpn;
use qpair_roce::cm::Terms;
use qpair_roce::wire::cm::{Reason, Reject, Reply};

use crate::soft::roce::attached::Owner;
use crate::sync::{lock, wait};

/// A connection as its owner follows it.
#[derive(Default)]
pub(crate) struct Watch {
    seen: Mutex<Seen>,
    changed: Condvar,
    /// Its queue pair, once that is connected: it fails when the connection ends.
    queue_pair: OnceLock<(Qpn, Weak<dyn Owner>)>,
}

/// What is new of a connection that begins.
pub(crate) enum Progress {
    /// Nothing.
    Waiting,
    /// The peer accepted, and waits for this end to be ready.
    Accepted(Box<Acceptance>),
    /// Both ends are ready.
    Established,
    /// It is over.
    Ended(End),
}

/// What the peer accepted with.
pub(crate) struct Acceptance {
    pub(crate) terms: Terms,
    pub(crate) private: [u8; Reply::PRIVATE],
}

/// How a connection ended, or why it did not begin.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per connection at most")]
pub(crate) enum End {
    /// The peer refused.
    Rejected { reason: Reason, private: [u8; Reject::PRIVATE] },
    /// The peer accepted with a queue pair that is connected already.
    Stale,
    /// The peer did not answer.
    TimedOut,
    /// The peer ended it, or agreed to its end.
    Disconnected,
    /// The device has failed, and hears nothing of it any more.
    Lost,
}

#[derive(Default)]
struct Seen {
    accepted: Option<Box<Acceptance>>,
    is_established: bool,
    end: Option<End>,
}

impl Watch {
    pub(super) fn accepted(&self, acceptance: Acceptance) {
        self.change(|seen| seen.accepted = Some(Box::new(acceptance)));
    }

    pub(super) fn established(&self) {
        self.change(|seen| seen.is_established = true);
    }

    /// It is over. A peer that ends a connection was ready before, even if its word of that was lost.
    pub(super) fn ended(&self, end: End, was_established: bool) {
        self.change(|seen| {
            seen.is_established |= was_established;
            seen.end = Some(end);
        });
    }

    /// Says which queue pair is to fail when the connection ends.
    pub(crate) fn set_queue_pair(&self, qpn: Qpn, owner: Weak<dyn Owner>) {
        let _ = self.queue_pair.set((qpn, owner));
    }

    pub(super) fn queue_pair(&self) -> Option<&(Qpn, Weak<dyn Owner>)> {
        self.queue_pair.get()
    }

    /// Waits until something is new, until `deadline` at most; none: without end.
    pub(crate) fn wait_for_progress(&self, deadline: Option<Instant>) -> Progress {
        self.wait(deadline, Seen::take_progress).unwrap_or(Progress::Waiting)
    }

    /// Waits until it has ended, until `deadline` at most; none: without end.
    pub(crate) fn wait_for_end(&self, deadline: Option<Instant>) -> Option<End> {
        self.wait(deadline, |seen| seen.end)
    }

    /// How it has ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        lock(&self.seen).end
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut lock(&self.seen));
        self.changed.notify_all();
    }

    fn wait<R>(&self, deadline: Option<Instant>, mut look: impl FnMut(&mut Seen) -> Option<R>) -> Option<R> {
        wait(&self.seen, &self.changed, deadline, &mut look)
    }
}

impl Seen {
    fn take_progress(&mut self) -> Option<Progress> {
        if let Some(acceptance) = self.accepted.take() {
            return Some(Progress::Accepted(acceptance));
        }
        if self.is_established {
            return Some(Progress::Established);
        }
        self.end.map(Progress::Ended)
    }
}

/// True if it is that queue pair, and not a later one of its number.
pub(super) fn is_same(owner: &Arc<dyn Owner>, other: &Weak<dyn Owner>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(owner), Weak::as_ptr(other))
}
