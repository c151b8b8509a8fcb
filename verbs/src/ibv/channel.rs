//! Completion channels: events of completion queues, told apart and acknowledged in batches.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex};

use qpair_verbs_sys as sys;
use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::device::Device;
use super::handle::{Handle, made, outcome};
use crate::error::CreateError;
use crate::soft::EventFd;
use crate::sync::lock;

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Rings for what the library's channel does not tell, or not any more.
    bell: EventFd,
    /// Readable when one of the two is.
    both: OwnedFd,
    /// Queues whose events come here. Whoever reads events or destroys a queue holds the lock, since a queue can only be
    /// destroyed once all its events are acknowledged.
    queues: Mutex<Queues>,
    raw: Raw,
}

/// A channel of the library.
#[derive(Debug)]
struct Raw {
    channel: NonNull<sys::ibv_comp_channel>,
    device: Arc<Handle>,
}

#[derive(Debug, Default)]
struct Queues {
    last: usize,
    all: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// What the library gives back with each event.
    number: usize,
    cq: NonNull<sys::ibv_cq>,
    unacknowledged: u32,
}

// SAFETY: the library's functions on a channel may be called from any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}
// SAFETY: the queue's pointer is used under the lock, while the queue is there.
unsafe impl Send for Entry {}

impl Channel {
    pub(crate) fn create(device: &Arc<Device>) -> Result<Arc<Self>, CreateError> {
        let failed = |source| CreateError::System { what: "create a completion channel", source };
        let handle = device.handle();
        // SAFETY: the context is open.
        let channel = made(unsafe { (handle.library.ibv_create_comp_channel)(handle.ctx()) }).map_err(failed)?;
        let raw = Raw { channel, device: handle.clone() };
        let (bell, both) = watch(&raw).map_err(failed)?;
        Ok(Arc::new(Channel { bell, both, queues: Mutex::default(), raw }))
    }

    /// Wakes who sleeps on it.
    pub(super) fn ring(&self) {
        self.bell.ring();
    }

    pub(crate) fn is_of(&self, device: &Device) -> bool {
        Arc::ptr_eq(&self.raw.device, device.handle())
    }

    /// Takes note of all events so far.
    pub(crate) fn clear(&self) {
        let mut queues = lock(&self.queues);
        self.bell.clear();
        self.take_events(&mut queues, None);
    }

    /// Takes note of the events of a queue that nobody polls any more. Those of others ring on.
    pub(super) fn clear_of(&self, cq: NonNull<sys::ibv_cq>) {
        let mut queues = lock(&self.queues);
        if self.take_events(&mut queues, Some(cq)) {
            self.bell.ring();
        }
    }

    /// Makes a queue by `create`, which gets the channel and what to name the queue by.
    pub(super) fn add(
        &self,
        create: impl FnOnce(*mut sys::ibv_comp_channel, *mut c_void) -> *mut sys::ibv_cq,
    ) -> io::Result<NonNull<sys::ibv_cq>> {
        let mut queues = lock(&self.queues);
        queues.last = queues.last.wrapping_add(1);
        let number = queues.last;
        let cq = made(create(self.raw.channel.as_ptr(), without_provenance_mut(number)))?;
        queues.all.push(Entry { number, cq, unacknowledged: 0 });
        Ok(cq)
    }

    /// Destroys a queue.
    pub(super) fn destroy(&self, cq: NonNull<sys::ibv_cq>) -> io::Result<()> {
        let mut queues = lock(&self.queues);
        // Those that are read now would otherwise be read by somebody who does not know the queue.
        if self.take_events(&mut queues, Some(cq)) {
            self.bell.ring();
        }
        let Some(place) = queues.all.iter().position(|entry| entry.cq == cq) else { return Ok(()) };
        self.acknowledge(&mut queues.all[place]);
        // SAFETY: alive until now; the queue pairs that complete there held it and are gone.
        let status = unsafe { (self.raw.device.library.ibv_destroy_cq)(cq.as_ptr()) };
        self.raw.device.given_back(status)?;
        queues.all.swap_remove(place);
        Ok(())
    }

    /// True if some were of other queues than `of`.
    fn take_events(&self, queues: &mut Queues, of: Option<NonNull<sys::ibv_cq>>) -> bool {
        let mut others = false;
        let (mut cq, mut number): (*mut sys::ibv_cq, *mut c_void) = (null_mut(), null_mut());
        // SAFETY: the channel is alive; both are written to. It does not block.
        while unsafe {
            (self.raw.device.library.ibv_get_cq_event)(self.raw.channel.as_ptr(), &raw mut cq, &raw mut number)
        } == 0
        {
            let Some(entry) = queues.all.iter_mut().find(|entry| entry.number == number.addr()) else {
                tracing::warn!(device = self.raw.device.name, "an event of a queue that is not known");
                continue;
            };
            others |= of.is_some_and(|of| of != entry.cq);
            entry.unacknowledged += 1;
            if entry.unacknowledged == BATCH {
                self.acknowledge(entry);
            }
        }
        others
    }

    fn acknowledge(&self, entry: &mut Entry) {
        let count = std::mem::take(&mut entry.unacknowledged);
        if count > 0 {
            // SAFETY: the queue is in the list, so it is alive; so many of its events were read and not acknowledged.
            unsafe { (self.raw.device.library.ibv_ack_cq_events)(entry.cq.as_ptr(), count) };
        }
    }
}

/// A bell beside the library's channel, and a descriptor that tells of both.
fn watch(channel: &Raw) -> io::Result<(EventFd, OwnedFd)> {
    let flags = fcntl_getfl(channel)?;
    fcntl_setfl(channel, flags | OFlags::NONBLOCK)?;
    let (bell, both) = (EventFd::new()?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
    for source in [channel.as_fd(), bell.as_fd()] {
        epoll::add(&both, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok((bell, both))
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: alive until now; its queues held it and are gone.
        if let Err(error) = outcome(unsafe { (self.device.library.ibv_destroy_comp_channel)(self.channel.as_ptr()) }) {
            std::mem::forget(self.device.clone());
            tracing::error!(%error, device = self.device.name, "a completion channel is not given back");
        }
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Events that are acknowledged together: doing so takes a lock.
const BATCH: u32 = 64;
