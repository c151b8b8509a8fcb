//! Completion queues: no queue at all, but a cursor over the queue pairs that complete here.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::eventfd::EventFd;
use super::layout::{ARMED_ANY, ARMED_SOLICITED, CqPublic};
use super::node::Node;
use super::qp::SoftQp;
use crate::cq::Arm;
use crate::error::{CqError, CreateError};
use crate::events::AsyncEvent;
use crate::sync::{AtomicU32, Ordering};
use crate::wc::Completion;

/// The owner's end.
#[derive(Debug)]
pub(crate) struct SoftCq {
    shared: Arc<CqShared>,
    members: Vec<Member>,
    version: u32,
    /// Where the next poll begins, so that no queue pair starves others.
    cursor: usize,
    /// True if the queue pairs could produce more completions than the queue holds.
    may_overrun: bool,
    failed: bool,
}

/// What queue pairs know of their completion queue.
#[derive(Debug)]
pub(crate) struct CqShared {
    node: Arc<Node>,
    depth: u32,
    bell: Arc<EventFd>,
    public: NonNull<CqPublic>,
    offset: usize,
    members: Mutex<Vec<Member>>,
    version: AtomicU32,
    /// True if this process's light barriers do without a fence.
    asymmetric: bool,
}

// SAFETY: the pointer names atomics in a mapping that `node` keeps.
unsafe impl Send for CqShared {}
// SAFETY: as above.
unsafe impl Sync for CqShared {}

/// A queue pair that completes here.
#[derive(Clone, Debug)]
struct Member {
    qp: Arc<SoftQp>,
    sends: bool,
    receives: bool,
}

impl SoftCq {
    pub(crate) fn new(node: &Arc<Node>, depth: u32, bell: Arc<EventFd>) -> Result<Self, CreateError> {
        if depth == 0 || depth > MAX_CQE {
            let limit = MAX_CQE.into();
            return Err(CreateError::OutOfRange { what: "a completion queue", asked: depth.into(), limit });
        }
        let full = || CreateError::Exhausted { what: "completion queue" };
        let offset = node.take_public(size_of::<CqPublic>()).ok_or_else(full)?;
        // SAFETY: the type is made of atomics, and the block is ours.
        let public = unsafe { node.public().at::<CqPublic>(offset) }.ok_or_else(full)?;
        let shared = CqShared {
            node: node.clone(),
            depth,
            bell,
            public,
            offset,
            members: Mutex::default(),
            version: AtomicU32::new(0),
            asymmetric: super::barrier::registered(),
        };
        Ok(SoftCq {
            shared: Arc::new(shared),
            members: Vec::new(),
            version: 0,
            cursor: 0,
            may_overrun: false,
            failed: false,
        })
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth
    }

    pub(crate) fn bell(&self) -> &EventFd {
        &self.shared.bell
    }

    /// The next completion, from one of the next `SCAN` queue pairs in turn.
    #[inline]
    pub(crate) fn poll<'cq>(&mut self) -> Result<Option<Completion<'cq>>, CqError> {
        self.refresh()?;
        let count = self.members.len();
        for _ in 0..count.min(SCAN) {
            let place = self.cursor;
            let Some(member) = self.members.get(place) else {
                self.cursor = 0;
                continue;
            };
            self.cursor = if place + 1 >= count { 0 } else { place + 1 };
            if let Some(completion) = member.poll() {
                if self.may_overrun {
                    self.check_overrun()?;
                }
                return Ok(Some(completion));
            }
        }
        Ok(None)
    }

