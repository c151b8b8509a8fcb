//! One end of a connection as the worker sees it: protocol, queue pair, and how far it is.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use qpair_verbs::calc::Calc;
use qpair_verbs::{Buffer, ExposedRegion, Local, PostError, Prepared, QpState, QueuePair, RemoteSlice};
use slab::Slab;

use super::error::CloseReason;
use super::ids::{EndpointId, ListenerId, OpId};
use super::message::Message;
use super::payload::Payload;
use super::table::QpTable;
use super::target::Target;
use crate::cm::SocketId;
use crate::engine::{Link, PeerTerms, Pulse};

/// One end of a connection. What every message touches stands first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Endpoint {
    pub(crate) link: Link<Carried, Target, Message>,
    pub(crate) qp: Option<QueuePair>,
    /// Longest eager payload.
    pub(crate) eager_limit: usize,
    pub(crate) id: EndpointId,
    /// The stage is [`Stage::Up`].
    pub(crate) up: bool,
    pub(crate) stage: Stage,
    /// READs with the device, oldest first.
    pub(crate) reads: VecDeque<OneSided>,
    /// Bytes of buffers of the pool with the device, for messages that did not go inline.
    pub(crate) copied: usize,
    pub(crate) socket: Option<SocketId>,
    pub(crate) peer: SocketAddr,
    /// The application closed it.
    pub(crate) closed_here: bool,
    /// The peer said farewell.
    pub(crate) parted: bool,
    /// When the device was last asked whether the queue pair works.
    pub(crate) asked: Duration,
    /// A close must be over by then.
    pub(crate) deadline: Option<Duration>,
    /// The connection broke, at that time: it ends once what had come before is delivered.
    pub(crate) broken: Option<(CloseReason, Duration)>,
    /// Where the peer came in, until the application is told of it.
    pub(crate) listener: Option<ListenerId>,
    /// Receive slots are reserved for it.
    pub(crate) reserved: bool,
    /// Receives that came back empty.
    pub(crate) flushed: u32,
    /// What the end of the connection cut off, and is not taken back from the peer yet.
    pub(crate) cut: Vec<(u64, Carried)>,
    pub(crate) span: tracing::Span,
}

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The peer is called, by a name perhaps: that is looked up, TCP connected, keys exchanged.
    Dialing { host: Option<Box<str>> },
    /// Our hello is sent; the peer's is awaited.
    Greeting(Prepared),
    /// This side is connected; that the other is, is not known yet.
    HalfOpen,
    /// Both sides are connected.
    Up,
    /// It ends, once nothing of it is with the device any more.
    Ending { reason: CloseReason, since: Duration },
}

/// One-sided work with the device.
#[derive(Debug)]
pub(crate) enum OneSided {
    /// A READ of an offered payload.
    Pull(Reading),
    /// A READ that the application asked for.
    Get(OpId),
    /// A READ that the application asked to be combined with its memory, into a slab of the pool: the device can not.
    Combine(Combining),
    /// A WRITE that the application asked for.
    Put(OpId),
    /// An atomic that the application asked for.
    Fetch(Fetching),
}

/// A READ of an offered payload.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) key: u32,
    /// Where the payload goes once it is read, if the device can not do that itself.
    pub(crate) staged: Option<Target>,
    /// Bytes of the slab of the pool that it is read into; 0 if it is read into the memory of its receive.
    pub(crate) pooled: usize,
}

/// A READ into a slab of the pool, to be combined with the application's memory.
#[derive(Debug)]
pub(crate) struct Combining {
    pub(crate) op: OpId,
    pub(crate) target: Target,
    /// Bytes that are read.
    pub(crate) len: usize,
    /// Bytes of the slab.
    pub(crate) pooled: usize,
}

/// An atomic.
#[derive(Debug)]
pub(crate) struct Fetching {
    pub(crate) op: OpId,
    /// Bytes of the slab of the pool that takes what was there before.
    pub(crate) pooled: usize,
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
    /// True if the queue pair has failed. Devices move it to the error state by themselves, and not every one tells of it: a
    /// silent one is asked, which is a system call, and now and then only. One that works is never asked.
    pub(crate) fn has_failed(&mut self, pulse: Pulse, now: Duration) -> bool {
        let Some(qp) = &self.qp else { return false };
        let unasked = now.saturating_sub(self.asked).min(self.link.silence(now));
        if pulse == Pulse::Quiet && unasked < ASK {
            return qp.known_state() == QpState::Err;
        }
        self.asked = now;
        qp.state() == QpState::Err
    }

    /// Posts a READ, WRITE or atomic of all of `remote`, with the first bytes of `memory`.
    #[inline]
    pub(crate) fn reach(&mut self, reach: Reach, memory: Local, remote: RemoteSlice) -> Result<(), (PostError, Local)> {
        let Some(qp) = &mut self.qp else { return Err((PostError::State(QpState::Init), memory)) };
        let Some(work) = self.link.take_slot() else {
            return Err((PostError::SendQueueFull { depth: self.link.depth() }, memory));
        };
        let request = match reach {
            Reach::Read(None) => qp.read(memory, remote),
            Reach::Read(Some(calc)) => qp.read_reduce(memory, remote, calc),
            Reach::Write => qp.write(memory, remote),
            Reach::FetchAdd(add) => qp.fetch_add(memory, remote, add),
            Reach::CompareSwap { compare, swap } => qp.compare_swap(memory, remote, compare, swap),
        };
        let id = wr_id(Job::Read, self.id, work.number);
        request.range(0..remote.len as usize).id(id).signaled().post().map_err(|rejected| {
            self.link.untake_slot(work);
            rejected.into_parts()
        })
    }
}

