//! The queue pair that all connections over datagrams share.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use qpair_verbs::{
    Buffer, CompletionChannel, CompletionQueue, Context, DatagramQueuePair, GRH_BYTES, Inquiry, Local, Mtu, PostError,
    ProtectionDomain, QpAddress, QpState, Qpn, WcStatus,
};

use super::line::{Arrived, Line, Packet, To};
use crate::cm::DatagramTerms;
use crate::engine::{Due, FLOW_BYTES, FlowHeader, HEADER_BYTES, NotSent};
use crate::worker::config::PacketClass;
use crate::worker::endpoints::Endpoints;
use crate::worker::error::ResourceError;
use crate::worker::memory::EagerSlabs;
use crate::worker::rails::Place;

/// The queue pair, its queues, and memory for packets.
#[derive(Debug)]
pub(in crate::worker) struct Datagrams {
    qp: DatagramQueuePair,
    pub(in crate::worker) sends: CompletionQueue,
    pub(in crate::worker) receives: CompletionQueue,
    pd: ProtectionDomain,
    /// Longest packet in bytes, with the flow's header.
    packet: usize,
    max_inline: usize,
    /// Of so many requests one tells of its completion.
    tell: u32,
    /// Requests since the last that tells of its completion, and how many do whose completion is not seen yet.
    untold: u32,
    told: u32,
    /// Contents of packets that were acknowledged, for others.
    blanks: Vec<Vec<u8>>,
    /// Registered memory, for packets longer than the device takes inline.
    buffers: Vec<Buffer>,
    /// Endpoints that may have something to do.
    pub(super) dirty: VecDeque<u32>,
    /// Packets that may still go out before the next poll: peers' receives are few, and shared as these are.
    budget: u32,
    clock: Clock,
    /// All that had come was looked at when packets were last taken.
    pub(super) is_drained: bool,
    /// Packets that wait for one before them, of all connections.
    pub(in crate::worker) held: usize,
    /// The queue pair takes nothing any more.
    pub(super) has_failed: bool,
    repeated: u64,
}

/// Looked at once for all that happens between two polls.
#[derive(Debug)]
struct Clock {
    /// When the worker began.
    start: Instant,
    /// The time, if it was looked at just now.
    now: Option<Duration>,
}

impl Clock {
    fn now(&mut self) -> Duration {
        *self.now.get_or_insert_with(|| self.start.elapsed())
    }
}

/// What came.
pub(super) enum Came {
    Nothing,
    /// A packet of no connection that there is.
    Stray,
    /// A packet of that endpoint's.
    Of {
        index: usize,
        result: Result<(), NotSent>,
    },
}

impl Datagrams {
    pub(in crate::worker) fn new(
        on: (&Context, &ProtectionDomain, &CompletionChannel),
        way: (Option<&Place>, PacketClass),
        start: Instant,
    ) -> Result<Datagrams, ResourceError> {
        Datagrams::with_mtu(on, way, start, None)
    }

    /// With packets of that length; of none, as long as the port has them.
    fn with_mtu(
        (context, pd, channel): (&Context, &ProtectionDomain, &CompletionChannel),
        (place, class): (Option<&Place>, PacketClass),
        start: Instant,
        mtu: Option<Mtu>,
    ) -> Result<Datagrams, ResourceError> {
        let attributes = context.attributes();
        let depth = DEPTH.min(attributes.max_qp_wr).min(attributes.max_cqe);
        let (sends, receives) = (context.create_cq(depth)?, context.create_cq_on(depth, channel)?);
        // The uppermost bit stands for keys that only the system gives away (IBA 10.2.5).
        let qkey = super::connect::unpredictable().map_err(ResourceError::System)? & !(1 << 31);
        let builder = class.of(pd.ud(&sends)).recv_cq(&receives).send_depth(depth).recv_depth(depth).qkey(qkey);
        let builder = match place {
            Some(place) => place.of(builder),
            None => builder,
        };
        let prepared = mtu.into_iter().fold(builder, |builder, mtu| builder.mtu(mtu)).build()?;
        let max_inline = prepared.max_inline();
        let mut qp = prepared.activate().map_err(|error| ResourceError::Datagrams(Box::new(error)))?;
        let packet = qp.address().mtu.bytes() as usize;
        for _ in 0..depth {
            let slab = pd.alloc(GRH_BYTES + packet)?.into_slab();
            qp.recv(slab).post().map_err(|rejected| rejected.error)?;
        }
        Ok(Datagrams {
            qp,
            sends,
            receives,
            pd: pd.clone(),
            packet,
            max_inline,
            tell: depth / 8,
            untold: 0,
            told: 0,
            blanks: Vec::new(),
            buffers: Vec::new(),
            dirty: VecDeque::new(),
            budget: BUDGET,
            clock: Clock { start, now: None },
            is_drained: false,
            held: 0,
            has_failed: false,
            repeated: 0,
        })
    }

