//! One side's verbs objects: queue pairs, completion queues, memory to send from, memory that the other side reaches.

use std::time::Duration;

use qpair::verbs::{
    Access, AddressHandle, CompletionChannel, CompletionQueue, Context, DatagramQueuePair, ExposedRegion, GRH_BYTES,
    Gid, Mtu, Prepared, Psn, QpAddress, QpBuilder, QpState, QpType, Qpn, QueuePair, Rejected, RemoteSlice, Rkey,
    SendRequest, SoftAddress, WcStatus,
};

use super::limits::stride;
use super::options::AtomicOperation;
use super::settings::Settings;
use super::wire::Key;
use crate::perf::error::PerfError;
use crate::perf::idle::Pace;
use crate::perf::test::Kind;

/// What the memory and queue pairs are made for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The port's number.
    pub port: u8,
    /// The port's local identifier.
    pub lid: u16,
    /// This side's GID and its row in the table, if it uses one.
    pub gid: Option<(u32, Gid)>,
    /// The path's MTU.
    pub mtu: Mtu,
    /// The longest message.
    pub longest: usize,
    /// The other side may reach so many bytes from the start of its memory here.
    pub cycle_buffer: u32,
    /// Where the other side's software device is.
    pub soft: Option<SoftAddress>,
}

/// Queue pairs that are not connected yet.
#[derive(Debug)]
pub struct Unconnected {
    plan: Plan,
    prepared: Vec<Prepared>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    inbox: ExposedRegion,
    outbox: ExposedRegion,
    stride: usize,
    service: QpType,
    kind: Kind,
    inline: usize,
    outs: u8,
    atomic: AtomicOperation,
}

/// Connected queue pairs, and what a measurement needs around them.
#[derive(Debug)]
pub struct Bench {
    /// The queue pairs.
    pub lanes: Vec<Lane>,
    /// Completions of sends.
    pub send_cq: CompletionQueue,
    /// Completions of receives.
    pub recv_cq: CompletionQueue,
    /// Where events arrive, if they are used.
    pub channel: Option<CompletionChannel>,
    /// What the other side reaches, and where receives land.
    pub inbox: ExposedRegion,
    /// What requests send from or read into.
    pub outbox: ExposedRegion,
    /// What atomics do.
    pub atomic: AtomicOperation,
    /// Messages up to so many bytes go inline.
    pub inline: usize,
    /// True while a sleep was prepared for.
    pub armed: bool,
    /// How to poll it.
    pub pace: Pace,
}

/// A connected queue pair and its part of the memory.
#[derive(Debug)]
pub struct Lane {
    qp: Qp,
    kind: Kind,
    remote: RemoteSlice,
    start: usize,
    /// Bytes that a receive has room for, without the route header of datagrams.
    room: usize,
    /// Receives that no message has taken.
    posted: u32,
}

#[derive(Debug)]
enum Qp {
    Connected(QueuePair),
    Datagram(DatagramQueuePair, AddressHandle),
}

