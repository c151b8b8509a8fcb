//! Completion queues: no queue at all, but a cursor over the queue pairs that complete here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arming::Call;
use super::cq_shared::{CqShared, Entry};
use super::eventfd::EventFd;
use super::home::Home;
use super::qp::SoftQp;
use super::roce::Network;
use super::srq::SoftSrq;
use crate::cq::Arm;
use crate::error::{CqError, CreateError};
use crate::events::AsyncEvent;
use crate::wc::Current;

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
    /// Polls until it is looked whether they did.
    until_check: u32,
    failed: bool,
    /// The network that queue pairs here are on: polling drives it.
    network: Option<Arc<Network>>,
    current: Current,
}

/// A queue pair that completes here.
#[derive(Clone, Debug)]
struct Member {
    qp: Arc<SoftQp>,
    sends: bool,
    receives: bool,
}

impl SoftCq {
    pub(crate) fn new(home: &Arc<Home>, depth: u32, bell: Arc<EventFd>) -> Result<Self, CreateError> {
        Ok(SoftCq {
            shared: CqShared::new(home, depth, bell)?,
            members: Vec::new(),
            version: 0,
            cursor: 0,
            may_overrun: false,
            until_check: 0,
            failed: false,
            network: None,
            current: Current::default(),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth()
    }

    fn bell(&self) -> &EventFd {
        self.shared.bell()
    }

    /// The completion at the cursor.
    #[inline(always)]
    pub(crate) fn current(&mut self) -> &mut Current {
        &mut self.current
    }

    /// Moves on to the next completion, looking at each queue pair in turn; false if there is none.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<bool, CqError> {
        // Nothing is left but where a completion was forgotten instead of dropped.
        self.current.clear();
        self.refresh()?;
        if self.take_next()? {
            return Ok(true);
        }
        let Some(network) = &self.network else { return Ok(false) };
        let came = network.poll();
        // Who looks once more before it sleeps does not go on polling.
        if self.shared.arming().call().is_some() {
            network.hand_over();
        }
        Ok(came && self.take_next()?)
    }

    /// Takes the next completion that is there.
    #[inline(always)]
    fn take_next(&mut self) -> Result<bool, CqError> {
        let count = self.members.len();
        for _ in 0..count {
            let place = self.cursor;
            let Some(member) = self.members.get(place) else {
                self.cursor = 0;
                continue;
            };
            self.cursor = if place + 1 >= count { 0 } else { place + 1 };
            if member.poll(&mut self.current) {
                if self.may_overrun {
                    self.check_overrun()?;
                }
                return Ok(true);
            }
        }
        self.until_check = 0;
        Ok(false)
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
        self.shared.arming().arm(match which {
            Arm::Any => Call::Any,
            Arm::Solicited => Call::Solicited,
        });
        super::barrier::heavy();
        if let Some(network) = &self.network {
            network.hand_over();
        }
    }

    /// Sleeps until a poll would give something, no longer than `limit`.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) -> Result<(), CqError> {
        // An arming of the caller's outlives this sleep, one of the sleep's own does not.
        let before = self.shared.arming().call();
        let slept = self.sleep_armed(limit);
        match before {
            Some(call) => self.shared.arming().arm(call),
            None => self.shared.arming().disarm(),
        }
        slept
    }

    fn sleep_armed(&mut self, limit: Option<Duration>) -> Result<(), CqError> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            self.bell().clear();
            self.arm(Arm::Any);
            if self.has_completion()? {
                return Ok(());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(CqError::TimedOut(limit.unwrap_or_default()));
            }
            self.bell().wait(left)?;
        }
    }

    /// Takes note of queue pairs that came and went.
    #[inline(always)]
    fn refresh(&mut self) -> Result<(), CqError> {
        if self.version != self.shared.version() {
            self.reload();
        }
        if self.failed { Err(CqError::Overrun { depth: self.shared.depth() }) } else { Ok(()) }
    }

    #[cold]
    fn reload(&mut self) {
        let (entries, version) = self.shared.snapshot();
        self.version = version;
        self.members = entries.into_iter().filter_map(Member::of).collect();
        self.network = self.members.iter().find_map(|member| member.qp.network().cloned());
        // Queue pairs of one shared receive queue share its receives.
        let shared: HashMap<_, u32> = self.members.iter().filter_map(Member::shared_receives).collect();
        let own: u64 = self.members.iter().map(Member::most).sum();
        let most = own + shared.into_values().map(u64::from).sum::<u64>();
        self.may_overrun = most > u64::from(self.shared.depth());
        (self.cursor, self.until_check) = (0, 0);
    }

    /// Counts what waits, now that one was taken: the first after an idle poll, and some of those that follow, since
    /// counting looks at each. Hardware loses completions when a queue overruns; here they are all there, and the queue
    /// fails as it would, so that programs are not right by luck.
    #[inline]
    fn check_overrun(&mut self) -> Result<(), CqError> {
        if self.until_check > 0 {
            self.until_check -= 1;
            return Ok(());
        }
        let depth = self.shared.depth();
        self.until_check = depth / 4;
        // Where the one that was taken retires memory, it counts as waiting until it is dropped.
        let waiting = u32::from(self.current.unsignaled.is_none());
        self.count_waiting(waiting, depth)
    }

    fn count_waiting(&mut self, mut waiting: u32, depth: u32) -> Result<(), CqError> {
        for member in &self.members {
            waiting += member.waiting(depth);
            if waiting > depth {
                self.failed = true;
                self.shared.home().events().raise(AsyncEvent::CqError);
                self.members.iter().for_each(|member| member.qp.fail());
                return Err(CqError::Overrun { depth });
            }
        }
        Ok(())
    }
}

impl Member {
    fn of(entry: Entry) -> Option<Self> {
        let Entry { qp, qpn: _, sends, receives } = entry;
        Some(Member { qp: qp.downcast().ok()?, sends, receives })
    }

    #[inline(always)]
    fn poll(&self, into: &mut Current) -> bool {
        self.qp.progress();
        self.sends && self.qp.send_queue().poll(self.qp.qpn(), into) || self.receives && self.qp.poll_receive(into)
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

    /// The shared receive queue whose receives complete here, and its depth.
    fn shared_receives(&self) -> Option<(*const SoftSrq, u32)> {
        let srq = self.qp.shared_receives().filter(|_| self.receives)?;
        Some((Arc::as_ptr(srq), srq.depth()))
    }

    /// Most completions of its own that can ever wait.
    fn most(&self) -> u64 {
        let sends = if self.sends { self.qp.send_queue().depth() } else { 0 };
        let receives = if self.receives { self.qp.own_recv_depth() } else { 0 };
        u64::from(sends) + u64::from(receives)
    }
}
