//! The way to another opened device of this host: its mappings, its keys, and the socket between the two.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::message::{BounceOp, Message};
use super::socket::Socket;
use crate::address::NodeId;
use crate::error::ConnectError;
use crate::soft::eventfd::EventFd;
use crate::soft::home::Home;
use crate::soft::keys::KeyView;
use crate::soft::layout::{FaultKind, LAYOUT_VERSION, MAGIC, NodeHeader, PUBLIC_BYTES, QpInfo, SHARED_BYTES};
use crate::soft::segment::Segment;
use crate::soft::{barrier, switches};

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
    wire: Wire,
}

#[derive(Debug)]
enum Wire {
    Local(Weak<Home>),
    Remote(Box<Remote>),
}

#[derive(Debug)]
struct Remote {
    socket: Socket,
    pid: i32,
    /// Mapped arenas of the peer, by the low bits of their number.
    arenas: Box<[AtomicPtr<MappedArena>]>,
    /// Arenas asked for and not answered yet; `true` once the answer was no.
    asked: Mutex<HashMap<u32, bool>>,
    next_request: AtomicU32,
    answers: Mutex<HashMap<u32, Answer>>,
    answered: Condvar,
    /// Whether process_vm_readv and writev are allowed: see `VM_*`.
    vm: AtomicU8,
}

#[derive(Debug)]
struct MappedArena {
    id: u32,
    segment: Segment,
}

#[derive(Debug)]
enum Answer {
    Waiting,
    Info(Option<(QpInfo, Option<OwnedFd>)>),
    Bounced(Option<u64>),
}

