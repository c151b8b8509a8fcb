//! Completion queues: polled by one owner, or slept upon through a channel.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{CqError, CreateError};
use crate::ibv;
use crate::qp::CqHandle;
use crate::soft::{self, Bell, Home};
use crate::wc::{Completion, Current};

/// A completion queue. Whoever owns it polls it; a [`Completion`] can not outlive the next poll.
#[derive(Debug)]
pub struct CompletionQueue {
    queue: Queue,
}

/// The owner's end of a queue of one of the providers.
#[derive(Debug)]
enum Queue {
    Soft { queue: soft::SoftCq, _attached: Option<soft::Attached> },
    Ibv(ibv::Cq),
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
/// [`Source`](mio::event::Source).
///
/// Arm each queue, poll it once more (something may have come in between), and only then sleep. After waking,
/// [`clear`](CompletionChannel::clear) the channel once for all events so far, and poll. A queue that rang has to be armed
/// again; those that did not are armed still.
///
/// An event may have nothing behind it: of an armed queue that was [disarmed](CompletionQueue::disarm), or that was waited
/// for meanwhile ([`wait`](CompletionQueue::wait) arms it for the sleep, on the software device), who completed may be about
/// to ring. The queue is found empty then, and has to be armed again like any that rang.
#[derive(Debug)]
pub struct CompletionChannel {
    channel: Channel,
}

/// A channel of one of the providers.
#[derive(Debug)]
enum Channel {
    Soft(Arc<soft::Channel>),
    Ibv(Arc<ibv::Channel>),
}

impl CompletionQueue {
    pub(crate) fn soft(home: &Arc<Home>, depth: u32, channel: Option<&CompletionChannel>) -> Result<Self, CreateError> {
        let bell = Bell::new().map_err(no_descriptor)?;
        let queue = soft::SoftCq::new(home, depth, bell)?;
        let attached = match channel.map(|channel| &channel.channel) {
            None => None,
            Some(Channel::Soft(channel)) => Some(soft::Attached::new(channel, queue.shared()).map_err(no_descriptor)?),
            Some(Channel::Ibv(_)) => return Err(FOREIGN_CHANNEL),
        };
        Ok(CompletionQueue { queue: Queue::Soft { queue, _attached: attached } })
    }

    pub(crate) fn ibv(
        device: &Arc<ibv::Device>,
        depth: u32,
        channel: Option<&CompletionChannel>,
        timestamps: bool,
    ) -> Result<Self, CreateError> {
        let channel = match channel.map(|channel| &channel.channel) {
            None => None,
            Some(Channel::Ibv(channel)) if channel.is_of(device) => Some(channel),
            Some(_) => return Err(FOREIGN_CHANNEL),
        };
        Ok(CompletionQueue { queue: Queue::Ibv(ibv::Cq::create(device, depth, channel, timestamps)?) })
    }

    /// The next completion, if there is one. Never blocks.
    ///
    /// # Errors
    /// [`CqError::Overrun`] once more completions waited than the queue holds; [`CqError::Device`] if the device can not be
    /// polled.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion<'_>>, CqError> {
        self.next(false)
    }

