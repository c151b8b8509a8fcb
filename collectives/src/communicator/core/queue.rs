//! Operations that wait to be started: for room beside those under way, or for a GPU.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Core, NAP, Ran};
use crate::communicator::operands::{Operands, Ticket};
use crate::execute::{Compiled, Key, Net, TimeLimit, stream};
use crate::fault::Fault;
use crate::plan::Collective;

/// The operations that wait, in the order in which they were started.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    /// So many of the first have no room, and have none before another has ended.
    looked: usize,
    /// What those are.
    passed: Passed,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    key: Key,
    operands: Operands,
    /// Since when it is the next and waits for a GPU.
    held: Option<Instant>,
}

/// Operations that others may pass: those that they do not come before or after at any rank, and take no room of.
#[derive(Debug, Default)]
struct Passed {
    /// Whether there are collectives among them, whose peers may be any.
    collectives: bool,
    /// By rank: the streams of transfers with it.
    transfers: Vec<u8>,
}

impl Core {
    pub(super) fn enqueue(&mut self, key: Key, operands: Operands) -> Ticket {
        let ticket = self.ticket();
        self.queue.waiting.push_back(Waiting { ticket, key, operands, held: None });
        ticket
    }

    /// Starts what waits, as long as there is room, and no GPU has to do something before. What has no room is passed by what
    /// does not count on it: as a send by the receives that its peer waits for before it receives itself. Operations that can
    /// not start are done.
    pub(super) fn start_waiting(&mut self) {
        while !self.queue.is_empty() {
            if self.is_over() {
                return self.refuse_waiting();
            }
            let at = self.queue.looked;
            if at == self.queue.waiting.len() {
                return;
            }
            match self.is_held(at) {
                Ok(false) if self.start_at(at) => {}
                Ok(false) => self.queue.pass(self.me),
                Ok(true) => return,
                Err(reason) => _ = self.fail_all(Fault::Failed { rank: self.me, reason }, None),
            }
        }
    }

    /// Starts the operation at a place of the queue, if it may pass those before it, and there is room.
    fn start_at(&mut self, at: usize) -> bool {
        let Core { cache, tuner, own_plans, runs, queue, me, .. } = self;
        let Waiting { ticket, ref key, .. } = queue.waiting[at];
        if queue.passed.come_before(key.spec.collective, *me) {
            return false;
        }
        let found = cache.find(key, *me, tuner, own_plans, |at| runs.iter().any(|run| run.plan == at));
        if let Some(plan) = found.as_ref().ok().and_then(|plan| self.cache.get(*plan))
            && !(self.queue.passed.leave_room_to(plan) && self.has_room(plan, ticket))
        {
            return false;
        }
        let Some(Waiting { ticket, key, operands, .. }) = self.queue.waiting.remove(at) else { return false };
        if let Err(ended) = self.begin(ticket, (&key, found), operands, Ran::Not) {
            self.keep(ticket, ended);
        }
        true
    }

    /// Whether an operation may be started beside those under way that were started before it. What a rank sends for operations
    /// that its peer has not begun takes up room there; so much is left that the oldest with that peer can always go on. Those
    /// that have passed it take none there.
    fn has_room(&self, plan: &Compiled, ticket: Ticket) -> bool {
        let older = &self.runs[..self.place_of(ticket)];
        if older.is_empty() {
            return true;
        }
        let room = self.net.as_ref().map_or(0, Net::others_room);
        plan.ahead().all(|(rank, ahead)| {
            let with_it = older.iter().filter_map(|run| self.cache.get(run.plan)).filter(|plan| plan.has_peer(rank));
            let mut younger = with_it.map(|plan| plan.ahead_of(rank));
            younger.next().is_none() || younger.sum::<u32>() + ahead <= room
        })
    }

