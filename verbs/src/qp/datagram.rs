//! A datagram queue pair (UD) and the handles it sends to.

use crate::QpAddress;
use crate::error::{ConnectError, ModifyError, Rejected};
use crate::memory::Local;
use crate::qp::{Borrowed, Op, OwnedQp, RecvRequest, SendRequest, Target};
use crate::soft;
use crate::types::{QpState, Qpn};
use crate::wc::Completion;

/// Bytes in front of each received datagram that hold the global route header.
pub const GRH_BYTES: usize = 40;

/// A datagram queue pair. Messages are at most one MTU; each receive needs [`GRH_BYTES`] more, in front.
///
/// One that takes from a shared receive queue is best dropped once it [is settled](Self::is_settled) and its completion queue was
/// polled, as [connected ones](crate::QueuePair::is_settled) are.
#[derive(Debug)]
pub struct DatagramQueuePair {
    qp: OwnedQp,
}

/// Where datagrams go; made by [`DatagramQueuePair::address_handle`].
#[derive(Debug)]
pub struct AddressHandle {
    target: Target,
}

impl DatagramQueuePair {
    pub(crate) fn new(qp: OwnedQp) -> Self {
        DatagramQueuePair { qp }
    }

    /// Sends `local` as one datagram. It may be lost.
    #[inline]
    pub fn send<'a>(&'a mut self, local: impl Into<Local>, to: &'a AddressHandle) -> SendRequest<'a> {
        SendRequest::new(
            &mut self.qp,
            Op::Send,
            local.into(),
            Borrowed { to: Some(to.target()), ..Borrowed::default() },
        )
    }

    /// Sends a copy of `data`, taken when posted, as one datagram. It may be lost.
    #[inline]
    pub fn send_inline<'a>(&'a mut self, data: &'a [u8], to: &'a AddressHandle) -> SendRequest<'a> {
        SendRequest::new(
            &mut self.qp,
            Op::Send,
            Local::None,
            Borrowed { inline: Some(data), to: Some(to.target()), bind: None },
        )
    }

    /// A receive into `memory`, whose first [`GRH_BYTES`] take the route header.
    ///
    /// Memory from [`ProtectionDomain::alloc`](crate::ProtectionDomain::alloc) is within reach of every sender. Into memory
    /// of another origin, processes for which the system forbids process_vm_writev(2) send no datagram: they are lost.
    #[inline]
    pub fn recv(&mut self, memory: impl Into<Local>) -> RecvRequest<'_> {
        RecvRequest::new(&self.qp, memory.into())
    }

    /// Posts the receive again that completed as `done`, as [`QueuePair::repost`](crate::QueuePair::repost).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn repost(&mut self, done: Completion<'_>) -> Result<(), Rejected> {
        self.qp.repost(done)
    }

    /// A handle for sending datagrams to the queue pair at `peer`, by way of this queue pair's port, row of the GID table,
    /// service level, traffic class and hop limit. Queue pairs of the same domain and port may send to it too. It may wait as
    /// [`connect`](crate::Prepared::connect) does.
    ///
    /// # Errors
    /// [`ConnectError`] if it is no datagram queue pair, or no wire leads there.
    pub fn address_handle(&self, peer: &QpAddress) -> Result<AddressHandle, ConnectError> {
        self.handle(peer, None)
    }

    /// As [`address_handle`](DatagramQueuePair::address_handle), with what the peer was asked before, if it was.
    pub(crate) fn handle(&self, peer: &QpAddress, found: Option<soft::Answer>) -> Result<AddressHandle, ConnectError> {
        Ok(AddressHandle { target: self.qp.target(peer, found)? })
    }

    pub(crate) fn owned(&self) -> &OwnedQp {
        &self.qp
    }

    /// Queue pair number.
    pub fn number(&self) -> Qpn {
        self.qp.qpn()
    }

    /// The address that others make handles from.
    pub fn address(&self) -> QpAddress {
        self.qp.address()
    }

    /// State as of now.
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// True once the queue pair has failed, and to drop it takes no wait; see
    /// [`QueuePair::is_settled`](crate::QueuePair::is_settled).
    pub fn is_settled(&self) -> bool {
        self.qp.state() == QpState::Err && self.qp.try_settle()
    }

    /// Moves the queue pair to the error state: what is posted completes as flushed.
    ///
    /// # Errors
    /// [`ModifyError`] if the transition table forbids it.
    pub fn to_error(&mut self) -> Result<(), ModifyError> {
        self.qp.to_error()
    }
}

impl AddressHandle {
    fn target(&self) -> &Target {
        &self.target
    }
}
