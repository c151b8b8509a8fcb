//! Queue pairs that a connection manager connects.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use qpair_verbs_sys as sys;

use super::attributes;
use super::create::OwnedQp;
use super::shared::QpShared;
use crate::device::LinkLayer;
use crate::error::{CmError, ConnectError};
use crate::ibv::device::Device;
use crate::ibv::{port, quirks};
use crate::qp::{HOP_LIMIT, QpAttributes, QpOptions, transition};
use crate::sync::lock;
use crate::types::{Gid, QpState};

/// What the connection managers of both sides agreed on: attributes of the three states, as the library fills them in.
pub(in crate::ibv) struct Agreed {
    pub(in crate::ibv) init: sys::ibv_qp_attr,
    pub(in crate::ibv) ready_to_receive: sys::ibv_qp_attr,
    pub(in crate::ibv) ready_to_send: sys::ibv_qp_attr,
    /// READs and atomics that this side answers at once, and that it may have under way.
    pub(in crate::ibv) reads: [u8; 2],
}

/// Takes a queue pair to the error state, from elsewhere than where its owner is, as long as it is there.
#[derive(Debug)]
pub(in crate::ibv) struct Leash {
    qp: Mutex<Option<NonNull<sys::ibv_qp>>>,
    shared: Arc<QpShared>,
    library: &'static sys::Ibverbs,
}

// SAFETY: the library's functions on a queue pair may be called from any thread, as long as it is there, which the lock sees to.
unsafe impl Send for Leash {}
// SAFETY: as above.
unsafe impl Sync for Leash {}

impl Leash {
    /// The connection is over.
    pub(in crate::ibv) fn fail(&self) {
        let held = lock(&self.qp);
        let Some(qp) = *held else { return };
        let mut attributes = attributes::none();
        attributes.qp_state = sys::IBV_QPS_ERR;
        // SAFETY: the queue pair is there: its owner takes the pointer back before it goes, under the lock, which `held` keeps.
        unsafe { (self.library.ibv_modify_qp)(qp.as_ptr(), &raw mut attributes, sys::IBV_QP_STATE as c_int) };
        // A device that does not obey is believed to be broken.
        self.shared.fail();
    }

    /// The queue pair is about to go.
    pub(super) fn let_go(&self) {
        *lock(&self.qp) = None;
    }
}

impl OwnedQp {
    pub(in crate::ibv) fn is_of(&self, device: &Device) -> bool {
        Arc::ptr_eq(self.pd.device().handle(), device.handle())
    }

    pub(in crate::ibv) fn takes_shared_receives(&self) -> bool {
        self.srq.is_some()
    }

    /// READs and atomics that it answers at once, and that it may have under way.
    pub(in crate::ibv) fn offered_reads(&self) -> [u8; 2] {
        self.reads
    }

    /// Times that a packet is sent again, without an answer and without a receive.
    pub(in crate::ibv) fn offered_retries(&self) -> [u8; 2] {
        [self.options.retry_count, self.options.rnr_retry]
    }

    pub(in crate::ibv) fn leash(&self) -> Arc<Leash> {
        let made = || {
            let (qp, shared, library) = (Mutex::new(Some(self.qp)), self.shared.clone(), self.library());
            Arc::new(Leash { qp, shared, library })
        };
        self.leash.get_or_init(made).clone()
    }

    /// The address of this side by the row of the GID table that its builder chose: of none, or where that is no address by which
    /// the system finds ways, the system's choice counts.
    pub(in crate::ibv) fn chosen_address(&self) -> Option<IpAddr> {
        self.options.gid_index?;
        if self.local.link_layer == LinkLayer::InfiniBand {
            // Its GIDs are of subnets and ports.
            return None;
        }
        let ip = Ipv6Addr::from(self.address.gid.0);
        match ip.to_ipv4_mapped() {
            Some(ip) => Some(ip.into()),
            None => (!ip.is_unicast_link_local() && !ip.is_unspecified()).then_some(ip.into()),
        }
    }

