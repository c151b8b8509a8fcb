//! The worker, and what this rank knows of its peers: where they are, how to reach them, what their plan numbers mean.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use qpair_transport::{
    CloseReason, Config, ConnectFailure, EndpointId, HandshakeError, Listener, Near, SendError, SendFailure, Unmatched,
    Worker,
};
use qpair_verbs::{Device, Gpu, LinkLayer, MemoryError, PortAttributes, ProtectionDomain};

use super::call::Call;
use super::compile::Compiled;
use super::numbers::Stream;
use super::slots::Slots;
use super::stash::Stash;
use super::strangers::Strangers;
use super::tag::{Fields, Kind};
use crate::bootstrap::{Listening, Staging};
use crate::cost::{EAGER_BETWEEN, EAGER_BY_SOFTWARE, EAGER_ONE_WAY};
use crate::error::BootstrapError;
use crate::fault::{Fault, Outcome};
use crate::trace::Recorder;

/// This rank's connections.
#[derive(Debug)]
pub(crate) struct Net {
    pub(super) worker: Worker,
    pub(crate) me: u32,
    pub(super) peers: Vec<Peer>,
    /// What shows that a connection is meant for this communicator.
    token: u64,
    /// Changes when a connection ends: plans then look at their peers again.
    pub(super) epoch: u64,
    /// Changes when a connection comes up or ends.
    pub(super) links: u64,
    /// The longest read or write, in bytes.
    piece: usize,
    /// The same of memory of GPUs.
    gpu_piece: usize,
    /// Bytes that were read and written since they were looked at last.
    pub(super) moved: usize,
    /// Reads that may be under way.
    pub(super) gets: u32,
    listener: Listener,
    window: u32,
    near: Near,
    /// What is done when, if that is asked for.
    pub(crate) recorder: Option<Box<Recorder>>,
    /// What came for operations that this rank has not begun.
    pub(super) stash: Stash,
    pub(super) strangers: Strangers,
    /// By which messages of GPUs go whose memory a device does not reach.
    pub(super) slots: Slots,
}

/// Another rank.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    pub(super) link: Link,
    /// What its plan numbers stand for.
    calls: Vec<Option<Call>>,
    /// The operations with it: collectives, transfers to the higher of the two ranks, and to the lower.
    pub(super) streams: [Stream; 3],
}

/// How far the connection to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Not needed so far, or the peer is to connect.
    None,
    /// This side connects.
    Dialing(EndpointId),
    /// Messages flow.
    Up(EndpointId),
    /// It ended; `left` if the peer said goodbye.
    Closed { left: bool },
}

/// How a rank's worker is set up; the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetSettings {
    /// Longest message that is copied, in bytes; and by the software device.
    pub(crate) eager: usize,
    pub(crate) eager_by_software: usize,
    /// Messages that a peer may have under way to this rank.
    pub(crate) window: u32,
    /// Longest read or write, in bytes: a multiple of every element's size. What is longer is cut.
    pub(crate) piece: usize,
    /// Reads that may be under way.
    pub(crate) gets: u32,
    /// How long who connects may take to say who it is.
    pub(crate) hello: Duration,
}

impl Default for NetSettings {
    /// Those of ranks on one node.
    fn default() -> Self {
        Self::of(false)
    }
}

impl NetSettings {
    /// By measurement, see [`Tuning`](crate::tune::Tuning): of ranks on one node, or on several.
    pub(crate) fn of(several: bool) -> Self {
        let (eager, by_software, gets) =
            if several { (EAGER_BETWEEN, EAGER_BY_SOFTWARE, GETS_BETWEEN) } else { (EAGER_ONE_WAY, EAGER_ONE_WAY, 1) };
        let (eager, eager_by_software) = (eager as usize, by_software as usize);
        NetSettings { eager, eager_by_software, window: 32, piece: 1 << 30, gets, hello: HELLO }
    }
}

