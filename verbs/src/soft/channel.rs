//! A completion channel of the software device: the bells of several completion queues, slept upon together.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use super::bells::{Bells, name};
use super::cq_shared::CqShared;
use crate::sync::lock;

/// What a channel and its queues share.
#[derive(Debug)]
pub(crate) struct Channel {
    bells: Bells,
    /// Queues whose events come here.
    queues: Mutex<Vec<Arc<CqShared>>>,
}

/// A queue's place in its channel.
#[derive(Debug)]
pub(crate) struct Attached {
    channel: Arc<Channel>,
    queue: Arc<CqShared>,
}

impl Channel {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Channel { bells: Bells::new()?, queues: Mutex::default() }))
    }

    /// Forgets what rang so far; the queues that rang are not armed any more.
    pub(crate) fn clear(&self) {
        let queues = self.queues();
        self.bells.each_ringing(queues.len(), |which| {
            if let Some(queue) = queues.iter().find(|queue| name(queue.bell()) == which) {
                queue.arming().disarm();
                queue.bell().clear();
            }
        });
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Arc<CqShared>>> {
        lock(&self.queues)
    }
}

impl Attached {
    pub(crate) fn new(channel: &Arc<Channel>, queue: &Arc<CqShared>) -> io::Result<Self> {
        channel.bells.add(queue.bell())?;
        channel.queues().push(queue.clone());
        Ok(Attached { channel: channel.clone(), queue: queue.clone() })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.channel.bells.remove(self.queue.bell());
        self.channel.queues().retain(|queue| !Arc::ptr_eq(queue, &self.queue));
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bells.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.bells.as_raw_fd()
    }
}
