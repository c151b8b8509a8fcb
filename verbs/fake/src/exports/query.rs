//! What a device says of itself, its port and its tables.

use std::ffi::c_int;
use std::mem::size_of;

use qpair_verbs_sys::*;

use super::{code, minus_one, zeroed};
use crate::device::Gid;
use crate::settings::Settings;
use crate::world::{World, world};

/// The queries of an extended context.
pub(super) fn fill(outer: &mut verbs_context, settings: &Settings) {
    outer.query_device_ex = settings.has("query_device_ex").then_some(query_device_ex as _);
    outer.query_port = settings.has("query_port_ex").then_some(query_port as _);
    outer.query_rt_values = settings.has("timestamp_mask").then_some(query_rt_values as _);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    let mut world = world();
    code(world.enter("ibv_query_device", context.addr()).map(|device| {
        world.record("ibv_query_device", context.addr(), "");
        let all = world.devices[device].attributes();
        // SAFETY: the caller's, to be written to.
        unsafe { *attr = all };
    }))
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let mut world = world();
    code(world.enter("ibv_query_device_ex", context.addr()).and_then(|device| {
        world.record("ibv_query_device_ex", context.addr(), "");
        if size < size_of::<ibv_device_attr>() {
            return Err(libc::EINVAL);
        }
        let (device, settings) = (&world.devices[device], &world.devices[device].settings);
        // SAFETY: integers, for which zero is a value.
        let mut all: ibv_device_attr_ex = unsafe { zeroed() };
        all.orig_attr = device.attributes();
        all.phys_port_cnt_ex = settings.get_u32("ports");
        all.completion_timestamp_mask = settings.get("timestamp_mask");
        all.hca_core_clock = settings.get("core_clock_khz");
        all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags);
        if settings.has("odp") {
            let every = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
            all.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT);
            all.odp_caps.per_transport_caps.rc_odp_caps = every | IBV_ODP_SUPPORT_ATOMIC;
            all.odp_caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND;
        }
        // SAFETY: the caller's, `size` bytes of it; a caller with older headers has fewer.
        unsafe {
            let bytes = size.min(size_of::<ibv_device_attr_ex>());
            std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast::<u8>(), bytes);
        }
        Ok(())
    }))
}

unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize) -> c_int {
    // SAFETY: the caller's, `size` bytes of it.
    code(port_attributes(&mut world(), context, port).map(|all| unsafe {
        let bytes = size.min(size_of::<ibv_port_attr>());
        std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast::<u8>(), bytes);
    }))
}

/// The exported function fills in what the first version of the structure had: all up to the link layer and flags.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int {
    let bytes = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the caller's, of at least this version.
    code(port_attributes(&mut world(), context, port).map(|all| unsafe {
        std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast::<u8>(), bytes);
    }))
}

fn port_attributes(world: &mut World, context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, c_int> {
    let device = world.enter("ibv_query_port", context.addr())?;
    check_port(world, device, u32::from(port))?;
    world.record("ibv_query_port", context.addr(), "");
    Ok(world.devices[device].port())
}

fn check_port(world: &World, device: usize, port: u32) -> Result<(), c_int> {
    let ports = world.devices[device].settings.get("ports");
    if (1..=ports).contains(&u64::from(port)) { Ok(()) } else { Err(libc::EINVAL) }
}

unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    let mut world = world();
    code(world.enter("ibv_query_rt_values_ex", context.addr()).map(|_| {
        // SAFETY: the caller's, to be written to.
        let values = unsafe { &mut *values };
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            // SAFETY: writes to the caller's structure.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut values.raw_clock) };
        }
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    let mut world = world();
    minus_one(world.enter("ibv_query_gid", context.addr()).and_then(|device| {
        check_port(&world, device, u32::from(port))?;
        let index = u32::try_from(index).map_err(|_| libc::EINVAL)?;
        if u64::from(index) >= world.devices[device].settings.get("gid_tbl_len") {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's, to be written to.
        unsafe { (*gid).raw = world.devices[device].gid(index).unwrap_or(Gid::EMPTY).raw };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    let mut world = world();
    code(world.enter("ibv_query_gid_ex", context.addr()).and_then(|device| {
        check_port(&world, device, port)?;
        if !world.devices[device].settings.has("gid_ex") {
            return Err(libc::EOPNOTSUPP);
        }
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        let gid = world.devices[device].gid(index).ok_or(libc::ENODATA)?;
        // SAFETY: the caller's, `size` bytes of it.
        unsafe { *entry = gid_entry(index, gid) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut world = world();
    let found = world.enter("ibv_query_gid_table", context.addr()).and_then(|device| {
        if !world.devices[device].settings.has("gid_ex") {
            return Err(libc::EOPNOTSUPP);
        }
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        world.record("ibv_query_gid_table", context.addr(), format_args!(" room={max_entries}"));
        let device = &world.devices[device];
        let used: Vec<_> = (0..device.gids.len() as u32).filter_map(|at| Some((at, device.gid(at)?))).collect();
        if used.len() > max_entries {
            return Err(libc::EINVAL);
        }
        for (at, (index, gid)) in used.iter().enumerate() {
            // SAFETY: the caller's, with room for as many entries of `size` bytes.
            unsafe { *entries.byte_add(at * size) = gid_entry(*index, *gid) };
        }
        Ok(used.len() as isize)
    });
    found.unwrap_or_else(|errno| -(errno as isize))
}

fn gid_entry(gid_index: u32, gid: Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.raw },
        gid_index,
        port_num: 1,
        gid_type: gid.gid_type,
        ndev_ifindex: gid.ifindex,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    let mut world = world();
    minus_one(world.enter("ibv_query_pkey", context.addr()).and_then(|device| {
        check_port(&world, device, u32::from(port))?;
        if index < 0 || index as u64 >= world.devices[device].settings.get("pkey_tbl_len") {
            return Err(libc::EINVAL);
        }
        world.record("ibv_query_pkey", context.addr(), "");
        // The partition that all are in, and one for each row that follows, as a limited member and then as a full one.
        let of_row = |row: u16| row.div_ceil(2) | if row.is_multiple_of(2) { FULL_MEMBER } else { 0 };
        let key = if index == 0 { u16::MAX } else { of_row(index as u16) };
        // SAFETY: the caller's, to be written to.
        unsafe { *pkey = key.to_be() };
        Ok(())
    }))
}

/// Of a partition key: its port reaches limited members too.
const FULL_MEMBER: u16 = 1 << 15;

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let mut world = world();
    let found = world.enter("ibv_get_pkey_index", context.addr());
    let found = found.and_then(|device| check_port(&world, device, u32::from(port)));
    if found.is_ok() && pkey == u16::MAX { 0 } else { -1 }
}
