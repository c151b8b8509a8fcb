//! The operations under way: takes what comes for them, and moves them on.

use std::time::{Duration, Instant};

use qpair_transport::{EndpointId, Event, Message, OpError, OpId, Tag};

use super::cache::PlanCache;
use super::exec::Exec;
use super::net::Net;
use super::run::Run;
use super::stash::{Early, MOST};
use super::straight::{Came, Straight};
use super::tag::{Fields, Kind};
use super::wait::{Patience, Pause, TimeLimit, Wait};
use crate::bootstrap::Alarm;
use crate::fault::{Fault, Outcome};

/// The operations under way, in the order in which they were started, and what it takes to run them.
pub(crate) struct Engine<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) cache: &'a mut PlanCache,
    pub(crate) runs: &'a mut Runs,
    pub(crate) wait: &'a mut Wait,
    pub(crate) alarm: &'a Alarm,
    pub(crate) patience: Patience,
    /// How long nothing may happen.
    pub(crate) limit: Duration,
    /// Of those that have no room yet: the one whose time is over first.
    pub(crate) waiting: Option<&'a TimeLimit>,
}

/// Operations, each in a place of its own: a run is most of a kilobyte, and moves from one list to another with each operation.
pub(crate) type Runs = Vec<Box<Run>>;

impl Engine<'_> {
    /// The operation at a place.
    #[inline]
    pub(crate) fn exec(&mut self, at: usize) -> Outcome<Exec<'_>> {
        match self.runs.get_mut(at) {
            Some(run) => match self.cache.plan(run.plan) {
                Some(plan) => Ok(Exec { net: self.net, plan, run }),
                None => Err(no_operation(self.net.me)),
            },
            None => Err(no_operation(self.net.me)),
        }
    }

    /// Starts the operation at a place, which was prepared, as far as that can be done at once.
    #[inline]
    pub(crate) fn start(&mut self, at: usize) -> Outcome<()> {
        self.wait.reset();
        self.activate(at)
    }

    /// Goes on with the operation that was prepared, the only one, which was run straight up to where that stopped.
    #[cold]
    pub(crate) fn resume(&mut self, straight: &mut Straight) -> Outcome<()> {
        let mut exec = self.exec(self.runs.len().saturating_sub(1))?;
        exec.resume(straight)?;
        match straight.came.take() {
            Some(Came::Event(event)) => self.handle(event).map(drop),
            Some(Came::Unfit(number)) => Err(exec.unfit(number)),
            Some(Came::Broken(error)) => Err(self.broken(&error)),
            None => Ok(()),
        }
    }

    /// Starts the operation at a place, if its peers are connected, and the operations before it have started that any of them
    /// numbers with it.
    #[inline]
    fn activate(&mut self, at: usize) -> Outcome<()> {
        let (epoch, links) = (self.net.epoch, self.net.links);
        if self.is_behind(at) {
            return Ok(());
        }
        let exec = self.exec(at)?;
        if exec.plan.introduced != epoch {
            // Nothing has changed since it was looked at.
            if exec.run.looked == links {
                return Ok(());
            }
            exec.run.looked = links;
            if !self.introduce(at)? {
                return Ok(());
            }
        }
        self.exec(at)?.start()
    }

    /// Whether an operation before it has to start first.
    #[inline]
    fn is_behind(&self, at: usize) -> bool {
        let plan = |run: &Run| self.cache.get(run.plan);
        let Some(own) = self.runs.get(at).and_then(|run| plan(run)) else { return false };
        let mut waiting = self.runs.iter().take(at).filter(|run| !run.is_active());
        waiting.any(|run| plan(run).is_some_and(|before| own.is_numbered_with(before)))
    }

    /// Runs the operation at a place to its end.
    #[inline]
    pub(crate) fn complete(&mut self, at: usize) -> Outcome<()> {
        while !self.exec(at)?.is_complete() {
            self.step(Duration::MAX)?;
        }
        Ok(())
    }

    /// Does what can be done at once; if that was nothing, waits a little for something to do, and sleeps for no longer than
    /// `nap`.
    #[inline]
    pub(crate) fn step(&mut self, nap: Duration) -> Outcome<()> {
        if !self.advance()? {
            return self.idle(nap);
        }
        if self.is_due() { self.look_between() } else { Ok(()) }
    }

    /// Whether it is time for a look at what ends operations, though there is always something to do: what came before a fault
    /// counts, but others may make things come without end.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        // What is read and written at once may be long.
        let bytes = std::mem::take(&mut self.net.moved);
        self.wait.moves = self.wait.moves.saturating_add(1).saturating_add((bytes >> 12) as u32);
        let is_due = self.wait.moves >= MOVES;
        if is_due {
            self.wait.moves = 0;
        }
        is_due
    }

    #[cold]
    fn look_between(&mut self) -> Outcome<()> {
        if self.alarm.is_raised() {
            return Err(self.raised());
        }
        if self.wait.is_over(self.limit) {
            let place = self.place(None);
            return Err(self.timed_out(place, self.limit));
        }
        self.check_limits()
    }

    /// Does what can be done at once, once. False if that was nothing.
    #[inline]
    pub(crate) fn advance(&mut self) -> Outcome<bool> {
        let mut moved = false;
        for at in 0..self.runs.len() {
            let mut exec = self.exec(at)?;
            if exec.is_active() {
                moved |= exec.push_on()?;
            } else {
                self.activate(at)?;
            }
        }
        match self.net.worker.poll() {
            // Taken apart at once, for nothing to be copied that was just written.
            Ok(Some(Event::Received { ep, tag, message })) => {
                let counts = self.arrived(ep, tag, message)?;
                self.came(counts);
                Ok(true)
            }
            Ok(Some(event)) => {
                let counts = self.handle(event)?;
                self.came(counts);
                Ok(true)
            }
            Ok(None) => {
                if !self.net.strangers.is_empty() {
                    self.net.turn_silent_away();
                }
                Ok(moved)
            }
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Something came: the wait is over if an operation counts on it.
    #[inline]
    fn came(&mut self, counts: bool) {
        if counts {
            self.wait.reset();
        }
    }

    /// Nothing could be done: waits a little for something to do.
    #[inline]
    fn idle(&mut self, nap: Duration) -> Outcome<()> {
        if self.alarm.is_raised() {
            return Err(self.raised());
        }
        self.check_limits()?;
        match self.wait.pause(self.patience, self.limit) {
            Pause::Poll => Ok(()),
            Pause::Tell => {
                self.tell_place();
                self.free_slabs();
                Ok(())
            }
            // No event tells of what a GPU has copied.
            Pause::Sleep(_) if self.runs.iter().any(|run| run.staged.is_copying()) => {
                std::thread::yield_now();
                Ok(())
            }
            Pause::Sleep(limit) => {
                self.check_absent()?;
                self.ask_if_long()?;
                if self.free_slabs() { Ok(()) } else { self.sleep(limit.min(nap)) }
            }
            Pause::Over => {
                let place = self.place(None);
                Err(self.timed_out(place, self.limit))
            }
        }
    }

    /// Whether a rank is waited for that was to connect to this one, and has left: there is no connection to tell of it.
    #[cold]
    fn check_absent(&mut self) -> Outcome<()> {
        let Engine { net, cache, runs, alarm, .. } = self;
        let unconnected = runs.iter().filter(|run| !run.is_active()).filter_map(|run| cache.get(run.plan));
        let mut peers = unconnected.flat_map(|plan| &plan.peers);
        let absent = peers.find(|peer| net.awaits(peer.rank) && alarm.has_left(peer.rank)).map(|peer| peer.rank);
        let since = self.wait.absent.filter(|(rank, _)| Some(*rank) == absent);
        self.wait.absent = since.or_else(|| Some((absent?, Instant::now())));
        match since {
            // What it sent before it left may have been under way.
            Some((rank, since)) if since.elapsed() >= ON_THE_WAY => Err(Box::new(Fault::Left { rank })),
            _ => Ok(()),
        }
    }

    /// For who wants to know what ranks wait for.
    #[cold]
    fn tell_place(&mut self) {
        self.alarm.waits(self.net.me, self.place(None));
        self.wait.told = true;
    }

    #[cold]
    fn sleep(&mut self, limit: Duration) -> Outcome<()> {
        self.tell_place();
        // No event tells that there is room for a message again.
        let limit = if self.runs.iter().any(|run| run.is_held_up()) { limit.min(ROOM) } else { limit };
        match self.net.worker.wait(Some(limit)) {
            Ok(Some(event)) => {
                let counts = self.handle(event)?;
                self.came(counts);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Whether all peers of the plan are connected. They are told then what its number stands for.
    #[cold]
    fn introduce(&mut self, at: usize) -> Outcome<bool> {
        let Exec { net, plan, .. } = self.exec(at)?;
        if !net.connect(plan)? {
            return Ok(false);
        }
        if !net.announce(plan)? {
            return Ok(false);
        }
        // Where one has left, it is looked at again each time.
        plan.introduced = if plan.peers.iter().all(|peer| peer.ep.is_some()) { net.epoch } else { 0 };
        Ok(true)
    }

    /// Looks at what no event tells of, for who only looks now and then: the clock, and ranks that have left.
    pub(crate) fn look_up(&mut self) -> Outcome<()> {
        self.check_limits()?;
        self.check_absent()?;
        self.free_slabs();
        if self.wait.is_to_say() {
            // It may do something else next, for long, and be what others wait for.
            self.alarm.waits_for_now(self.net.me, self.place(None), SAID);
            self.wait.told = true;
        }
        self.ask_if_long()
    }

    /// Whether an operation has taken longer than it may, where nothing came for any.
    #[inline]
    fn check_limits(&mut self) -> Outcome<()> {
        if self.waiting.is_none() && self.runs.iter().all(|run| run.limit.is_none()) {
            return Ok(());
        }
        self.late()
    }

    #[cold]
    fn late(&mut self) -> Outcome<()> {
        let is_over = |limit: &TimeLimit| limit.is_over();
        for at in 0..self.runs.len() {
            let Some(TimeLimit { limit, .. }) = self.runs[at].limit.filter(is_over) else { continue };
            let exec = self.exec(at)?;
            if !exec.is_complete() {
                let place = exec.place(None);
                let place = if place.is_some() { place } else { self.place(None) };
                return Err(self.timed_out(place, limit));
            }
        }
        match self.waiting.filter(|limit| limit.is_over()) {
            Some(&TimeLimit { limit, .. }) => {
                let place = self.place(None);
                Err(self.timed_out(place, limit))
            }
            None => Ok(()),
        }
    }

    /// Makes room for messages of peers that are ahead and are waited for: their next one may be for an operation under way, and slabs
    /// are full of those for operations that have not begun. Whether there is room now that was not there.
    fn free_slabs(&mut self) -> bool {
        let stash = &mut self.net.stash;
        if !stash.is_crowded() {
            return false;
        }
        let plans = self.runs.iter().filter_map(|run| self.cache.get(run.plan));
        let ranks = plans.flat_map(|plan| plan.peers.iter().map(|peer| peer.rank));
        ranks.fold(false, |any, rank| any | stash.free_slabs(rank))
    }

    /// Takes what came. Whether an operation counts on it.
    #[inline]
    fn handle(&mut self, event: Event) -> Outcome<bool> {
        match event {
            Event::Received { ep, tag, message } => self.arrived(ep, tag, message),
            Event::Got { op, memory, .. } | Event::Put { op, memory, .. } => {
                drop(memory);
                self.transferred(op)
            }
            other => self.handle_other(other),
        }
    }

    #[inline]
    fn transferred(&mut self, op: OpId) -> Outcome<bool> {
        let Some(at) = self.runs.iter().position(|run| run.has_posted(op)) else { return Ok(false) };
        let mut exec = self.exec(at)?;
        exec.transferred(op)?;
        exec.start_ready().map(|()| true)
    }

    #[cold]
    fn handle_other(&mut self, event: Event) -> Outcome<bool> {
        match event {
            Event::Connected { ep } => return Ok(self.net.connected(ep)),
            Event::Accepted { ep, .. } => self.net.strangers.came(ep),
            Event::Closed { ep, reason } => {
                if let Some((rank, fault)) = self.net.closed(ep, &reason) {
                    for at in 0..self.runs.len() {
                        if self.needs(at, rank)? {
                            return Err(self.cause(rank, fault));
                        }
                    }
                }
            }
            Event::Offered { ep, tag, len } => return self.offered(ep, tag, len),
            Event::Sent { op, .. } => return self.slot_is_done(op, None),
            Event::ReceivedInto { op, memory, len, .. } => {
                drop(memory);
                return self.slot_is_done(op, Some(len));
            }
            // An operation on a connection that ends fails first; what it means is told by the end.
            Event::Failed { ep: Some(ep), error, .. } if error != OpError::Closed => {
                if let Some(rank) = self.net.rank_of(ep) {
                    return Err(self.failed(format!("it could not go on with rank {rank}: {error}")));
                }
            }
            Event::Rejected { peer, error, .. } => tracing::debug!(%peer, %error, "a connection was not made"),
            _ => {}
        }
        Ok(false)
    }

    /// The worker is done with a slot of an operation, into which so much came if it is one that was received.
    fn slot_is_done(&mut self, op: OpId, came: Option<usize>) -> Outcome<bool> {
        let Some(at) = self.runs.iter().position(|run| run.staged.has_posted(op)) else { return Ok(false) };
        let mut exec = self.exec(at)?;
        exec.slot_is_done(op, came)?;
        exec.start_ready().map(|()| true)
    }

    /// A peer, or a stranger, offers part of a message. None does so for an operation that this rank has not begun.
    fn offered(&mut self, ep: EndpointId, tag: Tag, len: u64) -> Outcome<bool> {
        let Some(fields) = Fields::decode(tag) else { return self.foreign(ep) };
        for at in 0..self.runs.len() {
            let mut exec = self.exec(at)?;
            if let Some(slot) = exec.takes(ep, fields) {
                return exec.offered(slot, (fields, tag), len).map(|()| true);
            }
        }
        if self.net.is_up(ep, fields.rank) { Err(self.net.differs(fields)) } else { self.foreign(ep) }
    }

    /// Something came from a peer, or from a stranger. Whether an operation counts on it.
    #[inline]
    fn arrived(&mut self, ep: EndpointId, tag: Tag, message: Message) -> Outcome<bool> {
        let Some(fields) = Fields::decode(tag) else { return self.foreign(ep) };
        match fields.kind {
            Kind::Hello | Kind::Announce => return self.introduced(ep, fields, &message),
            Kind::Waits => return self.asked(ep, fields),
            _ => {}
        }
        for at in 0..self.runs.len() {
            let mut exec = self.exec(at)?;
            if let Some(slot) = exec.takes(ep, fields) {
                exec.deliver(slot, fields, message)?;
                return exec.start_ready().map(|()| true);
            }
        }
        self.early(ep, fields, message)
    }

    #[cold]
    fn introduced(&mut self, ep: EndpointId, fields: Fields, text: &[u8]) -> Outcome<bool> {
        let links = self.net.links;
        let is_known = self.net.rank_of(ep).is_some();
        if fields.kind == Kind::Hello && !is_known {
            self.net.hello(ep, fields.rank, text);
        } else if fields.kind == Kind::Hello || !self.net.is_up(ep, fields.rank) {
            return self.foreign(ep);
        } else {
            for plan in self.cache.iter_mut() {
                if let Some(slot) = plan.slot(fields.rank) {
                    let theirs = &mut plan.peers[slot as usize].theirs;
                    *theirs = theirs.filter(|&theirs| theirs != fields.plan);
                }
            }
            self.net.announced(fields.rank, fields.plan, text)?;
        }
        Ok(self.net.links != links)
    }

    /// Something came for no operation under way: for one that this rank has not begun, or of a peer that does something
    /// else.
    fn early(&mut self, ep: EndpointId, fields: Fields, contents: Message) -> Outcome<bool> {
        if !self.net.is_up(ep, fields.rank) {
            return self.foreign(ep);
        }
        if self.net.is_to_come(fields.rank, fields.sequence) {
            if !self.net.stash.has_room(fields.rank) {
                let reason = format!(
                    "it is ahead of rank {} by {MOST} messages: have it wait now and then, as at a barrier",
                    self.net.me
                );
                return Err(Box::new(Fault::Failed { rank: fields.rank, reason }));
            }
            self.net.stash.push(Early { fields, contents: contents.into(), meant: None });
            // No wait is for what others are ahead with, or they could have it go on for ever.
            let mut waiting =
                self.runs.iter().filter(|run| !run.is_active()).filter_map(|run| self.cache.get(run.plan));
            return Ok(waiting.any(|plan| plan.slot(fields.rank).is_some()));
        }
        Err(self.net.differs(fields))
    }

    /// Something came that no rank of this release sends.
    #[cold]
    pub(super) fn foreign(&mut self, ep: EndpointId) -> Outcome<bool> {
        match self.net.rank_of(ep) {
            Some(rank) => {
                let reason = "it sent what no rank of this release sends: use one release for all ranks".into();
                Err(Box::new(Fault::Failed { rank, reason }))
            }
            None => {
                self.net.turn_away(ep);
                Ok(false)
            }
        }
    }
}

fn no_operation(me: u32) -> Box<Fault> {
    Box::new(Fault::Failed { rank: me, reason: "there is no operation".into() })
}

/// Between two looks at what ends operations, for a rank that always has something to do: some milliseconds, of which 4 KiB take as
/// much as any other.
const MOVES: u32 = 1 << 14;

/// How long it counts what a rank said that looks now and then.
const SAID: Duration = Duration::from_secs(1);

/// Between two looks whether there is room for what waits for it.
const ROOM: Duration = Duration::from_millis(1);

/// How long what a rank sent before it left may be on its way: as long as its worker waits for that.
const ON_THE_WAY: Duration = Duration::from_secs(6);
