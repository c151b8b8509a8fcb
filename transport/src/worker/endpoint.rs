//! One end of a connection as the worker sees it: protocol, queue pair, and how far it is.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use qpair_verbs::calc::Calc;
use qpair_verbs::{
    Buffer, ExposedRegion, Gpu, GpuBuffer, Local, PostError, Prepared, QpState, QpType, QueuePair, RemoteSlice,
};

use super::datagram::Line;
use super::error::{CloseReason, NoKey};
use super::ids::{EndpointId, ListenerId};
use super::memory::{EagerSlabs, InUse, Payload, Target};
use super::ops::StreamCounts;
use super::rails::Lanes;
use super::recovery::{Recovery, Renewed, Repeats, Trial};
use super::seen::{History, Note, Traffic};
use super::staging::PieceKey;
use super::watch::Watch;
use super::work_id::{Job, wr_id};
use crate::cm::SocketId;
use crate::engine::{EntryKey, Exposed, Link, Posted, Pulse, RESERVED_SLOTS, RemoteMemory, Shares, Threshold};

/// One end of a connection. What every message touches stands first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Endpoint {
    pub(crate) link: Link<Carried>,
    pub(crate) qp: Option<QueuePair>,
    /// From which length on payloads are offered for reading.
    pub(crate) threshold: Threshold,
    /// Longest payload that the peer takes without a receive, if not for ever.
    pub(crate) longest: u64,
    pub(crate) id: EndpointId,
    /// The stage is [`Stage::Up`].
    pub(crate) up: bool,
    pub(crate) stage: Stage,
    /// One-sided work with the device, oldest first.
    pub(crate) reads: VecDeque<InFlight>,
    /// The rails over which long payloads are read, if there are several.
    pub(crate) lanes: Option<Box<Lanes>>,
    /// Its packets, if it goes over datagrams: it has no queue pair of its own then.
    pub(crate) line: Option<Box<Line>>,
    /// The rail that its queue pair is on, or is to be.
    pub(crate) rail: usize,
    /// The device of that rail, of the worker's: what is asked of each message should not have to look it up.
    pub(crate) device: usize,
    /// The peer's rails that are on one device with its first, as bits.
    pub(crate) peer_home: u8,
    /// What the application sent and received.
    pub(crate) sent: Traffic,
    pub(crate) received: Traffic,
    /// Bytes of buffers of the pool with the device, for messages that did not go inline.
    pub(crate) copied: usize,
    pub(crate) socket: Option<SocketId>,
    pub(crate) peer: SocketAddr,
    /// The application closed it.
    pub(crate) closed_here: bool,
    /// The peer said farewell.
    pub(crate) parted: bool,
    /// When the probe was posted that is under way.
    pub(crate) probed: Duration,
    /// Packets of the peer by then, where the device tells.
    pub(crate) arrivals: Option<u64>,
    /// Probes that are still to be made to measure the path.
    pub(crate) measuring: u8,
    /// A payload whose way to the peer is timed: its operation and length, and when it was offered.
    pub(crate) timed: Option<(u64, u64, Duration)>,
    /// Its streams that are open.
    pub(crate) streams: StreamCounts,
    /// When the device was last asked whether the queue pair works.
    pub(crate) asked: Duration,
    /// When it is looked after next.
    pub(crate) timer: Option<Duration>,
    /// Of a close, which must be over in time.
    pub(crate) closing: Option<Watch>,
    /// The connection broke, at that time: it ends once what had come before is delivered.
    pub(crate) broken: Option<(CloseReason, Duration)>,
    /// Where the peer came in, until the application is told of it.
    pub(crate) listener: Option<ListenerId>,
    /// Receive slots are reserved for it.
    pub(crate) reserved: bool,
    /// Receives that came back empty.
    pub(crate) flushed: u32,
    /// Messages that the application keeps, and whose place other slabs have taken.
    pub(crate) kept: u32,
    /// Its next message waits for memory.
    pub(crate) is_starved: bool,
    /// Its queue pair took the place of another that failed, and has not shown yet that it works.
    pub(crate) trial: Option<Box<Trial>>,
    /// What goes out again over another queue pair.
    pub(crate) repeats: Repeats,
    /// What the peer said of its other queue pair, until it is connected to.
    pub(crate) renewal: Option<Box<Renewed>>,
    /// What the end of the connection cut off, and is not taken back from the peer yet.
    pub(crate) cut: Vec<Exposed<Carried>>,
    pub(crate) history: History,
    pub(crate) span: tracing::Span,
}

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The peer is called, by a name perhaps: that is looked up, TCP connected, keys exchanged.
    Dialing { host: Option<Box<str>> },
    /// Our hello is sent; the peer's is awaited. Over datagrams there is no queue pair to connect.
    Greeting(Option<Prepared>),
    /// This side is connected; that the other is, is not known yet.
    HalfOpen,
    /// Both sides are connected.
    Up,
    /// The queue pair failed, and another takes its place.
    Recovering(Box<Recovery>),
    /// It ends, once nothing of it is with the device any more.
    Ending { reason: CloseReason, since: Duration },
}

