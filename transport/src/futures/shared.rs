//! What all handles of a worker share: the worker, who waits for which event, and events that nobody waits for yet.

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
    accepted: VecDeque<EndpointId>,
    accepting: Vec<Waker>,
    /// Events that belong to no operation.
    events: VecDeque<Event>,
    listening: Vec<Waker>,
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
            accepting: Vec::new(),
            events: VecDeque::new(),
            listening: Vec::new(),
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
            Some(Wait::Pending(_)) if self.stopped => {
                self.waits.remove(place);
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
                self.waits.remove(place);
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

    pub(super) fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<EndpointId> {
        match self.accepted.pop_front() {
            Some(ep) => Poll::Ready(ep),
            None => {
                note(&mut self.accepting, context);
                Poll::Pending
            }
        }
    }

    pub(super) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        match self.events.pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                note(&mut self.listening, context);
                Poll::Pending
            }
        }
    }

    /// Polls the worker, some times at most, and hands out what comes. True if something did.
    pub(super) fn advance(&mut self) -> Result<bool, WorkerError> {
        let mut any = false;
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
                waker.take().into_iter().for_each(Waker::wake);
            }
        }
        self.accepting.drain(..).chain(self.listening.drain(..)).for_each(Waker::wake);
    }

    /// Wakes the driver: there is something new to poll for.
    pub(super) fn poke(&mut self) {
        self.poked = true;
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    fn hand_out(&mut self, event: Event) {
        match &event {
            Event::Accepted { ep, .. } => {
                self.accepted.push_back(*ep);
                return self.accepting.drain(..).for_each(Waker::wake);
            }
            Event::Connected { ep } | Event::Closed { ep, .. } => {
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
        self.listening.drain(..).for_each(Waker::wake);
    }

    fn finish(&mut self, place: usize, event: Event) {
        match self.waits.get_mut(place) {
            Some(Wait::Pending(waker)) => {
                let waker = waker.take();
                self.waits[place] = Wait::Done(event);
                waker.into_iter().for_each(Waker::wake);
            }
            Some(Wait::Dropped) => {
                self.waits.remove(place);
            }
            _ => {}
        }
    }
}

/// Takes note of who waits, once for each task.
fn note(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

/// Events at a time, before other tasks have their turn.
const BATCH: usize = 64;
