//! The list of devices, opening and closing, and what concerns the library as a whole.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;

use qpair_verbs_sys::*;

use super::{data, extended, minus_one, pointer, poll_ex, protection, query, queue_pair, structure, zeroed};
use crate::cq::EventQueue;
use crate::null;
use crate::script::Script;
use crate::world::{Context, State, World, world};

thread_local! {
    /// Failures of functions that belong to no device, for the thread that asked for them.
    pub(super) static SCRIPT: RefCell<Script> = RefCell::default();
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let failure = SCRIPT.with_borrow_mut(|script| script.call("ibv_get_device_list"));
    let world = world();
    let listed = world.devices.iter().filter(|device| device.settings.has("listed"));
    let mut list: Vec<*mut ibv_device> = listed.map(|device| device.c).collect();
    if !num_devices.is_null() {
        let count = if failure.is_ok() { list.len() as c_int } else { 0 };
        // SAFETY: not null, so the caller's to be written to.
        unsafe { *num_devices = count };
    }
    list.push(null_mut());
    pointer(failure.map(|()| Box::leak(list.into_boxed_slice()).as_mut_ptr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: a list of the function above, with a null at its end, which the caller gives back once.
    unsafe {
        let length = (0..).take_while(|at| !(*list.add(*at)).is_null()).count() + 1;
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: devices are never freed; only an address in one is taken.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let world = world();
    world.devices.iter().find(|known| known.c == device).map_or(0, |device| device.guid())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    let world = world();
    world.devices.iter().position(|known| known.c == device).map_or(-1, |index| index as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(open(&mut world(), device))
}

fn open(world: &mut World, c: *mut ibv_device) -> Result<*mut ibv_context, c_int> {
    const SYMBOL: &str = "ibv_open_device";
    let device = world.devices.iter().position(|device| device.c == c).ok_or(libc::ENODEV)?;
    if let Err(errno) = world.devices[device].script.call(SYMBOL) {
        world.devices[device].record(format_args!("{SYMBOL} -> errno {errno}"));
        return Err(errno);
    }
    let settings = &world.devices[device].settings;
    // SAFETY: the structure is never freed, and whoever reads this has opened the device.
    unsafe { (*c).transport_type = settings.get("transport_type") as c_int };
    let events = EventQueue::new()?;
    // SAFETY: pointers, numbers, functions that may be null, and a lock whose initial value is zero.
    let mut outer: verbs_context = unsafe { zeroed() };
    let settings = &world.devices[device].settings;
    outer.context.device = c;
    outer.context.cmd_fd = -1;
    outer.context.async_fd = events.fd;
    outer.context.num_comp_vectors = settings.get("num_comp_vectors") as c_int;
    data::fill(&mut outer.context.ops, settings);
    if world.devices[device].is_null() {
        null::fill(&mut outer.context.ops);
    }
    if settings.has("extended") {
        outer.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        outer.sz = size_of::<verbs_context>();
        query::fill(&mut outer, settings);
        protection::fill(&mut outer, settings);
        poll_ex::fill(&mut outer, settings);
        queue_pair::fill(&mut outer, settings);
    }
    let outer = structure(outer);
    let context = Context { outer, events };
    let inner = context.inner();
    world.add(SYMBOL, device, inner.addr(), &[], State::Context(context), "");
    Ok(inner)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    minus_one(close(&mut world(), context))
}

fn close(world: &mut World, context: *mut ibv_context) -> Result<(), c_int> {
    let address = context.addr();
    let device = world.enter("ibv_close_device", address)?;
    let users = world.users(address);
    if users > 0 {
        // The kernel would destroy them; the library's memory for them would be lost.
        let left = world.names(device).join(" ");
        world.violation(address, format_args!("closed with {users} objects left, of: {left}"));
    }
    world.record("ibv_close_device", address, "");
    if let State::Context(context) = world.take(address) {
        context.events.close();
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    SCRIPT.with_borrow_mut(|script| script.call("ibv_fork_init")).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> u32 {
    IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    extended::of(&world(), qp)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: u32) -> *const c_char {
    const NAMES: [&CStr; 5] =
        [c"success", c"local length error", c"local QP operation error", c"local EE error", c"local protection error"];
    let name = match status {
        IBV_WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        _ => NAMES.get(status as usize).copied().unwrap_or(c"unknown"),
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: u32) -> *const c_char {
    if event <= IBV_EVENT_WQ_FATAL { c"event".as_ptr() } else { c"unknown".as_ptr() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    if node_type == IBV_NODE_CA { c"InfiniBand channel adapter".as_ptr() } else { c"unknown".as_ptr() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: u32) -> *const c_char {
    if state == IBV_PORT_ACTIVE { c"PORT_ACTIVE".as_ptr() } else { c"unknown".as_ptr() }
}

/// Rates by their code: code, multiple of 2.5 Gbit/s, Mbit/s.
const RATES: [(u32, c_int, c_int); 8] = [
    (IBV_RATE_2_5_GBPS, 1, 2_500),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_56_GBPS, 22, 56_250),
    (IBV_RATE_100_GBPS, 41, 103_125),
    (IBV_RATE_200_GBPS, 82, 206_250),
    (IBV_RATE_400_GBPS, 160, 425_000),
];

fn rate(of: impl Fn(&(u32, c_int, c_int)) -> bool) -> Option<(u32, c_int, c_int)> {
    RATES.into_iter().find(of)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(code: u32) -> c_int {
    rate(|rate| rate.0 == code).map_or(-1, |rate| rate.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    rate(|rate| rate.2 == mbps).map_or(IBV_RATE_MAX, |rate| rate.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(code: u32) -> c_int {
    rate(|rate| rate.0 == code).map_or(-1, |rate| rate.1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> u32 {
    rate(|rate| rate.1 == multiple).map_or(IBV_RATE_MAX, |rate| rate.0)
}

/// Whoever casts between the two contexts relies on this.
const _: () = assert!(offset_of!(verbs_context, context) + size_of::<ibv_context>() == size_of::<verbs_context>());
