//! One side's verbs objects: a queue pair, completion queues, memory to send from, memory that the other side writes.

use qpair::verbs::{
    Access, CompletionQueue, Context, ExposedRegion, Gpu, GpuRegion, Local, MemoryError, Prepared, ProtectionDomain,
    QpAddress, QueuePair, RegionSlice, RemoteSlice,
};

use super::exchange::{Contact, Exchange};
use super::watch::Watch;
use crate::perf::error::PerfError;
use crate::perf::test::Parameters;

/// A connected queue pair, and what a measurement needs around it.
#[derive(Debug)]
pub struct Session {
    /// The queue pair.
    pub qp: QueuePair,
    /// Completions of sends.
    pub send_cq: CompletionQueue,
    /// Completions of receives.
    pub recv_cq: CompletionQueue,
    /// What the other side writes into: data, then two control words.
    pub inbox: ExposedRegion,
    /// What requests send from or read into.
    pub outbox: ExposedRegion,
    /// Where data lies instead, if not in these two.
    pub on_gpu: Option<OnGpu>,
    /// The other side's inbox.
    pub remote: RemoteSlice,
    /// Where the other side has its data.
    pub data: RemoteSlice,
    /// Bytes of data in an inbox.
    pub room: usize,
    /// Receives that are posted at all times.
    pub receives: u32,
    /// Requests outstanding at once in bandwidth measurements.
    pub depth: u32,
    /// One request in so many is signaled in bandwidth measurements.
    pub signal_every: u32,
    /// Domain of all memory here.
    pub pd: ProtectionDomain,
    counters: Counters,
}

/// Totals over the whole session, which never go back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Ping-pong messages that this side sent.
    pub pings: u64,
    /// Messages sent under credits.
    pub sent: u64,
    /// Messages received under credits.
    pub received: u64,
}

/// Data in memory of a GPU.
#[derive(Debug)]
pub struct OnGpu {
    /// The GPU.
    pub gpu: Gpu,
    inbox: GpuRegion,
    outbox: GpuRegion,
}

impl OnGpu {
    fn new(pd: &ProtectionDomain, ordinal: usize, room: usize) -> Result<Self, MemoryError> {
        let gpu = Gpu::open(ordinal)?;
        let region = |access| pd.register_gpu(gpu.alloc(room)?, access).map_err(|failed| failed.error);
        Ok(OnGpu { gpu, inbox: region(Access::REMOTE_READ | Access::REMOTE_WRITE)?, outbox: region(Access::NONE)? })
    }
}

/// A session whose queue pair is not connected yet.
#[derive(Debug)]
pub struct Unconnected {
    prepared: Prepared,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    inbox: ExposedRegion,
    outbox: ExposedRegion,
    on_gpu: Option<OnGpu>,
    room: usize,
    parameters: Parameters,
    pd: ProtectionDomain,
}

impl Unconnected {
    /// Makes all objects and posts the receives. Data that is to be on a GPU is on the one with that ordinal.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(context: &Context, parameters: &Parameters, gpu: usize) -> Result<Self, PerfError> {
        let pd = context.alloc_pd()?;
        let send_cq = context.create_cq(parameters.depth.max(PING_DEPTH))?;
        let recv_cq = context.create_cq(RECEIVES)?;
        let refused = |_| PerfError::Options(format!("{} bytes are too many for this machine", parameters.max_size));
        let room = usize::try_from(parameters.max_size).map_err(refused)?;
        let room = room.checked_next_multiple_of(LINE).ok_or(PerfError::QueuePairFailed)?;
        let inbox = pd.expose(room.saturating_add(CONTROL), Access::REMOTE_ALL)?;
        let outbox = pd.expose(room, Access::NONE)?;
        let on_gpu = parameters.gpu.then(|| OnGpu::new(&pd, gpu, room)).transpose()?;
        let mut prepared = pd
            .rc(&send_cq)
            .recv_cq(&recv_cq)
            .send_depth(parameters.depth.max(PING_DEPTH))
            .recv_depth(RECEIVES)
            .build()?;
        // All receives land in the same place: what was received is not looked at.
        for _ in 0..RECEIVES {
            let place = on_gpu.as_ref().map_or_else(|| inbox.local(0..room), |on_gpu| on_gpu.inbox.local(0..room));
            prepared.recv(place).post()?;
        }
        let parameters = parameters.clone();
        Ok(Unconnected { prepared, send_cq, recv_cq, inbox, outbox, on_gpu, room, parameters, pd })
    }

    /// What the other side must know.
    pub fn contact(&self) -> Contact {
        Contact::QueuePair {
            address: self.prepared.address(),
            inbox: self.inbox.remote(0..self.inbox.len()),
            data: self.on_gpu.as_ref().map(|on_gpu| on_gpu.inbox.remote(0..self.room)),
        }
    }

    /// Connects to the other side.
    ///
    /// # Errors
    /// [`PerfError::Connect`]; [`PerfError::Garbled`] if the other side is none, or its memory is too short.
    pub fn connect(self, other: &Contact) -> Result<Session, PerfError> {
        let room = self.on_gpu.as_ref().map(|_| self.room);
        let (address, remote, data) = other.queue_pair(self.inbox.len(), room)?;
        Ok(Session {
            qp: self.prepared.connect(&address)?,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            inbox: self.inbox,
            outbox: self.outbox,
            on_gpu: self.on_gpu,
            remote,
            data,
            room: self.room,
            receives: RECEIVES,
            depth: self.parameters.depth,
            signal_every: self.parameters.signal_every,
            pd: self.pd,
            counters: Counters::default(),
        })
    }
}

