//! The GID table of a port.

use std::fs::read_to_string;
use std::mem::MaybeUninit;

use qpair_verbs_sys as sys;

use super::handle::Handle;
use crate::types::{Gid, GidEntry, GidKind};

/// The entries of a port that stand for something.
pub(super) fn table(handle: &Handle, port: u8, len: u32) -> Vec<GidEntry> {
    whole(handle, port, len).unwrap_or_else(|| (0..len).filter_map(|index| entry(handle, port, index)).collect())
}

/// All at once; `None` where the library or the kernel is too old.
fn whole(handle: &Handle, port: u8, len: u32) -> Option<Vec<GidEntry>> {
    // The table is that of all ports.
    let room = (len as usize).clamp(1, MOST_PER_PORT) * usize::from(u8::MAX);
    let mut rows: Vec<sys::ibv_gid_entry> = Vec::with_capacity(room);
    // SAFETY: the context is open, and there is room for so many rows.
    let count = unsafe { sys::ibv_query_gid_table(handle.library, handle.ctx(), rows.as_mut_ptr(), room, 0) }.ok()?;
    let count = usize::try_from(count).ok().filter(|&count| count <= room)?;
    // SAFETY: the library wrote so many rows.
    unsafe { rows.set_len(count) };
    Some(rows.iter().filter(|row| row.port_num == u32::from(port)).map(from_row).collect())
}

fn from_row(row: &sys::ibv_gid_entry) -> GidEntry {
    // SAFETY: any 16 bytes are a GID.
    let gid = Gid(unsafe { row.gid.raw });
    GidEntry { index: row.gid_index, gid, kind: kind_of(row.gid_type), netdev: netdev(row.ndev_ifindex) }
}

/// One entry, its kind and interface from sysfs; `None` for one that stands for nothing.
fn entry(handle: &Handle, port: u8, index: u32) -> Option<GidEntry> {
    let mut gid = MaybeUninit::<sys::ibv_gid>::zeroed();
    let place = i32::try_from(index).ok()?;
    // SAFETY: the context is open; `gid` is written to.
    let status = unsafe { (handle.library.ibv_query_gid)(handle.ctx(), port, place, gid.as_mut_ptr()) };
    // SAFETY: any 16 bytes are a GID, zeroes too.
    let gid = Gid(unsafe { gid.assume_init().raw });
    if status != 0 || gid.0 == [0; 16] {
        return None;
    }
    let attribute = |what: &str| {
        let path = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/{what}/{index}", handle.name);
        read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let kind = match attribute("types").as_deref() {
        Some("RoCE v2") => GidKind::RoceV2,
        Some("IB/RoCE v1") if attribute("ndevs").is_some() => GidKind::RoceV1,
        _ => GidKind::InfiniBand,
    };
    Some(GidEntry { index, gid, kind, netdev: attribute("ndevs") })
}

fn kind_of(code: u32) -> GidKind {
    match code {
        sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
        sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        other => GidKind::Unknown(other),
    }
}

/// The name of a network interface; 0 is none.
fn netdev(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let entries = std::fs::read_dir("/sys/class/net").ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let number = read_to_string(entry.path().join("ifindex")).ok()?;
        (number.trim() == index.to_string()).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

/// Far above what any device has; what a device says is not trusted with more memory.
const MOST_PER_PORT: usize = 1024;
