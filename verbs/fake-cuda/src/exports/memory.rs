//! Memory of devices, and of the host for them.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{put, supported, valid};
use crate::backing::{self, Backing, PAGE, pointer};
use crate::code::{self, Code, Outcome};
use crate::settings::attribute;
use crate::space::{Range, What};
use crate::world::{Locked, Needs, World, call};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    call("cuMemGetInfo_v2", Needs::Context, |world, device| {
        let of = &world.devices[device];
        let memory = of.settings.get("memory");
        let left = memory.saturating_sub(of.used.load(Ordering::Relaxed));
        // SAFETY: the caller's.
        unsafe { put(free, left as usize).and_then(|()| put(total, memory as usize)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, len: usize) -> Code {
    call("cuMemAlloc_v2", Needs::Context, |world, device| {
        valid(len > 0 && !address.is_null())?;
        let len = len as u64;
        room(world, device, len)?;
        let offset = world.devices[device].settings.get("alloc_offset");
        let pages = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
        let pages = pages.ok_or(code::OUT_OF_MEMORY)?;
        let name = format!("fake-cuda:alloc:{device}");
        let backing = Backing::new(&name, device, pages, &world.devices[device].used, len)?;
        let block = world.space.arena.take(pages, 1)?;
        backing.map(block, pages, 0)?;
        let what = What::Alloc(Arc::new(backing), offset);
        insert(world, device, block + offset, len, what);
        // SAFETY: the caller's.
        unsafe { put(address, block + offset) }
    })
}

/// Whether a device has as much memory left.
pub(super) fn room(world: &World, device: usize, len: u64) -> Outcome<()> {
    let of = &world.devices[device];
    let used = of.used.load(Ordering::Relaxed);
    let fits = used.checked_add(len).is_some_and(|used| used <= of.settings.get("memory"));
    if fits { Ok(()) } else { Err(code::OUT_OF_MEMORY) }
}

/// Takes a range in.
pub(super) fn insert(world: &mut World, device: usize, base: u64, len: u64, what: What) {
    let mut range = Range { len, device, number: 0, synchronous: false, what };
    range.number = world.devices[device].number(range.kind());
    world.space.ranges.insert(base, range);
}

/// Takes a range out that has to be of a kind and begin at the address, and gives its addresses back to nobody.
pub(super) fn remove(world: &mut World, symbol: &str, device: usize, address: u64, kind: &str) -> Outcome<Range> {
    match world.space.find(address) {
        Some((base, range)) if base == address && range.kind() == kind => {
            let len = range.len;
            warn_users(world, symbol, device, base, len);
            world.space.remove(base).ok_or(code::INVALID_VALUE)
        }
        Some((_, range)) => {
            let what = format!("{address:#x} is not where an {kind} begins, but of {}", range.name());
            world.violation(device, symbol, what);
            Err(code::INVALID_VALUE)
        }
        None => {
            let what = world.space.dead.get(&address).map_or("nothing", |(_, name)| name.as_str());
            let what = format!("{address:#x} is of {what}, which is not there or was freed before");
            world.violation(device, symbol, what);
            Err(code::INVALID_VALUE)
        }
    }
}

/// Notes that streams are still to use what is about to go.
pub(super) fn warn_users(world: &mut World, symbol: &str, device: usize, base: u64, len: u64) {
    let users = world.users(base, len);
    if !users.is_empty() {
        let what = format!("{len} bytes at {base:#x} are still to be used by {}", users.join(", "));
        world.violation(device, symbol, what);
    }
}

/// Notes that a driver which waits for all streams before it frees would wait for who writes the words of some.
pub(super) fn warn_held_up(world: &mut World, symbol: &str, device: usize) {
    let held_up = world.held_up(device);
    if !held_up.is_empty() {
        let what = format!("it may wait for {}, held up by a word", held_up.join(", "));
        world.violation(device, symbol, what);
    }
}

/// What freeing waits for: all that the device was given to do, but what is held.
fn settle(world: &mut Locked, device: usize) {
    let marks = world.marks(device);
    // The caller finds what is held by its use.
    let _ = world.run(marks);
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call("cuMemFree_v2", Needs::Ending, |world, device| {
        if address == 0 {
            return Ok(());
        }
        let owner = world.space.find(address).map_or(device, |(_, range)| range.device);
        settle(world, owner);
        warn_held_up(world, "cuMemFree", owner);
        let range = remove(world, "cuMemFree", owner, address, "allocation")?;
        unmap(address, &range);
        Ok(())
    })
}

/// Takes the mapping of memory away.
pub(super) fn unmap(base: u64, range: &Range) {
    if let What::Alloc(backing, offset) | What::Ipc(backing, offset, _) = &range.what {
        backing::unmap(base - offset, backing.len);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) -> Code {
    call("cuMemGetAddressRange_v2", Needs::Context, |world, _| {
        let (start, bytes) = extent(world, address).ok_or(code::NOT_FOUND)?;
        if !base.is_null() {
            // SAFETY: the caller's.
            unsafe { put(base, start)? };
        }
        if !len.is_null() {
            // SAFETY: the caller's.
            unsafe { put(len, bytes as usize)? };
        }
        Ok(())
    })
}

/// The allocation, or the mapping in a reservation, that has an address.
pub(super) fn extent(world: &World, address: u64) -> Option<(u64, u64)> {
    let (base, range) = world.space.find(address)?;
    let What::Reserved(segments) = &range.what else { return Some((base, range.len)) };
    let (at, segment) = segments.range(..=address - base).next_back()?;
    (address - base - at < segment.len).then_some((base + at, segment.len))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, len: usize, flags: c_uint) -> Code {
    call("cuMemHostAlloc", Needs::Context, |world, device| {
        valid(len > 0 && flags <= 7 && !address.is_null())?;
        let bytes = (len as u64).checked_next_multiple_of(PAGE).ok_or(code::OUT_OF_MEMORY)?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(code::OUT_OF_MEMORY);
        }
        insert(world, device, at.expose_provenance() as u64, len as u64, What::Pinned(true));
        // SAFETY: the caller's.
        unsafe { put(address, at) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: *mut c_void) -> Code {
    call("cuMemFreeHost", Needs::Ending, |world, device| {
        if address.is_null() {
            return Ok(());
        }
        settle(world, device);
        let range = remove(world, "cuMemFreeHost", device, address.expose_provenance() as u64, "host")?;
        let bytes = range.len.next_multiple_of(PAGE);
        // SAFETY: a mapping of the function above, which the caller gives back.
        unsafe { libc::munmap(address, bytes as usize) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(address: *mut c_void, len: usize, flags: c_uint) -> Code {
    call("cuMemHostRegister_v2", Needs::Context, |world, device| {
        supported(world.devices[device].settings.attribute(attribute::HOST_REGISTER_SUPPORTED) != 0)?;
        let base = address.expose_provenance() as u64;
        let end = base.checked_add(len as u64).ok_or(code::INVALID_VALUE)?;
        valid(len > 0 && base != 0 && flags <= 15 && !world.space.arena.has(base) && mapped(base, end))?;
        let before = world.space.ranges.range(..end).next_back();
        if before.is_some_and(|(start, range)| start + range.len > base) {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        insert(world, device, base, len as u64, What::Pinned(false));
        Ok(())
    })
}

/// Whether all pages of a range of addresses are mapped.
fn mapped(base: u64, end: u64) -> bool {
    let start = base - base % PAGE;
    let Some(bytes) = end.checked_next_multiple_of(PAGE).map(|end| end - start) else { return false };
    let mut resident = vec![0u8; (bytes / PAGE) as usize];
    // SAFETY: it only asks about the addresses, and has a byte for each page.
    unsafe { libc::mincore(pointer(start).cast(), bytes as usize, resident.as_mut_ptr()) == 0 }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(address: *mut c_void) -> Code {
    call("cuMemHostUnregister", Needs::Ending, |world, device| {
        let base = address.expose_provenance() as u64;
        if !world.space.ranges.contains_key(&base) {
            world.violation(device, "cuMemHostUnregister", format_args!("{base:#x} is not registered"));
            return Err(code::HOST_MEMORY_NOT_REGISTERED);
        }
        let range = remove(world, "cuMemHostUnregister", device, base, "registration")?;
        if !mapped(base, base + range.len) {
            let what = format_args!("{} bytes at {base:#x} were unmapped while they were registered", range.len);
            world.violation(device, "cuMemHostUnregister", what);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(to: *mut u64, address: *mut c_void, flags: c_uint) -> Code {
    call("cuMemHostGetDevicePointer_v2", Needs::Context, |world, _| {
        valid(flags == 0)?;
        let address = address.expose_provenance() as u64;
        let pinned = world.space.find(address).is_some_and(|(_, range)| matches!(range.what, What::Pinned(_)));
        valid(pinned)?;
        // SAFETY: the caller's.
        unsafe { put(to, address) }
    })
}
