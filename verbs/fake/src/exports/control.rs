//! The functions by which tests steer the library. Names are C strings; an unknown device or setting is ENOENT.

use std::ffi::{CStr, c_char, c_int};

use qpair_verbs_sys::IBV_EVENT_DEVICE_FATAL;

use super::code;
use super::completion::port_event;
use super::library::SCRIPT;
use crate::cm;
use crate::cq;
use crate::device::Gid;
use crate::exec;
use crate::interface::{Forged, element, text};
use crate::qp;
use crate::world::{Kind, World, world};

/// Reads a name.
///
/// # Safety
/// It is a C string.
unsafe fn name<'a>(text: *const c_char) -> &'a str {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// Finds a device by name.
///
/// # Safety
/// The name is a C string.
unsafe fn find(world: &World, device: *const c_char) -> Result<usize, c_int> {
    // SAFETY: as the caller says.
    world.device_named(unsafe { name(device) }).ok_or(libc::ENOENT)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_add_device(device: *const c_char) -> c_int {
    // SAFETY: the caller's C string.
    code(world().add_device(unsafe { name(device) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_reset(device: *const c_char) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string.
    code(unsafe { find(&world, device) }.map(|device| world.devices[device].reset()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_set(device: *const c_char, key: *const c_char, value: u64) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C strings.
    let (device, key) = unsafe { (find(&world, device), name(key)) };
    let result = device.and_then(|device| world.devices[device].settings.set(key, value).ok_or(libc::ENOENT));
    exec::kick(&mut world);
    code(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_get(device: *const c_char, key: *const c_char, value: *mut u64) -> c_int {
    let world = world();
    // SAFETY: the caller's C strings.
    let (device, key) = unsafe { (find(&world, device), name(key)) };
    code(device.and_then(|device| {
        let device = &world.devices[device];
        let found = device.count(key).or_else(|| device.settings.find(key)).ok_or(libc::ENOENT)?;
        // SAFETY: the caller's, to be written to.
        unsafe { *value = found };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_fail(
    device: *const c_char,
    symbol: *const c_char,
    nth: u32,
    times: u32,
    errno: c_int,
) -> c_int {
    // SAFETY: the caller's C strings.
    let (device_name, symbol) = unsafe { (name(device), name(symbol)) };
    if device_name.is_empty() {
        SCRIPT.with_borrow_mut(|script| script.fail(symbol, nth, times, errno));
        return 0;
    }
    let mut world = world();
    // SAFETY: the caller's C string.
    let device = unsafe { find(&world, device) };
    code(device.map(|device| world.devices[device].script.fail(symbol, nth, times, errno)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_forge(device: *const c_char, nth: u32, forged: *const Forged) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string, and structure to be read.
    let (device, forged) = unsafe { (find(&world, device), *forged) };
    code(device.map(|device| world.devices[device].script.forge(nth, forged)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_inject(device: *const c_char, queue: u32, forged: *const Forged) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string, and structure to be read.
    let (device, forged) = unsafe { (find(&world, device), *forged) };
    code(device.and_then(|device| cq::inject(&mut world, device, queue, &forged)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_poll_returns(device: *const c_char, value: c_int) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string.
    let device = unsafe { find(&world, device) };
    code(device.map(|device| world.devices[device].script.poll_returns(value)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_event(device: *const c_char, event: u32, about: u32, number: u32) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string.
    let device = unsafe { find(&world, device) };
    code(device.and_then(|device| raise(&mut world, device, event, about, number)))
}

/// Raises an event about a port, in each context of the device, or about an object, in its context. A queue pair is
/// named by its number, other objects by their handle; 0 is the oldest.
fn raise(world: &mut World, device: usize, event: u32, about: u32, number: u32) -> Result<(), c_int> {
    let kind = match about {
        element::PORT => {
            for (_, context) in world.live(device, Kind::Context) {
                cq::raise(world, context, port_event(event, number));
            }
            return Ok(());
        }
        element::QP => Kind::Qp,
        element::CQ => Kind::Cq,
        element::SRQ => Kind::Srq,
        _ => return Err(libc::EINVAL),
    };
    let named =
        |(handle, address): &(u32, usize)| number == 0 || world.qp(*address).map_or(*handle, |qp| qp.qpn) == number;
    let (_, address) = world.live(device, kind).into_iter().find(named).ok_or(libc::ENOENT)?;
    let made = match kind {
        Kind::Qp => world.qp(address).map(|qp| (qp.context, qp::qp_event(qp.c.cast(), event))),
        Kind::Cq => world.cq(address).map(|cq| (cq.context, cq::cq_event(cq.c.cast(), event))),
        _ => world.srq(address).map(|srq| (srq.context, qp::srq_event(srq.c, event))),
    };
    let (context, event) = made.ok_or(libc::ENOENT)?;
    cq::raise(world, context, event);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_cm_event(device: *const c_char, event: u32, status: c_int, handle: u32) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string.
    let device = unsafe { find(&world, device) };
    code(device.and_then(|device| cm::raise_scripted(&mut world, device, event, status, handle)))
}

#[unsafe(no_mangle)]
extern "C" fn fake_ibverbs_break_cm() -> c_int {
    cm::break_channels(&mut world());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_set_gid(
    device: *const c_char,
    index: u32,
    gid: *const u8,
    gid_type: u32,
    ifindex: u32,
) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string, and 16 bytes to be read.
    let (device, raw) = unsafe { (find(&world, device), *gid.cast::<[u8; 16]>()) };
    let result = device.and_then(|device| world.devices[device].set_gid(index, Gid { raw, gid_type, ifindex }));
    exec::kick(&mut world);
    code(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_remove(device: *const c_char) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string.
    let device = unsafe { find(&world, device) };
    code(device.and_then(|device| {
        world.devices[device].removed = true;
        raise(&mut world, device, IBV_EVENT_DEVICE_FATAL, element::PORT, 1)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_run(device: *const c_char) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string.
    let device = unsafe { find(&world, device) };
    code(device.map(|device| {
        for (_, address) in world.live(device, Kind::Qp) {
            while exec::step(&mut world, address) {}
        }
        exec::kick(&mut world);
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_ibverbs_text(device: *const c_char, what: u32, to: *mut c_char, room: usize) -> usize {
    let world = world();
    // SAFETY: the caller's C string.
    let Ok(device) = (unsafe { find(&world, device) }) else { return 0 };
    let lines = match what {
        text::CALLS => world.devices[device].calls.join("\n"),
        text::VIOLATIONS => world.devices[device].violations.join("\n"),
        text::LIVE => world.names(device).join("\n"),
        _ => String::new(),
    };
    // SAFETY: the caller's memory, of so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr().cast(), to, lines.len().min(room)) };
    lines.len()
}