impl Net {
    /// A worker for a rank among `ranks`, that listens at any port of `ip`, on what topology names for `near`.
    ///
    /// # Errors
    /// [`BootstrapError::Worker`], [`BootstrapError::Listen`].
    pub(crate) fn new(
        me: u32,
        ranks: u32,
        ip: IpAddr,
        settings: NetSettings,
        near: Near,
    ) -> Result<Net, BootstrapError> {
        let config = Config::default().near(near.clone());
        let NetSettings { eager, eager_by_software, window, .. } = settings;
        // Where that fails, so does the worker.
        let by_software = || config.placement().is_ok_and(|placement| placement.device == Device::SOFTWARE);
        let (eager, window) = if eager != eager_by_software && by_software() {
            // Slabs for longer messages are fewer, so that all of a peer's take as much memory.
            (eager_by_software, (window * eager as u32 / eager_by_software as u32).max(1))
        } else {
            (eager, window)
        };
        let config = config
            .eager_limit(eager)
            .window(window)
            .endpoints(ranks as usize + SPARE)
            .unmatched(Unmatched::HoldLong)
            // What came early is kept, however short: so a peer is so far ahead at most.
            .lend_short(true)
            // A peer answers when it comes to its next operation; how long to wait for that is decided here.
            .connect_timeout(FOREVER)
            .guest_timeout(GUESTS)
            .patience(0, 0);
        let mut worker = Worker::new(config)?;
        let listener = worker.listen((ip, 0))?;
        let (stash, strangers) = (Stash::new(ranks as usize, window / 2), Strangers::new(settings.hello));
        let asked = std::env::var(STAGING).is_ok_and(|value| value == "1");
        let slots = Slots::new(asked, worker.through(), worker.domain());
        let mut net = Net {
            worker,
            me,
            peers: Vec::new(),
            token: 0,
            epoch: 1,
            links: 1,
            piece: settings.piece.min(PIECE),
            gpu_piece: settings.piece,
            moved: 0,
            gets: settings.gets,
            listener,
            window,
            near,
            recorder: None,
            stash,
            strangers,
            slots,
        };
        // Kernels of a GPU copy as much as there is, and are the software device's. What others read is combined from memory of the
        // worker's.
        if !net.is_software() {
            net.gpu_piece = net.piece;
        }
        Ok(net)
    }

    /// Where its worker listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Takes note of the other ranks, and of the communicator's token.
    pub(crate) fn meet(&mut self, addresses: impl Iterator<Item = SocketAddr>, token: u64) {
        self.peers = addresses
            .map(|address| Peer { address, link: Link::None, calls: Vec::new(), streams: [Stream::NEW; 3] })
            .collect();
        self.token = token;
    }

    fn is_software(&self) -> bool {
        self.ports().any(|port| port.link_layer == LinkLayer::SharedMemory)
    }

    /// Bytes that are read or written at once.
    pub(super) fn piece(&self, on_gpu: bool) -> usize {
        if on_gpu { self.gpu_piece } else { self.piece }
    }

    /// How its worker is reached.
    pub(crate) fn listening(&self) -> Listening {
        Listening {
            address: self.address(),
            device: self.device().to_owned(),
            is_on_infiniband: self.worker.is_on_infiniband(),
            is_software: self.is_software(),
            staging: self.staging(),
            rate_mbps: self.rate_mbps(),
            stand_in_port: None,
        }
    }

    /// Some rank of its node has a GPU that this process does not see: on the software device, which would map that one's memory,
    /// messages of GPUs go by memory of the processor.
    pub(crate) fn stage_unseen(&mut self) {
        if self.is_software() {
            self.slots.stage_unseen();
        }
    }

    /// Why messages of GPUs go by memory that the device reaches, if this rank has a reason.
    pub(crate) fn staging(&self) -> Option<Staging> {
        self.slots.reason()
    }

    /// The rate of the device's first port that has one.
    fn rate_mbps(&self) -> Option<u64> {
        self.ports().find_map(|port| Some(u64::from(port.lanes?) * u64::from(port.lane_rate_mbps?)))
    }

    fn ports(&self) -> impl Iterator<Item = PortAttributes> {
        let context = self.worker.context();
        (1..=u8::MAX).map_while(|number| context.port(number))
    }

    /// The device that messages go over.
    pub(crate) fn device(&self) -> &str {
        self.worker.context().name()
    }

    /// Why it is that one.
    pub(crate) fn placed(&self) -> &str {
        self.worker.placed()
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        self.worker.domain()
    }

    /// What its device was chosen for.
    pub(crate) fn near(&self) -> &Near {
        &self.near
    }

    /// Messages for which a peer that has not begun their operations has room, beside those of the oldest.
    #[inline]
    pub(crate) fn others_room(&self) -> u32 {
        self.window / 2
    }

    /// Messages of one operation for which a peer has room whatever others there are, so that one may be overtaken by one fewer.
    #[inline]
    pub(super) fn own_room(&self) -> u32 {
        self.window - self.others_room()
    }

    /// The connection to `rank` in words.
    pub(crate) fn describe(&self, rank: u32) -> String {
        let Some(peer) = self.peers.get(rank as usize) else { return "unknown".into() };
        match peer.link {
            Link::None => format!("not connected ({})", peer.address),
            Link::Dialing(_) => format!("connecting to {}", peer.address),
            Link::Closed { .. } => format!("closed ({})", peer.address),
            Link::Up(ep) => match self.worker.explain(ep) {
                Some(explanation) => explanation.to_string(),
                None => "closed".into(),
            },
        }
    }

