//! Asynchronous events: what a device tells outside of completions.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

use crate::error::CreateError;
use crate::soft::EventFd;
use crate::sync::lock;
use crate::types::Qpn;

/// An asynchronous event. Values that this crate does not know are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran.
    CqError,
    /// A queue pair failed for a reason of its own.
    QpFatal(Qpn),
    /// A queue pair failed because a peer's request was not valid.
    QpRequestError(Qpn),
    /// A queue pair failed because a peer accessed memory without right.
    QpAccessError(Qpn),
    /// The last receive of a queue pair with a shared receive queue is done.
    LastWqeReached(Qpn),
    /// A shared receive queue fell below its limit.
    SrqLimitReached,
    /// A connection received before it was told that its peer is ready.
    CommunicationEstablished(Qpn),
    /// The send queue of a queue pair has drained.
    SendQueueDrained(Qpn),
    /// A connection changed to its alternate path.
    PathMigrated(Qpn),
    /// A connection could not change to its alternate path.
    PathMigrationFailed(Qpn),
    /// A shared receive queue failed.
    SrqError,
    /// The device failed, or was unplugged.
    DeviceFatal,
    /// A port carries data.
    PortActive(u8),
    /// A port carries no data any more.
    PortDown(u8),
    /// The LID of a port changed.
    LidChanged(u8),
    /// The partition keys of a port changed.
    PkeysChanged(u8),
    /// The GID table of a port changed.
    GidsChanged(u8),
    /// The subnet manager of a port changed.
    SubnetManagerChanged(u8),
    /// The subnet manager asks clients of a port to register again.
    ClientReregister(u8),
    /// The process that holds the other end is gone.
    PeerLost(Qpn),
    /// A code that this crate does not know.
    Unknown(u32),
}

/// A reader of a device's asynchronous events; a mio [`Source`](mio::event::Source).
///
/// At most 1,024 events wait; beyond that the oldest are dropped.
#[derive(Debug)]
pub struct AsyncEvents {
    inbox: Arc<Inbox>,
}

#[derive(Debug)]
struct Inbox {
    waiting: Mutex<VecDeque<AsyncEvent>>,
    bell: EventFd,
}

/// Where a device puts its events; each reader has an inbox.
#[derive(Debug, Default)]
pub(crate) struct EventHub {
    readers: Mutex<Vec<Weak<Inbox>>>,
}

impl AsyncEvents {
    /// The next event, if one waits. Never blocks.
    pub fn next_event(&mut self) -> Option<AsyncEvent> {
        let mut waiting = lock(&self.inbox.waiting);
        let event = waiting.pop_front();
        if waiting.is_empty() {
            self.inbox.bell.clear();
        }
        event
    }
}

impl EventHub {
    pub(crate) fn subscribe(&self) -> Result<AsyncEvents, CreateError> {
        let bell =
            EventFd::new().map_err(|source| CreateError::System { what: "create an event descriptor", source })?;
        let inbox = Arc::new(Inbox { waiting: Mutex::new(VecDeque::new()), bell });
        lock(&self.readers).push(Arc::downgrade(&inbox));
        Ok(AsyncEvents { inbox })
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        lock(&self.readers).retain(|reader| {
            let Some(inbox) = reader.upgrade() else { return false };
            let mut waiting = lock(&inbox.waiting);
            if waiting.len() == MAX_WAITING {
                waiting.pop_front();
            }
            waiting.push_back(event);
            inbox.bell.ring();
            true
        });
        // Only now: what logs for the program may panic.
        tracing::debug!(?event, "asynchronous event");
    }
}

const MAX_WAITING: usize = 1024;

impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.inbox.bell.as_raw_fd()
    }
}

crate::source::by_descriptor!(AsyncEvents);
