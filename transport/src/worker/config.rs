//! Settings of a worker.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use qpair_verbs::{HugePages, QpBuilder};

use super::error::WorkerError;
use super::memory::SHORT;
use super::near::Near;
use super::rails::Rail;
use super::work_id::ENDPOINT_BITS;
use crate::cm::{ClusterKey, ClusterKeyError, RAILS_LIMIT};
use crate::engine::{HEADER_BYTES, MAX_WINDOW, RESERVED_SLOTS};

/// Settings of a worker. The defaults suit a few dozen peers.
///
/// ```
/// use std::time::Duration;
/// use qpair_transport::Config;
///
/// let config = Config::default().eager_limit(4096).keepalive(Duration::from_secs(1), Duration::from_secs(1));
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) device: Option<String>,
    pub(crate) near: Option<Near>,
    pub(crate) rails: Vec<Rail>,
    pub(crate) class: PacketClass,
    pub(crate) cluster_key: Option<ClusterKey>,
    pub(crate) eager_limit: usize,
    pub(crate) eager_threshold: Option<usize>,
    pub(crate) window: u32,
    pub(crate) endpoints: usize,
    pub(crate) datagram_endpoints: usize,
    pub(crate) send_depth: u32,
    pub(crate) queue_limit: usize,
    pub(crate) pool_limit: usize,
    pub(crate) huge_pages: HugePages,
    pub(crate) in_place: Option<usize>,
    pub(crate) lend_short: bool,
    pub(crate) registration_cache: usize,
    pub(crate) unmatched: Unmatched,
    pub(crate) shared_receives: Option<SharedReceives>,
    pub(crate) keepalive: Duration,
    pub(crate) detection: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) guest_timeout: Option<Duration>,
    pub(crate) hello_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) recovery: Duration,
    pub(crate) spin: u32,
    pub(crate) yields: u32,
}

/// What a network tells packets apart by that it is to treat alike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketClass {
    service_level: u8,
    traffic_class: u8,
}

impl PacketClass {
    /// A queue pair whose packets are of it.
    pub(crate) fn of(self, builder: QpBuilder) -> QpBuilder {
        builder.service_level(self.service_level).traffic_class(self.traffic_class)
    }
}

/// How receive slots are shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedReceives {
    pub(crate) own: u32,
    pub(crate) shared: u32,
}

/// What becomes of tagged messages that come when no receive is posted for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// [`Event::Received`](crate::Event::Received) hands them out; long ones are read into memory of the worker's own first.
    #[default]
    Deliver,
    /// Short ones are handed out, long ones wait for a receive. For applications that post a receive for every long message;
    /// they are never copied then.
    HoldLong,
    /// All wait for a receive, and can be [probed](crate::Worker::probe) for, as in MPI. Those that wait take the peer's window:
    /// a peer whose messages nobody receives can send no more of any kind. Of connections that have ended as many messages
    /// wait as all windows hold together; beyond that the oldest are handed out.
    Hold,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            device: None,
            near: None,
            rails: Vec::new(),
            class: PacketClass::default(),
            cluster_key: None,
            // Two pages: above, the copy into the slab costs more than the round trip that reading without it takes.
            eager_limit: 8192,
            eager_threshold: None,
            window: 64,
            endpoints: 64,
            datagram_endpoints: 1 << 16,
            send_depth: 128,
            queue_limit: 1 << 16,
            pool_limit: 1 << 30,
            huge_pages: HugePages::Try,
            in_place: None,
            lend_short: false,
            registration_cache: 256 << 20,
            unmatched: Unmatched::Deliver,
            // A queue of its own costs a sender no atomic operation, and some 25 ns less a message.
            shared_receives: None,
            keepalive: Duration::from_millis(500),
            detection: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(5),
            guest_timeout: None,
            hello_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            recovery: Duration::ZERO,
            // About a microsecond, several times the latency between two cores. Where ranks share cores, the one that
            // is waited for needs this core.
            spin: 64,
            // A fraction of a millisecond: sleeping and waking up across cores take tens of microseconds.
            yields: 1024,
        }
    }
}

