//! This host as the software device sees it: who it is, and what the device says of itself.

use std::io;
use std::os::linux::fs::MetadataExt;

use super::{MAX_INLINE, MAX_MESSAGE, MAX_QP, MAX_READS, MAX_REGION, MAX_SRQ_WR, MAX_WR};
use crate::address::{QpAddress, SoftAddress};
use crate::device::{AtomicAbility, DeviceAttributes, LinkLayer, PhysicalState, PortAttributes, PortState};
use crate::memory::MAX_SGE;
use crate::soft::layout::{KEY_SLOTS, SHARED_BYTES};
use crate::soft::switches::no_shared_memory;
use crate::types::{Gid, GidEntry, GidKind, Mtu};

/// Identity of the running system.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) boot_id: [u8; 16],
    pub(crate) namespace: u64,
}

impl Host {
    pub(crate) fn this() -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let mut boot_id = [0; 16];
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        for (byte, pair) in boot_id.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(io::Error::other)?;
            *byte = u8::from_str_radix(pair, 16).map_err(io::Error::other)?;
        }
        let namespace = std::fs::metadata("/proc/self/ns/net")?.st_ino();
        Ok(Host { boot_id, namespace })
    }

    /// What is the same for all processes of this host that reach each other's memory.
    fn domain(&self) -> String {
        let boot_id = self.boot_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{boot_id}-{}", self.namespace)
    }

    /// True if a network may lead to that queue pair.
    pub(crate) fn reaches_by_network(&self, address: &QpAddress) -> bool {
        !(Host::is_shared_memory(address) || address.gid == self.gid() || address.gid.ip().is_unspecified())
    }

    /// True if the GID of an address is that of shared memory on its host: no network leads there.
    pub(crate) fn is_shared_memory(address: &QpAddress) -> bool {
        let of = |soft: SoftAddress| Host { boot_id: soft.host, namespace: soft.namespace }.gid();
        address.soft.is_some_and(|soft| of(soft) == address.gid)
    }

    /// A modified EUI-64 of the running system, with the local bit set.
    fn guid(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.boot_id[..8]);
        u64::from_be_bytes(bytes) | 0x0200_0000_0000_0000
    }

    /// Link-local GID of the device's port.
    pub(crate) fn gid(&self) -> Gid {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&self.guid().to_be_bytes());
        Gid(gid)
    }
}

/// What names the processes that the software device connects by shared memory: the same for two of them, and for no others.
/// They run on one host, in one network namespace.
///
/// `None` where `QPAIR_NO_SHARED_MEMORY=1` turns that off, or the system does not say where it runs.
pub fn shared_memory_domain() -> Option<String> {
    if no_shared_memory() {
        return None;
    }
    Host::this().ok().map(|host| host.domain())
}

pub(crate) fn attributes(host: &Host) -> DeviceAttributes {
    DeviceAttributes {
        node_guid: host.guid(),
        firmware: concat!("qpair ", env!("CARGO_PKG_VERSION")).to_owned(),
        ports: 1,
        max_qp: MAX_QP as u32,
        max_qp_wr: MAX_WR,
        max_sge: MAX_SGE as u32,
        max_cqe: 1 << 22,
        max_mr: KEY_SLOTS as u32,
        max_srq_wr: MAX_SRQ_WR,
        max_mr_size: MAX_REGION as u64,
        max_message: MAX_MESSAGE,
        max_inline: MAX_INLINE as u32,
        atomics: AtomicAbility::Everywhere,
        atomics_with_cpu: true,
        read_reduce: true,
        max_rd_atomic: MAX_READS.into(),
        max_init_rd_atomic: MAX_READS.into(),
        max_sge_read: MAX_SGE as u32,
        max_srq_sge: MAX_SGE as u32,
        ..DeviceAttributes::default()
    }
}

pub(crate) fn port(host: &Host, network: Vec<GidEntry>) -> PortAttributes {
    let mut gids = vec![GidEntry { index: 0, gid: host.gid(), kind: GidKind::RoceV2, netdev: None }];
    gids.extend(network);
    PortAttributes {
        state: PortState::Active,
        physical_state: PhysicalState::LinkUp,
        max_mtu: Mtu::B4096,
        active_mtu: Mtu::B4096,
        lid: 0,
        lid_mask_bits: 0,
        subnet_manager_lid: 0,
        subnet_manager_level: 0,
        link_layer: LinkLayer::SharedMemory,
        max_message: MAX_MESSAGE,
        capability_flags: 0,
        lanes: None,
        lane_rate_mbps: None,
        bad_pkeys: 0,
        qkey_violations: 0,
        gid_table_len: gids.len() as u32,
        pkeys: Vec::new(),
        gids,
    }
}

/// Room that the inbound ring of a queue pair takes at least. One with a shared receive queue takes up to 64 times as much.
const SMALLEST_RING: usize = 4096;
const _: () = assert!(MAX_QP * SMALLEST_RING <= SHARED_BYTES, "there is room for as many as may be");
