//! Set-up by typestate: builder, prepared (INIT), ready to receive (RTR), connected (RTS).

use std::time::Duration;

use crate::QpAddress;
use crate::cq::CompletionQueue;
use crate::error::{ConnectError, CreateError, ModifyError};
use crate::memory::Local;
use crate::pd::ProtectionDomain;
use crate::qp::{DatagramQueuePair, QueuePair, RecvRequest};
use crate::soft::{OwnedQp, QpSpec, SoftQp};
use crate::srq::SharedReceiveQueue;
use crate::types::{Access, QpState, QpType, Qpn};

/// What a queue pair shall be like. [`build`](QpBuilder::build) makes it.
#[derive(Debug)]
pub struct QpBuilder {
    spec: QpSpec,
}

/// A queue pair in state INIT: it has an address, takes receives, and waits to be connected.
#[derive(Debug)]
pub struct Prepared {
    soft: OwnedQp,
}

/// A queue pair in state RTR: it receives, and can not send yet.
#[derive(Debug)]
pub struct ReadyToReceive {
    soft: OwnedQp,
}

impl QpBuilder {
    pub(crate) fn new(pd: &ProtectionDomain, qp_type: QpType, cq: &CompletionQueue) -> Self {
        QpBuilder { spec: QpSpec::new(pd.node().clone(), pd.id(), qp_type, cq.soft().shared().clone()) }
    }

    /// Sends completions of receives to another queue than those of sends.
    #[must_use]
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.spec.recv_cq = cq.soft().shared().clone();
        self
    }

    /// Takes receives from `srq` instead of a queue of its own. RC only.
    #[must_use]
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.spec.srq = Some(srq.soft().clone());
        self
    }

    /// Slots for send requests (default 128).
    #[must_use]
    pub fn send_depth(mut self, depth: u32) -> Self {
        self.spec.send_depth = depth;
        self
    }

    /// Slots for receive requests (default 128).
    #[must_use]
    pub fn recv_depth(mut self, depth: u32) -> Self {
        self.spec.recv_depth = depth;
        self
    }

    /// What peers may do through this queue pair, at most (default all); each region's own rights count besides.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.spec.access = access;
        self
    }

    /// Attempts after the first when a peer does not answer (default 7).
    #[must_use]
    pub fn retry_count(mut self, count: u8) -> Self {
        self.spec.retry_count = count;
        self
    }

    /// How long each attempt waits for an answer (default 500 ms). Hardware rounds to 4.096 us x 2^n.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.spec.ack_timeout = timeout;
        self
    }

    /// Attempts after the first when the peer has no receive posted; 7, the default, is without end.
    #[must_use]
    pub fn rnr_retry(mut self, count: u8) -> Self {
        self.spec.rnr_retry = count;
        self
    }

    /// How long senders to this queue pair wait before trying again when it has no receive posted (default 0.64 ms).
    /// Hardware rounds to its table.
    #[must_use]
    pub fn min_rnr_timer(mut self, timer: Duration) -> Self {
        self.spec.min_rnr_timer = timer;
        self
    }

    /// The Q_Key that datagrams to this queue pair must carry. UD only.
    #[must_use]
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.spec.qkey = qkey;
        self
    }

    /// Makes the queue pair and brings it to INIT.
    ///
    /// # Errors
    /// [`CreateError`] if an attribute is out of range, objects of several contexts meet, or the device is full.
    pub fn build(self) -> Result<Prepared, CreateError> {
        Ok(Prepared { soft: OwnedQp::new(SoftQp::new(self.spec)?) })
    }
}

impl Prepared {
    /// The address to hand to the peer.
    pub fn address(&self) -> QpAddress {
        self.soft.address()
    }

    /// Queue pair number.
    pub fn number(&self) -> Qpn {
        self.soft.qpn()
    }

    /// A receive into `memory`, to be posted before connecting.
    pub fn recv(&mut self, memory: impl Into<Local>) -> RecvRequest<'_> {
        RecvRequest::new(&self.soft, memory.into())
    }

    /// Connects to the peer at `address`: INIT to RTR to RTS. Does not wait for the peer to do the same. RC and UC.
    ///
    /// # Errors
    /// [`ConnectError`] if the peer is not there, is of another kind, or no wire leads there.
    pub fn connect(self, address: &QpAddress) -> Result<QueuePair, ConnectError> {
        self.ready_to_receive(address)?.ready_to_send()
    }

    /// The first half of [`connect`](Prepared::connect): INIT to RTR.
    ///
    /// # Errors
    /// As [`connect`](Prepared::connect).
    pub fn ready_to_receive(self, address: &QpAddress) -> Result<ReadyToReceive, ConnectError> {
        self.soft.connect(address)?;
        Ok(ReadyToReceive { soft: self.soft })
    }

    /// Brings a datagram queue pair to RTS. UD only.
    ///
    /// # Errors
    /// [`ConnectError::Modify`] on RC and UC.
    pub fn activate(self) -> Result<DatagramQueuePair, ConnectError> {
        if self.soft.qp_type() != QpType::Ud {
            let (qp_type, from) = (self.soft.qp_type(), self.soft.state());
            let detail = ": it needs a peer; use connect";
            return Err(ModifyError { qp_type, from, to: QpState::Rtr, detail }.into());
        }
        self.soft.modify(QpState::Rtr)?;
        self.soft.modify(QpState::Rts)?;
        Ok(DatagramQueuePair::new(self.soft))
    }
}

impl ReadyToReceive {
    /// The second half of [`connect`](Prepared::connect): RTR to RTS.
    ///
    /// # Errors
    /// [`ConnectError::Modify`] if the queue pair failed in the meantime.
    pub fn ready_to_send(self) -> Result<QueuePair, ConnectError> {
        self.soft.modify(QpState::Rts)?;
        Ok(QueuePair::new(self.soft))
    }
}
