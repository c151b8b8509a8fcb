//! Event channels: events as they wait, are read, and are raised by a test.

use std::collections::VecDeque;
use std::ffi::c_int;

use qpair_verbs_sys::*;

use super::id::{Said, State};
use crate::cq::errno;
use crate::world::World;

/// A channel: a pipe with a byte for each event, so that a test may break it, which an eventfd does not let it.
pub(crate) struct Channel {
    pub(crate) handle: u32,
    pub(crate) fd: c_int,
    /// Where bytes go in; none once it is broken.
    bell: Option<c_int>,
    pub(crate) waiting: VecDeque<Event>,
}

/// An event that nobody has read.
pub(crate) struct Event {
    pub(crate) id: usize,
    pub(crate) listener: Option<usize>,
    pub(crate) event: u32,
    pub(crate) status: c_int,
    pub(crate) said: Said,
}

impl Channel {
    pub(crate) fn new(handle: u32) -> Result<Channel, c_int> {
        let mut fds = [0; 2];
        // SAFETY: two numbers to be written to.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(errno());
        }
        Ok(Channel { handle, fd: fds[0], bell: Some(fds[1]), waiting: VecDeque::new() })
    }

    fn push(&mut self, event: Event) {
        self.waiting.push_back(event);
        if let Some(bell) = self.bell {
            // SAFETY: a byte of a constant. A pipe has room for more than a test has events.
            let wrote = unsafe { libc::write(bell, [1u8].as_ptr().cast(), 1) };
            assert_eq!(wrote, 1, "a pipe takes another event");
        }
    }

    pub(crate) fn close(&mut self) {
        self.hang_up();
        // SAFETY: the channel's own, and not used after.
        unsafe { libc::close(self.fd) };
    }

    fn hang_up(&mut self) {
        if let Some(bell) = self.bell.take() {
            // SAFETY: the channel's own, taken out.
            unsafe { libc::close(bell) };
        }
    }
}

impl World {
    /// An event about an id, if the one who has it is told of events: for a request that is not accepted yet, Linux drops
    /// them.
    pub(super) fn cm_raise(&mut self, id: usize, event: u32, status: c_int, said: Said) {
        if self.cm.ids.get(&id).is_some_and(|id| id.is_followed) {
            self.cm_push(Event { id, listener: None, event, status, said });
        }
    }

    pub(super) fn cm_push(&mut self, event: Event) {
        let of = event.listener.unwrap_or(event.id);
        let Some(channel) = self.cm.ids.get(&of).map(|id| id.channel) else { return };
        if let Some(channel) = self.cm.channels.get_mut(&channel) {
            channel.push(event);
        }
    }
}

/// Takes the first event of a channel; `None` if it was taken back.
pub(crate) fn get(world: &mut World, channel: usize) -> Option<*mut rdma_cm_event> {
    let event = world.cm.channels.get_mut(&channel)?.waiting.pop_front()?;
    let id = world.cm.ids.get_mut(&event.id)?;
    id.was_told = true;
    let said = &event.said;
    // Never freed, so that one acknowledged twice is noticed.
    let private = Box::leak(said.private.clone().into_boxed_slice());
    // SAFETY: numbers and a pointer, for which zero is a value.
    let mut param: rdma_cm_event__bindgen_ty_1 = unsafe { std::mem::zeroed() };
    param.conn = rdma_conn_param {
        private_data: if private.is_empty() { std::ptr::null() } else { private.as_ptr().cast() },
        private_data_len: private.len() as u8,
        // What one side answers, the other has under way.
        responder_resources: said.reads[1],
        initiator_depth: said.reads[0],
        flow_control: 1,
        retry_count: said.retry_count,
        rnr_retry_count: said.rnr_retry,
        srq: said.srq,
        qp_num: said.qpn,
    };
    let c = id.c;
    let listener = event.listener.and_then(|listener| world.cm.ids.get(&listener)).map(|listener| listener.c);
    let made = Box::into_raw(Box::new(rdma_cm_event {
        id: c,
        listen_id: listener.unwrap_or_default(),
        event: event.event,
        status: event.status,
        param,
    }));
    world.cm.unacknowledged.insert(made.addr(), event.listener.unwrap_or(event.id));
    Some(made)
}

/// An event that a test asks for, about the id of a handle, or about the oldest of the device with 0.
pub(crate) fn raise_scripted(
    world: &mut World,
    device: usize,
    event: u32,
    status: c_int,
    handle: u32,
) -> Result<(), c_int> {
    let of_device = world.cm.ids.iter().filter(|(_, id)| id.was_told && id.device.is_none_or(|of| of == device));
    let named = of_device.filter(|(_, id)| handle == 0 || id.handle == handle);
    let (&id, _) = named.min_by_key(|(_, id)| id.handle).ok_or(libc::ENOENT)?;
    world.cm_push(Event { id, listener: None, event, status, said: Said::default() });
    Ok(())
}

/// Breaks each channel: nothing comes of it any more.
pub(crate) fn break_channels(world: &mut World) {
    world.cm.channels.values_mut().for_each(Channel::hang_up);
}

/// Takes back the events of an id that is gone, but for the requests at a listener, which it returns.
pub(super) fn forget(world: &mut World, id: usize) -> Vec<usize> {
    let mut requests = Vec::new();
    for channel in world.cm.channels.values_mut() {
        channel.waiting.retain(|event| {
            requests.extend((event.listener == Some(id)).then_some(event.id));
            event.id != id && event.listener != Some(id)
        });
    }
    requests
}

/// Requests at a listener that nobody has read.
pub(super) fn unread(world: &World, listener: usize) -> usize {
    let Some(State::Listening { .. }) = world.cm.ids.get(&listener).map(|id| id.state) else { return 0 };
    let waiting = world.cm.channels.values().flat_map(|channel| &channel.waiting);
    waiting.filter(|event| event.listener == Some(listener)).count()
}
