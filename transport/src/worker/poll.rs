//! Polling, and waiting: spin, yield, then sleep on the completion channel and the sockets.

use std::time::Duration;

use qpair_verbs::{Arm, Local, WcOpcode};

use super::Worker;
use super::error::WorkerError;
use super::event::Event;
use super::slabs::{Peer, Reclaimed};

impl Worker {
    /// The next event, if there is one. Never blocks, and does not allocate once connections and memory are warm.
    ///
    /// # Errors
    /// [`WorkerError`] if the completion queue failed, or the system refuses to poll the sockets.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Event>, WorkerError> {
        if let Some(event) = self.ready.pop_front() {
            return Ok(Some(event));
        }
        self.countdown -= 1;
        if self.countdown == 0 {
            self.tick()?;
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
        }
        self.reap()
    }

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
        let deadline = limit.map(|limit| now + limit);
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

    /// Sleeps until a completion, a socket, a timer, or `deadline`.
    fn sleep(&mut self, now: Duration, deadline: Option<Duration>) -> Result<Option<Event>, WorkerError> {
        self.cq.arm(Arm::Any);
        if let Some(event) = self.reap()? {
            self.channel.clear();
            return Ok(Some(event));
        }
        let until = [deadline, self.next_timer(), self.chores().then(|| now + CHORES)].into_iter().flatten().min();
        // The clock of a sleep is coarse: a little more, so that the timer is due when it ends.
        let limit = until.map(|until| until.saturating_sub(now) + Duration::from_micros(50));
        let slept = self.service(now, limit);
        // Ends the arming too: as long as this side polls, peers need not ring.
        self.channel.clear();
        slept?;
        self.poll()
    }

    /// True if something waits that no descriptor tells of: messages that the application may drop at any time,
    /// connections that end, requests that the device carries out by and by.
    fn chores(&self) -> bool {
        self.slabs.lent() > 0
            || self.pool.lent() > 0
            || self.broken > 0
            || !self.withheld.is_empty()
            || self.sockets.pending() > 0
    }

    /// Takes completions until one gives an event, at most a batch.
    #[inline(always)]
    fn reap(&mut self) -> Result<Option<Event>, WorkerError> {
        for _ in 0..BATCH {
            let Some(completion) = self.cq.poll()? else { return Ok(self.idle()) };
            if completion.opcode() == WcOpcode::RECV && completion.status().is_success() {
                let (qpn, len) = (completion.qpn(), completion.byte_len());
                if let Local::Slab(slab) = completion.into_memory()
                    && let Some(event) = self.received(qpn, len, slab)
                {
                    return Ok(Some(event));
                }
                continue;
            }
            let (wc, memory) = (completion.values(), completion.into_memory());
            let event = match wc.opcode {
                WcOpcode::RECV => self.receive_failed(&wc, memory),
                _ => self.completed(&wc, memory),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Nothing has come: time for what is put off otherwise.
    #[inline]
    fn idle(&mut self) -> Option<Event> {
        if self.slabs.lent() > 0 {
            self.reclaim(LOOKS);
        }
        if self.pool.lent() > 0 && self.pool.reclaim() {
            self.resume();
        }
        if self.broken > 0 {
            self.end_broken(None);
            return self.ready.pop_front();
        }
        None
    }

    /// Looks at the slabs that are lent longest, at most so many, and posts those again that are free.
    pub(super) fn reclaim(&mut self, most: usize) {
        for _ in 0..most.min(self.slabs.lent()) {
            let (endpoints, half) = (&self.endpoints, self.config.window / 2);
            let peer = |owner| match endpoints.get(owner) {
                Some(endpoint) if endpoint.link.outstanding_slots() <= half => Peer::Starving,
                Some(_) => Peer::Fine,
                None => Peer::Gone,
            };
            match self.slabs.reclaim(peer) {
                Reclaimed::Slot(owner) => {
                    if let Some(endpoint) = self.endpoints.get_mut(owner) {
                        endpoint.link.give_slot();
                    }
                    self.return_credits(owner);
                }
                Reclaimed::Kept | Reclaimed::Spare => {}
                Reclaimed::Nothing => return,
            }
        }
    }

    /// There is memory again for long messages without a receive.
    #[cold]
    fn resume(&mut self) {
        for index in 0..self.endpoints.bound() {
            if self.endpoints.at(index).is_some_and(|endpoint| endpoint.link.resume()) {
                self.pump(index);
            }
        }
    }
}

/// Completions that one poll takes at most, if none of them is an event.
const BATCH: usize = 16;
/// Lent slabs that an idle poll looks at, at most.
const LOOKS: usize = 4;
/// How long to sleep at most while chores wait.
const CHORES: Duration = Duration::from_millis(5);
