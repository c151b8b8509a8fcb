//! Requests for connections that wait at a port for who listens there.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use qpair_roce::cm::Offer;
use qpair_roce::wire::cm::IpHeader;

use super::key::Key;
use super::watch::Watch;
use crate::error::ConnectError;
use crate::soft::eventfd::EventFd;
use crate::sync::{lock, wait};

/// Requests that wait at a port.
pub(crate) struct Inbox {
    state: Mutex<State>,
    came: Condvar,
    bell: EventFd,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Asked>,
    /// The device has failed: no more come.
    is_over: bool,
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
        Ok(Inbox { state: Mutex::default(), came: Condvar::new(), bell: EventFd::new()? })
    }

    pub(super) fn push(&self, asked: Asked) {
        let mut state = lock(&self.state);
        let waiting = &mut state.waiting;
        // Requests that were taken back count no more.
        if waiting.len() >= MANY {
            waiting.retain(|asked| asked.watch.end().is_none());
        }
        waiting.push_back(asked);
        drop(state);
        self.came.notify_one();
        self.bell.ring();
    }

    /// The device has failed: who waits is told. The bell rings too, and for good.
    pub(super) fn end(&self) {
        lock(&self.state).is_over = true;
        self.came.notify_all();
        self.bell.ring();
    }

    /// Waits for the next request, until `deadline` at most; none: without end.
    ///
    /// # Errors
    /// [`ConnectError::DeviceFailed`] once all are taken that came before.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Result<Option<Asked>, ConnectError> {
        let taken = wait(&self.state, &self.came, deadline, |state| {
            let asked = state.waiting.pop_front();
            if state.waiting.is_empty() && !state.is_over {
                self.bell.clear();
            }
            asked.map(Ok).or(state.is_over.then_some(Err(ConnectError::DeviceFailed)))
        });
        taken.transpose()
    }

    /// Readable while requests wait, and once no more come.
    pub(crate) fn bell(&self) -> &EventFd {
        &self.bell
    }
}

/// Requests that wait, from which on those are looked for that were taken back.
const MANY: usize = 1024;