/// One-sided work with the device.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The operation; 0 if it is part of another.
    pub(crate) number: u64,
    /// Its request's running number.
    pub(crate) order: u32,
    /// The application waits for it.
    pub(crate) awaited: bool,
    /// Bytes that it moves.
    pub(crate) len: u64,
    pub(crate) what: OneSided,
}

impl InFlight {
    /// True if bytes come from the peer.
    pub(crate) fn is_read(&self) -> bool {
        !matches!(self.what, OneSided::Put { .. })
    }

    /// True if it is that operation, or reads for it.
    pub(crate) fn is_of(&self, number: u64) -> bool {
        match &self.what {
            OneSided::Pull(reading) => reading.posted.as_ref().is_some_and(|posted| posted.op == number),
            _ => self.number == number,
        }
    }
}

/// What one-sided work is for.
#[derive(Debug)]
pub(crate) enum OneSided {
    /// A READ of an offered payload.
    Pull(Reading),
    /// A READ that the application asked for.
    Get { remote: RemoteMemory, calc: Option<Calc> },
    /// A READ that the application asked to be combined with its memory, into a slab of the pool of so many bytes: the
    /// device can not.
    Combine { target: Target, remote: RemoteMemory, pooled: usize },
    /// A WRITE that the application asked for; where the device does not know the application's memory, of a slab of the pool of
    /// so many bytes that stands for it.
    Put { remote: RemoteMemory, own: Option<(Local, usize)> },
    /// An atomic; a slab of the pool of so many bytes takes what was there before.
    Fetch { pooled: usize },
}

/// A READ of an offered payload.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) key: EntryKey,
    /// All of it, and what of it was read before the part that is being read.
    pub(crate) remote: RemoteMemory,
    pub(crate) before: u64,
    pub(crate) calc: Option<Calc>,
    /// The receive that it is for. Its memory is with the device, unless that is a slab of the pool.
    pub(crate) posted: Option<Posted<Target>>,
    /// Bytes of the slab of the pool that it is read into; 0 if it is read into the memory of its receive.
    pub(crate) pooled: usize,
    /// The remote memory is this piece of the payload, which goes there in the local memory.
    pub(crate) piece: Option<PieceKey>,
    pub(crate) offset: usize,
}

/// Part of a payload that the device does not take for reading.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) reading: Reading,
    pub(crate) error: Unposted,
    pub(crate) memory: Local,
}

/// Why one-sided work is not with the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unposted {
    Post(PostError),
    /// The peer's memory has no key for the rail that the connection is on.
    NoKey(NoKey),
}

/// Which way one-sided work goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// Into local memory, or combined with it.
    Read(Option<Calc>),
    /// Out of local memory.
    Write,
    /// Added to what is there, which comes into local memory.
    FetchAdd(u64),
    /// Swapped with what is there, which comes into local memory, if that is `compare`.
    CompareSwap { compare: u64, swap: u64 },
}

impl Endpoint {
    /// Takes note of something that happened.
    pub(crate) fn note(&mut self, now: Duration, note: Note) {
        tracing::trace!(parent: &self.span, "{note:?}");
        self.history.note(now, note, self.link.sequences());
    }

    /// True if it closes, and has not come to an end within `limit`.
    pub(super) fn is_late(&mut self, now: Duration, limit: Duration) -> bool {
        self.closing.as_mut().is_some_and(|closing| closing.is_over(now, limit))
    }