    /// That what the connection managers agreed on, with this side at `local`, is within what its builder said.
    ///
    /// # Errors
    /// [`CmError::OtherAddress`], [`CmError::MtuTooLong`].
    pub(in crate::ibv) fn check_agreed(&self, agreed: &Agreed, local: IpAddr) -> Result<(), CmError> {
        let ready = &agreed.ready_to_receive;
        let (at, row) = (ready.ah_attr.port_num, u32::from(ready.ah_attr.grh.sgid_index));
        // Within a subnet of InfiniBand packets have no GIDs.
        if let Some(chosen) = self.options.gid_index.filter(|_| ready.ah_attr.is_global != 0)
            && (at, row) != (self.options.port, chosen)
        {
            let own = self.chosen_address().unwrap_or(Ipv6Addr::from(self.address.gid.0).into());
            return Err(if own == local {
                CmError::OtherRow { row, chosen }
            } else {
                CmError::OtherAddress { asked: local, own }
            });
        }
        let (asked, limit) = (port::mtu(ready.path_mtu), self.address.mtu);
        if asked.bytes() > limit.bytes() { Err(CmError::MtuTooLong { asked, limit }) } else { Ok(()) }
    }

    /// What its builder chose of the way, where it did; the rest is the connection manager's, which knows the subnet.
    fn choose_way(&self, way: &mut sys::ibv_ah_attr) {
        let QpOptions { service_level, traffic_class, hop_limit, .. } = self.options;
        if service_level != 0 {
            way.sl = service_level;
        }
        if traffic_class != 0 {
            way.grh.traffic_class = traffic_class;
        }
        if hop_limit != HOP_LIMIT {
            way.grh.hop_limit = hop_limit;
        }
    }

    /// INIT to RTS, by what was agreed on, and what this end's builder chose for itself.
    pub(in crate::ibv) fn connect_as_agreed(&self, agreed: &Agreed) -> Result<(), ConnectError> {
        let own = attributes::init(&self.options, self.pkey_index, self.pd.device().attributes().atomics);
        // The port is the one at which the way to the peer begins.
        let init = sys::ibv_qp_attr { qp_access_flags: own.qp_access_flags, ..agreed.init };
        let mask =
            transition(self.qp_type(), QpState::Reset, QpState::Init).map_or(QpAttributes::NONE, |cell| cell.required);
        self.modify_raw(&init, mask).map_err(|source| ConnectError::Refused {
            from: QpState::Init,
            to: QpState::Init,
            attribute: None,
            source,
        })?;
        let [answered, under_way] = agreed.reads;
        let mut attributes = agreed.ready_to_receive;
        attributes.max_dest_rd_atomic = answered;
        attributes.min_rnr_timer = attributes::rnr_code(self.options.min_rnr_timer);
        self.choose_way(&mut attributes.ah_attr);
        self.enter_state(QpState::Rtr, &attributes)?;
        // SAFETY: any 16 bytes are a GID.
        let gid = Gid(unsafe { attributes.ah_attr.grh.dgid.raw });
        *lock(&self.explanation) = format!(
            "device {} to queue pair {} at {gid}, connected by rdma_cm; port {}, GID {}; path MTU {}; posted by {}",
            self.pd.device().name(),
            attributes.dest_qp_num,
            attributes.ah_attr.port_num,
            attributes.ah_attr.grh.sgid_index,
            128u32 << attributes.path_mtu.min(5),
            self.submit.name(),
        );
        *lock(&self.peer_reads) = Some(under_way);
        let mut attributes = agreed.ready_to_send;
        attributes.max_rd_atomic = under_way;
        attributes.timeout = attributes::timeout_code(self.options.ack_timeout);
        attributes.retry_cnt = quirks::retry_count(self.pd.device().attributes(), attributes.retry_cnt);
        self.enter_state(QpState::Rts, &attributes)
    }
}
