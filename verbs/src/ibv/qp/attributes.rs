//! Attributes of transitions, in the library's codes: InfiniBand specification 1.4, 11.2.5.2 and 9.7.5.2.8 (timers).

use std::mem::MaybeUninit;
use std::time::Duration;

use qpair_verbs_sys as sys;

use crate::QpAddress;
use crate::device::{AtomicAbility, LinkLayer};
use crate::qp::QpOptions;
use crate::types::{Access, Gid, Mtu, Psn, QpType};

/// The side of a path that is here.
#[derive(Clone, Copy, Debug)]
pub(in crate::ibv) struct Local {
    pub(in crate::ibv) port: u8,
    pub(in crate::ibv) gid_index: u8,
    /// What stands in that row; zeroes for nothing.
    pub(in crate::ibv) gid: Gid,
    pub(in crate::ibv) link_layer: LinkLayer,
    /// Paths need GIDs within a subnet too.
    pub(in crate::ibv) grh_required: bool,
    pub(in crate::ibv) service_level: u8,
    pub(in crate::ibv) traffic_class: u8,
    pub(in crate::ibv) hop_limit: u8,
}

impl Local {
    /// Whether a peer's port is named by its GID; else by its LID alone, within an InfiniBand subnet.
    pub(in crate::ibv) fn is_global(&self, peer: &QpAddress) -> bool {
        self.link_layer != LinkLayer::InfiniBand
            || self.grh_required
            || peer.lid == 0
            || are_of_different_subnets(self.gid, peer.gid)
    }

