//! What all handles of a worker share: the worker, who waits for which event, and events that nobody waits for yet.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Poll, Waker};

use slab::Slab;

use crate::engine::{Key, Table};
use crate::worker::{Armed, EndpointId, Event, Message, OpId, Worker, WorkerError};

/// A worker with those who wait for it.
pub(super) struct Shared {
    pub(super) worker: Worker,
    waits: Slab<Wait>,
    /// Places in `waits`.
    by_op: Table<OpKey, u32>,
    by_endpoint: Table<EndpointKey, u32>,
    /// Operations that nobody wanted any more when they ended, and of which memory is to come back.
    disowned: Table<OpKey, ()>,
    /// Connections that peers made.
    pub(super) accepted: VecDeque<EndpointId>,
    /// Events that belong to no operation, with what has a notification's window. Once there are many, peers have as many
    /// messages more here as their windows let through.
    events: VecDeque<(Event, Option<Message>)>,
    /// How many of them nobody would miss.
    ends: usize,
    /// Some of those were dropped, and a warning says so.
    ends_dropped: bool,
    /// How often the worker was polled, modulo 2^64: there may be room since.
    polls: u64,
    /// Someone waits for room.
    crowded: bool,
    /// Those who wait for anything else than the end of an operation; `None` once woken.
    listening: Slab<Option<Waker>>,
    /// These are to be woken.
    stirred: bool,
    /// To be done as soon as this is not borrowed any more.
    leaving: Vec<Leaving>,
    /// The tasks that drive the worker: one, or two while one takes over from another. `None` for one that does not sleep.
    drivers: Slab<Option<Waker>>,
    /// Something was begun since the driver looked last.
    pub(super) poked: bool,
    /// All drivers have ended.
    pub(super) stopped: bool,
}

/// What becomes of a waker that is taken out, or of an event that nobody is told of: either may do anything, the event's memory when
/// it is dropped, so use the worker.
enum Leaving {
    Wake(Waker),
    Drop(Waker),
    Forget(Event),
}

/// Someone who waits for one event.
enum Wait {
    /// It has not come.
    Pending(Option<Waker>),
    /// It has, and is to be fetched.
    Done(Event),
    /// Nobody wants it any more.
    Dropped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OpKey(OpId);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct EndpointKey(EndpointId);

impl Key for OpKey {
    fn words(self) -> [u64; 2] {
        [self.0.number, 0]
    }
}

impl Key for EndpointKey {
    fn words(self) -> [u64; 2] {
        [self.0.index.into(), self.0.generation.into()]
    }
}

impl Shared {
    pub(super) fn new(mut worker: Worker) -> Self {
        worker.keep_notices();
        let seeds = worker.seeds();
        Shared {
            worker,
            waits: Slab::new(),
            by_op: Table::new(seeds),
            by_endpoint: Table::new(seeds),
            disowned: Table::new(seeds),
            accepted: VecDeque::new(),
            events: VecDeque::new(),
            ends: 0,
            ends_dropped: false,
            polls: 0,
            crowded: false,
            listening: Slab::new(),
            stirred: false,
            leaving: Vec::new(),
            drivers: Slab::new(),
            poked: false,
            stopped: false,
        }
    }

    /// Waits for the event that ends an operation.
    pub(super) fn await_op(&mut self, op: OpId) -> usize {
        let place = self.waits.insert(Wait::Pending(None));
        self.by_op.insert(OpKey(op), place as u32);
        self.poke();
        place
    }

    /// Waits for a connection to come up, or not.
    pub(super) fn await_endpoint(&mut self, ep: EndpointId) -> usize {
        let place = self.waits.insert(Wait::Pending(None));
        self.by_endpoint.insert(EndpointKey(ep), place as u32);
        self.poke();
        place
    }

    /// The event, once it has come.
    pub(super) fn poll_wait(&mut self, place: usize, waker: Waker) -> Poll<Option<Event>> {
        match self.waits.get_mut(place) {
            Some(Wait::Pending(_)) if self.stopped => {
                // Its event may come yet, if another driver goes on.
                self.want_no_more(place);
                self.discard(waker);
                return Poll::Ready(None);
            }
            Some(Wait::Pending(waiting)) => {
                let before = waiting.replace(waker);
                self.leaving.extend(before.map(Leaving::Drop));
                return Poll::Pending;
            }
            _ => {}
        }
        self.discard(waker);
        match self.waits.try_remove(place) {
            Some(Wait::Done(event)) => Poll::Ready(Some(event)),
            _ => Poll::Ready(None),
        }
    }

