//! The driver: polls the completion queue, feeds the engine, posts what it says, hands out events. One thread's own.
//! `ops` is what an application asks for; `poll`, `arrival` and `delivery` what comes; `service`, `handshake` and `ending` run
//! beside it.

mod arrival;
mod awaited;
mod config;
mod datagram;
mod delivery;
mod ending;
mod endpoint;
mod endpoints;
mod error;
mod event;
mod failed;
mod handshake;
mod held;
mod ids;
mod leaving;
mod listen;
mod memory;
mod near;
mod ops;
mod poll;
mod rails;
mod recovery;
mod seen;
mod service;
mod setup;
mod sleep;
mod source;
mod staging;
#[cfg(test)]
mod tests;
mod timers;
mod watch;
mod withheld;
mod work_id;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use qpair_topology::PciAddress;
use qpair_verbs::{
    CompletionChannel, CompletionQueue, Context, ExposedRegion, MemoryError, ProtectionDomain, QueuePair,
};

pub use awaited::Polled;
pub use config::{Config, Unmatched};
pub use error::{
    CloseReason, ConnectError, ConnectFailure, ListenError, Lost, Misfit, NoKey, OneSidedError, OneSidedFailure,
    OpError, RecvError, RecvFailure, ResourceError, SendCopyError, SendError, SendFailure, WorkerError,
};
pub use event::{Event, Flow, Returned};
pub use ids::{EndpointId, HandlerId, Listener, ListenerId, OpId, Source, Tag, TagPattern};
pub use memory::{Message, Payload};
pub use near::{Near, NearError, Placement};
pub use ops::{
    ActiveMessage, Counter, Handlers, MessageHandler, Notice, Probe, RemoteCounter, Reply, Request, RequestHandler,
    StreamEnd, StreamId,
};
pub use rails::Rail;
pub use seen::{Counters, DatagramState, Explanation, History, Metrics, RailState, Traffic};
pub use sleep::Armed;

use crate::cm::{Fabric, Keepalive, Settings, SocketMap, Sockets, ToPeer};
use crate::engine::{Calls, Inbox, Policy, RemoteMemory, Seeds, Shares, Table};
use datagram::Datagrams;
use delivery::Body;
use endpoints::Endpoints;
use handshake::Party;
use held::Held;
use memory::{EagerSlabs, Pool, Registrations, Target};
use near::Placed;
use ops::{CounterTable, Deadlines, Halves, StreamKey};
use rails::RailSet;
use staging::Staging;
use withheld::Withheld;

/// Sends and receives messages over any number of connections; the one owner of its queues. One thread uses it, and
/// each thread has its own: nothing is shared between workers.
///
/// It makes progress only while [`poll`](Worker::poll), [`wait`](Worker::wait) or [`run`](Worker::run) is called.
///
/// Dropping it hangs up on all peers. What was sent by then arrives before they see that: the drop waits for their devices'
/// acknowledgment, no longer than [`Config::close_timeout`]. Messages that still wait for room at a peer, and long ones that
/// a peer has not read yet, are not sent: those who want them delivered [`close`](Worker::close) the connection, and poll
/// until [`Event::Closed`].
#[derive(Debug)]
pub struct Worker {
    // Touched by every message.
    cq: CompletionQueue,
    ready: VecDeque<Event>,
    endpoints: Endpoints,
    inbox: Inbox<Target, Body>,
    slabs: EagerSlabs,
    /// Where messages are put together before they are posted.
    frame: Box<[u8]>,
    max_inline: usize,
    countdown: i32,
    /// Connections that broke and wait for the queue to run empty.
    broken: usize,
    /// Some wait for another queue pair, perhaps.
    recovering: bool,
    /// Slices of long messages, datagrams, or copies of GPUs complete elsewhere.
    has_other_queues: bool,
    /// The last batch of completions may have left some behind.
    cut_short: bool,
    /// Someone may be asleep over this worker's descriptor.
    armed: bool,
    /// From which length on messages stay where they landed.
    lends_from: usize,
    /// The messages of notifications that were not polled, where somebody keeps these; and that of the one polled last.
    notices: Option<VecDeque<Option<Message>>>,
    notice: Option<Message>,
    counters: Counters,
    next_op: u64,
    // Touched now and then.
    pool: Pool,
    registrations: Registrations,
    staging: Staging,
    /// From which length on long `Bytes` that are not registered are read where they lie.
    in_place_from: usize,
    shares: Shares,
    calls: Calls<Payload>,
    streams: Table<StreamKey, Halves>,
    /// For tables of keys of which peers choose a part.
    seeds: Seeds,
    counter_table: CounterTable,
    deadlines: Deadlines,
    timers: timers::Timers,
    withheld: VecDeque<Withheld>,
    /// Queue pairs of connections that ended, in whose memory a peer is still.
    parting: Vec<(EndpointId, QueuePair)>,
    sockets: Sockets,
    held: Held,
    /// Whose each stream is.
    parties: SocketMap<Party>,
    fabric: Fabric,
    rails: RailSet,
    /// Connections over datagrams go over these.
    datagrams: Option<Box<Datagrams>>,
    /// How many there are, and packets that were sent again over queue pairs that are gone.
    lines: usize,
    packets_repeated: u64,
    channel: CompletionChannel,
    pace: service::Pace,
    config: Config,
    /// Why it is on its device, and has its rails.
    placed: Box<str>,
    through: Option<PciAddress>,
    max_message: u64,
    read_reduce: bool,
    /// Bytes that this core copies in a microsecond.
    copy_rate: u64,
    start: Instant,
    pd: ProtectionDomain,
    context: Context,
}

