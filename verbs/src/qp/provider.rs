//! A queue pair of one of the providers, and what the providers are given: one match per call leads to the right one.

use std::sync::Arc;
use std::time::Duration;

use crate::QpAddress;
use crate::error::{ConnectError, CreateError, ModifyError, Rejected};
use crate::memory::Local;
use crate::qp::{Borrowed, SendWr};
use crate::types::{Access, Mtu, QpState, QpType, Qpn};
use crate::wc::Completion;
use crate::{ibv, soft};

/// The owner of a queue pair: closes it when dropped.
#[derive(Debug)]
pub(crate) enum OwnedQp {
    Soft(soft::OwnedQp),
    Ibv(Box<ibv::OwnedQp>),
}

/// Where datagrams go.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Soft(Arc<soft::UdTarget>),
    Network(Arc<soft::NetworkTarget>),
    Ibv(Arc<ibv::Ah>),
}

/// A completion queue, as queue pairs that complete there know it.
#[derive(Clone, Debug)]
pub(crate) enum CqHandle {
    Soft(Arc<soft::CqShared>),
    Ibv(Arc<ibv::CqShared>),
}

/// A shared receive queue, as queue pairs that receive from it know it.
#[derive(Clone, Debug)]
pub(crate) enum SrqHandle {
    Soft(Arc<soft::SoftSrq>),
    Ibv(Arc<ibv::Srq>),
}

/// What a queue pair shall be like, whoever provides it.
#[derive(Clone, Debug)]
pub(crate) struct QpOptions {
    pub(crate) qp_type: QpType,
    pub(crate) send_depth: u32,
    /// What was asked for; see [`recv_depth`](QpOptions::recv_depth).
    pub(crate) asked_recv_depth: Option<u32>,
    pub(crate) access: Access,
    pub(crate) retry_count: u8,
    pub(crate) ack_timeout: Duration,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: Duration,
    pub(crate) qkey: u32,
    pub(crate) port: u8,
    pub(crate) gid_index: Option<u32>,
    pub(crate) pkey: Option<u16>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) max_inline: Option<u32>,
    pub(crate) max_rd_atomic: Option<u8>,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) thread_domain: bool,
}

impl QpOptions {
    pub(crate) fn new(qp_type: QpType) -> Self {
        QpOptions {
            qp_type,
            send_depth: 128,
            asked_recv_depth: None,
            access: Access::REMOTE_ALL,
            retry_count: 7,
            ack_timeout: Duration::from_millis(500),
            rnr_retry: RNR_FOREVER,
            min_rnr_timer: Duration::from_micros(640),
            qkey: 0,
            port: 1,
            gid_index: None,
            pkey: None,
            mtu: None,
            max_inline: None,
            max_rd_atomic: None,
            service_level: 0,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            thread_domain: false,
        }
    }

    /// Slots of a receive queue of its own.
    pub(crate) fn recv_depth(&self) -> u32 {
        self.asked_recv_depth.unwrap_or(128)
    }

    /// Checks what does not depend on the device but for its deepest queue.
    pub(crate) fn check(&self, max_wr: u32, shared_receives: bool) -> Result<(), CreateError> {
        let range = |what, asked: u64, limit: u64| {
            if asked == 0 || asked > limit { Err(CreateError::OutOfRange { what, asked, limit }) } else { Ok(()) }
        };
        range("a send queue", self.send_depth.into(), max_wr.into())?;
        if !shared_receives {
            range("a receive queue", self.recv_depth().into(), max_wr.into())?;
        }
        for (what, count) in [("a retry count", self.retry_count), ("an RNR retry count", self.rnr_retry)] {
            if count > 7 {
                return Err(CreateError::OutOfRange { what, asked: count.into(), limit: 7 });
            }
        }
        if self.service_level > 15 {
            let asked = self.service_level.into();
            return Err(CreateError::OutOfRange { what: "a service level", asked, limit: 15 });
        }
        Ok(())
    }
}

/// The count of RNR retries that means: without end.
pub(crate) const RNR_FOREVER: u8 = 7;
/// Routers that packets may pass where nothing is said of it.
pub(crate) const HOP_LIMIT: u8 = 64;

impl OwnedQp {
    pub(crate) fn address(&self) -> QpAddress {
        match self {
            OwnedQp::Soft(qp) => qp.address(),
            OwnedQp::Ibv(qp) => qp.address(),
        }
    }

    /// The queue pair, if it is one of the software device.
    pub(crate) fn soft(&self) -> Option<&Arc<soft::SoftQp>> {
        match self {
            OwnedQp::Soft(qp) => Some(qp),
            OwnedQp::Ibv(_) => None,
        }
    }

