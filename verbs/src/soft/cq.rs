//! Completion queues: no queue at all, but a cursor over the queue pairs that complete here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arming::Call;
use super::bell::Bell;
use super::cq_shared::CqShared;
use super::entry::{RING_INLINE, SHORT};
use super::home::Home;
use super::members::Members;
use super::roce::Network;
use crate::cq::Arm;
use crate::error::{CqError, CreateError};
use crate::events::AsyncEvent;
use crate::wc::Current;

/// The owner's end.
#[derive(Debug)]
pub(crate) struct SoftCq {
    shared: Arc<CqShared>,
    members: Members,
    version: u32,
    /// True if the queue pairs could produce more completions than the queue holds.
    may_overrun: bool,
    /// Polls until it is looked whether they did.
    until_check: u32,
    failed: bool,
    /// The network that queue pairs here are on: polling drives it.
    network: Option<Arc<Network>>,
    current: Current,
}

impl SoftCq {
    pub(crate) fn new(home: &Arc<Home>, depth: u32, bell: Bell) -> Result<Self, CreateError> {
        Ok(SoftCq {
            shared: CqShared::new(home, depth, bell)?,
            members: Members::default(),
            version: 0,
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

    fn bell(&self) -> &Bell {
        self.shared.bell()
    }

    /// The completion at the cursor.
    #[inline(always)]
    pub(crate) fn current(&mut self) -> &mut Current {
        &mut self.current
    }

    /// As [`advance`](SoftCq::advance), for who reads messages where they are.
    #[inline]
    pub(crate) fn advance_in_place(&mut self) -> Result<bool, CqError> {
        self.current.short.most = RING_INLINE as u32;
        let advanced = self.advance();
        self.current.short.most = SHORT as u32;
        advanced
    }

    /// Moves on to the next completion, looking at each queue pair in turn that does not rest; false if there is none.
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
        if self.members.take_next(&mut self.current) {
            if self.may_overrun {
                self.check_overrun()?;
            }
            return Ok(true);
        }
        self.until_check = 0;
        Ok(false)
    }

    /// True if a poll would give something.
    pub(crate) fn has_completion(&mut self) -> Result<bool, CqError> {
        self.refresh()?;
        Ok(self.members.has_completion())
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
            // What came between arming and looking has rung for nobody. Who is about to ring only now, rings for nobody too.
            None => {
                self.shared.arming().disarm();
                self.bell().clear();
            }
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

    pub(crate) fn members(&self) -> &Members {
        &self.members
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
        let (news, boards, version) = self.shared.news();
        self.version = version;
        // Who came gets on a network later; of those that went, one may have been the last that was.
        let anew = news.changed || self.network.is_some() && !news.went.is_empty();
        self.members.apply(news, boards);
        if anew {
            self.network = self.members.network();
        }
        self.may_overrun = self.members.most() > u64::from(self.shared.depth());
        self.until_check = 0;
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

    fn count_waiting(&mut self, taken: u32, depth: u32) -> Result<(), CqError> {
        if taken + self.members.waiting(depth) <= depth {
            return Ok(());
        }
        self.failed = true;
        self.shared.home().events().raise(AsyncEvent::CqError);
        self.members.fail();
        Err(CqError::Overrun { depth })
    }
}