    /// Whether that rank is to connect to this one, and has not.
    pub(super) fn awaits(&self, rank: u32) -> bool {
        rank < self.me && self.peers.get(rank as usize).is_some_and(|peer| peer.link == Link::None)
    }

    /// Begins to connect to the peers of `plan` that this rank is to connect to. True once all are connected, but for those that
    /// have left and given all of their part.
    ///
    /// Of two ranks the lower connects: both know from the plan that they need each other.
    pub(super) fn connect(&mut self, plan: &mut Compiled) -> Outcome<bool> {
        let mut up = true;
        for planned in &mut plan.peers {
            let is_closed = matches!(self.peers[planned.rank as usize].link, Link::Closed { .. });
            let does_without = is_closed && self.has_given_all(planned, &plan.call, 0);
            let peer = &mut self.peers[planned.rank as usize];
            match peer.link {
                Link::Up(ep) => planned.ep = Some(ep),
                Link::Closed { .. } if does_without => planned.ep = None,
                Link::Closed { left } => return Err(ended(planned.rank, left)),
                Link::None if self.me < planned.rank => {
                    let failed = |reason| Fault::Failed { rank: self.me, reason };
                    let ep = self.worker.connect(peer.address).map_err(|error| failed(error.to_string()))?;
                    peer.link = Link::Dialing(ep);
                    let hello = Fields { kind: Kind::Hello, rank: self.me, plan: 0, sequence: 0, message: 0 };
                    let token = Bytes::copy_from_slice(&self.token.to_le_bytes());
                    let sent = self.worker.send(ep, hello.encode(), token);
                    sent.map_err(|error| failed(error.to_string()))?;
                    up = false;
                }
                Link::None | Link::Dialing(_) => up = false,
            }
        }
        Ok(up)
    }

    /// Tells the peers of `plan` what its number stands for. False if one is about to end, of which an event tells soon.
    pub(super) fn announce(&mut self, plan: &Compiled) -> Outcome<bool> {
        let failed = |reason| Box::new(Fault::Failed { rank: self.me, reason });
        let text = serde_json::to_vec(&plan.call).map_err(|error| failed(error.to_string()))?;
        let text = Bytes::from(text);
        let fields = Fields { kind: Kind::Announce, rank: self.me, plan: plan.number, sequence: 0, message: 0 };
        for peer in &plan.peers {
            let Some(ep) = peer.ep else { continue };
            match self.worker.send(ep, fields.encode(), text.clone()) {
                Ok(_) => {}
                Err(SendError { error: SendFailure::Closing(_) | SendFailure::Unknown(_), .. })
                    if self.is_up(ep, peer.rank) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(failed(error.to_string())),
            }
        }
        Ok(true)
    }