    pub(in crate::worker) fn address(&self) -> QpAddress {
        self.qp.address()
    }

    /// Longest message in bytes, to a peer that takes packets of `mtu` bytes.
    pub(super) fn longest(&self, mtu: usize) -> usize {
        self.packet.min(mtu) - FLOW_BYTES - HEADER_BYTES
    }

    /// The way to a peer.
    pub(super) fn to(
        &self,
        peer: &QpAddress,
        terms: DatagramTerms,
        inquiry: &Inquiry,
    ) -> Result<To, qpair_verbs::ConnectError> {
        Ok(To { handle: inquiry.address_handle(&self.qp, peer)?, qpn: peer.qpn, terms })
    }

    /// Packets that were sent again.
    pub(in crate::worker) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Memory for a packet's contents.
    pub(super) fn blank(&mut self) -> Vec<u8> {
        self.blanks.pop().unwrap_or_default()
    }

    /// A packet is not needed any more.
    pub(super) fn give_back(&mut self, packet: Packet) {
        if self.blanks.len() < BLANKS {
            self.blanks.push(packet.bytes);
        }
    }

    /// Time goes by.
    pub(super) fn forget_time(&mut self) {
        self.clock.now = None;
    }

    /// More packets may go out.
    pub(super) fn refresh(&mut self) {
        self.budget = BUDGET;
    }

    /// True if no more packets may go out before the next poll.
    pub(super) fn is_exhausted(&self) -> bool {
        self.budget == 0
    }

    /// The connection is to be looked at: its timer, and whether it has ended.
    pub(super) fn mark(&mut self, line: &mut Line, index: u32) {
        if !std::mem::replace(&mut line.is_dirty, true) {
            self.dirty.push_back(index);
        }
    }

    /// Sends what is due of a connection. `looked`: at all that came before.
    pub(super) fn transmit(&mut self, line: &mut Line, looked: bool) {
        let now = self.clock.now();
        let Some(to) = &line.to else { return };
        let before = line.flow.counts().repeated;
        while self.budget > 0
            && let Some(due) = if looked { line.flow.poll(now) } else { line.flow.poll_early(now) }
        {
            self.budget -= 1;
            match due {
                Due::Packet(header, packet) => {
                    if let Some(place) = packet.bytes.first_chunk_mut() {
                        header.emit(to.terms.connection, to.terms.secret, place);
                    }
                    self.put(&packet.bytes, to);
                }
                Due::Ack(header) => {
                    let mut bytes = [0; FLOW_BYTES];
                    header.emit(to.terms.connection, to.terms.secret, &mut bytes);
                    self.put(&bytes, to);
                }
                Due::Lost => {
                    line.is_lost = true;
                    break;
                }
            }
        }
        self.repeated += line.flow.counts().repeated - before;
    }

    /// Posts a packet. Where there is no room for it, it is lost as others are.
    fn put(&mut self, bytes: &[u8], to: &To) {
        let mut posted = self.post_once(bytes, to);
        if matches!(posted, Err(PostError::SendQueueFull { .. })) {
            self.take_sent();
            posted = self.post_once(bytes, to);
        }
        match posted {
            Ok(()) | Err(PostError::SendQueueFull { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, "no datagram can be sent");
                self.has_failed = true;
            }
        }
    }

    fn post_once(&mut self, bytes: &[u8], to: &To) -> Result<(), PostError> {
        if bytes.len() > self.max_inline {
            return self.post_copy(bytes, to);
        }
        let tells = self.untold >= self.tell;
        let request = self.qp.send_inline(bytes, &to.handle);
        let request = if tells { request.signaled() } else { request };
        request.post().map_err(|rejected| rejected.error)?;
        (self.untold, self.told) = if tells { (0, self.told + 1) } else { (self.untold + 1, self.told) };
        Ok(())
    }

    fn post_copy(&mut self, bytes: &[u8], to: &To) -> Result<(), PostError> {
        let buffer = self.buffers.pop().map_or_else(|| self.pd.alloc(self.packet), Ok);
        // Without memory it is lost, as others are.
        let Ok(mut buffer) = buffer else { return Ok(()) };
        buffer[..bytes.len()].copy_from_slice(bytes);
        match self.qp.send(buffer, &to.handle).range(0..bytes.len()).signaled().post() {
            Ok(()) => {
                (self.untold, self.told) = (0, self.told + 1);
                Ok(())
            }
            Err(rejected) => {
                let (error, memory) = rejected.into_parts();
                if let Local::Buffer(buffer) = memory {
                    self.buffers.push(buffer);
                }
                Err(error)
            }
        }
    }