impl Unconnected {
    /// Makes all objects.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(context: &Context, settings: &Settings, plan: Plan) -> Result<Self, PerfError> {
        let pd = context.alloc_pd()?;
        let channel = if settings.events { Some(context.create_channel()?) } else { None };
        let cq = |depth: u32| match &channel {
            Some(channel) => context.create_cq_on(depth, channel),
            None => context.create_cq(depth),
        };
        let (tx, rx) = (settings.tx_depth(), settings.rx_depth());
        let send_cq = cq(tx.saturating_mul(settings.qps))?;
        let recv_cq = cq(rx.max(1).saturating_mul(settings.qps))?;
        let kind = settings.test.kind();
        let too_large = || PerfError::Options(format!("{} bytes are too many for this machine", plan.longest));
        let stride = stride(settings.service, plan.longest as u64, plan.cycle_buffer).ok_or_else(too_large)?;
        let stride = usize::try_from(stride).map_err(|_| too_large())?;
        let room = stride.checked_mul(settings.qps as usize).ok_or_else(too_large)?;
        let access = match kind {
            Kind::Write => Access::REMOTE_WRITE,
            Kind::Read => Access::REMOTE_READ,
            Kind::Atomic => Access::REMOTE_ATOMIC,
            Kind::Send | Kind::Tagged => Access::NONE,
        };
        let inbox = pd.expose(room, access)?;
        let outbox = pd.expose(room, Access::NONE)?;
        let attributes = context.attributes();
        let most = attributes.max_inline;
        let inline = settings.inline(most);
        let outs = match attributes.max_rd_atomic.min(attributes.max_init_rd_atomic) {
            0 => DEFAULT_OUTS,
            most => u8::try_from(most).unwrap_or(u8::MAX),
        };
        let outs = settings.outs.unwrap_or(outs);
        let build = |_| {
            let builder = match settings.service {
                QpType::Rc => pd.rc(&send_cq),
                QpType::Uc => pd.uc(&send_cq),
                QpType::Ud => pd.ud(&send_cq).qkey(QKEY),
            };
            shape(builder, &plan, inline, outs)
                .recv_cq(&recv_cq)
                .send_depth(tx)
                .recv_depth(rx.max(1))
                .access(access)
                .build()
        };
        let prepared = (0..settings.qps).map(build).collect::<Result<Vec<_>, _>>()?;
        Ok(Unconnected {
            plan,
            prepared,
            send_cq,
            recv_cq,
            channel,
            inbox,
            outbox,
            stride,
            service: settings.service,
            kind,
            inline: inline as usize,
            outs,
            atomic: settings.atomic,
        })
    }

    /// What the other side must know of each queue pair.
    pub fn keys(&self) -> Vec<Key> {
        let key = |(index, prepared): (usize, &Prepared)| {
            let address = prepared.address();
            let memory = self.inbox.remote(index * self.stride..(index + 1) * self.stride);
            Key {
                lid: self.plan.lid,
                out_reads: if self.has_reads() { self.outs.into() } else { 1 },
                qpn: address.qpn.0,
                psn: address.psn.get(),
                rkey: memory.rkey.0,
                addr: memory.addr,
                gid: self.plan.gid.map(|(_, gid)| gid.0),
            }
        };
        self.prepared.iter().enumerate().map(key).collect()
    }

    /// Connects to the other side's queue pairs.
    ///
    /// # Errors
    /// [`PerfError::Connect`].
    pub fn connect(self, theirs: &[Key]) -> Result<Bench, PerfError> {
        let mut lanes = Vec::with_capacity(theirs.len());
        for (index, (prepared, key)) in self.prepared.into_iter().zip(theirs).enumerate() {
            let address = QpAddress {
                qp_type: self.service,
                qpn: Qpn(key.qpn),
                psn: Psn::new(key.psn),
                gid: Gid(key.gid.unwrap_or_default()),
                lid: key.lid,
                mtu: self.plan.mtu,
                qkey: if self.service == QpType::Ud { QKEY } else { 0 },
                max_rd_atomic: u8::try_from(key.out_reads).unwrap_or(u8::MAX),
                ece: None,
                soft: self.plan.soft,
            };
            let qp = if self.service == QpType::Ud {
                let qp = prepared.activate()?;
                let to = qp.address_handle(&address)?;
                Qp::Datagram(qp, to)
            } else {
                Qp::Connected(prepared.connect(&address)?)
            };
            let remote = RemoteSlice { addr: key.addr, len: self.stride as u64, rkey: Rkey(key.rkey) };
            let start = index * self.stride;
            lanes.push(Lane { qp, kind: self.kind, remote, start, room: self.plan.longest, posted: 0 });
        }
        let pace = match (&self.channel, self.plan.soft) {
            (Some(_), _) => Pace::Sleeps,
            (None, Some(_)) => Pace::Memory,
            (None, None) => Pace::Device,
        };
        Ok(Bench {
            lanes,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            channel: self.channel,
            inbox: self.inbox,
            outbox: self.outbox,
            atomic: self.atomic,
            inline: self.inline,
            armed: false,
            pace,
        })
    }

    /// Bytes up to which messages go inline.
    pub fn inline(&self) -> usize {
        self.inline
    }

    /// READs and atomics that this side has under way at once on a queue pair.
    pub fn outs(&self) -> u8 {
        self.outs
    }

    fn has_reads(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Atomic)
    }
}

impl Bench {
    /// Posts a receive on queue pair `lane`, for the longest message of the measurement: where some get lost, it may take one of a
    /// later size. Its completion carries the queue pair's place.
    ///
    /// # Errors
    /// [`PerfError::Post`].
    #[inline]
    pub fn receive(&mut self, lane: usize) -> Result<(), PerfError> {
        let Lane { qp, start, room, posted, .. } = &mut self.lanes[lane];
        let request = match qp {
            Qp::Connected(qp) => qp.recv(self.inbox.local(*start..*start + *room)),
            Qp::Datagram(qp, _) => qp.recv(self.inbox.local(*start..*start + *room + GRH_BYTES)),
        };
        request.id(lane as u64).post()?;
        *posted += 1;
        Ok(())
    }

    /// Posts receives on queue pair `lane` until `count` are there: those that lost messages left are among them.
    ///
    /// # Errors
    /// [`PerfError::Post`].
    pub fn receive_up_to(&mut self, lane: usize, count: u32) -> Result<(), PerfError> {
        while self.lanes[lane].posted < count {
            self.receive(lane)?;
        }
        Ok(())
    }

