//! Completion queues, completion channels and asynchronous events.

use std::collections::VecDeque;
use std::ffi::c_int;

use qpair_verbs_sys::*;

use crate::interface::Forged;
use crate::null::Ring;
use crate::script::{self, Delivery};
use crate::world::{Kind, World};

/// The C structure of each CQ: an extended one, with room for what a `null` device's poll gives back.
#[repr(C)]
pub(crate) struct CqStructure {
    pub(crate) cq: ibv_cq_ex,
    pub(crate) ring: Ring,
}

pub(crate) struct Cq {
    pub(crate) c: *mut ibv_cq_ex,
    pub(crate) context: usize,
    pub(crate) channel: Option<usize>,
    pub(crate) capacity: usize,
    pub(crate) queue: VecDeque<Completion>,
    pub(crate) armed: Armed,
    /// Events read and not acknowledged, of the channel and of the context.
    pub(crate) unacknowledged: u32,
    pub(crate) async_unacknowledged: u32,
    /// The entry of an extended poll.
    pub(crate) current: Option<ibv_wc>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

/// An entry of a CQ, and what polling it gives back to the queue it is of.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) wc: ibv_wc,
    pub(crate) qp: usize,
    pub(crate) retires: Retires,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retires {
    /// Sends up to this one.
    Sends(u64),
    /// One receive of the queue pair.
    Receive,
    Nothing,
}

pub(crate) struct Channel {
    pub(crate) events: EventQueue<usize>,
}

/// Events to be read, and a descriptor that counts them.
pub(crate) struct EventQueue<T> {
    pub(crate) fd: c_int,
    waiting: VecDeque<T>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<EventQueue<T>, c_int> {
        // SAFETY: takes two numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 { Err(errno()) } else { Ok(EventQueue { fd, waiting: VecDeque::new() }) }
    }

    pub(crate) fn push(&mut self, event: T) {
        self.waiting.push_back(event);
        let one = 1u64;
        // SAFETY: eight bytes of a local; the counter is far from full, so this does not block.
        let wrote = unsafe { libc::write(self.fd, (&raw const one).cast(), 8) };
        assert_eq!(wrote, 8, "an eventfd takes another event");
    }

    /// The first event, for one that has read the descriptor; `None` if it was taken back meanwhile.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.waiting.pop_front()
    }

    /// Takes back the events of something that is gone.
    pub(crate) fn forget(&mut self, mut gone: impl FnMut(&T) -> bool) {
        let before = self.waiting.len();
        self.waiting.retain(|event| !gone(event));
        for _ in self.waiting.len()..before {
            let mut count = 0u64;
            let mut part = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
            // SAFETY: eight bytes of a local. Another thread may have read the count already and will find no event.
            unsafe { libc::preadv2(self.fd, &raw mut part, 1, -1, libc::RWF_NOWAIT) };
        }
    }

    pub(crate) fn close(self) {
        // SAFETY: the descriptor is this queue's own and not used after.
        unsafe { libc::close(self.fd) };
    }
}

/// Reads one event of a descriptor, as blocking as the caller has made it. Not with the world locked.
pub(crate) fn read_event(fd: c_int) -> Result<(), c_int> {
    let mut count = 0u64;
    // SAFETY: eight bytes of a local.
    let read = unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
    if read == 8 { Ok(()) } else { Err(errno()) }
}

/// A completion of no work at all.
pub(crate) fn blank() -> ibv_wc {
    // SAFETY: integers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Puts a completion on a queue, as the script has it, and wakes who waits for it.
pub(crate) fn complete(world: &mut World, address: usize, mut completion: Completion, solicited: bool) {
    let Some(device) = world.device_of(address) else { return };
    match world.devices[device].script.completion(&mut completion.wc) {
        Delivery::Never => return,
        Delivery::Once => {}
        Delivery::Twice => enqueue(world, address, completion, solicited),
    }
    enqueue(world, address, completion, solicited);
}

/// Puts a completion that a test makes up on a queue: that of a handle, or the oldest with 0.
pub(crate) fn inject(world: &mut World, device: usize, handle: u32, forged: &Forged) -> Result<(), c_int> {
    let queues = world.live(device, Kind::Cq);
    let found = queues.into_iter().find(|(number, _)| handle == 0 || *number == handle);
    let (_, address) = found.ok_or(libc::ENOENT)?;
    let mut wc = blank();
    script::apply(forged, &mut wc);
    enqueue(world, address, Completion { wc, qp: 0, retires: Retires::Nothing }, true);
    Ok(())
}

fn enqueue(world: &mut World, address: usize, completion: Completion, solicited: bool) {
    let Some(cq) = world.cq_mut(address) else { return };
    if cq.queue.len() >= cq.capacity {
        let event = cq_event(cq.c.cast(), IBV_EVENT_CQ_ERR);
        let context = cq.context;
        world.violation(address, "the queue overran");
        raise(world, context, event);
        return;
    }
    cq.queue.push_back(completion);
    let wakes = match cq.armed {
        Armed::No => false,
        Armed::Solicited => solicited || completion.wc.status != IBV_WC_SUCCESS,
        Armed::Any => true,
    };
    if wakes {
        cq.armed = Armed::No;
        let channel = cq.channel;
        if let Some(channel) = channel.and_then(|channel| world.channel_mut(channel)) {
            channel.events.push(address);
        }
    }
}

/// Takes up to `room` completions, and gives their places in the queues back.
pub(crate) fn poll(world: &mut World, address: usize, room: usize) -> Vec<ibv_wc> {
    let Some(cq) = world.cq_mut(address) else { return Vec::new() };
    let count = room.min(cq.queue.len());
    let taken: Vec<_> = cq.queue.drain(..count).collect();
    for completion in &taken {
        if let Some(qp) = world.qp_mut(completion.qp) {
            qp.retire(completion.retires);
        }
    }
    taken.into_iter().map(|completion| completion.wc).collect()
}

/// An asynchronous event about a CQ.
pub(crate) fn cq_event(cq: *mut ibv_cq, event_type: u32) -> ibv_async_event {
    ibv_async_event { element: ibv_async_event__bindgen_ty_1 { cq }, event_type }
}

/// Puts an asynchronous event in the queue of a context.
pub(crate) fn raise(world: &mut World, context: usize, event: ibv_async_event) {
    if let Some(context) = world.context_mut(context) {
        context.events.push(event);
    }
}

/// The last error of a C function of this thread.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
