//! The functions of librdmacm: event channels and their events, ids, connections. They return 0, or -1 with errno set.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use libc::sockaddr;
use qpair_verbs_sys::*;

use super::{minus_one, pointer, structure, zeroed};
use crate::cm::{self, Channel, Id, Said, State};
use crate::cq::errno;
use crate::world::{World, world, world_when};

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let mut world = world();
    pointer(world.cm_call("rdma_create_event_channel", None).and_then(|()| {
        let channel = Channel::new(world.cm.new_handle())?;
        let c = structure(rdma_event_channel { fd: channel.fd });
        world.cm_record(None, format_args!("rdma_create_event_channel cm_channel{}", channel.handle));
        world.cm.channels.insert(c.addr(), channel);
        Ok(c)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_event_channel(c: *mut rdma_event_channel) {
    let mut world = world();
    let Some(mut channel) = world.cm.channels.remove(&c.addr()) else {
        return world.cm_violation(None, format_args!("an event channel is destroyed that is none"));
    };
    let left = world.cm.ids.values().filter(|id| id.channel == c.addr()).count();
    if left > 0 {
        world.cm_violation(None, format_args!("cm_channel{} is destroyed with {left} ids left", channel.handle));
    }
    world.cm_record(None, format_args!("rdma_destroy_event_channel cm_channel{}", channel.handle));
    channel.close();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(c: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    // SAFETY: the caller's, to be written to.
    minus_one(next_event(c).map(|found| unsafe { *event = found }))
}

/// Waits for the next event, as blocking as the caller has made the descriptor.
fn next_event(c: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, c_int> {
    loop {
        let fd = {
            let mut world = world();
            world.cm_call_silent("rdma_get_cm_event")?;
            world.cm.channels.get(&c.addr()).ok_or(libc::EINVAL)?.fd
        };
        let mut byte = 0u8;
        // SAFETY: a byte of a local.
        match unsafe { libc::read(fd, (&raw mut byte).cast(), 1) } {
            1 => {}
            0 => return Err(libc::EIO),
            _ => return Err(errno()),
        }
        if let Some(event) = cm::get(&mut world(), c.addr()) {
            return Ok(event);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    let mut world = world();
    if world.cm.unacknowledged.remove(&event.addr()).is_none() {
        world.cm_violation(None, format_args!("an event is acknowledged that was not read"));
        return minus_one(Err(libc::EINVAL));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let mut world = world();
    minus_one(world.cm_call("rdma_create_id", None).and_then(|()| {
        if !world.cm.channels.contains_key(&channel.addr()) || ps != RDMA_PS_TCP {
            return Err(libc::EINVAL);
        }
        // SAFETY: pointers and numbers, for which zero is a value.
        let mut made: rdma_cm_id = unsafe { zeroed() };
        (made.channel, made.context, made.ps) = (channel, context, ps);
        let (c, handle) = (structure(made), world.cm.new_handle());
        world.cm_record(None, format_args!("rdma_create_id cm_id{handle}"));
        world.cm.ids.insert(c.addr(), Id::new(c, handle, channel.addr()));
        // SAFETY: the caller's, to be written to.
        unsafe { *id = c };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let acknowledged = |world: &World| world.cm.unacknowledged_of(id.addr()) == 0;
    minus_one(world_when(acknowledged).cm_destroy(id.addr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, at: *mut sockaddr) -> c_int {
    // SAFETY: the caller's address.
    let at = unsafe { cm::read_address(at) };
    minus_one(at.ok_or(libc::EAFNOSUPPORT).and_then(|at| world().cm_bind(id.addr(), at)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's addresses.
    let (from, to) = unsafe { (if from.is_null() { None } else { cm::read_address(from) }, cm::read_address(to)) };
    minus_one(to.ok_or(libc::EAFNOSUPPORT).and_then(|to| world().cm_resolve(id.addr(), from, to)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    minus_one(world().cm_find_route(id.addr()))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let mut world = world();
    minus_one(world.cm_enter("rdma_listen", id.addr()).and_then(|id| match id.state {
        State::Bound => {
            id.state = State::Listening { backlog: usize::try_from(backlog).unwrap_or(0).max(1) };
            Ok(())
        }
        _ => Err(libc::EINVAL),
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's, to be read.
    let said = unsafe { said(&*param) };
    minus_one(world().cm_connect(id.addr(), said))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's, to be read.
    let said = unsafe { said(&*param) };
    minus_one(world().cm_accept(id.addr(), said))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    minus_one(world().cm_establish(id.addr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's bytes, of so many.
    let private = unsafe { bytes(private, len) };
    minus_one(world().cm_reject(id.addr(), private))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    minus_one(world().cm_disconnect(id.addr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    // SAFETY: the caller's, to be read.
    let state = unsafe { (*attr).qp_state };
    let result = world().cm_attributes(id.addr(), state);
    // SAFETY: the caller's, to be written to.
    minus_one(result.map(|(found, of)| unsafe { (*attr, *mask) = (found, of as c_int) }))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    let world = world();
    let own = world.cm.ids.get(&id.addr()).and_then(|id| id.own);
    own.map_or(0, |own| own.port().to_be())
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    let world = world();
    let to = world.cm.ids.get(&id.addr()).and_then(|id| id.to);
    to.map_or(0, |to| to.port().to_be())
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(_event: rdma_cm_event_type) -> *const c_char {
    c"event".as_ptr()
}

/// What a caller says of its queue pair.
///
/// # Safety
/// The private data is as long as it says.
unsafe fn said(param: &rdma_conn_param) -> Said {
    Said {
        // SAFETY: as the caller says.
        private: unsafe { bytes(param.private_data, param.private_data_len) },
        reads: [param.responder_resources, param.initiator_depth],
        retry_count: param.retry_count,
        rnr_retry: param.rnr_retry_count,
        srq: param.srq,
        qpn: param.qp_num,
    }
}

/// # Safety
/// There are so many bytes, unless the pointer is null.
unsafe fn bytes(at: *const c_void, len: u8) -> Vec<u8> {
    if at.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len.into()) }.to_vec()
}

/// Functions that a librdmacm has, and that nothing here is made for.
macro_rules! unsupported {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            minus_one(Err(libc::EOPNOTSUPP))
        }
    )* };
}

unsupported! {
    rdma_create_qp rdma_notify rdma_set_option rdma_migrate_id rdma_getaddrinfo rdma_join_multicast rdma_leave_multicast
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_qp(_id: *mut rdma_cm_id) {}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_devices(_count: *mut c_int) -> *mut *mut ibv_context {
    super::set_errno(libc::EOPNOTSUPP);
    null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn rdma_free_devices(_list: *mut *mut ibv_context) {}

#[unsafe(no_mangle)]
extern "C" fn rdma_freeaddrinfo(_found: *mut rdma_addrinfo) {}
