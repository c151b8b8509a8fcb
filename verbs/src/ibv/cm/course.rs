//! What the manager told of a connection, and a place to wait for more.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use qpair_roce::wire::cm::Reason;

use crate::error::CmError;
use crate::ibv::qp::Leash;
use crate::sync::{lock, wait};

/// A connection as its owner follows it.
#[derive(Debug, Default)]
pub(super) struct Course {
    seen: Mutex<Seen>,
    changed: Condvar,
    /// What the peer is asked with, once the way to it is known.
    asking: Mutex<Option<Words>>,
    /// Its queue pair, once that is connected: it fails when the connection ends.
    queue_pair: OnceLock<Arc<Leash>>,
}

/// What one side says of its queue pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    pub(super) qpn: u32,
    /// READs and atomics that it answers at once, and that it wants to have under way.
    pub(super) reads: [u8; 2],
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) shared_receives: bool,
    pub(super) private: Vec<u8>,
}

#[derive(Debug, Default)]
struct Seen {
    accepted: Option<Words>,
    is_established: bool,
    end: Option<End>,
}

/// What is new of a connection that begins.
pub(super) enum Progress {
    /// The peer accepted, and waits for this end to be ready.
    Accepted(Words),
    /// Both ends are ready.
    Established,
    /// It is over.
    Ended(End),
}

/// How a connection ended, or why it did not begin.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The peer refused.
    Rejected(Reason, Vec<u8>),
    /// The peer did not answer.
    NoAnswer,
    /// There is no way to the peer, by the number of the system's error.
    Unreachable(i32),
    /// The way begins at that device.
    OtherDevice(String),
    /// The system refused a step.
    System(&'static str, i32),
    /// The peer ended it, or agreed to its end.
    Disconnected,
    /// This host lost it.
    Lost(Loss),
}

/// What is gone from this host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// Whoever tells of connections.
    Manager,
    /// The device.
    Device,
}

impl Course {
    pub(super) fn asking(words: Words) -> Self {
        Course { asking: Mutex::new(Some(words)), ..Course::default() }
    }

    /// What the peer is asked with, once.
    pub(super) fn take_words(&self) -> Option<Words> {
        lock(&self.asking).take()
    }

    pub(super) fn accepted(&self, words: Words) {
        self.change(|seen| seen.accepted = Some(words));
    }

    pub(super) fn established(&self) {
        self.change(|seen| seen.is_established = true);
    }

    /// It is over, and its queue pair fails. The first end counts.
    pub(super) fn ended(&self, end: End) {
        self.change(|seen| {
            seen.end.get_or_insert(end);
        });
        self.fail();
    }

    /// Its queue pair is connected now; it fails at once if the connection has ended meanwhile.
    pub(super) fn set_queue_pair(&self, leash: Arc<Leash>) {
        let _ = self.queue_pair.set(leash);
        if self.end().is_some() {
            self.fail();
        }
    }

    /// Has its queue pair fail.
    pub(super) fn fail(&self) {
        if let Some(leash) = self.queue_pair.get() {
            leash.fail();
        }
    }

    pub(super) fn end(&self) -> Option<End> {
        lock(&self.seen).end.clone()
    }

    /// Waits until something is new, until `deadline` at most; none: without end.
    pub(super) fn wait_for_progress(&self, deadline: Option<Instant>) -> Option<Progress> {
        wait(&self.seen, &self.changed, deadline, Seen::take_progress)
    }

    /// Waits until it has ended, until `deadline` at most; none: without end.
    pub(super) fn wait_for_end(&self, deadline: Option<Instant>) -> Option<End> {
        wait(&self.seen, &self.changed, deadline, |seen| seen.end.clone())
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut lock(&self.seen));
        self.changed.notify_all();
    }
}

impl Seen {
    fn take_progress(&mut self) -> Option<Progress> {
        // A peer that ends a connection was ready before.
        if let Some(words) = self.accepted.take() {
            return Some(Progress::Accepted(words));
        }
        if self.is_established {
            return Some(Progress::Established);
        }
        self.end.clone().map(Progress::Ended)
    }
}

impl End {
    /// An end that comes before the application has the connection.
    pub(super) fn error(self, peer: SocketAddr, own: &str) -> CmError {
        match self {
            End::Rejected(reason, private) => CmError::rejected(peer, reason, private),
            End::NoAnswer => CmError::NoAnswer { peer },
            End::Unreachable(errno) => CmError::Unreachable { peer, source: io::Error::from_raw_os_error(errno) },
            End::OtherDevice(device) => CmError::OtherDevice { peer, device, own: own.to_owned() },
            End::System(what, errno) => CmError::System { what, source: io::Error::from_raw_os_error(errno) },
            End::Disconnected => CmError::Disconnected { peer },
            End::Lost(loss) => loss.error(own),
        }
    }
}

impl Loss {
    pub(super) fn error(self, own: &str) -> CmError {
        let device = own.to_owned();
        match self {
            Loss::Manager => CmError::ManagerGone { device },
            Loss::Device => CmError::DeviceGone { device },
        }
    }
}
