//! Set-up by typestate: builder, prepared (INIT), ready to receive (RTR), connected (RTS).

use std::sync::Arc;
use std::time::Duration;

use qpair_roce::cm::Terms;

use crate::QpAddress;
use crate::cq::CompletionQueue;
use crate::error::{ConnectError, CreateError, ModifyError};
use crate::ibv;
use crate::memory::Local;
use crate::pd::ProtectionDomain;
use crate::qp::{CqHandle, DatagramQueuePair, OwnedQp, QpOptions, QueuePair, RecvRequest, SrqHandle};
use crate::soft::{Answer, NetworkGid, SoftQp, Watch};
use crate::srq::SharedReceiveQueue;
use crate::types::{Access, Mtu, QpState, QpType, Qpn};

/// What a queue pair shall be like. [`build`](QpBuilder::build) makes it.
#[derive(Debug)]
pub struct QpBuilder {
    pd: ProtectionDomain,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    srq: Option<SrqHandle>,
    options: QpOptions,
}

/// A queue pair in state INIT: it has an address, takes receives, and waits to be connected.
#[derive(Debug)]
pub struct Prepared {
    qp: OwnedQp,
}

/// A queue pair in state RTR: it receives, and can not send yet.
#[derive(Debug)]
pub struct ReadyToReceive {
    qp: OwnedQp,
}

impl QpBuilder {
    pub(crate) fn new(pd: &ProtectionDomain, qp_type: QpType, cq: &CompletionQueue) -> Self {
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        QpBuilder { pd: pd.clone(), send_cq, recv_cq, srq: None, options: QpOptions::new(qp_type) }
    }