    /// The event of that place is for nobody.
    fn want_no_more(&mut self, place: usize) {
        if let Some(wait) = self.waits.get_mut(place)
            && let Wait::Pending(Some(waker)) = std::mem::replace(wait, Wait::Dropped)
        {
            self.discard(waker);
        }
    }

    /// Drops a waker once this is not borrowed any more.
    pub(super) fn discard(&mut self, waker: Waker) {
        self.leaving.push(Leaving::Drop(waker));
    }

    /// Nobody wants the event of an operation any more.
    pub(super) fn drop_op(&mut self, place: usize, op: OpId) {
        match self.waits.get_mut(place) {
            Some(Wait::Done(_)) => {
                if let Wait::Done(event) = self.waits.remove(place) {
                    self.pass_on(event);
                }
            }
            Some(_) => {
                self.want_no_more(place);
                self.worker.cancel(op);
                self.poke();
            }
            None => {}
        }
    }

    /// Nobody wants a connection any more.
    pub(super) fn drop_endpoint(&mut self, place: usize, ep: EndpointId) {
        match self.waits.get_mut(place) {
            Some(Wait::Done(_)) => {
                self.waits.remove(place);
            }
            Some(_) => self.want_no_more(place),
            None => return,
        }
        self.worker.abort(ep);
        self.poke();
    }

    /// Polls the worker, some times at most, and hands out what comes. True if something did.
    pub(super) fn advance(&mut self) -> Result<bool, WorkerError> {
        let mut any = false;
        self.polled();
        for _ in 0..BATCH {
            let Some(event) = self.worker.poll()? else { break };
            any = true;
            self.hand_out(event);
        }
        Ok(any)
    }

    /// Gets ready for a sleep, unless there is something to do.
    pub(super) fn arm(&mut self) -> Result<Armed, WorkerError> {
        self.poked = false;
        // That takes completions too.
        self.polled();
        self.worker.arm()
    }

    /// Completions are taken, of which not all that make room are events.
    fn polled(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        self.stirred |= std::mem::take(&mut self.crowded);
    }

    pub(super) fn set_driver(&mut self, driver: usize, waker: Waker) {
        let before = self.drivers.get_mut(driver).and_then(|sleeping| sleeping.replace(waker));
        self.leaving.extend(before.map(Leaving::Drop));
    }

    /// A driver has ended. If it was the last one, or the worker can not go on, all who wait are told.
    pub(super) fn stop(&mut self, driver: usize, is_over: bool) {
        let waker = self.drivers.try_remove(driver).flatten();
        self.leaving.extend(waker.map(Leaving::Drop));
        if !is_over && !self.drivers.is_empty() {
            // It may have slept on, relying on the other.
            return self.poke();
        }
        self.stopped = true;
        for (_, wait) in &mut self.waits {
            if let Wait::Pending(waker) = wait {
                self.leaving.extend(waker.take().map(Leaving::Wake));
            }
        }
        self.stirred = true;
    }

    /// The worker is driven, again perhaps.
    pub(super) fn start(&mut self) -> usize {
        self.stopped = false;
        self.drivers.insert(None)
    }

    /// Wakes the driver: there is something new to poll for.
    pub(super) fn poke(&mut self) {
        self.poked = true;
        self.leaving.extend(self.drivers.iter_mut().filter_map(|(_, waker)| waker.take()).map(Leaving::Wake));
    }

    /// Wakes a task with the next event; gives where it stands, which is where it stood before.
    pub(super) fn listen(&mut self, place: Option<usize>, waker: Waker) -> usize {
        match place.and_then(|place| Some((place, self.listening.get_mut(place)?))) {
            Some((place, waiting)) => {
                let before = waiting.replace(waker);
                self.leaving.extend(before.map(Leaving::Drop));
                place
            }
            None => self.listening.insert(Some(waker)),
        }
    }

    /// The task of that place waits no more.
    pub(super) fn leave(&mut self, place: usize) {
        let waker = self.listening.try_remove(place).flatten();
        self.leaving.extend(waker.map(Leaving::Drop));
    }

    /// A waker with which something is to be done, or an event to be dropped.
    fn next_leaving(&mut self) -> Option<Leaving> {
        if std::mem::take(&mut self.stirred) {
            self.leaving.extend(self.listening.iter_mut().filter_map(|(_, waker)| waker.take()).map(Leaving::Wake));
        }
        self.leaving.pop()
    }

    /// So often has the worker been polled.
    pub(super) fn polls(&self) -> u64 {
        self.polls
    }

