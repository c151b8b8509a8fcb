//! One device: what it is, what was done to it, what it answers to queries.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::fmt;
use std::net::Ipv4Addr;

use qpair_verbs_sys::*;

use crate::interface::ATTRIBUTES;
use crate::script::Script;
use crate::settings::Settings;
use crate::world::Kind;

pub(crate) struct Device {
    pub(crate) name: String,
    /// The C structure, which is never freed.
    pub(crate) c: *mut ibv_device,
    pub(crate) index: usize,
    pub(crate) settings: Settings,
    pub(crate) script: Script,
    pub(crate) gids: Vec<Gid>,
    pub(crate) calls: Vec<String>,
    pub(crate) violations: Vec<String>,
    /// How many were created and destroyed, by kind; handles count up over both.
    counts: HashMap<Kind, (u64, u64)>,
    next_handle: HashMap<Kind, u32>,
    /// The value that the setting `refuse_attr` refuses.
    pub(crate) refused_value: Option<String>,
    /// Bytes registered, which the kernel would pin.
    pub(crate) locked: u64,
    /// The kernel has taken it away.
    pub(crate) removed: bool,
    /// Calls that wait until the kernel has found a peer's port.
    pub(crate) waiting: u64,
}

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
    pub(crate) gid_type: u32,
    pub(crate) ifindex: u32,
}

impl Device {
    pub(crate) fn new(name: &str, index: usize) -> Device {
        Device {
            name: name.to_owned(),
            c: c_structure(name, index),
            index,
            settings: Settings::default(),
            script: Script::default(),
            gids: usual_gids(index),
            calls: Vec::new(),
            violations: Vec::new(),
            counts: HashMap::new(),
            next_handle: HashMap::new(),
            refused_value: None,
            locked: 0,
            removed: false,
            waiting: 0,
        }
    }

    /// Whether requests are only noted, not done.
    pub(crate) fn is_null(&self) -> bool {
        self.name.starts_with("null")
    }

    /// Forgets scripts, changed settings, and records; objects stay.
    pub(crate) fn reset(&mut self) {
        self.settings.reset();
        self.script = Script::default();
        self.gids = usual_gids(self.index);
        self.calls.clear();
        self.violations.clear();
        self.refused_value = None;
        for (created, destroyed) in self.counts.values_mut() {
            (*created, *destroyed) = (*created - *destroyed, 0);
        }
    }

    pub(crate) fn record(&mut self, line: fmt::Arguments<'_>) {
        if self.calls.len() < CALLS_KEPT && !self.is_null() {
            self.calls.push(line.to_string());
        }
    }

    /// Counts a new object and gives it a handle, from 1.
    pub(crate) fn created(&mut self, kind: Kind) -> u32 {
        self.counts.entry(kind).or_default().0 += 1;
        let handle = self.next_handle.entry(kind).or_default();
        *handle += 1;
        *handle
    }

    pub(crate) fn destroyed(&mut self, kind: Kind) {
        self.counts.entry(kind).or_default().1 += 1;
    }

