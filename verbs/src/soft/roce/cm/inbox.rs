//! Requests for connections that wait at a port for who listens there.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use qpair_roce::cm::Offer;
use qpair_roce::wire::cm::IpHeader;

use super::key::Key;
use super::watch::Watch;
use crate::soft::eventfd::EventFd;
use crate::sync::{lock, wait};

/// Requests that wait at a port.
pub(crate) struct Inbox {
    waiting: Mutex<VecDeque<Asked>>,
    came: Condvar,
    bell: EventFd,
}

/// A request of a peer.
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) offer: Offer,
    pub(crate) header: IpHeader,
    pub(crate) watch: Arc<Watch>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Inbox { waiting: Mutex::default(), came: Condvar::new(), bell: EventFd::new()? })
    }

    pub(super) fn push(&self, asked: Asked) {
        let mut waiting = lock(&self.waiting);
        // Requests that were taken back count no more.
        if waiting.len() >= MANY {
            waiting.retain(|asked| asked.watch.end().is_none());
        }
        waiting.push_back(asked);
        drop(waiting);
        self.came.notify_one();
        self.bell.ring();
    }

    /// Waits for the next request, until `deadline` at most; none: without end.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<Asked> {
        wait(&self.waiting, &self.came, deadline, |waiting| {
            let asked = waiting.pop_front();
            if waiting.is_empty() {
                self.bell.clear();
            }
            asked
        })
    }

    /// Readable while requests wait.
    pub(crate) fn bell(&self) -> &EventFd {
        &self.bell
    }
}

/// Requests that wait, from which on those are looked for that were taken back.
const MANY: usize = 1024;
