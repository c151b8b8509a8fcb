//! What a queue pair is made from.

use std::sync::Arc;
use std::time::Duration;

use super::MAX_WR;
use super::cq_shared::CqShared;
use super::node::Node;
use super::srq::SoftSrq;
use crate::error::CreateError;
use crate::types::{Access, QpType};

/// Everything that a queue pair is made from.
#[derive(Clone, Debug)]
pub(crate) struct QpSpec {
    pub(crate) node: Arc<Node>,
    pub(crate) domain: u64,
    pub(crate) qp_type: QpType,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    pub(crate) srq: Option<Arc<SoftSrq>>,
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) access: Access,
    pub(crate) retry_count: u8,
    pub(crate) ack_timeout: Duration,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: Duration,
    pub(crate) qkey: u32,
}

impl QpSpec {
    pub(crate) fn new(node: Arc<Node>, domain: u64, qp_type: QpType, cq: Arc<CqShared>) -> Self {
        QpSpec {
            node,
            domain,
            qp_type,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            send_depth: 128,
            recv_depth: 128,
            access: Access::REMOTE_ALL,
            retry_count: 7,
            ack_timeout: Duration::from_millis(500),
            rnr_retry: RNR_FOREVER,
            min_rnr_timer: Duration::from_micros(640),
            qkey: 0,
        }
    }

    /// Checks ranges, and that all objects are of one context.
    pub(crate) fn check(&self) -> Result<(), CreateError> {
        let range = |what, asked: u64, limit: u64| {
            if asked == 0 || asked > limit { Err(CreateError::OutOfRange { what, asked, limit }) } else { Ok(()) }
        };
        range("a send queue", self.send_depth.into(), MAX_WR.into())?;
        range("a receive queue", self.recv_depth.into(), MAX_WR.into())?;
        for (what, count) in [("a retry count", self.retry_count), ("an RNR retry count", self.rnr_retry)] {
            if count > 7 {
                return Err(CreateError::OutOfRange { what, asked: count.into(), limit: 7 });
            }
        }
        for cq in [&self.send_cq, &self.recv_cq] {
            if !Arc::ptr_eq(cq.home(), self.node.home()) {
                return Err(CreateError::ForeignObject { what: "the completion queue" });
            }
        }
        if let Some(srq) = &self.srq {
            if self.qp_type != QpType::Rc {
                return Err(CreateError::NotSupported { what: "a shared receive queue", qp_type: self.qp_type });
            }
            if !Arc::ptr_eq(srq.home(), self.node.home()) || srq.domain() != self.domain {
                return Err(CreateError::ForeignObject { what: "the shared receive queue" });
            }
        }
        Ok(())
    }
}

/// The count of RNR retries that means: without end.
pub(crate) const RNR_FOREVER: u8 = 7;