impl Worker {
    /// A worker on a device of its own: the one that [`Config::device`] or QPAIR_DEVICE in the environment names, else the NIC
    /// that topology names for what the worker is [near](Config::near), else the software device `soft0`.
    ///
    /// # Errors
    /// As [`on`](Worker::on), and [`WorkerError::Open`].
    pub fn new(config: Config) -> Result<Worker, WorkerError> {
        let Placed { config, device, reason, is_chosen, through } = config.placed()?;
        let made = Context::open(&device).map_err(WorkerError::from);
        let made = made.and_then(|context| Worker::make(context, config, (reason.clone(), through)));
        made.map_err(|error| near::told_who_chose(error, is_chosen, device, reason))
    }

    /// A worker on an opened device. Of the rails that topology names for what it is [near](Config::near), those on that device
    /// come first; there must be one.
    ///
    /// # Errors
    /// [`WorkerError`] if a setting is out of range, topology can not name the rails, or the device or the system refuses a
    /// resource.
    pub fn on(context: Context, config: Config) -> Result<Worker, WorkerError> {
        let Placed { config, reason, through, .. } = config.placed_on(context.name())?;
        Worker::make(context, config, (reason, through))
    }

    fn make(
        context: Context,
        config: Config,
        (placed, through): (String, Option<PciAddress>),
    ) -> Result<Worker, WorkerError> {
        config.check()?;
        let mut config = config.patient();
        let key = config.take_key()?;
        let system = |what| move |source| WorkerError::System { what, source };
        let attributes = context.attributes();
        let pd = context.alloc_pd()?;
        let mut channel = context.create_channel()?;
        let (completions, receives) = config.capacity();
        let cq = within("completion queue entries", completions, attributes.max_cqe)?;
        let cq = context.create_cq_on(cq, &channel)?;
        let random = || getrandom::u64().map_err(|error| system("draw a random number")(error.into()));
        let seeds = Seeds([random()?, random()?]);
        let settings = Settings {
            connect: config.connect_timeout,
            guest: config.guest(),
            hello: config.hello_timeout,
            key,
            keepalive: Keepalive::new(config.keepalive, config.detection, config.recovery),
            seed: random()?,
        };
        let messages = (!config.recovery.is_zero()).then_some(completions);
        let mut rails =
            RailSet::new((&config.rails, config.class), (&context, &pd, &channel), config.endpoints, messages)?;
        let pd = rails.span(pd)?;
        // Of the domain that queue pairs are made of.
        let shared = if config.shared_receives.is_some() {
            Some(pd.create_srq(within("receives in a shared queue", receives, attributes.max_srq_wr)?)?)
        } else {
            None
        };
        let mut sockets = Sockets::new(settings, &context).map_err(system("create a poll for the sockets"))?;
        for channel in std::iter::once(&mut channel).chain(rails.channels()) {
            sockets.register(channel).map_err(system("watch the completion channel"))?;
        }
        let pool = Pool::new(&pd, config.pool_limit, config.huge_pages);
        let policy = Policy {
            hold_short: config.unmatched == Unmatched::Hold,
            hold_long: config.unmatched != Unmatched::Deliver,
            longest: pool.longest(),
            orphans: usize::try_from(config.capacity().1).unwrap_or(usize::MAX),
            seeds,
        };
        // Without rails, queue pairs are made on the first port.
        let first = || context.port(1).map_or(Fabric::Unknown, |port| Fabric::of(port.link_layer));
        let fabric = rails.fabric(0).unwrap_or_else(first);
        Ok(Worker {
            cq,
            ready: VecDeque::with_capacity(256),
            endpoints: Endpoints::new(seeds),
            inbox: Inbox::new(policy),
            slabs: EagerSlabs::new(&pd, shared, config.slab_bytes()),
            frame: vec![0; config.slab_bytes()].into(),
            max_inline: attributes.max_inline as usize,
            countdown: 1,
            broken: 0,
            recovering: false,
            has_other_queues: rails.count() > 0,
            cut_short: false,
            armed: false,
            lends_from: config.lends_from(),
            notices: None,
            notice: None,
            counters: Counters::default(),
            next_op: 1,
            pool,
            staging: Staging::default(),
            registrations: Registrations::new(&pd, config.registration_cache),
            in_place_from: config.in_place.unwrap_or(setup::in_place_from(fabric)),
            shares: Shares::new(config.slots().own, config.window, config.slots().shared),
            calls: Calls::new(),
            streams: Table::new(seeds),
            seeds,
            counter_table: CounterTable::default(),
            deadlines: Deadlines::new(seeds),
            timers: timers::Timers::default(),
            withheld: VecDeque::new(),
            parting: Vec::new(),
            sockets,
            held: Held::default(),
            parties: SocketMap::default(),
            fabric,
            rails,
            datagrams: None,
            lines: 0,
            packets_repeated: 0,
            channel,
            pace: service::Pace::new(),
            max_message: attributes.max_message.into(),
            read_reduce: attributes.read_reduce,
            copy_rate: setup::copy_rate(),
            config,
            placed: placed.into(),
            through,
            start: Instant::now(),
            pd,
            context,
        })
    }

