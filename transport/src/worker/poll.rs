//! Polling: completions are taken, and what is put off while there are some is done once there is none.

use qpair_verbs::{Local, PostError, Slab, WcOpcode};

use super::arrival::{At, BUSY, InPlace, Plain, WayIn};
use super::awaited::{Await, Nothing};
use super::error::WorkerError;
use super::event::Event;
use super::ids::{EndpointId, HandlerId, Tag};
use super::memory::{EagerSlabs, Oldest};
use super::service::STRIDE;
use super::{Worker, datagram};
use crate::engine::Class;

impl Worker {
    /// The next event, if there is one. Does not allocate once connections and memory are warm, and does not block:
    /// where a handshake needs an answer of another process of the host, which may be stopped, others go on meanwhile. (But a call by
    /// rdma_cm that is the first to use the software device's network waits for those that have the port, seconds at most.) Short
    /// messages into memory of a GPU that is not registered are there when it returns, so that it takes as long as that GPU does
    /// for a copy.
    ///
    /// # Errors
    /// [`WorkerError`] if the completion queue failed, or the system refuses to poll the sockets.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Event>, WorkerError> {
        self.poll_awaiting(&mut Nothing)
    }

    /// The next event, or a message that is awaited, which is taken.
    #[inline(always)]
    pub(super) fn poll_awaiting(&mut self, awaited: &mut impl Await) -> Result<Option<Event>, WorkerError> {
        if let Some(event) = self.next_ready() {
            return Ok(Some(event));
        }
        self.countdown -= BUSY_POLL;
        if self.countdown <= 0 {
            self.tick()?;
            if let Some(event) = self.next_ready() {
                return Ok(Some(event));
            }
        }
        self.reap_awaiting(awaited)
    }

    /// The next event that is ready. The operation that it ends has no deadline any more.
    #[inline]
    pub(super) fn next_ready(&mut self) -> Option<Event> {
        let event = self.ready.pop_front()?;
        if let Some(notices) = &mut self.notices
            && event.is_notice()
        {
            self.notice = notices.pop_front().flatten();
        }
        if !self.deadlines.is_empty()
            && let Some(op) = event.op()
        {
            self.deadlines.forget(op);
        }
        Some(event)
    }

    /// As [`next_ready`](Worker::next_ready), of what came elsewhere.
    #[cold]
    fn ready_by_now(&mut self) -> Option<Event> {
        self.next_ready()
    }

    /// Takes completions until one gives an event, at most a batch.
    #[inline]
    pub(super) fn reap(&mut self) -> Result<Option<Event>, WorkerError> {
        self.reap_awaiting(&mut Nothing)
    }

    /// The same, up to one that brings what is awaited, which is taken.
    // A call, which makes the event where its caller wants it; inside of others it would be copied there.
    #[inline(never)]
    fn reap_awaiting(&mut self, awaited: &mut impl Await) -> Result<Option<Event>, WorkerError> {
        for _ in 0..BATCH {
            let way = WayIn { plain: self.inbox.is_plain(), copies: self.lends_from > 0 };
            let polled = if awaited.is_something() { self.cq.poll_in_place() } else { self.cq.poll() };
            let Some(completion) = polled? else {
                self.idle()?;
                // Nothing, said where the caller wants it: of either, it would be copied there.
                if self.ready.is_empty() {
                    return Ok(None);
                }
                return Ok(self.ready_by_now());
            };
            if completion.opcode() == WcOpcode::RECV && completion.status().is_success() {
                let (wr_id, qpn, len) = (completion.wr_id(), completion.qpn(), completion.byte_len());
                // A message that is copied is read where it is, and its receive posted again at once.
                match InPlace::of(&mut self.endpoints, way, &completion, awaited) {
                    InPlace::Taken(endpoint) => {
                        let ep = endpoint.id;
                        let posted = self.slabs.post_again(completion, endpoint);
                        self.after_short_message(ep, posted);
                        return Ok(None);
                    }
                    InPlace::Short(endpoint, envelope, message) => {
                        let ep = endpoint.id;
                        let posted = self.slabs.post_again(completion, endpoint);
                        self.after_short_message(ep, posted);
                        return plain_event(Plain { ep, envelope, message }, |event| Ok(Some(event)));
                    }
                    InPlace::Violation(ep, violation) => {
                        if let Local::Slab(slab) = completion.into_memory() {
                            self.refuse_message(ep, slab, violation);
                        }
                    }
                    InPlace::Other => {
                        if let Local::Slab(slab) = completion.into_memory()
                            && let Some(plain) = self.received(At { device: 0, qpn }, wr_id, len, slab)
                        {
                            return plain_event(plain, |event| Ok(Some(event)));
                        }
                    }
                }
            } else {
                let (wc, memory) = (completion.values(), completion.into_memory());
                match wc.opcode {
                    WcOpcode::RECV => self.receive_failed(0, &wc, memory),
                    _ => self.completed(0, &wc, memory),
                }
            }
            if !self.ready.is_empty() {
                return Ok(self.next_ready());
            }
        }
        self.cut_short = true;
        Ok(None)
    }

    /// A short message goes to the application; its receive was posted again, or could not be.
    #[inline(always)]
    fn after_short_message(&mut self, ep: EndpointId, posted: Result<(), PostError>) {
        self.counters.eager_received += 1;
        match posted {
            Ok(()) => self.give_slot(ep),
            Err(error) => self.check(ep.index as usize, Err(error.into())),
        }
        if self.slabs.lent() >= BUSY {
            self.reclaim(2);
        }
    }

    /// Nothing has come: time for what is put off otherwise.
    #[inline]
    fn idle(&mut self) -> Result<(), WorkerError> {
        // Not only polls come here.
        self.countdown = (self.countdown + BUSY_POLL - 1).min(STRIDE);
        self.reclaim_dropped(LOOKS);
        if self.pool.is_relieved() {
            self.resume();
        }
        if !self.withheld.is_empty() {
            self.look_at_withheld(1);
        }
        // What came before a connection broke is delivered before its end, also over datagrams and further devices.
        let is_empty = !self.has_other_queues || self.poll_other_queues(datagram::BATCH)?;
        if self.broken > 0 && is_empty {
            self.end_broken(None);
        }
        Ok(())
    }

    /// Takes what came elsewhere than to the worker's own queue: of rails at most a batch, of messages and datagrams so much. True
    /// if none of these is left.
    #[cold]
    pub(super) fn poll_other_queues(&mut self, most: u32) -> Result<bool, WorkerError> {
        let mut is_empty = true;
        self.cut_short |= self.stage();
        if self.rails.count() > 0 {
            self.poll_rails()?;
            is_empty = self.poll_further_devices(most);
        }
        Ok(self.poll_datagrams(most) && is_empty)
    }

    /// Looks at memory that the application has had longest, at most so many pieces, and takes back what it has dropped. Where messages
    /// never cease it is never idle, and this is done at the sockets' times.
    #[inline]
    pub(super) fn reclaim_dropped(&mut self, most: usize) {
        if self.slabs.lent() > 0 {
            self.reclaim(most);
        }
        if self.pool.lent() > 0 {
            self.pool.reclaim();
        }
    }

    /// Looks at the slabs that are lent longest, at most so many, and posts those again that are free.
    pub(super) fn reclaim(&mut self, most: usize) {
        for _ in 0..most.min(self.slabs.lent()) {
            match self.slabs.oldest() {
                Oldest::Free(slab, Some(owner)) => self.repost(slab, owner),
                Oldest::Free(slab, None) => self.slabs.put_by(slab),
                Oldest::Spare(slab, owner) => {
                    self.slabs.put_by(slab);
                    if let Some(endpoint) = owner.and_then(|owner| self.endpoints.get_mut(owner)) {
                        endpoint.kept = endpoint.kept.saturating_sub(1);
                    }
                }
                Oldest::Kept(Some(owner)) => self.make_up(owner),
                Oldest::Kept(None) => {}
                Oldest::None => return,
            }
        }
    }

    /// Posts a slab again, and gives its slot back to the peer.
    #[inline]
    pub(super) fn repost(&mut self, slab: Slab, owner: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(owner) else { return self.slabs.put_by(slab) };
        match self.slabs.post(slab, endpoint) {
            Ok(()) => self.give_slot(owner),
            Err(error) => self.check(owner.index as usize, Err(error.into())),
        }
    }

    /// Gives the slot of a receive that is posted again back to the peer.
    #[inline(always)]
    fn give_slot(&mut self, owner: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(owner) else { return };
        endpoint.link.give_slot();
        if endpoint.link.is_used_up() && !endpoint.is_of_datagrams() {
            self.share(owner);
        }
        let Some(endpoint) = self.endpoints.get_mut(owner) else { return };
        if let Some(frame) = endpoint.link.credit() {
            self.send_credit(owner, &frame);
        }
    }

    /// A peer has used all its slots: it gets more of those that are for all, if there are.
    #[inline]
    fn share(&mut self, ep: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        if endpoint.device > 0 {
            // Its receives are its own.
            return;
        }
        let slots = self.shares.take(endpoint.link.window());
        if slots == 0 {
            return;
        }
        // Fewer than wanted, if there is no memory for more.
        let posted = self.slabs.supply(slots);
        self.shares.give(slots - posted);
        endpoint.link.grow(posted);
    }

    /// The application keeps a message. If the peer runs out of slots by that, another slab takes the message's place, so
    /// that others go on; unless it keeps very many of that peer.
    #[cold]
    fn make_up(&mut self, owner: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(owner) else { return };
        let window = endpoint.link.window();
        let is_starving = endpoint.link.outstanding_slots() <= window / 2;
        if is_starving
            && endpoint.kept < EagerSlabs::most_kept(window)
            && let Some(slab) = self.slabs.replacement()
        {
            endpoint.kept += 1;
            self.repost(slab, owner);
        }
    }

    /// There may be memory again for messages that wait for some: they go, one of each connection in turn.
    #[cold]
    pub(super) fn feed(&mut self) {
        while let Some(index) = self.pool.next_in_line() {
            let index = index as usize;
            let Some(endpoint) = self.endpoints.at(index) else { continue };
            endpoint.is_starved = false;
            if endpoint.broken.is_some() {
                // What it sent would come back at once, and the memory of it to it.
                continue;
            }
            self.advance(index);
            let waits = self.endpoints.at(index).is_some_and(|endpoint| endpoint.is_starved);
            if self.pool.end_turn(waits) {
                return;
            }
        }
    }

    /// There is memory again for long messages without a receive.
    #[cold]
    pub(super) fn resume(&mut self) {
        for (peer, key) in self.inbox.resume() {
            let ep = EndpointId::of(peer);
            if let Some(endpoint) = self.endpoints.get_mut(ep) {
                endpoint.link.want(key);
                self.pump(ep.index as usize);
            }
        }
        if !self.inbox.is_stalled() {
            self.staging.forgive_all();
        }
    }
}

/// The event of a message that simply goes to the application, as `wrap` has it: made where that puts it, since a copy of what was
/// just written would have the processor wait until all that was written before, for peers too, has left it.
#[inline(always)]
pub(super) fn plain_event<R>(Plain { ep, envelope, message }: Plain, wrap: impl FnOnce(Event) -> R) -> R {
    match envelope.class {
        Class::Tagged => wrap(Event::Received { ep, tag: Tag(envelope.tag), message }),
        _ => wrap(Event::Active { ep, handler: HandlerId(envelope.port), argument: envelope.tag, message }),
    }
}

/// As how many polls that find nothing one counts that finds something, until the next look at the clock: the program may take long over
/// what it finds, and after idling there are many polls to go. Little enough that a look, some 30 ns, is lost in so many messages.
const BUSY_POLL: i32 = 16;
/// Completions that one poll takes at most, if none of them is an event.
const BATCH: usize = 16;
/// Lent slabs that an idle poll looks at, at most.
const LOOKS: usize = 4;
