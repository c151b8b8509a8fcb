//! What a queue pair is made from.

use std::sync::Arc;

use super::MAX_WR;
use super::cq_shared::CqShared;
use super::node::Node;
use super::srq::SoftSrq;
use crate::error::CreateError;
use crate::qp::{CqHandle, QpOptions, SrqHandle};
use crate::types::QpType;

/// Everything that a queue pair is made from.
#[derive(Clone, Debug)]
pub(crate) struct QpSpec {
    pub(crate) node: Arc<Node>,
    pub(crate) domain: u64,
    pub(crate) options: QpOptions,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    pub(crate) srq: Option<Arc<SoftSrq>>,
}

impl QpSpec {
    /// Checks ranges, and that all objects are of one context.
    pub(crate) fn new(
        node: &Arc<Node>,
        domain: u64,
        options: &QpOptions,
        [send_cq, recv_cq]: [&CqHandle; 2],
        srq: Option<&SrqHandle>,
    ) -> Result<Self, CreateError> {
        options.check(MAX_WR, srq.is_some())?;
        if options.port != 1 {
            return Err(CreateError::OutOfRange { what: "a port number", asked: options.port.into(), limit: 1 });
        }
        let srq = srq.map(|srq| own_srq(srq, node, domain, options.qp_type)).transpose()?;
        Ok(QpSpec {
            node: node.clone(),
            domain,
            options: options.clone(),
            send_cq: own_cq(send_cq, node)?,
            recv_cq: own_cq(recv_cq, node)?,
            srq,
        })
    }
}

fn own_cq(cq: &CqHandle, node: &Node) -> Result<Arc<CqShared>, CreateError> {
    match cq {
        CqHandle::Soft(cq) if Arc::ptr_eq(cq.home(), node.home()) => Ok(cq.clone()),
        _ => Err(CreateError::ForeignObject { what: "the completion queue" }),
    }
}

fn own_srq(srq: &SrqHandle, node: &Node, domain: u64, qp_type: QpType) -> Result<Arc<SoftSrq>, CreateError> {
    if qp_type != QpType::Rc {
        return Err(CreateError::NotSupported { what: "a shared receive queue", qp_type });
    }
    match srq {
        SrqHandle::Soft(srq) if Arc::ptr_eq(srq.home(), node.home()) && srq.domain() == domain => Ok(srq.clone()),
        _ => Err(CreateError::ForeignObject { what: "the shared receive queue" }),
    }
}