    /// The protection domain: for allocating buffers to send and receive, and regions to expose.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Why it is on that device, and has the rails that it has, in words.
    ///
    /// ```
    /// use qpair_transport::{Config, Worker};
    ///
    /// let worker = Worker::new(Config::default())?;
    /// println!("{}: {}", worker.context().name(), worker.placed());
    /// # Ok::<(), qpair_transport::WorkerError>(())
    /// ```
    pub fn placed(&self) -> &str {
        &self.placed
    }

    /// The GPU by whose memory that of the GPU which the worker is near reaches its NICs: see [`Placement::through`].
    pub fn through(&self) -> Option<PciAddress> {
        self.through
    }

    /// What its messages go over at first. Workers on InfiniBand reach those on InfiniBand, all others reach each other.
    pub fn is_on_infiniband(&self) -> bool {
        self.fabric == Fabric::InfiniBand
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        let (registered, reused) = self.registrations.counts();
        let packets_repeated = self.packets_repeated();
        Counters { registered, reused, packets_repeated, ..self.counters }
    }

    /// Registers `bytes` with the device until they are [unregistered](Worker::unregister), so that sending them, or part of
    /// them, as a long message neither copies nor registers anything. They are held as long, and a peer that is sent a part
    /// may read all of them meanwhile. Once more, it counts.
    ///
    /// Of other long `Bytes`, those from [`Config::in_place`] on are registered as they are sent, and stay so for a while
    /// ([`Config::registration_cache`]).
    ///
    /// ```
    /// use bytes::Bytes;
    /// use qpair_transport::{Config, Event, Flow, Tag, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let ep = worker.connect(server.local_addr())?;
    /// let blob = Bytes::from(vec![7; 1 << 20]);
    /// worker.register(blob.clone())?;
    /// worker.send(ep, Tag(1), blob.slice(4096..))?;
    /// worker.run(|event, _worker| match event {
    ///     Event::Sent { .. } => Flow::Stop,
    ///     _ => Flow::Continue,
    /// })?;
    /// assert_eq!(worker.counters().bytes_copied, 0);
    /// assert!(worker.unregister(&blob));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`MemoryError`] if there is no byte, or the device or a limit of the system refuses them.
    pub fn register(&mut self, bytes: Bytes) -> Result<(), MemoryError> {
        self.registrations.keep(&bytes)
    }