    /// Whether the worker was polled after `since`: there may be room then. False if it will not be.
    pub(super) fn is_polled(&mut self, since: u64) -> Option<bool> {
        if self.stopped || self.polls != since {
            return Some(!self.stopped);
        }
        self.crowded = true;
        None
    }

    pub(super) fn hand_out(&mut self, event: Event) {
        self.stirred = true;
        match &event {
            Event::Accepted { ep, .. } => return self.accepted.push_back(*ep),
            Event::Connected { ep } | Event::Closed { ep, .. } => {
                if matches!(event, Event::Closed { .. }) {
                    // Nobody need accept it any more. What a device has kept does not come back; what a peer has does.
                    self.accepted.retain(|accepted| accepted != ep);
                    let worker = &self.worker;
                    self.disowned.retain(|OpKey(op), ()| op.index != ep.index || worker.withholds(op));
                }
                let key = EndpointKey(*ep);
                if let Some(place) = self.by_endpoint.get(key) {
                    self.by_endpoint.remove(key);
                    return self.finish(place as usize, event);
                }
            }
            // Of an operation whose end was told already; if it was dropped, so is its memory.
            Event::Released { op, .. } => {
                let key = OpKey(*op);
                if self.disowned.get(key).is_some() {
                    self.disowned.remove(key);
                    return self.leaving.push(Leaving::Forget(event));
                }
            }
            other => {
                if let Some(op) = other.op() {
                    // One that no future began is for whoever did.
                    if let Some(place) = self.by_op.get(OpKey(op)) {
                        self.by_op.remove(OpKey(op));
                        return self.finish(place as usize, event);
                    }
                }
            }
        }
        self.keep(event);
    }

    /// Keeps an event for who asks for the next. Of those that strangers make, the oldest are dropped where nobody asks.
    fn keep(&mut self, event: Event) {
        if is_end(&event) {
            self.ends += 1;
            if self.ends > ENDS {
                self.drop_end();
            }
        }
        let notice = if event.is_notice() { self.worker.last_notice() } else { None };
        self.events.push_back((event, notice));
        if self.events.len() - self.ends == MANY {
            self.worker.lend_short(true);
        }
    }

    #[cold]
    fn drop_end(&mut self) {
        if let Some(oldest) = self.events.iter().position(|(event, _)| is_end(event)) {
            self.remove_end(oldest);
        }
        if !std::mem::replace(&mut self.ends_dropped, true) {
            tracing::warn!(
                "nobody takes the events of offers, of connections that were refused or have ended, and of memory that came back \
                 late: the oldest are dropped"
            );
        }
    }

    /// The next event that belongs to no operation.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let (event, _) = self.events.pop_front()?;
        if self.events.is_empty() {
            self.worker.lend_short(false);
        }
        self.ends -= usize::from(is_end(&event));
        Some(event)
    }

    /// The event of an operation that nobody wants any more. A message is not lost by that.
    fn pass_on(&mut self, event: Event) {
        if matches!(event, Event::Matched { .. } | Event::ReceivedInto { .. }) {
            self.keep(event);
            self.stirred = true;
            return;
        }
        if let Some(op) = event.op().filter(|_| event.withholds()) {
            self.disown(op);
        }
        self.leaving.push(Leaving::Forget(event));
    }

    /// Nobody is told of memory that an operation withholds: it is dropped when it comes back, or now.
    pub(super) fn disown(&mut self, op: OpId) {
        let is_back = |(event, _): &(Event, _)| matches!(event, Event::Released { op: of, .. } if *of == op);
        match self.events.iter().position(is_back) {
            Some(place) => self.remove_end(place),
            None => self.disowned.insert(OpKey(op), ()),
        }
    }

    fn remove_end(&mut self, place: usize) {
        let event = self.events.remove(place).map(|(event, _)| event);
        self.leaving.extend(event.map(Leaving::Forget));
        self.ends -= 1;
    }

    fn finish(&mut self, place: usize, event: Event) {
        match self.waits.get_mut(place) {
            Some(Wait::Pending(waker)) => {
                self.leaving.extend(waker.take().map(Leaving::Wake));
                self.waits[place] = Wait::Done(event);
            }
            Some(Wait::Dropped) => {
                self.waits.remove(place);
                self.pass_on(event);
            }
            _ => {}
        }
    }
}

