//! The GID table of a port.

use std::fs::read_to_string;
use std::mem::MaybeUninit;

use qpair_verbs_sys as sys;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use super::handle::Handle;
use crate::types::{Gid, GidEntry, GidKind};

/// The table of a port.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) handle: &'a Handle,
    /// Ports that the device has.
    pub(super) ports: u8,
    pub(super) port: u8,
}

/// Whether the names of interfaces are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    Yes,
    No,
}

impl Table<'_> {
    /// The rows that stand for something, of so many.
    pub(super) fn rows(self, len: u32, names: Names) -> Vec<GidEntry> {
        self.at_once(len, names)
            .unwrap_or_else(|| (0..len).filter_map(|index| entry(self.handle, self.port, index, names)).collect())
    }

    /// All with one question; `None` where the library or the kernel is too old.
    fn at_once(self, len: u32, names: Names) -> Option<Vec<GidEntry>> {
        let Table { handle, ports, port } = self;
        // The table is that of all ports.
        let room = (len as usize).clamp(1, MOST_PER_PORT) * usize::from(ports.max(port));
        let mut rows = vec![EMPTY; room];
        // SAFETY: the context is open, and there is room for so many rows.
        let count = unsafe { sys::ibv_query_gid_table(handle.library, handle.ctx(), rows.as_mut_ptr(), room, 0) };
        let count = usize::try_from(count.ok()?).ok().filter(|&count| count <= room)?;
        rows.truncate(count);
        rows.retain(|row| row.port_num == u32::from(port));
        let mut entries: Vec<_> = rows.iter().map(from_row).collect();
        if names == Names::Yes {
            for (entry, row) in entries.iter_mut().zip(&rows) {
                entry.netdev = netdev(row.ndev_ifindex);
            }
        }
        Some(entries)
    }
}

/// A row without its interface's name.
fn from_row(row: &sys::ibv_gid_entry) -> GidEntry {
    // SAFETY: any 16 bytes are a GID.
    let gid = Gid(unsafe { row.gid.raw });
    GidEntry { index: row.gid_index, gid, kind: kind_of(row.gid_type), netdev: None }
}

/// One entry, its kind and interface from sysfs; `None` for one that stands for nothing.
fn entry(handle: &Handle, port: u8, index: u32, names: Names) -> Option<GidEntry> {
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
    let netdev = if names == Names::Yes { attribute("ndevs") } else { None };
    Some(GidEntry { index, gid, kind, netdev })
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
    let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::index_to_name(any, index).ok()
}

/// What stands for nothing.
const EMPTY: sys::ibv_gid_entry =
    sys::ibv_gid_entry { gid: sys::ibv_gid { raw: [0; 16] }, gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
/// Far above what any device has; what a device says is not trusted with more memory.
const MOST_PER_PORT: usize = 1024;