    /// True if the queue pair has failed. Devices move it to the error state by themselves, and not every one tells of it: a
    /// silent one is asked, which is a system call, and now and then only, when it has been silent for `patience`. One that works is never asked.
    pub(crate) fn has_failed(&mut self, pulse: Pulse, now: Duration, patience: Duration) -> bool {
        let Some(qp) = &self.qp else { return false };
        let unasked = now.saturating_sub(self.asked).min(self.link.silence(now));
        if pulse == Pulse::Quiet && unasked < patience {
            return qp.known_state() == QpState::Err;
        }
        self.asked = now;
        qp.state() == QpState::Err
    }

    /// Notices packets of the peer that tell of nothing else, because others got lost: it lives.
    pub(crate) fn listen(&mut self) {
        if self.link.is_answered() {
            return;
        }
        let arrivals = self.qp.as_ref().and_then(QueuePair::arrivals);
        if arrivals != std::mem::replace(&mut self.arrivals, arrivals) {
            self.link.heard();
        }
    }

    /// How much longer than others an answer of the peer may take that comes behind one-sided work under way. They are done in
    /// order: before the next sign of life comes no more than the longest of them.
    pub(crate) fn grace(&self) -> Duration {
        let longest = self.reads.iter().map(|work| work.len).max().unwrap_or(0);
        Duration::from_micros(longest.saturating_mul(1_000_000) / LEAST_RATE)
    }

    /// Posts a READ of the next part of a payload into `memory`.
    pub(crate) fn read_part(&mut self, reading: Reading, awaited: bool, memory: Local) -> Result<(), Box<Unread>> {
        let Reading { remote, before, calc, offset, .. } = reading;
        let len = (remote.len() - before).min(PART);
        let part = remote.slice(before..before + len);
        match self.reach_at(Reach::Read(calc), memory, &part, offset + before as usize) {
            Ok(order) => {
                let what = OneSided::Pull(reading);
                self.reads.push_back(InFlight { number: 0, order, awaited, len, what });
                Ok(())
            }
            Err((error, memory)) => Err(Box::new(Unread { reading, error, memory })),
        }
    }

    /// Has the device give back what it has.
    pub(crate) fn fail_queue_pair(&mut self) {
        if let Some(qp) = &mut self.qp
            && let Err(error) = qp.to_error()
        {
            tracing::debug!(parent: &self.span, %error, "the queue pair was in error already");
        }
    }

    /// Gives up the slots that its peer has, and the receives that are posted for them.
    pub(crate) fn release_slots(&mut self, shares: &mut Shares, slabs: &mut EagerSlabs) {
        if !std::mem::take(&mut self.reserved) {
            return;
        }
        let (window, flushed) = (self.link.window(), std::mem::take(&mut self.flushed));
        // Over datagrams nothing is posted for it alone.
        let posted = if self.is_of_datagrams() {
            0
        } else {
            shares.end(window);
            self.link.outstanding_slots() + RESERVED_SLOTS
        };
        slabs.release(window + RESERVED_SLOTS, posted.saturating_sub(flushed), self.device > 0);
    }

    /// True if neither the device nor the peer has anything of it.
    pub(crate) fn is_with_nobody(&self) -> bool {
        let reads = !self.reads.is_empty() || self.lanes.as_ref().is_some_and(|lanes| !lanes.is_idle());
        self.cut.is_empty() && !reads && self.copied == 0
    }