    /// Takes a [`register`](Worker::register) back; of messages that a peer is reading, with the last of them. False if just
    /// these bytes are not registered.
    pub fn unregister(&mut self, bytes: &Bytes) -> bool {
        self.registrations.forget(bytes)
    }

    /// A range of a region of [the domain](Worker::domain), for peers to name it by, with a key for each device that rails are
    /// on. Where connections can go on over another ([`Config::recovery`]), what is under way to it does so too; a
    /// [`RemoteSlice`](qpair_verbs::RemoteSlice) has the key of the first device alone.
    ///
    /// ```
    /// use qpair_transport::{Config, RemoteMemory, Worker};
    /// use qpair_verbs::Access;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let worker = Worker::new(Config::default())?;
    /// let board = worker.domain().expose(4096, Access::REMOTE_WRITE)?;
    /// let remote: RemoteMemory = worker.remote(&board, 0..64);
    /// assert_eq!((remote.len(), remote.slice(8..16).len()), (64, 8));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`ExposedRegion::remote`], if the range does not lie in the region.
    pub fn remote(&self, region: &ExposedRegion, range: Range<usize>) -> RemoteMemory {
        self.rails.remote(region.remote(range), |pd| region.rkey_in(pd))
    }

    /// Begins to connect to a worker that listens at a TCP address. Messages may be sent at once; they go out when the
    /// connection is up. [`Event::Connected`] or [`Event::Closed`] follows, within [`Config::connect_timeout`]. Nothing blocks:
    /// a host's name is looked up meanwhile, by a thread that ends with that. (A peer by rdma_cm that is the first use of the
    /// software device's network waits for those who share its port, seconds at most.)
    ///
    /// Of several addresses, of a list or a name, the first that connects is taken: each is given a quarter of a second before
    /// the next is tried too, IPv6 and IPv4 in turn.
    ///
    /// ```
    /// use qpair_transport::{CloseReason, Config, ConnectFailure, Event, Worker};
    ///
    /// let mut worker = Worker::new(Config::default())?;
    /// worker.connect("no-such-host.invalid:4242")?;
    /// let Some(Event::Closed { reason, .. }) = worker.wait(None)? else { unreachable!() };
    /// assert!(matches!(reason, CloseReason::Failed(ConnectFailure::Name { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] if it is no address, or there is no endpoint left.
    pub fn connect(&mut self, peer: impl ToPeer) -> Result<EndpointId, ConnectError> {
        let peer = peer.to_peer().map_err(ConnectError::Address)?;
        if self.endpoints.len() - self.lines >= self.config.endpoints {
            return Err(ConnectError::TooManyEndpoints { limit: self.config.endpoints });
        }
        self.call(peer, self.threshold(), self.shares.own())
    }

    /// Closes a connection: what was sent before is delivered, then both sides get [`Event::Closed`]. The peer's messages
    /// still come until then.
    pub fn close(&mut self, ep: EndpointId) {
        self.begin_close(ep);
    }

    /// Ends a connection at once: what was sent may be lost, and nothing that the peer sent is delivered any more.
    /// [`Event::Failed`] for each operation under way, and [`Event::Closed`] with [`CloseReason::Aborted`] follow.
    pub fn abort(&mut self, ep: EndpointId) {
        if self.endpoints.get(ep).is_some() {
            self.fail(ep.index as usize, CloseReason::Aborted);
        }
    }

    /// Polls and waits for events, and hands each to `f`, until that says [`Flow::Stop`].
    ///
    /// # Errors
    /// As [`poll`](Worker::poll).
    pub fn run(&mut self, mut f: impl FnMut(Event, &mut Worker) -> Flow) -> Result<(), WorkerError> {
        loop {
            if let Some(event) = self.wait(None)?
                && f(event, self) == Flow::Stop
            {
                return Ok(());
            }
        }
    }

    /// What carries a connection, and how it stands. `None` if there is no such connection.
    pub fn explain(&self, ep: EndpointId) -> Option<Explanation> {
        self.endpoints.get(ep).map(|endpoint| Explanation::of(endpoint, &self.inbox))
    }

    /// Time since the worker was made.
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op
    }
}

/// What the settings need, if the device has that much.
fn within(what: &'static str, needed: u64, limit: u32) -> Result<u32, WorkerError> {
    let fits = u32::try_from(needed).ok().filter(|&needed| needed <= limit);
    fits.ok_or(WorkerError::Device { what, needed, limit })
}

fn no_address() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address")
}