    pub(crate) fn ibv(&self) -> Option<&ibv::OwnedQp> {
        match self {
            OwnedQp::Soft(_) => None,
            OwnedQp::Ibv(qp) => Some(qp),
        }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        match self {
            OwnedQp::Soft(qp) => qp.qpn(),
            OwnedQp::Ibv(qp) => qp.qpn(),
        }
    }

    /// Bytes of inline data that there is room for.
    pub(crate) fn max_inline(&self) -> usize {
        match self {
            OwnedQp::Soft(_) => soft::MAX_INLINE,
            OwnedQp::Ibv(qp) => qp.max_inline(),
        }
    }

    pub(crate) fn qp_type(&self) -> QpType {
        match self {
            OwnedQp::Soft(qp) => qp.qp_type(),
            OwnedQp::Ibv(qp) => qp.qp_type(),
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> QpState {
        match self {
            OwnedQp::Soft(qp) => qp.state(),
            OwnedQp::Ibv(qp) => qp.state(),
        }
    }

    #[inline(always)]
    pub(crate) fn known_state(&self) -> QpState {
        match self {
            OwnedQp::Soft(qp) => qp.state(),
            OwnedQp::Ibv(qp) => qp.known_state(),
        }
    }

    pub(crate) fn arrivals(&self) -> Option<u64> {
        match self {
            OwnedQp::Soft(qp) => qp.arrivals(),
            OwnedQp::Ibv(_) => None,
        }
    }

    /// Links to the peer: INIT to RTR. `found`: what the peer was asked before, if it was.
    pub(crate) fn connect(&self, address: &QpAddress, found: Option<soft::Answer>) -> Result<(), ConnectError> {
        match self {
            OwnedQp::Soft(qp) => qp.connect(address, found),
            OwnedQp::Ibv(qp) => qp.connect(address),
        }
    }

    /// RTR to RTS.
    pub(crate) fn start_sending(&self) -> Result<(), ConnectError> {
        match self {
            OwnedQp::Soft(qp) => Ok(qp.modify(QpState::Rts)?),
            OwnedQp::Ibv(qp) => qp.start_sending(),
        }
    }

    /// Brings a datagram queue pair to RTS.
    pub(crate) fn activate(&self) -> Result<(), ConnectError> {
        match self {
            OwnedQp::Soft(qp) => qp.activate(),
            OwnedQp::Ibv(qp) => qp.activate(),
        }
    }

    /// The way that datagrams of this queue pair take to a peer. `found`: what the peer was asked before, if it was.
    pub(crate) fn target(&self, peer: &QpAddress, found: Option<soft::Answer>) -> Result<Target, ConnectError> {
        match self {
            OwnedQp::Soft(qp) => qp.target(peer, found),
            OwnedQp::Ibv(qp) => Ok(Target::Ibv(qp.target(peer)?)),
        }
    }

    pub(crate) fn to_error(&self) -> Result<(), ModifyError> {
        match self {
            OwnedQp::Soft(qp) => qp.modify(QpState::Err),
            OwnedQp::Ibv(qp) => qp.to_error(),
        }
    }

    /// True if a failed queue pair can be dropped without a wait.
    pub(crate) fn try_settle(&self) -> bool {
        match self {
            OwnedQp::Soft(qp) => qp.try_settle(),
            OwnedQp::Ibv(qp) => qp.try_settle(),
        }
    }

    pub(crate) fn explain(&self) -> String {
        match self {
            OwnedQp::Soft(qp) => qp.explain(),
            OwnedQp::Ibv(qp) => qp.explain(),
        }
    }

    #[inline(always)]
    pub(crate) fn post_send(&self, wr: SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
        match self {
            OwnedQp::Soft(qp) => qp.post_send(wr, with),
            OwnedQp::Ibv(qp) => qp.post_send(wr, with),
        }
    }

    #[inline(always)]
    pub(crate) fn post_recv(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        match self {
            OwnedQp::Soft(qp) => qp.post_recv(memory, wr_id),
            OwnedQp::Ibv(qp) => qp.post_recv(memory, wr_id),
        }
    }

    /// Posts the receive again that completed.
    #[inline(always)]
    pub(crate) fn repost(&self, mut done: Completion<'_>) -> Result<(), Rejected> {
        if let OwnedQp::Soft(qp) = self
            && qp.post_again(done.current())
        {
            return Ok(());
        }
        let (memory, wr_id) = done.into_receive()?;
        self.post_recv(memory, wr_id)
    }
}

impl Target {
    /// The protection domain that it belongs to.
    #[inline]
    pub(crate) fn domain(&self) -> u64 {
        match self {
            Target::Soft(target) => target.domain(),
            Target::Network(target) => target.domain,
            Target::Ibv(target) => target.domain(),
        }
    }
}