    /// As [`poll`](CompletionQueue::poll), for one who reads messages where they are ([`Completion::message`]) and posts their
    /// receives again ([`QueuePair::repost`](crate::QueuePair::repost)): up to 580 bytes do not go through the memory of the
    /// receive then on the software device, instead of 100. To take the memory out costs more so.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn poll_in_place(&mut self) -> Result<Option<Completion<'_>>, CqError> {
        self.next(true)
    }

    #[inline(always)]
    fn next(&mut self, in_place: bool) -> Result<Option<Completion<'_>>, CqError> {
        Ok(match &mut self.queue {
            Queue::Soft { queue, .. } => {
                let is_there = if in_place { queue.advance_in_place()? } else { queue.advance()? };
                if is_there { Some(Completion::new(queue.current())) } else { None }
            }
            Queue::Ibv(queue) => {
                let is_there = match queue.advance_short()? {
                    ibv::Short::Completion => true,
                    ibv::Short::Nothing => false,
                    ibv::Short::LongWay => queue.advance()?,
                };
                if is_there { Some(Completion::new(queue.current())) } else { None }
            }
        })
    }

    /// Waits for a completion: spins briefly, yields, then sleeps.
    ///
    /// # Errors
    /// [`CqError`] as [`poll`](CompletionQueue::poll), or if the system refuses to wait.
    pub fn wait(&mut self) -> Result<Completion<'_>, CqError> {
        loop {
            self.ready(None)?;
            // A queue pair may say that it has something, and turn out to have been closed.
            if self.advance()? {
                return Ok(Completion::new(self.current()));
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
            if self.advance()? {
                return Ok(Completion::new(self.current()));
            }
            if Instant::now() > deadline {
                return Err(CqError::TimedOut(limit));
            }
        }
    }

    /// Asks for one event at the next completion. Poll once more before sleeping. Where the device refuses, the event comes at
    /// once, with nothing behind it: whoever sleeps only after arming polls then.
    pub fn arm(&mut self, which: Arm) {
        match &mut self.queue {
            Queue::Soft { queue, .. } => queue.arm(which),
            Queue::Ibv(queue) => queue.arm(which),
        }
    }

    /// Takes the arming back: as long as its owner polls, nobody needs to wake it. Who is about to ring still does so, and
    /// hardware can not be disarmed; an event may come that has nothing behind it.
    pub fn disarm(&mut self) {
        if let Queue::Soft { queue, .. } = &self.queue {
            queue.shared().arming().disarm();
        }
    }

    /// Number of completions that the queue holds.
    pub fn depth(&self) -> u32 {
        match &self.queue {
            Queue::Soft { queue, .. } => queue.depth(),
            Queue::Ibv(queue) => queue.depth(),
        }
    }

    pub(crate) fn handle(&self) -> CqHandle {
        match &self.queue {
            Queue::Soft { queue, .. } => CqHandle::Soft(queue.shared().clone()),
            Queue::Ibv(queue) => CqHandle::Ibv(queue.shared().clone()),
        }
    }

    /// How many queue pairs polls pass by, since they were idle for long: for tests of that. None on hardware.
    #[doc(hidden)]
    pub fn resting(&self) -> usize {
        match &self.queue {
            Queue::Soft { queue, .. } => queue.members().resting(),
            Queue::Ibv(_) => 0,
        }
    }

    fn advance(&mut self) -> Result<bool, CqError> {
        match &mut self.queue {
            Queue::Soft { queue, .. } => queue.advance(),
            Queue::Ibv(queue) => queue.advance(),
        }
    }

    fn current(&mut self) -> &mut Current {
        match &mut self.queue {
            Queue::Soft { queue, .. } => queue.current(),
            Queue::Ibv(queue) => queue.current(),
        }
    }

    fn has_completion(&mut self) -> Result<bool, CqError> {
        match &mut self.queue {
            Queue::Soft { queue, .. } => queue.has_completion(),
            Queue::Ibv(queue) => queue.has_completion(),
        }
    }

    /// Returns once a poll would give something.
    fn ready(&mut self, limit: Option<Duration>) -> Result<(), CqError> {
        for spin in 0..SPINS + YIELDS {
            if self.has_completion()? {
                return Ok(());
            }
            if spin < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if limit == Some(Duration::ZERO) {
            return Err(CqError::TimedOut(Duration::ZERO));
        }
        match &mut self.queue {
            Queue::Soft { queue, .. } => queue.sleep(limit),
            Queue::Ibv(queue) => queue.sleep(limit),
        }
    }
}

/// About 2 us of polling: several times a shared-memory round trip.
const SPINS: u32 = 400;
/// Some tens of microseconds for a peer that shares the core, before paying for a sleep and a wake-up.
const YIELDS: u32 = 64;

impl CompletionChannel {
    pub(crate) fn soft() -> Result<Self, CreateError> {
        Ok(CompletionChannel { channel: Channel::Soft(soft::Channel::new().map_err(no_descriptor)?) })
    }

    pub(crate) fn ibv(device: &Arc<ibv::Device>) -> Result<Self, CreateError> {
        Ok(CompletionChannel { channel: Channel::Ibv(ibv::Channel::create(device)?) })
    }

    /// Takes note of all events so far: the queues that rang are not armed any more, and the channel is not readable until
    /// another rings.
    pub fn clear(&self) {
        match &self.channel {
            Channel::Soft(channel) => channel.clear(),
            Channel::Ibv(channel) => channel.clear(),
        }
    }

    /// Sleeps until an event comes, or `limit` is over; true if one came.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        match &self.channel {
            Channel::Soft(channel) => soft::wait(&**channel, limit),
            Channel::Ibv(channel) => soft::wait(&**channel, limit),
        }
    }
}

const FOREIGN_CHANNEL: CreateError = CreateError::ForeignObject { what: "the completion channel" };

fn no_descriptor(source: io::Error) -> CreateError {
    CreateError::System { what: "create the descriptors that a sleeper is woken by", source }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        match &self.channel {
            Channel::Soft(channel) => channel.as_raw_fd(),
            Channel::Ibv(channel) => channel.as_raw_fd(),
        }
    }
}

crate::source::by_descriptor!(CompletionChannel);
