//! Physical memory and addresses apart: virtual memory management.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use super::memory::{insert, remove, room, warn_held_up, warn_users};
use super::{put, supported, take, valid};
use crate::abi::{ALLOCATION_PINNED, AccessDesc, AllocationProp, HANDLE_POSIX_FD, LOCATION_DEVICE};
use crate::backing::{self, Backing};
use crate::code::{self, Code, Outcome};
use crate::settings::attribute;
use crate::space::{Segment, What};
use crate::vmm::Physical;
use crate::world::{Needs, State, World, call};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    prop: *const AllocationProp,
    flags: c_ulonglong,
) -> Code {
    // SAFETY: the caller's.
    let Ok(prop) = (unsafe { take(prop) }) else { return code::INVALID_VALUE };
    call("cuMemCreate", Needs::Device(prop.location.id), |world, device| {
        valid(!handle.is_null() && flags == 0)?;
        check(world, device, &prop)?;
        let size = size as u64;
        valid(size > 0 && size.is_multiple_of(granularity(world, device)))?;
        room(world, device, size)?;
        let name = Physical::file_name(device, prop.rdma_capable);
        let backing = Arc::new(Backing::new(&name, device, size, &world.devices[device].used, size)?);
        let (handle_types, rdma_capable) = (prop.handle_types, prop.rdma_capable);
        let made = Physical { backing, handle_types, rdma_capable, handles: 1, mappings: 0 };
        let made = world.add(device, State::Physical(made));
        // SAFETY: the caller's.
        unsafe { put(handle, made) }
    })
}

/// Whether a device can have memory of these properties.
fn check(world: &World, device: usize, prop: &AllocationProp) -> Outcome<()> {
    let attribute = |number| world.devices[device].settings.attribute(number) != 0;
    supported(attribute(attribute::VMM_SUPPORTED))?;
    valid(prop.kind == ALLOCATION_PINNED)?;
    supported(prop.location.kind == LOCATION_DEVICE && prop.handle_types & !HANDLE_POSIX_FD == 0)?;
    supported(prop.handle_types == 0 || attribute(attribute::POSIX_FD_SUPPORTED))?;
    valid(prop.rdma_capable == 0 || attribute(attribute::RDMA_WITH_VMM_SUPPORTED))
}