    /// The way to a peer's port.
    pub(in crate::ibv) fn path_to(&self, peer: &QpAddress) -> sys::ibv_ah_attr {
        sys::ibv_ah_attr {
            grh: sys::ibv_global_route {
                dgid: sys::ibv_gid { raw: peer.gid.0 },
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: peer.lid,
            sl: self.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: self.is_global(peer).into(),
            port_num: self.port,
        }
    }
}

/// As the upper halves of two ports' GIDs say; a GID that is not known says nothing.
fn are_of_different_subnets(one: Gid, other: Gid) -> bool {
    [one, other].iter().all(|gid| gid.0 != [0; 16]) && one.0[..8] != other.0[..8]
}

/// No attribute at all.
pub(super) fn none() -> sys::ibv_qp_attr {
    // SAFETY: all zeroes is a valid value of these plain numbers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// RESET to INIT.
pub(super) fn init(options: &QpOptions, pkey_index: u16, atomics: AtomicAbility) -> sys::ibv_qp_attr {
    let mut attributes = none();
    attributes.qp_state = sys::IBV_QPS_INIT;
    attributes.pkey_index = pkey_index;
    attributes.port_num = options.port;
    attributes.qkey = options.qkey;
    attributes.qp_access_flags = match options.qp_type {
        // Beyond writes, peers of the other services can do nothing.
        QpType::Uc | QpType::Ud => options.access.bits() & Access::REMOTE_WRITE.bits(),
        // Some devices without atomics refuse to be told of a right to them.
        QpType::Rc if atomics == AtomicAbility::None => {
            options.access.bits() & (Access::REMOTE_READ | Access::REMOTE_WRITE).bits()
        }
        QpType::Rc => options.access.bits() & Access::REMOTE_ALL.bits(),
    };
    attributes
}

/// INIT to RTR.
pub(super) fn ready_to_receive(
    options: &QpOptions,
    path: sys::ibv_ah_attr,
    peer: &QpAddress,
    mtu: Mtu,
    reads: u8,
) -> sys::ibv_qp_attr {
    let mut attributes = none();
    attributes.qp_state = sys::IBV_QPS_RTR;
    attributes.ah_attr = path;
    attributes.path_mtu = mtu_code(mtu);
    attributes.dest_qp_num = peer.qpn.0;
    attributes.rq_psn = peer.psn.get();
    attributes.max_dest_rd_atomic = reads;
    attributes.min_rnr_timer = rnr_code(options.min_rnr_timer);
    attributes
}

/// RTR to RTS.
pub(super) fn ready_to_send(options: &QpOptions, psn: Psn, reads: u8) -> sys::ibv_qp_attr {
    let mut attributes = none();
    attributes.qp_state = sys::IBV_QPS_RTS;
    attributes.sq_psn = psn.get();
    attributes.timeout = timeout_code(options.ack_timeout);
    attributes.retry_cnt = options.retry_count;
    attributes.rnr_retry = options.rnr_retry;
    attributes.max_rd_atomic = reads;
    attributes
}

/// `enum ibv_mtu`.
pub(super) fn mtu_code(mtu: Mtu) -> u32 {
    mtu as u32 + 1
}

/// The least timeout of 4.096 us x 2^n, n from 1 to 31, that is no shorter.
pub(super) fn timeout_code(timeout: Duration) -> u8 {
    let units = timeout.as_nanos().div_ceil(4096).max(2);
    let exponent = u128::BITS - (units - 1).leading_zeros();
    exponent.min(31) as u8
}

/// The least timer of the table that is no shorter: code 0 stands for the longest.
pub(super) fn rnr_code(timer: Duration) -> u8 {
    let micros = u32::try_from(timer.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX);
    RNR_TIMERS_US.iter().position(|&entry| entry >= micros).map_or(0, |place| place as u8 + 1)
}

/// Codes 1 to 31, rounded down to microseconds.
const RNR_TIMERS_US: [u32; 31] = [
    10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680, 10_240,
    15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
];

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::types::Qpn;

    #[test]
    fn timeouts_are_rounded_up() {
        let code = |micros| timeout_code(Duration::from_nanos(micros));
        assert_eq!([code(0), code(8192), code(8193), code(16384)], [1, 1, 2, 2]);
        // 500 ms is a bit less than 4.096 us x 2^17.
        assert_eq!(timeout_code(Duration::from_millis(500)), 17);
        assert_eq!(timeout_code(Duration::MAX), 31);
    }

    #[test]
    fn timers_are_the_next_of_the_table() {
        let code = |micros| rnr_code(Duration::from_micros(micros));
        assert_eq!([code(0), code(10), code(11), code(640), code(641)], [1, 1, 2, 12, 13]);
        assert_eq!(code(491_520), 31);
        assert_eq!(code(491_521), 0, "the longest, 655.36 ms");
    }

    #[test]
    fn infiniband_peers_are_named_by_lids_within_a_subnet() {
        let gid = |subnet: u16, port| Gid(Ipv6Addr::new(0xfe80, 0, 0, subnet, 0, 0, 0, port).octets());
        let (own, near, far, unknown) = (gid(0, 1), gid(0, 2), gid(1, 2), Gid([0; 16]));
        let is_global = |own, (lid, theirs)| {
            let local = Local {
                port: 1,
                gid_index: 0,
                gid: own,
                link_layer: LinkLayer::InfiniBand,
                grh_required: false,
                service_level: 0,
                traffic_class: 0,
                hop_limit: 64,
            };
            let peer = QpAddress {
                qp_type: QpType::Rc,
                qpn: Qpn(7),
                psn: Psn::new(0),
                gid: theirs,
                lid,
                mtu: Mtu::B1024,
                qkey: 0,
                max_rd_atomic: 0,
                ece: None,
                soft: None,
            };
            local.is_global(&peer)
        };
        assert!(!is_global(own, (5, near)) && !is_global(own, (5, unknown)) && !is_global(unknown, (5, far)));
        assert!(is_global(own, (5, far)) && is_global(own, (0, near)));
    }

    #[test]
    fn mtu_codes_are_those_of_the_library() {
        assert_eq!(mtu_code(Mtu::B256), sys::IBV_MTU_256);
        assert_eq!(mtu_code(Mtu::B4096), sys::IBV_MTU_4096);
    }
}