impl Contact {
    /// The queue pair, its inbox, and where its data lies, which is the inbox unless it has memory of a GPU for that.
    fn queue_pair(
        &self,
        inbox_len: usize,
        gpu_len: Option<usize>,
    ) -> Result<(QpAddress, RemoteSlice, RemoteSlice), PerfError> {
        match self {
            Contact::QueuePair { address, inbox, data }
                if inbox.len == inbox_len as u64 && data.map(|data| data.len) == gpu_len.map(|len| len as u64) =>
            {
                Ok((*address, *inbox, data.unwrap_or(*inbox)))
            }
            other => Err(PerfError::Garbled { why: format!("{other:?} is not reachable from here") }),
        }
    }
}

impl Session {
    /// Totals over the whole session.
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Offset of the control word in which the receiver tells how much it has received.
    pub fn credit_at(&self) -> usize {
        self.room
    }

    /// Offset of the word that atomics work on.
    pub fn atomic_at(&self) -> usize {
        self.room + LINE
    }

    /// Data to send from, or to read into.
    #[inline]
    pub fn outgoing(&self, len: usize) -> RegionSlice {
        match &self.on_gpu {
            None => self.outbox.local(0..len),
            Some(on_gpu) => on_gpu.outbox.local(0..len),
        }
    }

    /// Whether so much goes inline.
    #[inline]
    pub fn is_inline(&self, len: usize) -> bool {
        len <= INLINE && self.on_gpu.is_none()
    }

    /// Bytes `start..start + len` of the other side's inbox.
    pub fn remote_at(&self, start: usize, len: usize) -> RemoteSlice {
        self.remote.slice(start as u64..(start + len) as u64)
    }

    /// Waits for the completion of the one signaled request that is outstanding.
    ///
    /// # Errors
    /// The request's own error, or as [`Watch::idle`].
    #[inline]
    pub fn wait_sent(&mut self, exchange: &Exchange) -> Result<Local, PerfError> {
        let mut watch = Watch::new(exchange);
        loop {
            if let Some(done) = self.send_cq.poll()? {
                done.ok()?;
                return Ok(done.into_memory());
            }
            watch.idle(Some(&self.qp))?;
        }
    }

    /// Tells what made the queue pair fail, if a completion does.
    pub fn explain_failure(&mut self, error: PerfError) -> PerfError {
        while let Ok(Some(done)) = self.send_cq.poll() {
            if let Err(failed) = done.ok() {
                return failed.into();
            }
        }
        error
    }
}

/// Slots for ping-pong measurements, of which one in [`PING_SIGNAL`] is signaled.
const PING_DEPTH: u32 = 128;
/// See [`PING_DEPTH`].
pub const PING_SIGNAL: u64 = 64;
/// Receives posted at all times; a sender may be so far ahead.
const RECEIVES: u32 = 512;
/// A cache line: control words stay apart from data and from each other.
const LINE: usize = 64;
/// Bytes of the control words.
const CONTROL: usize = 2 * LINE;
/// Up to here data goes inline, as perftest does; above, from registered memory.
pub const INLINE: usize = 220;