fn granularity(world: &World, device: usize) -> u64 {
    world.devices[device].settings.get("granularity")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(size: *mut usize, prop: *const AllocationProp, option: u32) -> Code {
    // SAFETY: the caller's.
    let Ok(prop) = (unsafe { take(prop) }) else { return code::INVALID_VALUE };
    call("cuMemGetAllocationGranularity", Needs::Device(prop.location.id), |world, device| {
        valid(option <= 1)?;
        check(world, device, &prop)?;
        // SAFETY: the caller's.
        unsafe { put(size, granularity(world, device) as usize) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> Code {
    call("cuMemRelease", Needs::Of(handle), |world, _| {
        world.physical("cuMemRelease", handle)?.handles -= 1;
        world.settle(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) -> Code {
    let address = address.expose_provenance() as u64;
    call("cuMemRetainAllocationHandle", Needs::Of(address), |world, _| {
        valid(!handle.is_null())?;
        let (base, range) = world.space.find(address).ok_or(code::INVALID_VALUE)?;
        let What::Reserved(segments) = &range.what else { return Err(code::INVALID_VALUE) };
        let segment = segments.range(..=address - base).next_back();
        let segment = segment.filter(|(at, segment)| address - base - **at < segment.len);
        let physical = segment.ok_or(code::INVALID_VALUE)?.1.physical;
        if let Some(physical) = world.mapped_physical(physical) {
            physical.handles += 1;
        }
        // SAFETY: the caller's.
        unsafe { put(handle, physical) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(prop: *mut AllocationProp, handle: u64) -> Code {
    call("cuMemGetAllocationPropertiesFromHandle", Needs::Of(handle), |world, _| {
        let found = world.physical("cuMemGetAllocationPropertiesFromHandle", handle)?.prop();
        // SAFETY: the caller's.
        unsafe { put(prop, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(to: *mut c_void, handle: u64, kind: u32, flags: c_ulonglong) -> Code {
    call("cuMemExportToShareableHandle", Needs::Of(handle), |world, _| {
        valid(!to.is_null() && flags == 0)?;
        let physical = world.physical("cuMemExportToShareableHandle", handle)?;
        valid(kind == HANDLE_POSIX_FD && physical.handle_types & kind != 0)?;
        let fd = physical.backing.export(0)?;
        // SAFETY: the caller's, an int for this kind.
        unsafe { put(to.cast::<c_int>(), fd) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(handle: *mut u64, from: *mut c_void, kind: u32) -> Code {
    call("cuMemImportFromShareableHandle", Needs::Init, |world, _| {
        valid(!handle.is_null())?;
        supported(kind == HANDLE_POSIX_FD)?;
        let fd = c_int::try_from(from.addr() as isize).ok().filter(|fd| *fd >= 0).ok_or(code::INVALID_VALUE)?;
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| code::INVALID_VALUE)?;
        let known = link.to_str().and_then(Physical::parse_file_name);
        let (device, rdma_capable) = known.ok_or(code::INVALID_VALUE)?;
        let device = world.device(device as c_int)?;
        // SAFETY: it was found open just now, and is the caller's, who does not close it during this call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        let backing = Arc::new(Backing::of(File::from(file.map_err(|_| code::OPERATING_SYSTEM)?), device)?);
        debug_assert_ne!(backing.fd().as_raw_fd(), fd);
        let imported = Physical { backing, handle_types: kind, rdma_capable, handles: 1, mappings: 0 };
        let imported = world.add(device, State::Physical(imported));
        // SAFETY: the caller's.
        unsafe { put(handle, imported) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    size: usize,
    alignment: usize,
    _hint: u64,
    flags: c_ulonglong,
) -> Code {
    call("cuMemAddressReserve", Needs::Init, |world, device| {
        supported(world.devices[device].settings.attribute(attribute::VMM_SUPPORTED) != 0)?;
        let (size, unit) = (size as u64, granularity(world, device));
        valid(!address.is_null() && flags == 0 && size > 0 && size.is_multiple_of(unit))?;
        valid(alignment == 0 || alignment.is_power_of_two())?;
        let base = world.space.arena.take(size, (alignment as u64).max(unit))?;
        insert(world, device, base, size, What::Reserved(BTreeMap::new()));
        // SAFETY: the caller's.
        unsafe { put(address, base) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: u64, size: usize) -> Code {
    call("cuMemAddressFree", Needs::Of(address), |world, device| {
        if let Some((base, range)) = world.space.find(address)
            && let What::Reserved(segments) = &range.what
        {
            let name = range.name();
            let (mapped, whole) = (!segments.is_empty(), base == address && range.len == size as u64);
            if mapped || !whole {
                let what = if mapped { "has mappings" } else { "is not all of it" };
                world.violation(
                    device,
                    "cuMemAddressFree",
                    format_args!("{size} bytes at {address:#x} of {name}: {what}"),
                );
                return Err(code::INVALID_VALUE);
            }
        }
        remove(world, "cuMemAddressFree", device, address, "reservation").map(drop)
    })
}

/// The mappings of a reservation that has all of these addresses: where it begins, and they.
fn reserved(world: &mut World, address: u64, size: u64) -> Outcome<(u64, &mut BTreeMap<u64, Segment>)> {
    let (base, range) = world.space.find_mut(address).ok_or(code::INVALID_VALUE)?;
    valid(size > 0 && range.len - (address - base) >= size)?;
    match &mut range.what {
        What::Reserved(segments) => Ok((base, segments)),
        _ => Err(code::INVALID_VALUE),
    }
}

/// The distances of the mappings that some addresses consist of, which have no part of another and no gap.
fn whole(segments: &BTreeMap<u64, Segment>, at: u64, size: u64) -> Outcome<Vec<u64>> {
    let mut next = at;
    let mut found = Vec::new();
    while next < at + size {
        let segment = segments.get(&next).ok_or(code::INVALID_VALUE)?;
        found.push(next);
        next += segment.len;
    }
    valid(next == at + size)?;
    Ok(found)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: c_ulonglong) -> Code {
    call("cuMemMap", Needs::Of(handle), |world, device| {
        let (size, unit) = (size as u64, granularity(world, device));
        valid(flags == 0 && offset == 0 && address.is_multiple_of(unit) && size.is_multiple_of(unit))?;
        let backing = world.physical("cuMemMap", handle)?.backing.clone();
        valid(size <= backing.len)?;
        let (base, segments) = reserved(world, address, size)?;
        let at = address - base;
        let before = segments.range(..at + size).next_back();
        valid(before.is_none_or(|(start, segment)| start + segment.len <= at))?;
        backing.map(address, size, 0)?;
        let access = BTreeMap::new();
        segments.insert(at, Segment { len: size, physical: handle, backing, offset: 0, access });
        world.physical("cuMemMap", handle)?.mappings += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: u64, size: usize) -> Code {
    call("cuMemUnmap", Needs::Of(address), |world, device| {
        let size = size as u64;
        let (base, segments) = reserved(world, address, size)?;
        let parts = whole(segments, address - base, size)?;
        warn_held_up(world, "cuMemUnmap", device);
        warn_users(world, "cuMemUnmap", device, address, size);
        let (_, segments) = reserved(world, address, size)?;
        let unmapped: Vec<Segment> = parts.iter().filter_map(|at| segments.remove(at)).collect();
        backing::unmap(address, size);
        for segment in unmapped {
            if let Some(physical) = world.mapped_physical(segment.physical) {
                physical.mappings -= 1;
            }
            world.settle(segment.physical);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(address: u64, size: usize, descs: *const AccessDesc, count: usize) -> Code {
    call("cuMemSetAccess", Needs::Of(address), |world, _| {
        valid(!descs.is_null() && count > 0)?;
        for at in 0..count {
            // SAFETY: the caller's, as many as it says.
            let desc = unsafe { take(descs.add(at))? };
            supported(desc.location.kind == LOCATION_DEVICE)?;
            valid(matches!(desc.flags, 0 | 1 | 3))?;
            let device = world.device(desc.location.id)?;
            let (base, segments) = reserved(world, address, size as u64)?;
            let parts = whole(segments, address - base, size as u64)?;
            let owners: Vec<usize> = parts.iter().map(|at| segments[at].backing.device).collect();
            let reached = owners.iter().all(|owner| world.reach(device, *owner));
            if !reached {
                return Err(code::INVALID_DEVICE);
            }
            let (_, segments) = reserved(world, address, size as u64)?;
            for part in parts {
                if let Some(segment) = segments.get_mut(&part) {
                    segment.access.insert(device, desc.flags);
                }
            }
        }
        Ok(())
    })
}