    /// Whether the operation at a place has to wait for a GPU; or why it can not be waited for any more.
    fn is_held(&mut self, at: usize) -> Result<bool, String> {
        let next = &mut self.queue.waiting[at];
        let Some(events) = &mut next.operands.after else { return Ok(false) };
        let gpu = loop {
            let Some(event) = events.0.last() else {
                next.operands.after = None;
                return Ok(false);
            };
            if !event.is_done().map_err(|error| format!("what its GPU was to do before: {error}"))? {
                break event.gpu().ordinal();
            }
            events.0.pop();
        };
        let held = next.held.get_or_insert_with(Instant::now).elapsed();
        // Those behind it wait as well.
        let mut limits = self.queue.waiting.range(at..).filter_map(|one| one.operands.limit);
        if held > self.limit || limits.any(|limit| limit.left().is_zero()) {
            return Err(format!(
                "GPU {gpu} did not come to the event that an operation starts after; see what its stream does"
            ));
        }
        Ok(true)
    }

    /// The communicator has ended, and none of those is started any more.
    #[cold]
    fn refuse_waiting(&mut self) {
        self.queue.look_again();
        while let Some(Waiting { ticket, operands, .. }) = self.queue.waiting.pop_front() {
            let ended = self.refuse(operands);
            self.keep(ticket, ended);
        }
    }

    /// Lets those under way go on while others wait, which may be what they wait for on other ranks.
    pub(super) fn go_on(&mut self) {
        let under_way = self.runs.len();
        self.keep_complete();
        if self.runs.len() < under_way {
            return;
        }
        let nap = if self.queue.is_held() { NAP } else { Duration::MAX };
        match self.engine().and_then(|mut engine| engine.step(nap)) {
            Ok(()) => self.keep_complete(),
            Err(fault) => _ = self.fail_all(*fault, None),
        }
    }
}

impl Queue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the next operation waits for a GPU.
    pub(super) fn is_held(&self) -> bool {
        self.waiting.get(self.looked).is_some_and(|next| next.operands.after.is_some())
    }

    /// Of the operations that wait for room: the one whose time is over first, if any has a time of its own.
    pub(super) fn first_limit(&self) -> Option<&TimeLimit> {
        let count = if self.is_held() { self.looked } else { self.waiting.len() };
        let limits = self.waiting.iter().take(count).filter_map(|next| next.operands.limit.as_ref());
        limits.min_by_key(|limit| limit.left())
    }

    /// There may be room again.
    #[inline]
    pub(super) fn look_again(&mut self) {
        if self.looked > 0 {
            self.looked = 0;
            self.passed.clear();
        }
    }

    /// The next has no room: looks at those behind it.
    fn pass(&mut self, me: u32) {
        if let Some(next) = self.waiting.get(self.looked) {
            self.passed.add(next.key.spec.collective, me);
            self.looked += 1;
        }
    }
}

impl Passed {
    fn add(&mut self, collective: Collective, me: u32) {
        let Some((peer, stream)) = transfer(collective, me) else {
            self.collectives = true;
            return;
        };
        if self.transfers.len() <= peer {
            self.transfers.resize(peer + 1, 0);
        }
        self.transfers[peer] |= stream;
    }

    fn clear(&mut self) {
        self.collectives = false;
        self.transfers.fill(0);
    }

    /// Whether a peer counts that operation and one of these as the same, and so they come before it.
    fn come_before(&self, collective: Collective, me: u32) -> bool {
        match transfer(collective, me) {
            Some((peer, stream)) => self.with(peer) & stream != 0,
            None => self.collectives,
        }
    }

    /// Whether it sends no peer that one of these has anything before the peer has begun it: that would take their room.
    fn leave_room_to(&self, plan: &Compiled) -> bool {
        plan.ahead().all(|(rank, ahead)| ahead == 0 || !self.collectives && self.with(rank as usize) == 0)
    }

    fn with(&self, peer: usize) -> u8 {
        self.transfers.get(peer).copied().unwrap_or(0)
    }
}

/// The peer of a transfer, and a bit for the stream in which both number it.
fn transfer(collective: Collective, me: u32) -> Option<(usize, u8)> {
    let Collective::Transfer { from, to } = collective else { return None };
    let peer = if from == me { to } else { from };
    Some((peer as usize, 1 << stream(collective)))
}