/// A payload on its way out.
#[derive(Debug)]
pub(crate) enum Carried {
    /// To be copied when its turn comes.
    Bytes(Bytes),
    /// To be copied when its turn comes.
    Buffer(Buffer),
    /// The application's own region.
    Remote(RemoteSlice),
    /// A buffer, exposed for the peer to read.
    Region(ExposedRegion),
    /// A copy of these bytes in a buffer of the pool, exposed for the peer to read.
    Copy(ExposedRegion, Bytes),
}

impl Carried {
    /// The payload as it came; `Err` if its memory must be taken back from the peer first.
    pub(crate) fn into_payload(self) -> Result<Payload, Carried> {
        match self {
            Carried::Bytes(bytes) => Ok(Payload::Bytes(bytes)),
            Carried::Buffer(buffer) => Ok(Payload::Buffer(buffer)),
            Carried::Remote(remote) => Ok(Payload::Exposed(remote)),
            exposed => Err(exposed),
        }
    }
}

/// What a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// A message that went inline, or a CLOSE.
    Send = 0,
    /// A message that went from a buffer of the pool.
    SendBuffer = 1,
    /// A READ or WRITE.
    Read = 2,
    /// A keepalive probe.
    Probe = 3,
}

/// The number of a receive for that endpoint.
#[inline]
pub(crate) fn receive_id(id: EndpointId) -> u64 {
    u64::from(id.index) | u64::from(id.generation) << 32
}

/// The number of a receive for any endpoint. No endpoint's own is the same: generations are not zero.
pub(crate) const SHARED_RECEIVE: u64 = 0;

/// A work request's number: job, endpoint, generation and running number.
#[inline]
pub(crate) fn wr_id(job: Job, id: EndpointId, number: u32) -> u64 {
    u64::from(number) | u64::from(id.index) << 32 | u64::from(id.generation & 0x3ffff) << 44 | (job as u64) << 62
}

/// The parts of a work request's number.
#[inline]
pub(crate) fn parse_wr_id(wr_id: u64) -> (Job, usize, u32, u32) {
    let job = match wr_id >> 62 {
        0 => Job::Send,
        1 => Job::SendBuffer,
        2 => Job::Read,
        _ => Job::Probe,
    };
    (job, (wr_id >> 32) as usize & 0xfff, (wr_id >> 44) as u32 & 0x3ffff, wr_id as u32)
}

/// All endpoints of a worker.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    slots: Slab<Endpoint>,
    by_qpn: QpTable,
    generation: u32,
}

impl Endpoints {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The id of the one that is put in next.
    pub(crate) fn upcoming(&self) -> EndpointId {
        EndpointId { index: self.slots.vacant_key() as u32, generation: self.generation.wrapping_add(1).max(1) }
    }

    /// Puts in what `make` makes for the given id, which is [`upcoming`](Endpoints::upcoming).
    pub(crate) fn insert(&mut self, make: impl FnOnce(EndpointId) -> Endpoint) -> EndpointId {
        let id = self.upcoming();
        self.generation = id.generation;
        self.slots.insert(make(id));
        id
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Endpoint> {
        let endpoint = self.slots.try_remove(index)?;
        if let Some(qp) = &endpoint.qp {
            self.by_qpn.remove(qp.number().0);
        }
        Some(endpoint)
    }

    /// The queue pair of endpoint `index` is connected.
    pub(crate) fn attach(&mut self, index: usize, qp: QueuePair, terms: &PeerTerms, now: Duration) {
        let Some(endpoint) = self.slots.get_mut(index) else { return };
        self.by_qpn.insert(qp.number().0, index as u32);
        endpoint.qp = Some(qp);
        if let Err(violation) = endpoint.link.open(terms, now) {
            // The hello's values were checked when it was read.
            tracing::error!(parent: &endpoint.span, %violation, "a checked hello was refused");
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.slots.get(id.index as usize).filter(|endpoint| endpoint.id.generation == id.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.slots.get_mut(id.index as usize).filter(|endpoint| endpoint.id.generation == id.generation)
    }

    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> Option<&mut Endpoint> {
        self.slots.get_mut(index)
    }

    /// Whose receive came back: the number that it was posted with says so, or, from a shared queue, the queue pair.
    #[inline(always)]
    pub(crate) fn receiver(&mut self, wr_id: u64, qpn: u32) -> Option<&mut Endpoint> {
        if wr_id == SHARED_RECEIVE {
            return self.slots.get_mut(self.by_qpn.get(qpn)? as usize);
        }
        self.get_mut(EndpointId { index: wr_id as u32, generation: (wr_id >> 32) as u32 })
    }

    /// All indices are below.
    pub(crate) fn bound(&self) -> usize {
        self.slots.capacity()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> + '_ {
        self.slots.iter().map(|(_, endpoint)| endpoint)
    }
}

/// How long a peer is silent before the device is asked about the queue pair, and the time until it is asked again: as long
/// as a program that polls takes at most to find a failure of which nothing tells. A probe asks as well.
const ASK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_numbers_round_trip() {
        for job in [Job::Send, Job::SendBuffer, Job::Read, Job::Probe] {
            let id = EndpointId { index: 4095, generation: 0xffff_ffff };
            let (back, index, generation, number) = parse_wr_id(wr_id(job, id, 0xdead_beef));
            assert_eq!((back, index, generation, number), (job, 4095, 0x3ffff, 0xdead_beef));
        }
    }
}