    /// True if a poll would give something; looks at every queue pair.
    pub(crate) fn has_completion(&mut self) -> Result<bool, CqError> {
        self.refresh()?;
        for place in 0..self.members.len() {
            if self.members[place].has_completion() {
                self.cursor = place;
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn arm(&mut self, which: Arm) {
        let value = match which {
            Arm::Any => ARMED_ANY,
            Arm::Solicited => ARMED_SOLICITED,
        };
        self.shared.public().armed.store(value, Ordering::SeqCst);
        super::barrier::heavy();
    }

    /// Takes note of queue pairs that came and went.
    #[inline(always)]
    fn refresh(&mut self) -> Result<(), CqError> {
        if self.version != self.shared.version.load(Ordering::Acquire) {
            self.reload();
        }
        if self.failed { Err(CqError::Overrun { depth: self.shared.depth }) } else { Ok(()) }
    }

    #[cold]
    fn reload(&mut self) {
        let members = self.shared.members.lock().unwrap_or_else(PoisonError::into_inner);
        self.version = self.shared.version.load(Ordering::Acquire);
        self.members.clone_from(&members);
        let most: u64 = self.members.iter().map(Member::most).sum();
        self.may_overrun = most > u64::from(self.shared.depth);
        self.cursor = 0;
    }

    /// Counts what waits, now that one was taken. Hardware loses completions when a queue overruns; here they are all
    /// there, and the queue fails as it would, so that programs are not right by luck.
    #[cold]
    fn check_overrun(&mut self) -> Result<(), CqError> {
        let depth = self.shared.depth;
        let mut waiting = 1;
        for member in &self.members {
            waiting += member.waiting(depth);
            if waiting > depth {
                self.failed = true;
                self.shared.node.events().raise(AsyncEvent::CqError);
                self.members.iter().for_each(|member| member.qp.fail());
                return Err(CqError::Overrun { depth });
            }
        }
        Ok(())
    }
}

impl CqShared {
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn bell(&self) -> &Arc<EventFd> {
        &self.bell
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    #[inline(always)]
    fn public(&self) -> &CqPublic {
        // SAFETY: mapped as long as `node` lives.
        unsafe { self.public.as_ref() }
    }

    /// The arming: 0 or `ARMED_*`.
    pub(crate) fn armed(&self) -> u32 {
        self.public().armed.load(Ordering::Relaxed)
    }

    /// Ends an arming (0), or sets back one that was there before.
    pub(crate) fn set_armed(&self, value: u32) {
        self.public().armed.store(value, Ordering::Relaxed);
    }

    pub(crate) fn join(&self, qp: &Arc<SoftQp>, sends: bool, receives: bool) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.push(Member { qp: qp.clone(), sends, receives });
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn leave(&self, qp: &SoftQp) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let (gone, stay) =
            std::mem::take(&mut *members).into_iter().partition::<Vec<_>, _>(|m| m.qp.number() == qp.number());
        *members = stay;
        self.version.fetch_add(1, Ordering::Release);
        drop(members);
        drop(gone);
    }

    /// Wakes the owner if it sleeps. After publishing a completion of this process's own.
    #[inline(always)]
    pub(crate) fn notify(&self, solicited: bool) {
        super::barrier::light(self.asymmetric);
        let armed = self.public().armed.load(Ordering::Relaxed);
        if armed != 0 && (solicited || armed == ARMED_ANY) {
            self.bell.ring();
        }
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        // Peers look at the arming only inside a connection to a queue pair that completes here, and those are gone.
        self.node.give_public(self.offset, size_of::<CqPublic>());
    }
}

impl Member {
    #[inline(always)]
    fn poll<'cq>(&self) -> Option<Completion<'cq>> {
        self.qp.progress();
        if self.sends
            && let Some(completion) = self.qp.send_queue().poll(&self.qp)
        {
            return Some(completion);
        }
        if self.receives { self.qp.poll_receive() } else { None }
    }

    fn has_completion(&self) -> bool {
        self.qp.progress();
        self.sends && self.qp.send_queue().has_completion() || self.receives && self.qp.has_receive()
    }

    fn waiting(&self, limit: u32) -> u32 {
        let sends = if self.sends { self.qp.send_queue().waiting(limit) } else { 0 };
        let receives = if self.receives { self.qp.waiting_receives(limit) } else { 0 };
        sends + receives
    }

    /// Most completions that can ever wait.
    fn most(&self) -> u64 {
        let sends = if self.sends { self.qp.send_queue().depth() } else { 0 };
        let receives = if self.receives { self.qp.recv_depth() } else { 0 };
        u64::from(sends) + u64::from(receives)
    }
}

/// Queue pairs that one poll looks at, at most: a bound on the time of a poll. Each takes some nanoseconds.
const SCAN: usize = 64;
const MAX_CQE: u32 = 1 << 22;
