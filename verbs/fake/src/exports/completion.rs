//! Completion channels, completion queues, and events of both kinds.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use qpair_verbs_sys::*;

use super::{code, minus_one, pointer, structure, zeroed};
use crate::cq::{Armed, Channel, Cq, CqStructure, EventQueue, read_event};
use crate::null::Ring;
use crate::world::{Kind, State, World, world, world_when};

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let mut world = world();
    pointer(world.enter("ibv_create_comp_channel", context.addr()).and_then(|device| {
        let events = EventQueue::new()?;
        let channel = structure(ibv_comp_channel { context, fd: events.fd, refcnt: 0 });
        let state = State::Channel(Channel { events });
        world.add("ibv_create_comp_channel", device, channel.addr(), &[context.addr()], state, "");
        Ok(channel)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let (mut world, address) = (world(), channel.addr());
    code(world.enter("ibv_destroy_comp_channel", address).and_then(|_| {
        if let State::Channel(channel) = world.remove("ibv_destroy_comp_channel", address)? {
            channel.events.close();
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let wish = Wish { cqe: i64::from(cqe), cq_context, channel, comp_vector: i64::from(comp_vector) };
    let created = create(&mut world(), "ibv_create_cq", context, &wish);
    pointer(created.map(<*mut ibv_cq_ex>::cast))
}

/// What a new CQ shall be like.
pub(super) struct Wish {
    pub(super) cqe: i64,
    pub(super) cq_context: *mut c_void,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) comp_vector: i64,
}

pub(super) fn create(
    world: &mut World,
    symbol: &str,
    context: *mut ibv_context,
    wish: &Wish,
) -> Result<*mut ibv_cq_ex, c_int> {
    let device = world.enter(symbol, context.addr())?;
    let settings = &world.devices[device].settings;
    let in_range = wish.cqe >= 1 && wish.cqe as u64 <= settings.get("max_cqe");
    if !in_range || wish.comp_vector < 0 || wish.comp_vector as u64 >= settings.get("num_comp_vectors") {
        return Err(libc::EINVAL);
    }
    world.room(device, Kind::Cq, "max_cq")?;
    let channel = (!wish.channel.is_null()).then_some(wish.channel.addr());
    if channel.is_some_and(|channel| world.channel(channel).is_none()) {
        return Err(libc::EINVAL);
    }
    // A device makes a queue as long as it likes, if not shorter.
    let capacity = (wish.cqe as usize + 1).next_power_of_two() - 1;
    // SAFETY: pointers, numbers, functions that may be null, and locks whose initial value is zero.
    let mut cq: ibv_cq_ex = unsafe { zeroed() };
    (cq.context, cq.channel, cq.cq_context, cq.cqe) = (context, wish.channel, wish.cq_context, capacity as c_int);
    let ring = Ring::new(if world.devices[device].is_null() { capacity + 1 } else { 1 });
    let c = structure(CqStructure { cq, ring }).cast::<ibv_cq_ex>();
    let state = State::Cq(Cq {
        c,
        context: context.addr(),
        channel,
        capacity,
        queue: Default::default(),
        armed: Armed::No,
        unacknowledged: 0,
        async_unacknowledged: 0,
        current: None,
    });
    let mut parents = vec![context.addr()];
    parents.extend(channel);
    let handle = world.add(symbol, device, c.addr(), &parents, state, format_args!(" vector={}", wish.comp_vector));
    // SAFETY: made above.
    unsafe { (*c).handle = handle };
    Ok(c)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let mut world = world();
    code(world.enter("ibv_resize_cq", cq.addr()).and_then(|_| {
        let state = world.cq_mut(cq.addr()).ok_or(libc::EINVAL)?;
        let capacity = usize::try_from(cqe).map_err(|_| libc::EINVAL)?;
        if capacity < state.queue.len().max(1) {
            return Err(libc::EINVAL);
        }
        state.capacity = capacity;
        // SAFETY: alive, and written to with the world locked only.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let acknowledged = |world: &World| world.cq(cq.addr()).is_none_or(|state| state.async_unacknowledged == 0);
    code(destroy(&mut world_when(acknowledged), cq.addr()))
}

fn destroy(world: &mut World, address: usize) -> Result<(), c_int> {
    const SYMBOL: &str = "ibv_destroy_cq";
    world.enter(SYMBOL, address)?;
    let cq = world.cq(address).ok_or(libc::EINVAL)?;
    let (channel, c, context) = (cq.channel, cq.c, cq.context);
    if cq.unacknowledged + cq.async_unacknowledged > 0 && world.users(address) == 0 {
        world.violation(address, "destroyed with events not acknowledged, which waits for ever");
        return Err(libc::EDEADLK);
    }
    world.remove(SYMBOL, address)?;
    if let Some(channel) = channel.and_then(|channel| world.channel_mut(channel)) {
        channel.events.forget(|of| *of == address);
    }
    forget_events(world, context, c.cast());
    Ok(())
}

/// Takes back the asynchronous events about an object that is gone.
pub(super) fn forget_events(world: &mut World, context: usize, object: *mut c_void) {
    if let Some(context) = world.context_mut(context) {
        // SAFETY: each field but the port, which is no address of an object, is a pointer.
        context.events.forget(|event| unsafe { event.element.cq.addr() == object.addr() });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    if let Err(errno) = world().enter("ibv_get_cq_event", channel.addr()) {
        return minus_one(Err(errno));
    }
    loop {
        // SAFETY: the channel was found alive, and structures are never freed.
        if let Err(errno) = read_event(unsafe { (*channel).fd }) {
            return minus_one(Err(errno));
        }
        let mut world = world();
        let event = world.channel_mut(channel.addr()).and_then(|channel| channel.events.take());
        // An event of a queue that was destroyed meanwhile is gone: wait for another.
        let Some(state) = event.and_then(|address| world.cq_mut(address)) else { continue };
        state.unacknowledged += 1;
        // SAFETY: the two places are the caller's, to be written to; the queue's structure is alive.
        unsafe {
            *cq = state.c.cast();
            *cq_context = (*state.c).cq_context;
        }
        return 0;
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    let mut world = world();
    if world.enter("ibv_ack_cq_events", cq.addr()).is_err() {
        return;
    }
    let Some(state) = world.cq_mut(cq.addr()) else { return };
    match state.unacknowledged.checked_sub(count) {
        Some(left) => state.unacknowledged = left,
        None => world.violation(cq.addr(), format_args!("{count} events acknowledged that were not read")),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    if let Err(errno) = world().enter("ibv_get_async_event", context.addr()) {
        return minus_one(Err(errno));
    }
    loop {
        // SAFETY: the context was found alive, and structures are never freed.
        if let Err(errno) = read_event(unsafe { (*context).async_fd }) {
            return minus_one(Err(errno));
        }
        let mut world = world();
        let taken = world.context_mut(context.addr()).and_then(|context| context.events.take());
        let Some(taken) = taken else { continue };
        if let Some(count) = unacknowledged(&mut world, &taken) {
            *count += 1;
        }
        // SAFETY: the caller's, to be written to.
        unsafe { *event = taken };
        return 0;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let mut world = world();
    // SAFETY: the caller's, as read before.
    let event = unsafe { *event };
    if let Some(count) = unacknowledged(&mut world, &event) {
        *count = count.saturating_sub(1);
        // SAFETY: an object that was found, so that the union is a pointer.
        let address = unsafe { event.element.cq.addr() };
        world.record("ibv_ack_async_event", address, format_args!(" {}", event.event_type));
    }
}

/// The count of events not acknowledged of the object that an event is about.
fn unacknowledged<'w>(world: &'w mut World, event: &ibv_async_event) -> Option<&'w mut u32> {
    // SAFETY: the whole union is a pointer, or a number that is the address of no object.
    let address = if about_port(event.event_type) { return None } else { unsafe { event.element.cq.addr() } };
    if world.cq(address).is_some() {
        return world.cq_mut(address).map(|cq| &mut cq.async_unacknowledged);
    }
    if world.srq(address).is_some() {
        return world.srq_mut(address).map(|srq| &mut srq.async_unacknowledged);
    }
    world.qp_mut(address).map(|qp| &mut qp.async_unacknowledged)
}

/// Whether an event's element is a port's number.
fn about_port(event: u32) -> bool {
    let of_objects = matches!(
        event,
        IBV_EVENT_CQ_ERR
            ..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED | IBV_EVENT_QP_LAST_WQE_REACHED
    );
    !of_objects
}

/// An asynchronous event about a port, or about nothing known.
pub(super) fn port_event(event_type: u32, port: u32) -> ibv_async_event {
    let mut element = ibv_async_event__bindgen_ty_1 { cq: null_mut() };
    element.port_num = port as c_int;
    ibv_async_event { element, event_type }
}