    /// A message took a receive of queue pair `lane`.
    #[inline]
    pub fn received(&mut self, lane: usize) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.posted = lane.posted.saturating_sub(1);
        }
    }

    /// Posts message `number` of queue pair `lane`: `size` bytes, or `inline` where that is given. If it is signaled, its
    /// completion carries [both](place).
    ///
    /// # Errors
    /// [`PerfError::Post`].
    #[inline]
    pub fn post(
        &mut self,
        lane: usize,
        number: u64,
        size: usize,
        inline: Option<&[u8]>,
        signaled: bool,
    ) -> Result<(), PerfError> {
        let Lane { qp, kind, remote, start, .. } = &mut self.lanes[lane];
        let remote = RemoteSlice { len: size as u64, ..*remote };
        let range = *start..*start + size;
        let wr_id = (lane as u64) << NUMBER_BITS | number & MAX_NUMBER;
        match (qp, *kind, inline) {
            (Qp::Connected(qp), Kind::Write, None) => {
                post_as(qp.write(self.outbox.local(range), remote), wr_id, signaled)
            }
            (Qp::Connected(qp), Kind::Write, Some(data)) => post_as(qp.write_inline(data, remote), wr_id, signaled),
            (Qp::Connected(qp), Kind::Read, _) => post_as(qp.read(self.outbox.local(range), remote), wr_id, signaled),
            (Qp::Connected(qp), Kind::Atomic, _) => match self.atomic {
                AtomicOperation::FetchAndAdd => {
                    post_as(qp.fetch_add(self.outbox.local(range), remote, 1), wr_id, signaled)
                }
                AtomicOperation::CmpAndSwap => {
                    post_as(qp.compare_swap(self.outbox.local(range), remote, 0, 1), wr_id, signaled)
                }
            },
            (Qp::Connected(qp), _, None) => post_as(qp.send(self.outbox.local(range)), wr_id, signaled),
            (Qp::Connected(qp), _, Some(data)) => post_as(qp.send_inline(data), wr_id, signaled),
            (Qp::Datagram(qp, to), _, None) => post_as(qp.send(self.outbox.local(range), to), wr_id, signaled),
            (Qp::Datagram(qp, to), _, Some(data)) => post_as(qp.send_inline(data, to), wr_id, signaled),
        }?;
        Ok(())
    }

    /// True if a queue pair failed.
    pub fn has_failed(&self) -> bool {
        self.lanes.iter().any(|lane| match &lane.qp {
            Qp::Connected(qp) => qp.state() == QpState::Err,
            Qp::Datagram(qp, _) => qp.state() == QpState::Err,
        })
    }

    /// Tells what made a queue pair fail, if a completion does: the first that was not merely flushed.
    pub fn explain_failure(&mut self, error: PerfError) -> PerfError {
        let mut cause = None;
        for cq in [&mut self.send_cq, &mut self.recv_cq] {
            while let Ok(Some(done)) = cq.poll() {
                if done.status() != WcStatus::WR_FLUSH_ERR && cause.is_none() {
                    cause = done.ok().err();
                }
            }
        }
        match error {
            PerfError::Completion(failed) if failed.status != WcStatus::WR_FLUSH_ERR => error,
            _ => cause.map_or(error, PerfError::from),
        }
    }
}

/// Posts a request where it is made, so that it is taken apart at once.
#[inline(always)]
fn post_as(request: SendRequest<'_>, wr_id: u64, signaled: bool) -> Result<(), Rejected> {
    let request = request.id(wr_id);
    if signaled { request.signaled().post() } else { request.post() }
}

/// The queue pair and the number of a message that completed.
#[inline]
pub fn place(wr_id: u64) -> (usize, u64) {
    ((wr_id >> NUMBER_BITS) as usize, wr_id & MAX_NUMBER)
}

/// The address of a queue pair on the software device of `context`, with that row of the GID table.
///
/// # Errors
/// What the device says.
pub fn soft_address(context: &Context, gid_index: Option<u32>) -> Result<QpAddress, PerfError> {
    let cq = context.create_cq(1)?;
    let builder = context.alloc_pd()?.rc(&cq).send_depth(1).recv_depth(1);
    let builder = match gid_index {
        Some(index) => builder.gid_index(index),
        None => builder,
    };
    Ok(builder.build()?.address())
}

/// True if two software devices are on one host, where memory leads from one to the other.
pub fn is_one_host(ours: &SoftAddress, theirs: &SoftAddress) -> bool {
    (ours.host, ours.namespace) == (theirs.host, theirs.namespace)
}

/// What perftest sets on a queue pair.
fn shape(builder: QpBuilder, plan: &Plan, inline: u32, outs: u8) -> QpBuilder {
    let builder = match plan.gid {
        Some((index, _)) => builder.gid_index(index),
        None => builder,
    };
    if plan.soft.is_some() {
        return builder;
    }
    let builder = builder.port(plan.port).mtu(plan.mtu).max_inline(inline).max_rd_atomic(outs);
    builder.ack_timeout(ACK_TIMEOUT).thread_domain()
}

/// perftest's Q_Key.
const QKEY: u32 = 0x1111_1111;
/// perftest's: 4.096 us x 2^14.
const ACK_TIMEOUT: Duration = Duration::from_micros(67_109);
/// READs and atomics at once, where the device does not tell how many it can do.
const DEFAULT_OUTS: u8 = 16;
/// A completion carries the queue pair above these bits, and the message's number in them.
const NUMBER_BITS: u32 = 48;
const MAX_NUMBER: u64 = (1 << NUMBER_BITS) - 1;
