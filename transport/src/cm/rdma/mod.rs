//! Streams without TCP: two queue pairs that rdma_cm connects, one message for each piece of the stream.
//!
//! They have a protection domain of their own, in which nothing can be reached from outside.

mod opening;
mod pipe;

use std::net::SocketAddr;

use qpair_verbs::{Access, CmError, ConnectionRequest, Context, Listener, Prepared, ProtectionDomain, RejectReason};
use thiserror::Error;

pub(super) use opening::Opening;
use pipe::Parts;
pub(super) use pipe::Pipe;

/// Connecting or listening by rdma_cm failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RdmaCmError {
    /// The connection manager, or a peer by it, said no.
    #[error(transparent)]
    Manager(#[from] CmError),
    /// The device made no queue pair or queue for it.
    #[error(transparent)]
    Create(#[from] qpair_verbs::CreateError),
    /// There was no memory for it.
    #[error(transparent)]
    Memory(#[from] qpair_verbs::MemoryError),
    /// The device took no receive.
    #[error("the device takes no receive: {0}")]
    Post(#[from] qpair_verbs::PostError),
}

/// Makes such streams on a device.
#[derive(Debug)]
pub(super) struct Rdma {
    context: Context,
    /// Made with the first stream: most workers never have one.
    pd: Option<ProtectionDomain>,
}

impl Rdma {
    pub(super) fn new(context: &Context) -> Self {
        Rdma { context: context.clone(), pd: None }
    }

    /// Listens at a port of all addresses of the device, or at 0 for one that is free.
    pub(super) fn listen(&self, port: u16) -> Result<Listener, RdmaCmError> {
        Ok(self.context.listen(port)?)
    }

    /// Asks a peer for a stream.
    pub(super) fn connect(&mut self, peer: SocketAddr) -> Result<Opening, RdmaCmError> {
        let (parts, prepared) = self.prepare()?;
        Ok(Opening::new(self.context.connect_to(peer, prepared, &[])?, parts))
    }

    /// Gives a peer the stream that it asked for.
    pub(super) fn accept(&mut self, request: ConnectionRequest) -> Result<Opening, RdmaCmError> {
        let (parts, prepared) = self.prepare()?;
        Ok(Opening::new(request.accept(prepared, &[])?, parts))
    }

    fn prepare(&mut self) -> Result<(Parts, Prepared), RdmaCmError> {
        let pd = match &self.pd {
            Some(pd) => pd,
            None => self.pd.insert(self.context.alloc_pd()?),
        };
        let mut parts = Parts::new(&self.context, pd)?;
        // A receiver that is slow, or stopped, is waited for as TCP waits for it.
        let builder = pd.rc(parts.queue()).access(Access::NONE).rnr_retry(WITHOUT_END);
        let mut prepared = builder.send_depth(pipe::SENDS).recv_depth(pipe::RECEIVES).build()?;
        parts.post_receives(&mut prepared)?;
        Ok((parts, prepared))
    }
}

impl RdmaCmError {
    /// True if nobody listens there.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, RdmaCmError::Manager(CmError::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }))
    }

    /// True if the peer may have room later.
    pub(super) fn is_of_the_moment(&self) -> bool {
        let RdmaCmError::Manager(error) = self else { return false };
        match error {
            CmError::Stale { .. } | CmError::Disconnected { .. } => true,
            // The next try is by another queue pair.
            CmError::Rejected { reason, .. } => matches!(
                *reason,
                RejectReason::CONSUMER
                    | RejectReason::STALE_CONNECTION
                    | RejectReason::NO_RESOURCES
                    | RejectReason::NO_QP
                    | RejectReason::TIMEOUT
            ),
            _ => false,
        }
    }
}

const WITHOUT_END: u8 = 7;
