//! The functions by which tests steer the library. An unknown device, setting or object is ENOENT.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering;

use crate::backing;
use crate::code::Code;
use crate::interface::text;
use crate::script::plain;
use crate::stream::{Source, Work};
use crate::world::{SCRIPT, World, world};

/// Reads a name.
///
/// # Safety
/// It is a C string.
unsafe fn name<'a>(text: *const c_char) -> &'a str {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

fn code(result: Option<()>) -> c_int {
    if result.is_some() { 0 } else { libc::ENOENT }
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_add_device() -> c_int {
    world().add_device() as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_reset(device: c_int) -> c_int {
    let mut world = world();
    let found = world.device(device).ok();
    let done = code(found.map(|device| world.devices[device].reset()));
    world.wake();
    done
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_set(device: c_int, key: *const c_char, value: u64) -> c_int {
    let mut world = world();
    // SAFETY: the caller's C string.
    let key = unsafe { name(key) };
    let found = world.device(device).ok();
    code(found.and_then(|device| world.devices[device].settings.set(key, value)))
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_set_attribute(device: c_int, attribute: u32, value: c_int) -> c_int {
    let mut world = world();
    let found = world.device(device).ok();
    code(found.map(|device| world.devices[device].settings.set_attribute(attribute, value)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_get(device: c_int, key: *const c_char, value: *mut u64) -> c_int {
    let world = world();
    // SAFETY: the caller's C string.
    let key = unsafe { name(key) };
    let found = world.device(device).ok().and_then(|device| get(&world, device, key));
    code(found.map(|found| {
        // SAFETY: the caller's.
        unsafe { *value = found }
    }))
}

fn get(world: &World, device: usize, key: &str) -> Option<u64> {
    if key == "urgent_streams" {
        return Some(world.urgent_streams(device));
    }
    let device = &world.devices[device];
    match key.split_once('.') {
        Some(("calls", symbol)) => Some(device.counts.get(plain(symbol)).copied().unwrap_or(0)),
        _ if key == "used" => Some(device.used.load(Ordering::Relaxed)),
        _ => device.settings.find(key),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_fail(device: c_int, symbol: *const c_char, nth: u32, times: u32, error: Code) -> c_int {
    // SAFETY: the caller's C string.
    let symbol = unsafe { name(symbol) };
    if device < 0 {
        SCRIPT.with_borrow_mut(|script| script.fail(symbol, nth, times, error));
        return 0;
    }
    let mut world = world();
    let found = world.device(device).ok();
    code(found.map(|device| world.devices[device].script.fail(symbol, nth, times, error)))
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_fault(device: c_int, nth: u32, error: Code) -> c_int {
    let mut world = world();
    let found = world.device(device).ok();
    code(found.map(|device| world.devices[device].script.fault(nth, error)))
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_hold(device: c_int, stream: u64, hold: c_int) -> c_int {
    let mut world = world();
    let Ok(device) = world.device(device) else { return libc::ENOENT };
    if stream == 0 {
        world.devices[device].held = hold != 0;
    } else {
        let Ok(handle) = world.stream_handle("fake_cuda_hold", device, stream) else { return libc::ENOENT };
        world.stream(handle).held = hold != 0;
    }
    if hold == 0 {
        if world.devices[device].settings.get("queries") == 0 {
            let marks = world.marks(device);
            // Others may still be held.
            let _ = world.run(marks);
        }
        world.wake();
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn fake_cuda_copy(device: c_int, to: u64, from: u64, len: usize) -> c_int {
    let mut world = world();
    let Ok(device) = world.device(device) else { return libc::ENOENT };
    let stream = world.devices[device].default_streams[0];
    let work = Work::Copy { to, from: Source::At(from), len: len as u64, between: None };
    world.enqueue("fake_cuda_copy", stream, Vec::new(), work);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_peek(from: u64, to: *mut u8, len: usize) -> c_int {
    let world = world();
    let Some(pieces) = anywhere(&world, from, len) else { return libc::EFAULT };
    let Ok(bytes) = backing::gather(&pieces) else { return libc::EFAULT };
    // SAFETY: the caller's, of so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_poke(to: u64, from: *const u8, len: usize) -> c_int {
    let world = world();
    // SAFETY: the caller's, of so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(from, len) };
    let written = anywhere(&world, to, len).map(|pieces| backing::scatter(&pieces, bytes));
    if written.is_some_and(|written| written.is_ok()) { 0 } else { libc::EFAULT }
}

/// The memory at addresses, for the device that has them.
fn anywhere(world: &World, address: u64, len: usize) -> Option<Vec<backing::Piece>> {
    let (_, range) = world.space.find(address)?;
    world.resolve(range.device, address, len as u64, false, false).ok()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_cuda_text(device: c_int, what: u32, to: *mut c_char, room: usize) -> usize {
    let world = world();
    let Ok(device) = world.device(device) else { return 0 };
    let lines = match what {
        text::CALLS => world.devices[device].calls.join("\n"),
        text::VIOLATIONS => world.devices[device].violations.join("\n"),
        text::LIVE => world.live(device).join("\n"),
        _ => String::new(),
    };
    // SAFETY: the caller's memory, of so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr().cast(), to, lines.len().min(room)) };
    lines.len()
}