/// How to reach a range of the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// At this address of our own.
    Mapped(NonNull<u8>),
    /// Soon: the arena was asked for.
    Pending,
    /// Not by mapping.
    Unmapped,
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
            wire: Wire::Local(Arc::downgrade(home)),
        }
    }

    /// A link over `socket`, from the descriptors in the peer's greeting.
    pub(crate) fn remote(
        peer: NodeId,
        socket: Socket,
        mut fds: Vec<OwnedFd>,
        registered: bool,
    ) -> Result<Self, ConnectError> {
        let bad = |why| ConnectError::BadAnswer { why };
        let system = |what| move |source| ConnectError::System { what, source };
        let (Some(shared), Some(public)) = (fds.pop(), fds.pop()) else {
            return Err(bad("the greeting carries no mappings"));
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
        let pid = socket.peer_pid().map_err(system("identify the peer"))?;
        let remote = Remote {
            socket,
            pid,
            arenas: (0..ARENA_SLOTS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            asked: Mutex::default(),
            next_request: AtomicU32::new(1),
            answers: Mutex::default(),
            answered: Condvar::new(),
            vm: AtomicU8::new(if switches::no_process_vm() { VM_REFUSED } else { VM_UNTRIED }),
        };
        Ok(Link {
            peer,
            public: Arc::new(public),
            shared: Arc::new(shared),
            keys,
            asymmetric: registered && barrier::registered(),
            number: next_number(),
            dead: Arc::default(),
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

    /// Marks the link as over and lets everybody who waits for an answer go.
    pub(crate) fn end(&self) {
        self.dead.store(true, Ordering::Release);
        if let Wire::Remote(remote) = &self.wire {
            drop(remote.answers.lock().unwrap_or_else(PoisonError::into_inner));
            remote.answered.notify_all();
        }
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        match &self.wire {
            Wire::Remote(remote) => Some(&remote.socket),
            Wire::Local(_) => None,
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.socket().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Process at the other end; `None` if it is this one.
    pub(crate) fn pid(&self) -> Option<i32> {
        match &self.wire {
            Wire::Remote(remote) => Some(remote.pid),
            Wire::Local(_) => None,
        }
    }

    /// Sends a control message. What can not be sent is dropped: its loss ends in a time-out at whoever waits.
    pub(crate) fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) {
        if let Some(socket) = self.socket()
            && let Err(error) = socket.send(message, fds)
        {
            tracing::debug!(%error, peer = %self.peer, ?message, "a control message is lost");
        }
    }

    /// Asks the peer's device for a queue pair. Blocks until the answer comes, some seconds at most.
    pub(crate) fn query(&self, qpn: u32) -> Result<(QpInfo, Option<Arc<EventFd>>), ConnectError> {
        let missing = ConnectError::NoSuchQueuePair { qpn: crate::Qpn(qpn) };
        match &self.wire {
            Wire::Local(home) => {
                let home = home.upgrade().ok_or(ConnectError::PeerGone { node: self.peer })?;
                let qp = home.member(qpn).ok_or(missing)?;
                Ok((qp.info(), Some(qp.bell().clone())))
            }
            Wire::Remote(remote) => {
                let request = remote.open_request();
                self.send(&Message::Query { request, qpn }, &[]);
                let answer = self.wait_answer(remote, request)?;
                match answer {
                    Answer::Info(Some((info, bell))) => Ok((info, bell.map(|fd| Arc::new(EventFd::from_fd(fd))))),
                    _ => Err(missing),
                }
            }
        }
    }

    fn wait_answer(&self, remote: &Remote, request: u32) -> Result<Answer, ConnectError> {
        let deadline = Instant::now() + ANSWER;
        let mut answers = remote.answers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let done = !matches!(answers.get(&request), Some(Answer::Waiting));
            if done || left.is_zero() || self.is_dead() {
                let answer = answers.remove(&request);
                return match answer {
                    Some(Answer::Waiting) | None if self.is_dead() => Err(ConnectError::PeerGone { node: self.peer }),
                    Some(Answer::Waiting) | None => Err(ConnectError::TimedOut { seconds: ANSWER.as_secs() }),
                    Some(answer) => Ok(answer),
                };
            }
            answers = remote.answered.wait_timeout(answers, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn answered(&self, request: u32, info: Option<(QpInfo, Option<OwnedFd>)>) {
        self.put_answer(request, Answer::Info(info));
    }

    pub(crate) fn bounced(&self, request: u32, result: Option<u64>) {
        self.put_answer(request, Answer::Bounced(result));
    }

    fn put_answer(&self, request: u32, answer: Answer) {
        let Wire::Remote(remote) = &self.wire else { return };
        let mut answers = remote.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer that nobody waits for any more, or never asked for, is dropped.
        if let Some(place) = answers.get_mut(&request) {
            *place = answer;
            remote.answered.notify_all();
        }
    }

    /// Starts an access by the peer's own control thread; the number to ask [`bounce_result`](Link::bounce_result) with.
    pub(crate) fn bounce(&self, op: BounceOp) -> Option<u32> {
        let Wire::Remote(remote) = &self.wire else { return None };
        let request = remote.open_request();
        self.send(&Message::Bounce { request, op }, &[]);
        Some(request)
    }

    /// The outcome of a bounce: `None` while it is under way, `Some(None)` if it was refused.
    pub(crate) fn bounce_result(&self, request: u32) -> Option<Option<u64>> {
        let Wire::Remote(remote) = &self.wire else { return Some(None) };
        let mut answers = remote.answers.lock().unwrap_or_else(PoisonError::into_inner);
        match answers.get(&request) {
            Some(Answer::Waiting) => None,
            Some(Answer::Bounced(result)) => {
                let result = *result;
                answers.remove(&request);
                Some(result)
            }
            Some(Answer::Info(_)) | None => Some(None),
        }
    }

    /// Gives up on a bounce.
    pub(crate) fn forget_bounce(&self, request: u32) {
        if let Wire::Remote(remote) = &self.wire {
            remote.answers.lock().unwrap_or_else(PoisonError::into_inner).remove(&request);
        }
    }

    /// Where `len` bytes at `offset` of the peer's arena lie here. On a local link the address is the peer's own.
    #[inline(always)]
    pub(crate) fn reach(&self, arena: u32, offset: u64, len: u64, addr: u64) -> Reach {
        let remote = match &self.wire {
            Wire::Local(_) => {
                return NonNull::new(addr as *mut u8).map_or(Reach::Unmapped, Reach::Mapped);
            }
            Wire::Remote(remote) => remote,
        };
        if arena == 0 {
            return Reach::Unmapped;
        }
        let mapped = remote.arenas[arena as usize % ARENA_SLOTS].load(Ordering::Acquire);
        // SAFETY: a mapped arena is freed only after it was taken out of the table and every initiator of this device was
        // seen outside its hazard (`forget_arena`); the caller is inside.
        if let Some(mapped) = unsafe { mapped.as_ref() }
            && mapped.id == arena
        {
            let end = offset.checked_add(len);
            if end.is_none_or(|end| end > mapped.segment.len() as u64) {
                return Reach::Unmapped;
            }
            // SAFETY: `offset` was just found to lie within the mapping.
            return Reach::Mapped(unsafe { mapped.segment.base().add(offset as usize) });
        }
        self.ask_arena(remote, arena)
    }

    #[cold]
    fn ask_arena(&self, remote: &Remote, arena: u32) -> Reach {
        let mut asked = remote.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match asked.get(&arena) {
            Some(true) => Reach::Unmapped,
            Some(false) => Reach::Pending,
            None => {
                asked.insert(arena, false);
                drop(asked);
                self.send(&Message::MapArena { arena }, &[]);
                Reach::Pending
            }
        }
    }

    /// Maps an arena that the peer sent.
    pub(crate) fn install_arena(&self, arena: u32, len: u64, fd: Option<OwnedFd>) {
        let Wire::Remote(remote) = &self.wire else { return };
        let mut asked = remote.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.get(&arena) != Some(&false) {
            return;
        }
        let mapped = fd.and_then(|fd| Segment::map_peer(fd, usize::try_from(len).ok()?, true).ok());
        let place = &remote.arenas[arena as usize % ARENA_SLOTS];
        match mapped {
            Some(segment) if place.load(Ordering::Acquire).is_null() => {
                segment.populate(true);
                let mapped = Box::new(MappedArena { id: arena, segment });
                place.store(Box::into_raw(mapped), Ordering::Release);
                asked.remove(&arena);
            }
            // Not to be mapped, or its place in the table is taken: it is reached without mapping.
            _ => drop(asked.insert(arena, true)),
        }
    }

    /// Takes an arena out of the table; `quiesce` returns once no initiator of this device is inside an access.
    pub(crate) fn forget_arena(&self, arena: u32, quiesce: impl FnOnce() -> bool) {
        let Wire::Remote(remote) = &self.wire else { return };
        remote.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&arena);
        let place = &remote.arenas[arena as usize % ARENA_SLOTS];
        let mapped = place.load(Ordering::Acquire);
        // SAFETY: only this thread, the device's control thread, frees mapped arenas.
        if unsafe { mapped.as_ref() }.is_none_or(|mapped| mapped.id != arena) {
            return;
        }
        place.store(std::ptr::null_mut(), Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
        if quiesce() {
            // SAFETY: it is out of the table, and nobody who might have seen it there is still inside an access.
            drop(unsafe { Box::from_raw(mapped) });
        }
    }

    /// Tells the peer that a request to its queue pair was not valid.
    pub(crate) fn report(&self, from: NodeId, qpn: u32, from_qpn: u32, kind: FaultKind) {
        match &self.wire {
            Wire::Local(home) => {
                if let Some(member) = home.upgrade().and_then(|home| home.member(qpn)) {
                    member.fault(from, from_qpn, kind);
                }
            }
            Wire::Remote(_) => self.send(&Message::Fault { qpn, from_qpn, kind }, &[]),
        }
    }

    /// Whether process_vm_readv and writev may be tried.
    pub(crate) fn vm_allowed(&self) -> bool {
        match &self.wire {
            Wire::Remote(remote) => remote.vm.load(Ordering::Relaxed) != VM_REFUSED,
            Wire::Local(_) => false,
        }
    }

    /// Notes that the system refuses them.
    pub(crate) fn vm_refused(&self) {
        if let Wire::Remote(remote) = &self.wire
            && remote.vm.swap(VM_REFUSED, Ordering::Relaxed) != VM_REFUSED
        {
            tracing::info!(peer = %self.peer, "process_vm_writev is refused here; a bounce area is used");
        }
    }
}

impl Remote {
    fn open_request(&self) -> u32 {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(request, Answer::Waiting);
        request
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        for place in &self.arenas {
            let mapped = place.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !mapped.is_null() {
                // SAFETY: made by `Box::into_raw` in `install_arena`; the link's last holder is gone, so nobody uses it.
                drop(unsafe { Box::from_raw(mapped) });
            }
        }
    }
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Mapped arenas of one peer; further ones are reached without mapping.
const ARENA_SLOTS: usize = 4096;
/// How long a peer's control thread may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
const VM_UNTRIED: u8 = 0;
const VM_REFUSED: u8 = 1;