impl Config {
    /// The device of [`Worker::new`](crate::Worker::new): `soft0`, or one that `qpair devices` lists. By default the one that
    /// QPAIR_DEVICE in the environment names, else the one that topology names for what the worker is
    /// [near](Config::near). Workers that connect to each other are on devices of one kind.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// What the worker's data is near to: topology names its rails, and the device with them, unless these settings or
    /// QPAIR_DEVICE in the environment name one. By default the thread, and no more than one rail: the NIC that serves the
    /// thread's NUMA node best, or where there is none, `soft0`. [`Worker::placed`](crate::Worker::placed) tells why.
    #[must_use]
    pub fn near(mut self, near: Near) -> Self {
        self.near = Some(near);
        self
    }

    /// The ways to the network over which connections go, at most 8 (default: one, where the device is used anyway). The first
    /// is for messages, at first, and on the worker's device, which it names if nothing else does; long messages are read over all of them at once, in slices: each goes where it is there
    /// first, as far as can be told from what each rail carried of late. Both sides need them, in the same order: the rail of
    /// a number connects to the peer's of that number. What only one side has stays unused.
    ///
    /// A rail that fails, or takes many times as long as it should, is left out, and what was under way there is read over
    /// the others; after a tenth of a second, and longer each time, a probe tries it again.
    /// [`Explanation`](crate::Explanation) tells how each stands. With [`recovery`](Config::recovery), a connection whose
    /// first rail fails goes on over another: of the same device first, then of any.
    ///
    /// On several devices, all memory of the worker's domain is registered with each. What an application offers by
    /// [`Payload::Exposed`](crate::Payload::Exposed) is read over all rails where [`Worker::remote`](crate::Worker::remote) has
    /// named it, and over those of the worker's own device where a [`RemoteSlice`](qpair_verbs::RemoteSlice) does.
    #[must_use]
    pub fn rails(mut self, rails: impl IntoIterator<Item = Rail>) -> Self {
        self.rails = rails.into_iter().collect();
        self
    }

    /// The service level of all packets, 0 to 15 (default 0).
    #[must_use]
    pub fn service_level(mut self, level: u8) -> Self {
        self.class.service_level = level;
        self
    }