    /// Sends completions of receives to another queue than those of sends.
    #[must_use]
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = cq.handle();
        self
    }

    /// Takes receives from `srq` instead of a queue of its own: RC, and on devices of libibverbs UD too. Receives that it took and
    /// that were not polled may be lost to `srq` with it: see [`QueuePair::is_settled`].
    #[must_use]
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.handle());
        self
    }

    /// Slots for send requests (default 128).
    #[must_use]
    pub fn send_depth(mut self, depth: u32) -> Self {
        self.options.send_depth = depth;
        self
    }

    /// Slots for receive requests (default 128). With a shared receive queue: how many messages this queue pair may take of it that
    /// nobody has polled, where that costs the device memory (default: all, up to 2,048). A software device whose memory, 1 GiB, is
    /// short has fewer by default, and refuses to build what asks for more than it has. On software devices its peer waits
    /// beyond that as if there were no receive, and fails where it does not [wait for ever](QpBuilder::rnr_retry).
    #[must_use]
    pub fn recv_depth(mut self, depth: u32) -> Self {
        self.options.asked_recv_depth = Some(depth);
        self
    }

    /// What peers may do through this queue pair, at most (default all); each region's own rights count besides.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.options.access = access;
        self
    }

    /// Attempts after the first when a peer does not answer (default 7).
    #[must_use]
    pub fn retry_count(mut self, count: u8) -> Self {
        self.options.retry_count = count;
        self
    }

    /// How long each attempt waits for an answer (default 500 ms), at least 8.192 us. Hardware rounds up to 4.096 us x 2^n.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.options.ack_timeout = timeout.max(LEAST_ACK_TIMEOUT);
        self
    }

    /// Attempts after the first when the peer has no receive posted; 7, the default, is without end.
    #[must_use]
    pub fn rnr_retry(mut self, count: u8) -> Self {
        self.options.rnr_retry = count;
        self
    }

    /// How long senders to this queue pair wait before trying again when it has no receive posted (default 0.64 ms).
    /// Hardware rounds to its table.
    #[must_use]
    pub fn min_rnr_timer(mut self, timer: Duration) -> Self {
        self.options.min_rnr_timer = timer;
        self
    }

    /// The Q_Key that datagrams to this queue pair must carry. UD only.
    #[must_use]
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.options.qkey = qkey;
        self
    }

    /// The port of the device, counted from 1 (default 1).
    #[must_use]
    pub fn port(mut self, number: u8) -> Self {
        self.options.port = number;
        self
    }

    /// The row of the port's GID table that names this side; by default the one that
    /// [`PortAttributes::preferred_gid`](crate::PortAttributes::preferred_gid) picks.
    #[must_use]
    pub fn gid_index(mut self, index: u32) -> Self {
        self.options.gid_index = Some(index);
        self
    }

    /// The partition that it is in, by its key; by default that of the first row of the port's table, which is most often the one
    /// that all ports are in (0xffff). The uppermost bit, which says whether this side may talk to all of the partition or to
    /// some, does not count: it is what the table has. Connections by rdma_cm are in the partition of their network
    /// interface. The software device has the one that all are in alone.
    #[must_use]
    pub fn pkey(mut self, key: u16) -> Self {
        self.options.pkey = Some(key);
        self
    }

    /// Greatest path MTU to agree to; by default the port's present one.
    #[must_use]
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.options.mtu = Some(mtu);
        self
    }

    /// Room for inline data, in bytes; by default [`max_inline`](crate::DeviceAttributes::max_inline) of the device, or less
    /// where it has no more for queues this deep. Some devices give less than was asked for, rather than none:
    /// [`Prepared::max_inline`] tells.
    #[must_use]
    pub fn max_inline(mut self, len: u32) -> Self {
        self.options.max_inline = Some(len);
        self
    }

    /// READs and atomics under way at once, in each direction (default 16, or what the device has). RC only.
    #[must_use]
    pub fn max_rd_atomic(mut self, count: u8) -> Self {
        self.options.max_rd_atomic = Some(count);
        self
    }

    /// Service level, 0 to 15 (default 0).
    #[must_use]
    pub fn service_level(mut self, level: u8) -> Self {
        self.options.service_level = level;
        self
    }

    /// Traffic class: on RoCEv2 the DSCP and ECN byte of the IP header (default 0).
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.options.traffic_class = class;
        self
    }

    /// Routers that packets may pass (default 64). The software device takes 0 as 1.
    #[must_use]
    pub fn hop_limit(mut self, limit: u8) -> Self {
        self.options.hop_limit = limit;
        self
    }

    /// Gives the queue pair a thread domain of its own, so that the provider takes no lock when posting: a queue pair has
    /// one owner, and needs none. Providers have few of them; where there is none the queue pair is made without, and
    /// [`QueuePair::explain`] tells.
    #[must_use]
    pub fn thread_domain(mut self) -> Self {
        self.options.thread_domain = true;
        self
    }

    /// Makes the queue pair and brings it to INIT.
    ///
    /// # Errors
    /// [`CreateError`] if an attribute is out of range, objects of several contexts meet, or the device is full.
    pub fn build(self) -> Result<Prepared, CreateError> {
        let QpBuilder { pd, send_cq, recv_cq, srq, options } = self;
        Ok(Prepared { qp: pd.create_qp(&options, [&send_cq, &recv_cq], srq.as_ref())? })
    }
}

impl Prepared {
    /// The address to hand to the peer.
    pub fn address(&self) -> QpAddress {
        self.qp.address()
    }

    /// Queue pair number.
    pub fn number(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Bytes of inline data that it has room for: what was asked for, unless the device gave less, or by default as much as the
    /// device has for queues this deep.
    pub fn max_inline(&self) -> usize {
        self.qp.max_inline()
    }

    /// A receive into `memory`, to be posted before connecting.
    pub fn recv(&mut self, memory: impl Into<Local>) -> RecvRequest<'_> {
        RecvRequest::new(&self.qp, memory.into())
    }

