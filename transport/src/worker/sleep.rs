//! Waiting: spin, yield, then sleep on the completion channel and the sockets.

use std::time::Duration;

use qpair_verbs::Arm;

use super::Worker;
use super::error::WorkerError;
use super::event::Event;

/// Whether a worker may be slept upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is an event, which [`Worker::poll`] gives, or there will be after some more polls: a GPU copies, of which no
    /// descriptor tells.
    Ready,
    /// Until its descriptor is readable, and no longer than that.
    Until(Option<Duration>),
}

impl Worker {
    /// Waits for an event: spins, then yields the core, then sleeps. `None` after `limit`; without a limit, never.
    ///
    /// # Errors
    /// As [`poll`](Worker::poll).
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<Event>, WorkerError> {
        for _ in 0..self.config.spin {
            if let Some(event) = self.poll()? {
                return Ok(Some(event));
            }
            std::hint::spin_loop();
        }
        let mut now = self.now();
        let deadline = limit.map(|limit| now.saturating_add(limit));
        loop {
            for _ in 0..self.config.yields {
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return self.poll();
                }
                std::thread::yield_now();
                if let Some(event) = self.poll()? {
                    return Ok(Some(event));
                }
                now = self.now();
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return self.poll();
            }
            if let Some(event) = self.sleep(now, deadline)? {
                return Ok(Some(event));
            }
            now = self.now();
        }
    }

    /// Gets ready for a sleep in a program's own event loop: until this worker's descriptor ([`AsFd`](std::os::fd::AsFd), or
    /// mio's `Source`) is readable, and no longer than it says. [`poll`](Worker::poll) ends it.
    ///
    /// ```
    /// use mio::{Events, Interest, Poll, Token};
    /// use qpair_transport::{Armed, Config, Event, Tag, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let ep = worker.connect(server.local_addr())?;
    /// worker.send(ep, Tag(1), &b"hello"[..])?;
    ///
    /// let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(8));
    /// poll.registry().register(&mut worker, Token(0), Interest::READABLE)?;
    /// 'all: loop {
    ///     while let Some(event) = worker.poll()? {
    ///         if let Event::Received { message, .. } = event {
    ///             assert_eq!(&message[..], b"hello");
    ///             break 'all;
    ///         }
    ///     }
    ///     if let Armed::Until(limit) = worker.arm()? {
    ///         poll.poll(&mut events, limit)?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`poll`](Worker::poll).
    pub fn arm(&mut self) -> Result<Armed, WorkerError> {
        if self.arm_queue()? {
            return Ok(Armed::Ready);
        }
        let now = self.now();
        self.armed = true;
        self.countdown = 1;
        Ok(Armed::Until(self.longest_sleep(now, None)))
    }

    /// Sleeps until a completion, a socket, a timer, or `deadline`.
    pub(super) fn sleep(&mut self, now: Duration, deadline: Option<Duration>) -> Result<Option<Event>, WorkerError> {
        if self.arm_queue()? {
            if let Some(event) = self.next_ready() {
                return Ok(Some(event));
            }
            // Sleeps are of a millisecond at least, in which a GPU copies all slots: others have the core, if they want it.
            std::thread::yield_now();
            return self.poll();
        }
        let limit = self.longest_sleep(now, deadline);
        let slept = self.service(now, limit);
        self.wake_up();
        slept?;
        self.poll()
    }

    /// Asks to be told of what comes from now on. True, and nothing is asked, if something is there already, or is to come that
    /// nobody tells of.
    fn arm_queue(&mut self) -> Result<bool, WorkerError> {
        // What comes now is behind it.
        if !self.ready.is_empty() || self.staging.is_copying() {
            return Ok(true);
        }
        self.cq.arm(Arm::Any);
        self.rails.queues().for_each(|cq| cq.arm(Arm::Any));
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.receives.arm(Arm::Any);
        }
        // The arming tells of what comes from now on: what is there must be taken, all of it. Where it does not cease, there is
        // no sleep.
        for _ in 0..ROUNDS {
            self.cut_short = false;
            if let Some(event) = self.reap()? {
                if let Some(notices) = self.notices.as_mut().filter(|_| event.is_notice()) {
                    notices.push_front(self.notice.take());
                }
                self.ready.push_front(event);
            }
            // No descriptor tells of what was noticed since it was last looked, as that a peer can not be called at all.
            self.see_to_notices();
            if !self.ready.is_empty() || self.staging.is_copying() {
                self.wake_up();
                return Ok(true);
            }
            if !self.cut_short {
                return Ok(false);
            }
        }
        self.wake_up();
        Ok(true)
    }

    /// How long to sleep at most.
    fn longest_sleep(&self, now: Duration, deadline: Option<Duration>) -> Option<Duration> {
        let chores = self.chores().then(|| now + CHORES);
        let timers = [self.timers.next(), self.sockets.next_deadline(), self.deadlines.next(), self.staging.look_due()];
        let until = timers.into_iter().chain([deadline, chores]).flatten().min();
        // The clock of a sleep is coarse: a little more, so that the timer is due when it ends.
        until.map(|until| until.saturating_sub(now).min(LONGEST) + Duration::from_micros(50))
    }

    /// The end of a sleep that [`arm`](Worker::arm) began.
    #[cold]
    pub(super) fn end_sleep(&mut self, now: Duration) -> Result<(), WorkerError> {
        self.armed = false;
        self.wake_up();
        self.service(now, Some(Duration::ZERO))
    }

    /// As long as this side polls, peers need not ring.
    fn wake_up(&mut self) {
        self.cq.disarm();
        self.rails.queues().for_each(|cq| cq.disarm());
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.receives.disarm();
        }
        self.channel.clear();
        self.rails.channels().for_each(|channel| channel.clear());
    }

    /// True if something waits that no descriptor tells of: messages that the application may drop at any time, connections that
    /// end, memory that peers may leave at any time, connections that could not be accepted; or something that the system may have
    /// memory for again.
    fn chores(&self) -> bool {
        self.slabs.lent() > 0
            || self.pool.lent() > 0
            || self.pool.has_line()
            || self.broken > 0
            || !self.withheld.is_empty()
            || self.registrations.has_chores()
            || !self.parting.is_empty()
            || self.sockets.has_chores()
    }
}

/// Batches that are taken before a sleep, at most.
const ROUNDS: usize = 256;
/// How long to sleep at most: what the system takes as a limit ends somewhere, and an hour more or less is nothing.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long to sleep at most while chores wait.
const CHORES: Duration = Duration::from_millis(5);
