//! The way to another opened device of this host: its mappings, its keys, and the socket between the two.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Registry, Token};

use super::answers::{Answer, Answers, PassedRope};
use super::departures::{Departures, Told};
use super::message::{BounceOp, Message};
use super::outbox::Outbox;
use super::peer_arenas::PeerArenas;
use super::process::Process;
use super::socket::{Packet, Socket};
use crate::address::NodeId;
use crate::error::ConnectError;
use crate::memory::Segment;
use crate::soft::bell::Rope;
use crate::soft::filler::Filler;
use crate::soft::home::{Home, Initiators};
use crate::soft::keys::KeyView;
use crate::soft::layout::{FaultKind, LAYOUT_VERSION, MAGIC, NodeHeader, PUBLIC_BYTES, QpInfo, SHARED_BYTES};
use crate::soft::{barrier, switches};
use crate::sync::lock;

/// A link. Local links lead to a device that this process opened too; remote ones to another process.
#[derive(Debug)]
pub(crate) struct Link {
    peer: NodeId,
    public: Arc<Segment>,
    shared: Arc<Segment>,
    keys: KeyView,
    /// True if light barriers do without a fence on this link.
    asymmetric: bool,
    number: u64,
    dead: Arc<AtomicBool>,
    /// True once the peer sent what makes no sense: nothing that it says counts any more.
    spurned: AtomicBool,
    /// The last turn in which the peer said that what was under way is over.
    quiet: AtomicU64,
    wire: Wire,
}

#[derive(Debug)]
enum Wire {
    Local(Weak<Home>),
    Remote(Box<Remote>),
}

#[derive(Debug)]
pub(super) struct Remote {
    outbox: Outbox,
    process: Process,
    pub(super) arenas: PeerArenas,
    pub(super) departures: Departures,
    /// Arenas of ours that the peer was sent.
    pub(super) lent: Mutex<HashSet<u32>>,
    answers: Answers,
    /// What rings the bells of the peer's completion queues that are in use here, by their numbers: one descriptor for all
    /// queue pairs of a queue.
    ropes: Mutex<HashMap<u64, Weak<OwnedFd>>>,
    /// True if its memory may be pinned for GPUs.
    pub(super) may_pin: bool,
}

impl Link {
    /// A link to a device of this process.
    pub(crate) fn local(home: &Arc<Home>) -> Self {
        Link {
            peer: home.id(),
            public: home.public().clone(),
            shared: home.shared().clone(),
            keys: home.keys().view(),
            asymmetric: barrier::registered(),
            number: next_number(),
            dead: Arc::default(),
            spurned: AtomicBool::new(false),
            quiet: AtomicU64::new(0),
            wire: Wire::Local(Arc::downgrade(home)),
        }
    }

    /// A link over `socket`, from the descriptors in the peer's `greeting`.
    pub(crate) fn remote(
        peer: NodeId,
        socket: Socket,
        mut greeting: Packet,
        registered: bool,
    ) -> Result<Self, ConnectError> {
        let bad = |why| ConnectError::BadAnswer { why };
        let (Some(shared), Some(public)) = (greeting.fds.pop(), greeting.fds.pop()) else {
            return Err(match greeting.truncated {
                true => no_descriptors("take the peer's mappings"),
                false => bad("the greeting carries no mappings"),
            });
        };
        let public = Segment::map_peer(public, PUBLIC_BYTES, false).map_err(system("map the peer's public memory"))?;
        let shared = Segment::map_peer(shared, SHARED_BYTES, true).map_err(system("map the peer's shared memory"))?;
        // SAFETY: the header is made of atomics.
        let header = unsafe { public.at::<NodeHeader>(0) }.ok_or(bad("its public memory is too short"))?;
        // SAFETY: mapped as long as `public` lives.
        let header = unsafe { header.as_ref() };
        if header.magic.load(Ordering::Acquire) != MAGIC || header.version.load(Ordering::Relaxed) != LAYOUT_VERSION {
            return Err(bad("its public memory is not of this version"));
        }
        let keys = KeyView::in_segment(&public).ok_or(bad("its public memory is too short"))?;
        let remote = Remote {
            process: Process::of(&socket).map_err(system("identify the peer"))?,
            outbox: Outbox::new(socket),
            arenas: PeerArenas::new(),
            departures: Departures::default(),
            lent: Mutex::default(),
            answers: Answers::default(),
            ropes: Mutex::default(),
            may_pin: !switches::no_pinning(),
        };
        Ok(Link {
            peer,
            public: Arc::new(public),
            shared: Arc::new(shared),
            keys,
            asymmetric: registered && barrier::registered(),
            number: next_number(),
            dead: Arc::default(),
            spurned: AtomicBool::new(false),
            quiet: AtomicU64::new(0),
            wire: Wire::Remote(Box::new(remote)),
        })
    }

    pub(crate) fn peer(&self) -> NodeId {
        self.peer
    }

