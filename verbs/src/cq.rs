//! Completion queues: polled by one owner, or slept upon through a channel.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::error::{CqError, CreateError};
use crate::soft::{self, Bells, CqShared, EventFd, Home, SoftCq};
use crate::wc::Completion;

/// A completion queue. Whoever owns it polls it; a [`Completion`] can not outlive the next poll.
#[derive(Debug)]
pub struct CompletionQueue {
    soft: SoftCq,
    _channel: Option<Attached>,
}

/// Which completions end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Any completion.
    Any,
    /// Receives of messages sent as solicited, and errors.
    Solicited,
}

/// A completion channel: a descriptor that turns readable when an armed completion queue has something; a mio
/// [`Source`].
///
/// Arm each queue, poll it once more (something may have come in between), and only then sleep. After waking,
/// [`clear`](CompletionChannel::clear) the channel once for all events so far, and poll. A queue that rang has to be armed
/// again; those that did not are armed still.
#[derive(Debug)]
pub struct CompletionChannel {
    shared: Arc<Channel>,
}

/// What a channel and its queues share.
#[derive(Debug)]
struct Channel {
    bells: Bells,
    /// Queues whose events come here.
    queues: Mutex<Vec<Arc<CqShared>>>,
}

/// A queue's place in its channel.
#[derive(Debug)]
struct Attached {
    channel: Arc<Channel>,
    queue: Arc<CqShared>,
}

impl CompletionQueue {
    pub(crate) fn new(home: &Arc<Home>, depth: u32, channel: Option<&CompletionChannel>) -> Result<Self, CreateError> {
        let bell = EventFd::new().map_err(no_descriptor)?;
        let soft = SoftCq::new(home, depth, Arc::new(bell))?;
        let attached = channel.map(|channel| Attached::new(&channel.shared, soft.shared())).transpose()?;
        Ok(CompletionQueue { soft, _channel: attached })
    }

    /// The next completion, if there is one. Never blocks.
    ///
    /// # Errors
    /// [`CqError::Overrun`] once more completions waited than the queue holds.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion<'_>>, CqError> {
        Ok(if self.soft.advance()? { Some(Completion::new(self.soft.current())) } else { None })
    }

    /// Waits for a completion: spins briefly, yields, then sleeps.
    ///
    /// # Errors
    /// [`CqError`] as [`poll`](CompletionQueue::poll), or if the system refuses to wait.
    pub fn wait(&mut self) -> Result<Completion<'_>, CqError> {
        loop {
            self.ready(None)?;
            // A queue pair may say that it has something, and turn out to have been closed.
            if self.soft.advance()? {
                return Ok(Completion::new(self.soft.current()));
            }
        }
    }

    /// Waits for a completion, no longer than `limit`.
    ///
    /// # Errors
    /// As [`wait`](CompletionQueue::wait), and [`CqError::TimedOut`].
    pub fn wait_for(&mut self, limit: Duration) -> Result<Completion<'_>, CqError> {
        // A limit beyond what the clock can say is none.
        let Some(deadline) = Instant::now().checked_add(limit) else { return self.wait() };
        loop {
            self.ready(Some(deadline.saturating_duration_since(Instant::now())))
                .map_err(|error| if let CqError::TimedOut(_) = error { CqError::TimedOut(limit) } else { error })?;
            if self.soft.advance()? {
                return Ok(Completion::new(self.soft.current()));
            }
            if Instant::now() > deadline {
                return Err(CqError::TimedOut(limit));
            }
        }
    }

    /// Asks for one event at the next completion. Poll once more before sleeping.
    pub fn arm(&mut self, which: Arm) {
        self.soft.arm(which);
    }

    /// Takes the arming back: as long as its owner polls, nobody needs to wake it.
    pub fn disarm(&mut self) {
        self.soft.shared().arming().disarm();
    }

    /// Number of completions that the queue holds.
    pub fn depth(&self) -> u32 {
        self.soft.depth()
    }

    pub(crate) fn soft(&self) -> &SoftCq {
        &self.soft
    }

    /// Returns once a poll would give something.
    fn ready(&mut self, limit: Option<Duration>) -> Result<(), CqError> {
        for spin in 0..SPINS + YIELDS {
            if self.soft.has_completion()? {
                return Ok(());
            }
            if spin < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if limit == Some(Duration::ZERO) {
            return Err(CqError::TimedOut(Duration::ZERO));
        }
        // An arming of the caller's outlives this sleep, one of the sleep's own does not.
        let before = self.soft.shared().arming().call();
        let slept = self.sleep(limit);
        match before {
            Some(call) => self.soft.shared().arming().arm(call),
            None => self.soft.shared().arming().disarm(),
        }
        slept
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), CqError> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            self.soft.bell().clear();
            self.soft.arm(Arm::Any);
            if self.soft.has_completion()? {
                return Ok(());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(CqError::TimedOut(limit.unwrap_or_default()));
            }
            self.soft.bell().wait(left)?;
        }
    }
}

/// About 2 us of polling: several times a shared-memory round trip.
const SPINS: u32 = 400;
/// Some tens of microseconds for a peer that shares the core, before paying for a sleep and a wake-up.
const YIELDS: u32 = 64;

impl CompletionChannel {
    pub(crate) fn new() -> Result<Self, CreateError> {
        let bells = Bells::new().map_err(no_descriptor)?;
        Ok(CompletionChannel { shared: Arc::new(Channel { bells, queues: Mutex::default() }) })
    }

    /// Takes note of all events so far: the queues that rang are not armed any more, and the channel is not readable until
    /// another rings.
    pub fn clear(&self) {
        let queues = self.shared.queues();
        self.shared.bells.each_ringing(queues.len(), |which| {
            if let Some(queue) = queues.iter().find(|queue| soft::name(queue.bell()) == which) {
                queue.arming().disarm();
                queue.bell().clear();
            }
        });
    }

    /// Sleeps until an event comes, or `limit` is over; true if one came.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        soft::wait(&self.shared.bells, limit)
    }
}

impl Channel {
    fn queues(&self) -> MutexGuard<'_, Vec<Arc<CqShared>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attached {
    fn new(channel: &Arc<Channel>, queue: &Arc<CqShared>) -> Result<Self, CreateError> {
        channel.bells.add(queue.bell()).map_err(no_descriptor)?;
        channel.queues().push(queue.clone());
        Ok(Attached { channel: channel.clone(), queue: queue.clone() })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.channel.bells.remove(self.queue.bell());
        self.channel.queues().retain(|queue| !Arc::ptr_eq(queue, &self.queue));
    }
}

fn no_descriptor(source: io::Error) -> CreateError {
    CreateError::System { what: "create an event descriptor", source }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.shared.bells.as_raw_fd()
    }
}

impl Source for CompletionChannel {
    fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).register(registry, token, interests)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).deregister(registry)
    }
}