    /// Takes back what the device has sent.
    pub(super) fn take_sent(&mut self) {
        while self.told > 0 {
            match self.sends.poll() {
                Ok(Some(completion)) => {
                    self.told -= 1;
                    self.has_failed |= !completion.status().is_success();
                    if let Local::Buffer(buffer) = completion.into_memory() {
                        self.buffers.push(buffer);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the completion queue of datagrams failed");
                    self.has_failed = true;
                    return;
                }
            }
        }
    }

    /// Takes a packet that came, and gives it to its connection.
    pub(super) fn take(&mut self, endpoints: &mut Endpoints, slabs: &mut EagerSlabs) -> Came {
        let completion = match self.receives.poll() {
            Ok(Some(completion)) => completion,
            Ok(None) => return Came::Nothing,
            Err(error) => {
                if !self.has_failed {
                    tracing::warn!(%error, "the completion queue of datagrams that come failed");
                }
                self.has_failed = true;
                return Came::Nothing;
            }
        };
        if completion.status() != WcStatus::SUCCESS {
            // A sender that died, or sent more than there is room for, spoils one receive and not the queue pair.
            let is_over = completion.status() == WcStatus::WR_FLUSH_ERR || self.qp.state() == QpState::Err;
            match completion.into_memory() {
                Local::Slab(slab) if !is_over => self.has_failed |= self.qp.recv(slab).post().is_err(),
                _ => self.has_failed = true,
            }
            return Came::Stray;
        }
        let (now, from) = (self.clock.now(), completion.values().src_qpn);
        let bytes = completion.message().and_then(|bytes| bytes.get(GRH_BYTES..)).unwrap_or_default();
        let came = Self::hand_over((bytes, from), endpoints, slabs, &mut self.held, now);
        if let Err(rejected) = self.qp.repost(completion) {
            tracing::warn!(error = %rejected.error, "no datagram can be received");
            self.has_failed = true;
        }
        came
    }

    /// Of packets only those count that the peer's queue pair sent, which devices tell, and that have the connection's secret.
    fn hand_over(
        (bytes, from): (&[u8], Option<Qpn>),
        endpoints: &mut Endpoints,
        slabs: &mut EagerSlabs,
        held: &mut usize,
        now: Duration,
    ) -> Came {
        let Some((connection, secret, header)) = FlowHeader::parse(bytes) else { return Came::Stray };
        let index = connection as usize;
        let line = endpoints.at(index).and_then(|endpoint| endpoint.line.as_deref_mut());
        let is_peer = |line: &Line| line.to.as_ref().is_some_and(|to| Some(to.qpn) == from);
        let Some(line) = line.filter(|line| line.secret == secret && is_peer(line)) else { return Came::Stray };
        // What it says of this side's packets counts, whatever becomes of its contents; one that lies is not kept.
        if let Err(lie) = line.flow.heed(&header, now) {
            return Came::Of { index, result: Err(lie) };
        }
        let contents = &bytes[FLOW_BYTES..];
        // What waits for others takes memory, of which peers have a share together: the rest comes again.
        let is_wanted = line.flow.wants(&header) && (*held < HELD || line.flow.is_next(&header));
        let arrived = if !is_wanted {
            None
        } else if contents.is_empty() {
            Some(Arrived { slab: None, len: 0 })
        } else {
            match slabs.copy_of(contents) {
                Ok(slab) => Some(Arrived { slab: Some(slab), len: contents.len() }),
                // It comes again, and there may be memory then.
                Err(_) => return Came::Of { index, result: Ok(()) },
            }
        };
        *held += usize::from(line.flow.arrive(&header, arrived, now));
        Came::Of { index, result: Ok(()) }
    }
}

#[cfg(test)]
impl Datagrams {
    /// The device puts the queue pair into the error state.
    pub(in crate::worker) fn break_queue_pair(&mut self) {
        self.qp.to_error().unwrap();
    }

    /// With short packets.
    pub(in crate::worker) fn with_short_packets(
        on: (&Context, &ProtectionDomain, &CompletionChannel),
        start: Instant,
    ) -> Datagrams {
        Datagrams::with_mtu(on, (None, PacketClass::default()), start, Some(Mtu::B512)).unwrap()
    }

    /// Sends anything to this queue pair itself.
    pub(in crate::worker) fn forge(&mut self, bytes: &[u8]) {
        let handle = self.qp.address_handle(&self.address()).unwrap();
        self.qp.send_inline(bytes, &handle).post().unwrap();
    }
}

/// Receives, and requests to send, of all connections together: as many packets as come between two polls, or get lost.
pub(in crate::worker) const DEPTH: u32 = 1024;
/// Packets that wait for one before them, at most, of all connections: a slab each, 32 MiB by default.
pub(in crate::worker) const HELD: usize = 4 * DEPTH as usize;
/// Packets that go out at most between two polls.
const BUDGET: u32 = DEPTH / 8;
/// Blank packets that are kept.
const BLANKS: usize = 4096;
