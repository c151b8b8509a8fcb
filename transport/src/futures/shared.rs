//! What all handles of a worker share: the worker, who waits for which event, and events that nobody waits for yet.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::engine::{Key, Table};
use crate::worker::{Armed, EndpointId, Event, OpId, Worker, WorkerError};

/// A worker with those who wait for it.
pub(super) struct Shared {
    pub(super) worker: Worker,
    waits: Slab<Wait>,
    /// Places in `waits`.
    by_op: Table<OpKey, u32>,
    by_endpoint: Table<EndpointKey, u32>,
    /// Connections that peers made.
    pub(super) accepted: VecDeque<EndpointId>,
    /// Events that belong to no operation.
    pub(super) events: VecDeque<Event>,
    /// How often the worker was polled, modulo 2^64: there may be room since.
    polls: u64,
    /// Someone waits for room.
    crowded: bool,
    /// Those who wait for anything else than the end of an operation.
    listening: Slab<Waker>,
    /// These are to be woken.
    stirred: bool,
    /// To be woken as soon as this is not borrowed any more: a waker may do anything.
    woken: Vec<Waker>,
    /// The task that drives the worker.
    driver: Option<Waker>,
    /// Something was begun since the driver looked last.
    pub(super) poked: bool,
    /// The driver has ended with an error.
    pub(super) stopped: bool,
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
    fn spread(self) -> u64 {
        self.0.number
    }
}

impl Key for EndpointKey {
    fn spread(self) -> u64 {
        self.0.index.into()
    }
}

impl Shared {
    pub(super) fn new(worker: Worker) -> Self {
        Shared {
            worker,
            waits: Slab::new(),
            by_op: Table::new(),
            by_endpoint: Table::new(),
            accepted: VecDeque::new(),
            events: VecDeque::new(),
            polls: 0,
            crowded: false,
            listening: Slab::new(),
            stirred: false,
            woken: Vec::new(),
            driver: None,
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
    pub(super) fn poll_wait(&mut self, place: usize, context: &mut Context<'_>) -> Poll<Option<Event>> {
        match self.waits.get_mut(place) {
            Some(wait @ Wait::Pending(_)) if self.stopped => {
                // Its event may come yet, if another driver goes on.
                *wait = Wait::Dropped;
                Poll::Ready(None)
            }
            Some(Wait::Pending(waker)) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            _ => match self.waits.try_remove(place) {
                Some(Wait::Done(event)) => Poll::Ready(Some(event)),
                _ => Poll::Ready(None),
            },
        }
    }

    /// Nobody wants the event of an operation any more.
    pub(super) fn drop_op(&mut self, place: usize, op: OpId) {
        match self.waits.get_mut(place) {
            Some(Wait::Done(_)) => {
                if let Wait::Done(event) = self.waits.remove(place) {
                    self.pass_on(event);
                }
            }
            Some(wait) => {
                *wait = Wait::Dropped;
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
            Some(wait) => *wait = Wait::Dropped,
            None => return,
        }
        self.worker.abort(ep);
        self.poke();
    }

    /// Polls the worker, some times at most, and hands out what comes. True if something did.
    pub(super) fn advance(&mut self) -> Result<bool, WorkerError> {
        let mut any = false;
        self.polls = self.polls.wrapping_add(1);
        // Completions that make room are not all events.
        self.stirred |= std::mem::take(&mut self.crowded);
        for _ in 0..BATCH {
            let Some(event) = self.worker.poll()? else { break };
            any = true;
            self.hand_out(event);
        }
        Ok(any)
    }

    /// Gets ready for a sleep, unless there is something to do.
    pub(super) fn arm(&mut self) -> Result<Armed, WorkerError> {
        self.worker.arm()
    }

    pub(super) fn set_driver(&mut self, context: &Context<'_>) {
        match &mut self.driver {
            Some(driver) => driver.clone_from(context.waker()),
            None => self.driver = Some(context.waker().clone()),
        }
    }

    /// The worker can not go on: all who wait are told.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        for (_, wait) in &mut self.waits {
            if let Wait::Pending(waker) = wait {
                self.woken.extend(waker.take());
            }
        }
        self.stirred = true;
    }

    /// The worker is driven, again perhaps.
    pub(super) fn start(&mut self) {
        self.stopped = false;
    }

    /// Wakes the driver: there is something new to poll for.
    pub(super) fn poke(&mut self) {
        self.poked = true;
        self.woken.extend(self.driver.take());
    }

    /// Wakes a task with each event from now on; gives where it stands, which is where it stood before.
    pub(super) fn listen(&mut self, place: Option<usize>, context: &Context<'_>) -> usize {
        match place.and_then(|place| Some((place, self.listening.get_mut(place)?))) {
            Some((place, waker)) => {
                waker.clone_from(context.waker());
                place
            }
            None => self.listening.insert(context.waker().clone()),
        }
    }

    /// The task of that place waits no more.
    pub(super) fn leave(&mut self, place: usize) {
        self.listening.try_remove(place);
    }

    /// Whom to wake next.
    fn next_woken(&mut self) -> Option<Waker> {
        if std::mem::take(&mut self.stirred) {
            self.woken.extend(self.listening.iter().map(|(_, waker)| waker.clone()));
        }
        self.woken.pop()
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

    fn hand_out(&mut self, event: Event) {
        self.stirred = true;
        match &event {
            Event::Accepted { ep, .. } => return self.accepted.push_back(*ep),
            Event::Connected { ep } | Event::Closed { ep, .. } => {
                if matches!(event, Event::Closed { .. }) {
                    // Nobody need accept it any more.
                    self.accepted.retain(|accepted| accepted != ep);
                }
                let key = EndpointKey(*ep);
                if let Some(place) = self.by_endpoint.get(key) {
                    self.by_endpoint.remove(key);
                    return self.finish(place as usize, event);
                }
            }
            // Of an operation whose end was told already; if it was dropped, so is its memory.
            Event::Released { .. } => {}
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
        self.events.push_back(event);
    }

    /// The event of an operation that nobody wants any more. A message is not lost by that.
    fn pass_on(&mut self, event: Event) {
        if matches!(event, Event::Matched { .. } | Event::ReceivedInto { .. }) {
            self.events.push_back(event);
            self.stirred = true;
        }
    }

    fn finish(&mut self, place: usize, event: Event) {
        match self.waits.get_mut(place) {
            Some(Wait::Pending(waker)) => {
                self.woken.extend(waker.take());
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

/// Uses what is shared, and wakes afterwards whom that woke.
pub(super) fn with<R>(shared: &RefCell<Shared>, f: impl FnOnce(&mut Shared) -> R) -> R {
    let result = f(&mut shared.borrow_mut());
    let next = || shared.borrow_mut().next_woken();
    while let Some(waker) = next() {
        waker.wake();
    }
    result
}

/// Events at a time, before other tasks have their turn.
const BATCH: usize = 64;