    /// A connection of this side is up. False if it is none any more.
    pub(super) fn connected(&mut self, ep: EndpointId) -> bool {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.link == Link::Dialing(ep)) else { return false };
        peer.link = Link::Up(ep);
        self.links += 1;
        true
    }

    /// A peer that connected says who it is. One that does not belong here is turned away.
    pub(super) fn hello(&mut self, ep: EndpointId, rank: u32, token: &[u8]) {
        let expected = token == self.token.to_le_bytes() && rank < self.me;
        match self.peers.get_mut(rank as usize) {
            Some(peer) if expected && peer.link == Link::None => {
                peer.link = Link::Up(ep);
                self.links += 1;
                self.strangers.forget(ep);
            }
            _ => self.turn_away(ep),
        }
    }

    /// Ends a connection that is not for this communicator.
    #[cold]
    pub(super) fn turn_away(&mut self, ep: EndpointId) {
        tracing::warn!(?ep, "a connection that is not for this communicator is ended");
        self.strangers.forget(ep);
        self.worker.abort(ep);
    }

    /// A peer says what its plan number stands for. What was known of it in plans is forgotten.
    pub(super) fn announced(&mut self, rank: u32, plan: u16, text: &[u8]) -> Outcome<()> {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return Ok(()) };
        let call = serde_json::from_slice(text).map_err(|error| {
            let reason = format!("it announced a plan that this release does not understand: {error}");
            Box::new(Fault::Failed { rank, reason })
        })?;
        if peer.calls.len() <= plan as usize {
            peer.calls.resize(plan as usize + 1, None);
        }
        let before = peer.calls[plan as usize].replace(call);
        if let Some(before) = before.filter(|before| *before != call) {
            self.stash.renumber(rank, plan, before);
        }
        Ok(())
    }

    /// Whether that is the connection with a rank, and is up.
    #[inline]
    pub(super) fn is_up(&self, ep: EndpointId, rank: u32) -> bool {
        self.peers.get(rank as usize).is_some_and(|peer| peer.link == Link::Up(ep))
    }

    /// What a peer's plan number stands for.
    pub(super) fn call(&self, rank: u32, plan: u16) -> Option<&Call> {
        self.peers.get(rank as usize)?.calls.get(plan as usize)?.as_ref()
    }

    /// Whose connection it is.
    pub(super) fn rank_of(&self, ep: EndpointId) -> Option<u32> {
        let of = |peer: &Peer| matches!(peer.link, Link::Up(other) | Link::Dialing(other) if other == ep);
        self.peers.iter().position(of).map(|rank| rank as u32)
    }

    /// A connection ended. Gives the rank, and the fault that it is if that rank is needed.
    pub(super) fn closed(&mut self, ep: EndpointId, reason: &CloseReason) -> Option<(u32, Box<Fault>)> {
        self.strangers.forget(ep);
        let rank = self.rank_of(ep)?;
        let peer = &mut self.peers[rank as usize];
        tracing::debug!(rank, %reason, "a connection ended");
        self.epoch += 1;
        self.links += 1;
        let left = matches!(reason, CloseReason::Remote);
        peer.link = Link::Closed { left };
        let fault = match reason {
            CloseReason::Remote
            | CloseReason::PeerLost(_)
            | CloseReason::Failed(
                ConnectFailure::Refused(_) | ConnectFailure::Handshake { error: HandshakeError::HungUp, .. },
            ) => ended(rank, left),
            CloseReason::Failed(failure) => {
                let reason = format!("its connection to rank {rank} did not come up: {failure}");
                Box::new(Fault::Failed { rank: self.me, reason })
            }
            broken => {
                let reason = format!("its connection to rank {rank} broke: {broken}");
                Box::new(Fault::Failed { rank: self.me, reason })
            }
        };
        Some((rank, fault))
    }

    /// By what messages of GPUs go that do not go directly, for people.
    pub(crate) fn slots_are(&self) -> String {
        self.slots.to_string()
    }

    /// Makes the slots for operations on vectors of a GPU.
    ///
    /// # Errors
    /// [`MemoryError`] if there is no memory for them.
    #[cold]
    pub(crate) fn make_slots(&mut self, gpu: Gpu) -> Result<(), MemoryError> {
        self.slots.make(gpu, self.worker.domain())
    }

    /// Waits until no GPU copies for operations any more.
    pub(crate) fn settle(&mut self) {
        self.slots.settle();
    }

    /// Says goodbye to all peers. What was sent before, and the goodbye, are theirs when the worker is dropped, which waits
    /// for that. Takes a bounded time.
    pub(crate) fn say_goodbye(&mut self) {
        let up: Vec<_> =
            self.peers.iter().filter_map(|peer| if let Link::Up(ep) = peer.link { Some(ep) } else { None }).collect();
        up.iter().for_each(|&ep| self.worker.close(ep));
        // A moment for their answers, so that they see an orderly end. Whether they answer is theirs.
        for _ in 0..FAREWELL_POLLS {
            if !matches!(self.worker.poll(), Ok(Some(_))) {
                std::thread::yield_now();
            }
        }
    }
}

/// Reads under way where ranks are on several nodes: the next is asked for before the last has come. All-gather of 4 MiB on four
/// hosts joined by veth, on two cores that others used too, takes 12 to 13 ms with 4, and 19 to 21 ms with 1.
const GETS_BETWEEN: u32 = 4;

/// The fault that a closed connection to a rank is, for whoever needs it.
fn ended(rank: u32, left: bool) -> Box<Fault> {
    Box::new(if left { Fault::Left { rank } } else { Fault::Gone { rank } })
}

/// With 1, messages of GPUs go by memory of the processor though devices reach that of GPUs.
const STAGING: &str = "QPAIR_GPU_STAGING";
const FOREVER: Duration = Duration::from_secs(24 * 3600);
const FAREWELL_POLLS: u32 = 64;

/// Connections beside those of the other ranks: of strangers, until they are turned away.
const SPARE: usize = 8;
/// How long a peer that has connected may take to say who it is: ranks do so right after.
const HELLO: Duration = Duration::from_secs(10);
/// How long a connection may be half made. A rank that comes to no call in between, as it computes, needs that long, and to end it
/// ends the communicator; a stranger that stops there keeps one of the places beside the ranks' for as long.
const GUESTS: Duration = Duration::from_secs(3600);

/// Bytes that are read or written at once: where ranks share cores and read the same, as in a broadcast, each finds in the cache
/// what another has just read, and not only what was read a whole vector ago. Among 4 and 8 ranks on two cores of a Xeon a broadcast of
/// 32 and 64 MiB takes 0.6 to 0.9 times as long as in one piece, with pieces of 1 to 8 MiB alike; other collectives take the same.
const PIECE: usize = 8 << 20;