    /// The traffic class of all packets (default 0): on RoCEv2 the byte of the IP header whose upper six bits are the DSCP, by
    /// which switches know what is to be lossless.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.class.traffic_class = class;
        self
    }

    /// The key that peers must have too, and without which none is let in: see [`ClusterKey`]. By default the one in the file
    /// that QPAIR_CLUSTER_KEY_FILE in the environment names, else none: then whoever reaches a listener's port may connect.
    #[must_use]
    pub fn cluster_key(mut self, key: ClusterKey) -> Self {
        self.cluster_key = Some(key);
        self
    }

    /// Longest message that is copied into the peer's slabs, in bytes (default 8192); longer ones are read by the peer.
    /// The smaller limit of both sides counts.
    #[must_use]
    pub fn eager_limit(mut self, bytes: usize) -> Self {
        self.eager_limit = bytes;
        self
    }

    /// Longest message that [`send`](crate::Worker::send) copies, in bytes, no more than the [limit](Config::eager_limit); longer
    /// ones are read by the peer. By default it is measured for each connection, and again as it is used:
    /// [`Explanation`](crate::Explanation) tells what came of it.
    #[must_use]
    pub fn eager_threshold(mut self, bytes: usize) -> Self {
        self.eager_threshold = Some(bytes);
        self
    }

    /// Messages that each peer may have under way to this worker (default 64; up to 4096). Each takes a slab of the eager limit.
    #[must_use]
    pub fn window(mut self, messages: u32) -> Self {
        self.window = messages;
        self
    }

    /// Greatest number of connections (default 64), beside those over datagrams. Memory is set aside for each.
    #[must_use]
    pub fn endpoints(mut self, count: usize) -> Self {
        self.endpoints = count;
        self
    }

    /// Greatest number of connections over datagrams ([`connect_datagram`](crate::Worker::connect_datagram)), called and taken
    /// (default 65,536). 0 refuses peers that ask for one.
    #[must_use]
    pub fn datagram_endpoints(mut self, count: usize) -> Self {
        self.datagram_endpoints = count;
        self
    }

    /// Send slots of each queue pair (default 128).
    #[must_use]
    pub fn send_depth(mut self, requests: u32) -> Self {
        self.send_depth = requests;
        self
    }

    /// Messages of one connection that may wait for room at the peer (default 65,536).
    #[must_use]
    pub fn queue_limit(mut self, messages: usize) -> Self {
        self.queue_limit = messages;
        self
    }

    /// Bytes of the worker's own memory for long messages without a posted receive, for copies of long `Bytes`, and for messages
    /// on their way that the device does not take with the request (default 1 GiB, each); blocks of it are powers of two. Beyond it,
    /// such messages wait, and sends of such copies fail. A
    /// message that alone is longer waits for a receive, and [`Event::Offered`](crate::Event::Offered) tells of it.
    #[must_use]
    pub fn pool_limit(mut self, bytes: usize) -> Self {
        self.pool_limit = bytes;
        self
    }

    /// Whether blocks of that memory from 2 MiB on stand on huge pages, of which a device holds fewer in its tables (default:
    /// where the system has some reserved). Where they are required and there are none, long messages that need such a block
    /// fail.
    #[must_use]
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.huge_pages = huge;
        self
    }

    /// Length in bytes from which on long `Bytes` that are not registered are registered and read by the peer where they lie;
    /// shorter ones are copied into memory that is registered already. By default 2 MiB on the software device, where the
    /// system copies between processes, and no faster than two copies through mapped memory up to there; elsewhere 64 KiB,
    /// since registering is a system call that locks each page.
    #[must_use]
    pub fn in_place(mut self, from: usize) -> Self {
        self.in_place = Some(from);
        self
    }

    /// Whether messages of at most 32 bytes stay in the memory that they landed in, as longer ones do (default: no; they are
    /// copied, which takes less time). A peer that sends more than the application lets go of waits then, whatever the length of
    /// its messages, once that is some eight times its [`window`](Config::window); else short ones that are kept are bounded by
    /// nobody.
    #[must_use]
    pub fn lend_short(mut self, lends: bool) -> Self {
        self.lend_short = lends;
        self
    }

    /// Bytes of sent `Bytes` that stay registered with the device after they were sent (default 256 MiB): to send the same
    /// again, or part of it, takes no registration then. Their memory is held as long, also if the application dropped them:
    /// those that it dropped go with the next polls where `Bytes` tell, and all that were not sent for ten to twenty seconds, or whose
    /// room others or the worker itself needs. 0: none stay. What [`register`](crate::Worker::register) registered does not
    /// count.
    #[must_use]
    pub fn registration_cache(mut self, bytes: usize) -> Self {
        self.registration_cache = bytes;
        self
    }

    /// What becomes of tagged messages without a posted receive (default [`Unmatched::Deliver`]).
    #[must_use]
    pub fn unmatched(mut self, unmatched: Unmatched) -> Self {
        self.unmatched = unmatched;
        self
    }

    /// Takes all peers' messages from one shared receive queue, instead of one queue for each (default: one for each). Each
    /// peer has `own` slots for good, at least 1; `shared` more go to the peers that send most, up to the
    /// [`window`](Config::window) for each, and come back when such a peer is silent for a [`keepalive`](Config::keepalive).
    ///
    /// An idle connection then takes `own + 6` slabs of the eager limit instead of `window + 6`: the way for thousands of
    /// peers. It needs fewer resources of a NIC, and takes a little longer.
    #[must_use]
    pub fn shared_receives(mut self, own: u32, shared: u32) -> Self {
        self.shared_receives = Some(SharedReceives { own, shared });
        self
    }

    /// Silence after which a peer is probed (default 500 ms), and how long its device may take to answer (default 1 s);
    /// each at least 1 ms. [`Duration::MAX`]: never, for ever.
    ///
    /// QPAIR_PATIENCE in the environment, a number from 1 to 1000, makes this and the other limits on a peer's answers so
    /// many times longer: for machines that are emulated or overloaded.
    ///
    /// An answer comes behind what is under way, so that it may take as much longer as the longest get or put needs at
    /// 64 MiB/s. Long messages are read in parts of 8 MiB, each of which is a sign of life.
    /// Where a device tells of the peer's packets ([`arrivals`](qpair_verbs::QueuePair::arrivals)), these are signs of life too: on
    /// a network that loses many, others may be long in coming. A peer that is lost is noticed within twice that time then.
    ///
    /// What counts is time that was watched: a clock that jumps, because the host was suspended or the program did not poll,
    /// takes nothing of a peer's time. Only a program that looks too rarely five times in a row gives it up by that.
    ///
    /// A probe finds a device or a network that does not answer. It does not find a process that is stopped or busy: its
    /// device answers for it, and on one host that is this side's core. A process that ends is noticed at once, by its
    /// socket. A host that is gone is noticed there as well, by TCP's own questions: after the silence, in whole seconds, and
    /// eight times the time to answer, and as long more as a connection may take to [go on](Config::recovery).
    #[must_use]
    pub fn keepalive(mut self, interval: Duration, detection: Duration) -> Self {
        (self.keepalive, self.detection) = (interval, detection);
        self
    }

    /// How long connecting may take (default 5 s), and the rest of a handshake with a peer that has said hello, unless
    /// [`guest_timeout`](Config::guest_timeout) says otherwise; at least 1 ms. [`Duration::MAX`]: for ever.
    ///
    /// It begins with [`connect`](crate::Worker::connect), and covers all of it: looking up a name, waiting for a turn (128
    /// handshakes are under way at once; one that takes longer than 250 ms lets the next begin), and coming back to a peer that
    /// has no room. Such a peer is called again after 10 to 20 ms, then after twice that and so on up to 2 s, at random
    /// within each, and later by as much as it asks for, so that many who were sent away do not come back together. An answer
    /// that this side reads late, and for whose queue pair another process of the host has to answer, has a second for that all
    /// the same.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long a peer that connects may take from its hello to the end of the handshake (default: as long as
    /// [`connect_timeout`](Config::connect_timeout); at least 1 ms). So long it has one of the places of
    /// [`endpoints`](Config::endpoints); one that is busy with something else needs that time, as it goes on when it polls.
    #[must_use]
    pub fn guest_timeout(mut self, limit: Duration) -> Self {
        self.guest_timeout = Some(limit);
        self
    }

    /// How long a peer that connects may take to say hello (default 5 s; at least 1 ms). Whoever reaches the port can hold
    /// one of 256 places for that long; who comes when all are taken is told to come back later. Where another process of the host
    /// has to answer for the queue pair that a hello names, there is a second for that from when it was read.
    #[must_use]
    pub fn hello_timeout(mut self, limit: Duration) -> Self {
        self.hello_timeout = limit;
        self
    }

    /// How long a peer may take to finish a close, and its device to acknowledge what was sent when the worker is dropped
    /// (default 5 s; at least 1 ms). [`Duration::MAX`]: for ever.
    #[must_use]
    pub fn close_timeout(mut self, limit: Duration) -> Self {
        self.close_timeout = limit;
        self
    }

    /// How long a connection whose queue pair failed may take until it goes on over another one (default 0: it ends at once).
    /// It can go on as long as the peer's process lives and its socket with it: after the network was gone for longer than a
    /// device tries again, for instance. Both sides must want it; each waits as long as it says itself. After the network was gone
    /// it may take as long again, as the sockets' TCP waits twice as long before each try: twice the time that a network may be gone,
    /// and a second more, is enough.
    ///
    /// Nothing is lost by it, and no message comes twice. Gets and puts that the peer may not have seen are done again;
    /// atomics end with [`OpError::Unknown`](crate::OpError::Unknown). While the device combines what it reads with what is
    /// there, a connection can not go on, and ends; so does one of whose messages the application keeps more, or leaves more to wait for
    /// receives, than eight times as many as it may have under way.
    ///
    /// What goes out is kept until the peer says that it has it, which costs a copy of each short message.
    #[must_use]
    pub fn recovery(mut self, limit: Duration) -> Self {
        self.recovery = limit;
        self
    }

    /// How [`Worker::wait`](crate::Worker::wait) waits: polls without giving way (default 64), then polls between
    /// which it yields the core (default 1024), then it sleeps.
    #[must_use]
    pub fn patience(mut self, spin: u32, yields: u32) -> Self {
        (self.spin, self.yields) = (spin, yields);
        self
    }

    /// The key to connect with, if there is one. A file that is named and can not be read is an error: without its key, the
    /// worker would let in anybody.
    pub(crate) fn take_key(&mut self) -> Result<Option<ClusterKey>, ClusterKeyError> {
        self.key_or_in(env::var_os("QPAIR_CLUSTER_KEY_FILE"))
    }

    fn key_or_in(&mut self, file: Option<OsString>) -> Result<Option<ClusterKey>, ClusterKeyError> {
        match self.cluster_key.take() {
            Some(key) => Ok(Some(key)),
            None => file.map(ClusterKey::read).transpose(),
        }
    }

    /// The same with all time limits longer by the factor that QPAIR_PATIENCE in the environment gives, 1 to 1000: for
    /// machines that are emulated, or much slower than their network.
    pub(crate) fn patient(mut self) -> Self {
        let named = env::var("QPAIR_PATIENCE").ok().and_then(|text| text.trim().parse::<u32>().ok());
        let Some(factor) = named.filter(|factor| (1..=1000).contains(factor)) else { return self };
        let limits = [&mut self.detection, &mut self.connect_timeout, &mut self.hello_timeout, &mut self.close_timeout];
        let limits = limits.into_iter().chain(&mut self.guest_timeout);
        limits.for_each(|limit| *limit = limit.saturating_mul(factor));
        self
    }

    pub(crate) fn check(&self) -> Result<(), WorkerError> {
        let range = |what, asked: u64, least: u64, most: u64| {
            if (least..=most).contains(&asked) { Ok(()) } else { Err(WorkerError::Config { what, asked, least, most }) }
        };
        range("an eager limit", self.eager_limit as u64, LEAST_EAGER, 1 << 20)?;
        range("a number of rails", self.rails.len() as u64, 0, RAILS_LIMIT as u64)?;
        range("a service level", self.class.service_level.into(), 0, 15)?;
        range("a window", self.window.into(), 1, MAX_WINDOW.into())?;
        range("a number of endpoints", self.endpoints as u64, 1, MAX_ENDPOINTS)?;
        // Both kinds are numbered together.
        let rest = MAX_ENDPOINTS - self.endpoints as u64;
        range("a number of datagram endpoints beside the others", self.datagram_endpoints as u64, 0, rest)?;
        if let Some(SharedReceives { own, shared }) = self.shared_receives {
            range("a peer's own slots", own.into(), 1, self.window.into())?;
            range("a number of shared slots", shared.into(), 0, 1 << 24)?;
        }
        range("a send depth", self.send_depth.into(), 8, 16384)?;
        range("a queue limit", self.queue_limit as u64, 1, u32::MAX.into())?;
        let millis = |limit: Duration| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        range("a keepalive interval in ms", millis(self.keepalive), 1, u64::MAX)?;
        range("a detection time in ms", millis(self.detection), 1, u64::MAX)?;
        range("a connect timeout in ms", millis(self.connect_timeout), 1, u64::MAX)?;
        range("a guest timeout in ms", millis(self.guest()), 1, u64::MAX)?;
        range("a hello timeout in ms", millis(self.hello_timeout), 1, u64::MAX)?;
        if !self.recovery.is_zero() {
            range("a recovery in ms", millis(self.recovery), 1, u64::MAX)?;
        }
        range("a close timeout in ms", millis(self.close_timeout), 1, u64::MAX)
    }

    /// From a peer's hello to the end of the handshake.
    pub(crate) fn guest(&self) -> Duration {
        self.guest_timeout.unwrap_or(self.connect_timeout)
    }

    /// Most completions, and most receives, that can ever wait.
    pub(crate) fn capacity(&self) -> (u64, u64) {
        let SharedReceives { own, shared } = self.slots();
        let receives = self.endpoints as u64 * u64::from(own + RESERVED_SLOTS) + u64::from(shared);
        (receives + self.endpoints as u64 * u64::from(self.send_depth), receives)
    }

    /// Messages of so many bytes or more are lent.
    pub(crate) fn lends_from(&self) -> usize {
        if self.lend_short { 0 } else { SHORT + 1 }
    }

    /// Slots of each connection, and those that they share.
    pub(crate) fn slots(&self) -> SharedReceives {
        self.shared_receives.unwrap_or(SharedReceives { own: self.window, shared: 0 })
    }

    pub(crate) fn slab_bytes(&self) -> usize {
        HEADER_BYTES + self.eager_limit
    }
}

/// As many as the numbers of work requests can tell apart.
pub(crate) const MAX_ENDPOINTS: u64 = 1 << ENDPOINT_BITS;
/// Slabs below this would make the software device place short messages in two steps.
const LEAST_EAGER: u64 = 256;