    pub(crate) fn live(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).map_or(0, |(created, destroyed)| created - destroyed)
    }

    /// A count by name: `live.qp`, `created.qp`, `destroyed.qp`.
    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        if name == "waiting" {
            return Some(self.waiting);
        }
        let (what, kind) = name.split_once('.')?;
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
        let (created, destroyed) = self.counts.get(&kind).copied().unwrap_or_default();
        match what {
            "live" => Some(created - destroyed),
            "created" => Some(created),
            "destroyed" => Some(destroyed),
            _ => None,
        }
    }

    /// The entry of the GID table, if it is one in use.
    pub(crate) fn gid(&self, index: u32) -> Option<Gid> {
        self.gids.get(index as usize).copied().filter(|gid| gid.raw != [0; 16])
    }

    /// Whether the device has a GID under one type.
    pub(crate) fn owns(&self, raw: &[u8; 16], gid_type: u32) -> bool {
        self.gids.iter().any(|gid| gid.raw == *raw && gid.gid_type == gid_type)
    }

    pub(crate) fn set_gid(&mut self, index: u32, gid: Gid) -> Result<(), c_int> {
        if u64::from(index) >= self.settings.get("gid_tbl_len").min(256) {
            return Err(libc::EINVAL);
        }
        let index = index as usize;
        if index >= self.gids.len() {
            self.gids.resize(index + 1, Gid::EMPTY);
        }
        self.gids[index] = gid;
        Ok(())
    }

    pub(crate) fn mtu_bytes(&self) -> usize {
        match self.settings.get("active_mtu") {
            code @ 1..=5 => 128 << code,
            _ => 4096,
        }
    }

    pub(crate) fn attributes(&self) -> ibv_device_attr {
        let set = |name| self.settings.get_u32(name);
        let int = |name| self.settings.get(name) as c_int;
        // SAFETY: integers and an array of characters, for which zero is a value.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        write_text(&mut attr.fw_ver, "99.0.1");
        attr.node_guid = self.guid();
        attr.sys_image_guid = self.guid();
        attr.max_mr_size = self.settings.get("max_mr_size");
        attr.page_size_cap = 0xffff_f000;
        attr.vendor_id = set("vendor_id");
        attr.vendor_part_id = set("vendor_part_id");
        attr.hw_ver = set("hw_ver");
        attr.max_qp = int("max_qp");
        attr.max_qp_wr = int("max_qp_wr");
        attr.device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        attr.max_sge = int("max_sge");
        attr.max_sge_rd = int("max_sge_rd");
        attr.max_cq = int("max_cq");
        attr.max_cqe = int("max_cqe");
        attr.max_mr = int("max_mr");
        attr.max_pd = int("max_pd");
        attr.max_qp_rd_atom = int("max_qp_rd_atom");
        attr.max_res_rd_atom = int("max_qp_rd_atom").saturating_mul(int("max_qp"));
        attr.max_qp_init_rd_atom = int("max_qp_init_rd_atom");
        attr.atomic_cap = set("atomic_cap");
        attr.max_mw = int("max_mw");
        attr.max_ah = int("max_ah");
        attr.max_srq = int("max_srq");
        attr.max_srq_wr = int("max_srq_wr");
        attr.max_srq_sge = int("max_srq_sge");
        attr.max_pkeys = 1;
        attr.local_ca_ack_delay = 15;
        attr.phys_port_cnt = self.settings.get("ports") as u8;
        attr
    }

    pub(crate) fn port(&self) -> ibv_port_attr {
        let byte = |name| self.settings.get(name) as u8;
        let set = |name| self.settings.get_u32(name);
        // SAFETY: integers, for which zero is a value.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        attr.state = set("port_state");
        attr.max_mtu = set("max_mtu");
        attr.active_mtu = set("active_mtu");
        attr.gid_tbl_len = set("gid_tbl_len") as c_int;
        attr.max_msg_sz = set("max_msg_sz");
        attr.pkey_tbl_len = self.settings.get("pkey_tbl_len") as u16;
        attr.lid = self.settings.get("lid") as u16;
        attr.max_vl_num = 1;
        attr.active_width = byte("active_width");
        attr.active_speed = byte("active_speed");
        attr.phys_state = byte("phys_state");
        attr.link_layer = byte("link_layer");
        attr.flags = byte("port_flags");
        attr
    }

    /// The GUID, in network byte order.
    pub(crate) fn guid(&self) -> u64 {
        let mut bytes = [0x02, 0xfa, 0xce, 0xff, 0xfe, 0, 0, 0];
        bytes[5..].copy_from_slice(&(self.index as u32 + 1).to_be_bytes()[1..]);
        u64::from_ne_bytes(bytes)
    }
}

impl Gid {
    pub(crate) const EMPTY: Gid = Gid { raw: [0; 16], gid_type: 0, ifindex: 0 };
}

/// A link-local address and an IPv4 one, each for RoCE v1 and v2, as Linux lists them; other for each device.
fn usual_gids(index: usize) -> Vec<Gid> {
    let number = (index as u32 + 1).to_be_bytes();
    let mut local = [0; 16];
    local[..2].copy_from_slice(&[0xfe, 0x80]);
    local[8..].copy_from_slice(&[0, 0xfa, 0xce, 0xff, 0xfe, number[1], number[2], number[3]]);
    let address = Ipv4Addr::new(10, 77, number[2], number[3]).to_ipv6_mapped().octets();
    [(local, V1), (local, V2), (address, V1), (address, V2)]
        .into_iter()
        .map(|(raw, gid_type)| Gid { raw, gid_type, ifindex: 1 })
        .collect()
}

const V1: u32 = IBV_GID_TYPE_ROCE_V1;
const V2: u32 = IBV_GID_TYPE_ROCE_V2;

/// The folder of a device's attributes, of which one can be read where the test has a folder for those.
fn attributes(name: &str) -> String {
    let Ok(folder) = std::env::var(ATTRIBUTES) else { return format!("/sys/class/infiniband/{name}") };
    let folder = format!("{folder}/{name}");
    let made = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(format!("{folder}/node_guid"), "0000:0000:0000:0001\n"));
    made.unwrap_or_else(|error| panic!("{folder}: {error}"));
    folder
}

fn c_structure(name: &str, index: usize) -> *mut ibv_device {
    // SAFETY: numbers, characters and function pointers that may be null.
    let mut device: ibv_device = unsafe { std::mem::zeroed() };
    write_text(&mut device.name, name);
    write_text(&mut device.dev_name, &format!("uverbs{index}"));
    write_text(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
    write_text(&mut device.ibdev_path, &attributes(name));
    Box::into_raw(Box::new(device))
}

/// Writes text and a zero after it; what does not fit is cut.
pub(crate) fn write_text(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    to.fill(0);
    for (to, byte) in to[..room].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
}

/// So many calls are kept, that a test which never looks does not fill the memory.
const CALLS_KEPT: usize = 1 << 16;