/// Uses what is shared, and wakes afterwards whom that woke. Wakers and events that are not needed any more are dropped afterwards, too.
pub(super) fn with<R>(shared: &RefCell<Shared>, f: impl FnOnce(&mut Shared) -> R) -> R {
    let result = f(&mut shared.borrow_mut());
    let next = || shared.borrow_mut().next_leaving();
    while let Some(leaving) = next() {
        match leaving {
            Leaving::Wake(waker) => waker.wake(),
            Leaving::Drop(waker) => drop(waker),
            Leaving::Forget(event) => drop(event),
        }
    }
    result
}

/// Whether it is of a connection that is none any more, of which there are as many as strangers like; of an offer, which a receive
/// takes whether its event was seen or not; or of memory that comes back when its operation was told to have failed.
fn is_end(event: &Event) -> bool {
    matches!(event, Event::Rejected { .. } | Event::Closed { .. } | Event::Offered { .. } | Event::Released { .. })
}

/// Of such events so many are kept.
const ENDS: usize = 1024;

/// Other events that wait until short messages take their peers' windows, which costs each some ten nanoseconds.
const MANY: usize = 1024;

/// Events at a time, before other tasks have their turn.
const BATCH: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::ListenerId;
    use crate::{CloseReason, Config, HandshakeError, OpError, Returned};

    /// A program that takes connections and messages alone never asks for the others.
    #[test]
    fn ends_of_connections_that_nobody_asks_for_are_bounded() {
        let mut shared = Shared::new(Worker::new(Config::default()).unwrap());
        let rejected = |port: u16| Event::Rejected {
            listener: ListenerId(0),
            peer: ([127, 0, 0, 1], port).into(),
            error: HandshakeError::HungUp,
        };
        for port in 0..3000 {
            shared.hand_out(rejected(port));
            if port == 0 {
                let ep = EndpointId { index: 0, generation: 0 };
                shared.hand_out(Event::Connected { ep });
            }
        }
        assert!(matches!(shared.next_event(), Some(Event::Connected { .. })), "others stay, and in order");
        for port in 3000 - ENDS as u16..3000 {
            let Some(Event::Rejected { peer, .. }) = shared.next_event() else { panic!("{port} is missing") };
            assert_eq!(peer.port(), port);
        }
        assert!(shared.next_event().is_none() && shared.ends == 0);
    }

    #[test]
    fn memory_of_an_operation_that_nobody_wants_is_dropped_when_it_comes_back() {
        let mut shared = Shared::new(Worker::new(Config::default()).unwrap());
        let op = OpId { number: 7, index: 0 };
        let place = shared.await_op(op);
        shared.drop_op(place, op);
        let failed = Event::Failed { op, ep: None, error: OpError::Cancelled, returned: Returned::Withheld };
        shared.hand_out(failed);
        shared.hand_out(Event::Released { op, returned: Returned::Payload(vec![7; 8].into()) });
        assert!(shared.next_event().is_none() && shared.disowned.len() == 0);
    }

    /// A peer was stopped in the middle of reading it, which its connection did not outlive.
    #[test]
    fn memory_that_nobody_wants_is_dropped_also_when_it_comes_back_after_the_connection() {
        let (op, ep) = (OpId { number: 7, index: 0 }, EndpointId { index: 0, generation: 0 });
        let mut worker = Worker::new(Config::default()).unwrap();
        worker.withhold_for_a_poll(op, ep);
        let mut shared = Shared::new(worker);
        let place = shared.await_op(op);
        shared.drop_op(place, op);
        shared.hand_out(Event::Failed { op, ep: Some(ep), error: OpError::Closed, returned: Returned::Withheld });
        shared.hand_out(Event::Closed { ep, reason: CloseReason::Aborted });
        assert!(matches!(shared.next_event(), Some(Event::Closed { .. })));
        assert!(shared.worker.withholds(op));
        while shared.worker.withholds(op) || shared.disowned.len() > 0 {
            shared.advance().unwrap();
        }
        assert!(shared.next_event().is_none());
        // What a device keeps does not come back, and is forgotten with the connection.
        shared.disown(op);
        shared.hand_out(Event::Closed { ep, reason: CloseReason::Aborted });
        assert_eq!(shared.disowned.len(), 0);
    }

    #[test]
    fn memory_that_comes_back_and_nobody_asks_for_is_bounded() {
        let mut shared = Shared::new(Worker::new(Config::default()).unwrap());
        for number in 0..3000 {
            shared.hand_out(Event::Released { op: OpId { number, index: 0 }, returned: Returned::Nothing });
        }
        assert_eq!(std::iter::from_fn(|| shared.next_event()).count(), ENDS);
    }
}