    /// Connects to the peer at `address`: INIT to RTR to RTS. Does not wait for the peer to do the same. RC and UC.
    ///
    /// The software device asks the peer's for its queue pair, where that is another process of this host, and is answered by
    /// a thread of it: a process that is stopped (SIGSTOP) is waited for, 5 s at most. So are those who share the network's
    /// port, by the first connection to another host. With RoCE by libibverbs the kernel looks for the peer's port on its network,
    /// unless it knows it: 1 s where nobody answers. Whoever must not wait has an [`Inquiry`](crate::Inquiry) ask before.
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
        self.receive_from(address, None)
    }

    /// Brings a datagram queue pair to RTS. UD only. The first one of the software device gets a place on its network, for which it
    /// may wait as [`connect`](Prepared::connect) does.
    ///
    /// # Errors
    /// [`ConnectError::Modify`] on RC and UC.
    pub fn activate(self) -> Result<DatagramQueuePair, ConnectError> {
        if self.qp.qp_type() != QpType::Ud {
            let (qp_type, from) = (self.qp.qp_type(), self.qp.state());
            let detail = ": it needs a peer; use connect";
            return Err(ModifyError { qp_type, from, to: QpState::Rtr, detail }.into());
        }
        self.qp.activate()?;
        Ok(DatagramQueuePair::new(self.qp))
    }
}

impl Prepared {
    /// The queue pair, if it is one of the software device.
    pub(crate) fn soft(&self) -> Option<&Arc<SoftQp>> {
        self.qp.soft()
    }

    pub(crate) fn owned(&self) -> &OwnedQp {
        &self.qp
    }

    /// As [`ready_to_receive`](Prepared::ready_to_receive), with what the peer was asked before, if it was.
    pub(crate) fn receive_from(
        self,
        address: &QpAddress,
        found: Option<Answer>,
    ) -> Result<ReadyToReceive, ConnectError> {
        self.qp.connect(address, found)?;
        Ok(ReadyToReceive { qp: self.qp })
    }

    /// The queue pair, if it is one of libibverbs.
    pub(crate) fn ibv(&self) -> Option<&ibv::OwnedQp> {
        self.qp.ibv()
    }

    /// The queue pair, which its device's connection manager has connected.
    pub(crate) fn connected(self) -> QueuePair {
        QueuePair::new(self.qp)
    }

    /// Connects at `place` by what the connection managers agreed on: INIT to RTR to RTS. It fails with the connection.
    pub(crate) fn connect_by_terms(
        self,
        terms: &Terms,
        place: NetworkGid,
        watch: &Watch,
    ) -> Result<QueuePair, ConnectError> {
        if let Some(qp) = self.soft() {
            qp.connect_by_terms(terms, place, watch)?;
        }
        ReadyToReceive { qp: self.qp }.ready_to_send()
    }
}

impl ReadyToReceive {
    /// The second half of [`connect`](Prepared::connect): RTR to RTS.
    ///
    /// # Errors
    /// [`ConnectError::Modify`] if the queue pair failed in the meantime.
    pub fn ready_to_send(self) -> Result<QueuePair, ConnectError> {
        self.qp.start_sending()?;
        Ok(QueuePair::new(self.qp))
    }
}

/// The least time for an answer: what hardware has as its shortest after no limit at all.
const LEAST_ACK_TIMEOUT: Duration = Duration::from_nanos(8192);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;

    /// Zero would be no time at all, or all of it, as the device has it.
    #[test]
    fn an_answer_has_some_time() {
        let context = Context::open("soft0").unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
        let timeout = |asked| pd.rc(&cq).ack_timeout(asked).options.ack_timeout;
        assert_eq!(timeout(Duration::ZERO), LEAST_ACK_TIMEOUT);
        assert_eq!(timeout(Duration::from_millis(1)), Duration::from_millis(1));
    }

    #[test]
    fn software_is_in_the_partition_that_all_are_in() {
        let context = Context::open("soft0").unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
        for key in [0xffff, 0x7fff] {
            pd.rc(&cq).pkey(key).build().unwrap();
        }
        let error = pd.rc(&cq).pkey(0x8001).build().unwrap_err();
        assert!(matches!(error, CreateError::NoPkey { pkey: 0x8001, .. }), "{error}");
    }
}