    /// True if it goes over datagrams.
    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.line.is_some()
    }

    /// True if something can be sent to the peer: there is a queue pair, or a way for datagrams.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.qp.is_some() || self.line.as_ref().is_some_and(|line| line.is_connected())
    }

    /// Why nothing one-sided can be posted, where there is no queue pair.
    #[cold]
    pub(crate) fn why_not(&self) -> PostError {
        match self.line {
            Some(_) => PostError::NotSupported { what: "one-sided work", qp_type: QpType::Ud },
            None => PostError::State(QpState::Init),
        }
    }

    /// One-sided work, with the device or to go out again.
    pub(crate) fn works(&mut self) -> impl Iterator<Item = &mut InFlight> + '_ {
        let over_rails = self.lanes.iter_mut().flat_map(|lanes| lanes.works());
        self.reads.iter_mut().chain(self.repeats.works()).chain(over_rails)
    }

    /// Posts a READ, WRITE or atomic of all of `remote`, with the first bytes of `memory`. Gives its running number.
    #[inline]
    pub(crate) fn reach(
        &mut self,
        reach: Reach,
        memory: Local,
        remote: &RemoteMemory,
    ) -> Result<u32, (Unposted, Local)> {
        self.reach_at(reach, memory, remote, 0)
    }

    /// What the queue pair names the peer's memory by.
    #[inline]
    pub(crate) fn name(&self, remote: &RemoteMemory) -> Result<RemoteSlice, Unposted> {
        remote.over(self.rail, self.peer_home).ok_or(Unposted::NoKey(NoKey { rail: self.rail }))
    }

    #[inline]
    fn reach_at(
        &mut self,
        reach: Reach,
        memory: Local,
        remote: &RemoteMemory,
        at: usize,
    ) -> Result<u32, (Unposted, Local)> {
        let remote = match self.name(remote) {
            Ok(remote) => remote,
            Err(refused) => return Err((refused, memory)),
        };
        let Some(qp) = &mut self.qp else { return Err((self.why_not().into(), memory)) };
        let Some(work) = self.link.take_slot() else {
            return Err((PostError::SendQueueFull { depth: self.link.depth() }.into(), memory));
        };
        let request = match reach {
            Reach::Read(None) => qp.read(memory, remote),
            Reach::Read(Some(calc)) => qp.read_reduce(memory, remote, calc),
            Reach::Write => qp.write(memory, remote),
            Reach::FetchAdd(add) => qp.fetch_add(memory, remote, add),
            Reach::CompareSwap { compare, swap } => qp.compare_swap(memory, remote, compare, swap),
        };
        let id = wr_id(Job::Read, self.id, work.number);
        match request.range(at..at + remote.len as usize).id(id).signaled().post() {
            Ok(()) => Ok(work.number),
            Err(rejected) => {
                self.link.untake_slot(work);
                let (error, memory) = rejected.into_parts();
                Err((error.into(), memory))
            }
        }
    }
}

impl From<PostError> for Unposted {
    fn from(error: PostError) -> Self {
        Unposted::Post(error)
    }
}

/// A payload on its way out.
#[derive(Debug)]
pub(crate) enum Carried {
    /// To be copied when its turn comes.
    Bytes(Bytes),
    /// To be copied when its turn comes, one behind the other.
    Gather(Vec<Bytes>),
    /// To be copied when its turn comes.
    Buffer(Buffer),
    /// The application's own region.
    Remote(RemoteMemory),
    /// A buffer, exposed for the peer to read.
    Region(ExposedRegion),
    /// These bytes, registered for the peer to read where they lie.
    Shared(InUse, Bytes),
    /// A copy of this payload in a buffer of the pool, exposed for the peer to read.
    Copy(ExposedRegion, Payload),
    /// Memory of a GPU, which goes by slots.
    Gpu(GpuBuffer),
    /// The bytes of a GPU's memory, to be copied when their turn comes.
    GpuCopy(Bytes, GpuBuffer),
    /// A slot of that GPU, for the peer to read.
    Slot(Gpu, usize),
}

impl Carried {
    /// The payload as it came; `Err` if its memory must be taken back from the peer first.
    pub(crate) fn into_payload(self) -> Result<Payload, Carried> {
        match self {
            Carried::Bytes(bytes) => Ok(Payload::Bytes(bytes)),
            Carried::Gather(pieces) => Ok(Payload::Gather(pieces)),
            Carried::Buffer(buffer) => Ok(Payload::Buffer(buffer)),
            Carried::Remote(remote) => Ok(Payload::Exposed(remote)),
            Carried::Gpu(buffer) | Carried::GpuCopy(_, buffer) => Ok(Payload::Gpu(buffer)),
            exposed => Err(exposed),
        }
    }
}

/// Bytes of a payload that are read at once: enough that the round trip in between is lost in them, and few enough that a
/// completion is never long in coming. A whole number of elements of any reduction.
pub(crate) const PART: u64 = 8 << 20;
/// Bytes a second that a peer's device moves at least, if it lives.
const LEAST_RATE: u64 = 64 << 20;