    /// A number of this link's own.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// True once the other end is gone, for whoever outlives the link.
    pub(crate) fn dead_flag(&self) -> &Arc<AtomicBool> {
        &self.dead
    }

    pub(crate) fn public(&self) -> &Arc<Segment> {
        &self.public
    }

    pub(crate) fn shared(&self) -> &Arc<Segment> {
        &self.shared
    }

    pub(crate) fn keys(&self) -> KeyView {
        self.keys
    }

    pub(crate) fn asymmetric(&self) -> bool {
        self.asymmetric
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.wire, Wire::Local(_))
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// True once nobody begins anything over the link: the other end is gone, or heard no more. Who takes it up publishes that,
    /// fences, and looks at this; so whoever ends it sees that, or is seen.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.is_dead() || self.is_spurned()
    }

    /// Marks the link as over and lets everybody who waits for an answer go.
    pub(crate) fn end(&self) {
        self.dead.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Wire::Remote(remote) = &self.wire {
            remote.answers.end();
        }
    }

    #[inline(always)]
    pub(super) fn is_spurned(&self) -> bool {
        self.spurned.load(Ordering::Acquire)
    }

    /// Hears the peer no more. Only the end of its process, or of its side of the link, tells that it is outside of this device's
    /// memory.
    pub(super) fn spurn(&self) {
        self.spurned.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Tells a spurned peer that it is heard no more, once those have left who are `inside` an access: it takes the end of the
    /// link for that of all accesses to its memory.
    pub(crate) fn hang_up_after(&self, inside: Initiators) {
        if let Wire::Remote(remote) = &self.wire {
            remote.departures.spurned(inside);
        }
    }

    /// Has the control thread hear of the link, and of the end of the peer's process, under `token`: of both, or of neither.
    pub(super) fn watch(&self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        let Some(remote) = self.remote_end() else { return Ok(()) };
        remote.process.watch(registry, token)?;
        remote.outbox.watch(registry, token).inspect_err(|_| remote.process.unwatch(registry))
    }

    /// The control thread hears of it no more.
    pub(super) fn unwatch(&self, registry: &Registry) {
        if let Some(remote) = self.remote_end() {
            remote.process.unwatch(registry);
            let _ = registry.deregister(&mut SourceFd(&remote.outbox.socket().as_raw_fd()));
        }
    }

    /// True once the peer's process has ended. Another that it started may hold the socket open still.
    pub(super) fn has_peer_ended(&self) -> bool {
        self.remote_end().is_some_and(|remote| remote.process.has_ended())
    }

    /// Sends what could not be sent before. False if it is to be tried again, and nobody tells when.
    pub(super) fn flush(&self) -> bool {
        self.remote_end().is_none_or(|remote| remote.outbox.flush())
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.remote_end().map(|remote| remote.outbox.socket())
    }

    #[inline(always)]
    pub(super) fn remote_end(&self) -> Option<&Remote> {
        match &self.wire {
            Wire::Remote(remote) => Some(remote),
            Wire::Local(_) => None,
        }
    }

    /// Sends a control message, now or once the socket has room. False if it is lost: the link is over.
    pub(super) fn send(&self, message: &Message) -> bool {
        self.send_with(message, None)
    }

    /// The same with a descriptor.
    pub(super) fn send_with(&self, message: &Message, with: Option<&Arc<OwnedFd>>) -> bool {
        self.remote_end().is_some_and(|remote| remote.outbox.send(message, with))
    }

    /// Asks the peer's device for a queue pair. Blocks until the answer comes, some seconds at most.
    /// Of one of this process also by what its receives are marked.
    pub(crate) fn query(&self, qpn: u32) -> Result<(QpInfo, Rope, Option<Filler>), ConnectError> {
        let missing = ConnectError::NoSuchQueuePair { qpn: crate::Qpn(qpn) };
        let remote = match &self.wire {
            Wire::Local(home) => {
                let home = home.upgrade().ok_or(ConnectError::PeerGone { node: self.peer })?;
                let qp = home.member(qpn).ok_or(missing)?;
                return Ok((qp.info(), qp.rope().clone(), qp.filler()));
            }
            Wire::Remote(remote) => remote,
        };
        let request = remote.answers.open();
        self.send(&Message::Query { request, qpn });
        match remote.answers.wait(request, &self.dead, ANSWER) {
            Answer::Info(Some((info, PassedRope::Here(fd)))) => Ok((info, remote.rope(info.bell, fd)?, None)),
            Answer::Info(Some((_, PassedRope::NoRoom))) => {
                Err(no_descriptors("take the bell of the peer's queue pair"))
            }
            Answer::Info(Some((_, PassedRope::Missing))) => {
                Err(ConnectError::BadAnswer { why: "the peer's queue pair has no bell" })
            }
            Answer::Waiting if self.is_dead() => Err(ConnectError::PeerGone { node: self.peer }),
            Answer::Waiting => Err(ConnectError::TimedOut { seconds: ANSWER.as_secs() }),
            Answer::Info(None) | Answer::Bounced(_) => Err(missing),
        }
    }

    pub(super) fn answered(&self, request: u32, answer: Answer) {
        if let Wire::Remote(remote) = &self.wire {
            remote.answers.put(request, answer);
        }
    }

    /// Starts an access by the peer's own control thread; the number to ask [`bounce_result`](Link::bounce_result) with.
    pub(crate) fn bounce(&self, op: BounceOp) -> Option<u32> {
        let request = self.remote_end()?.answers.open();
        self.send(&Message::Bounce { request, op });
        Some(request)
    }

    /// The outcome of a bounce; `None` while it is under way.
    pub(crate) fn bounce_result(&self, request: u32) -> Option<Result<u64, FaultKind>> {
        let Wire::Remote(remote) = &self.wire else { return Some(Err(FaultKind::Access)) };
        remote.answers.take(request).map(|answer| match answer {
            Answer::Bounced(result) => result,
            Answer::Waiting | Answer::Info(_) => Err(FaultKind::Access),
        })
    }

    /// Gives up on a bounce; what is `kept` for it is dropped once the peer has answered, or the link is over.
    pub(crate) fn give_up_bounce(&self, request: u32, kept: Option<Box<dyn Send>>) {
        if let Wire::Remote(remote) = &self.wire {
            remote.answers.give_up(request, kept, &self.dead);
        }
    }

    /// The peer asks whether those have left who are inside an access, and is answered then.
    pub(super) fn asked_for_quiet(&self, turn: u64, inside: Initiators) {
        if let Wire::Remote(remote) = &self.wire {
            remote.departures.asked(turn, inside);
        }
    }

    /// Unmaps what can be and answers what can be answered; true if something is left. `is_over` as in [`Departures::settle`].
    pub(super) fn settle(&self, is_over: impl FnMut(&mut Initiators) -> bool) -> bool {
        let Some(remote) = self.remote_end() else { return false };
        remote.departures.settle(is_over, |told| match told {
            Told::Quiet(turn) => _ = self.send(&Message::Quiet { turn }),
            Told::HangUp => remote.outbox.socket().hang_up(),
        })
    }

    pub(super) fn note_quiet(&self, turn: u64) {
        self.quiet.fetch_max(turn, Ordering::AcqRel);
    }

    /// True once nothing is under way any more that was when the peer was asked in `turn`, and all that was gone before is let go
    /// of; or once the link is over. Mostly the peer's process has ended then, and so has what it had open. One that lives and
    /// closed its device closes memory of ours by itself, but after the link: until then it has open what may be freed here,
    /// which is undefined for memory that CUDA's handles opened, if it is used still.
    pub(super) fn is_quiet(&self, turn: u64) -> bool {
        self.is_dead() || self.quiet.load(Ordering::Acquire) >= turn
    }

    /// Tells the peer that a request to its queue pair was not valid.
    pub(crate) fn report(&self, from: NodeId, qpn: u32, from_qpn: u32, kind: FaultKind) {
        match &self.wire {
            Wire::Local(home) => {
                if let Some(home) = home.upgrade()
                    && let Some(member) = home.member(qpn)
                {
                    member.fault(from, from_qpn, kind);
                }
            }
            Wire::Remote(_) => drop(self.send(&Message::Fault { qpn, from_qpn, kind })),
        }
    }

    /// The process at the other end, if process_vm_readv and writev may be tried now. Takes a system call.
    pub(crate) fn vm_pid(&self) -> Option<i32> {
        let remote = self.remote_end()?;
        remote.process.reachable(remote.outbox.socket())
    }

    /// Has them tried again.
    #[cfg(test)]
    pub(crate) fn vm_allowed(&self) {
        self.remote_end().expect("a link to another process").process.allow();
    }

    /// Notes that the system refuses them.
    pub(crate) fn vm_refused(&self) {
        if let Wire::Remote(remote) = &self.wire
            && remote.process.refuse()
        {
            tracing::info!(peer = %self.peer, "process_vm_writev is refused here; a bounce area is used");
        }
    }
}

impl Remote {
    /// What rings the bell of that number; `fd` does if none is in use here.
    fn rope(&self, number: u64, fd: OwnedFd) -> Result<Rope, ConnectError> {
        let mut ropes = lock(&self.ropes);
        if let Some(rope) = ropes.get(&number).and_then(Rope::again) {
            return Ok(rope);
        }
        if ropes.len().is_power_of_two() {
            ropes.retain(|_, rope| rope.strong_count() > 0);
        }
        let no_rope = |_| ConnectError::BadAnswer { why: "what its queue pair is to be rung by is no bell's" };
        let rope = Rope::from_peer(fd).map_err(no_rope)?;
        ropes.insert(number, Arc::downgrade(rope.descriptor()));
        Ok(rope)
    }
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> ConnectError {
    move |source| ConnectError::System { what, source }
}

/// The kernel drops descriptors that a process has no room for.
fn no_descriptors(what: &'static str) -> ConnectError {
    system(what)(io::Error::from_raw_os_error(libc::EMFILE))
}

/// How long a peer's control thread may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
