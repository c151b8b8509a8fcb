//! Ending operations early: by the application's wish, or when their time is over.

use std::time::Duration;

use crate::engine::{Cancelled, Envelope, Exposed};
use crate::worker::Worker;
use crate::worker::delivery::{Body, receive_op};
use crate::worker::endpoint::{Carried, InFlight, OneSided};
use crate::worker::error::OpError;
use crate::worker::event::{Event, Returned};
use crate::worker::ids::{EndpointId, OpId};
use crate::worker::ops::request::returned;

/// What became of the wish to end an operation.
enum Ended {
    /// It has ended, with an event.
    Now,
    /// The peer has its memory, and is asked for it.
    Asked,
    /// The device has its memory, or another peer may be in the middle of reading it.
    WithDevice,
    /// It was over.
    Unknown,
}

impl Worker {
    /// Ends an operation with [`Event::Failed`] and [`OpError::TimedOut`] if it is not over `limit` from now. Applies to all
    /// that have an [`OpId`]; the earliest counts of several. Checked about once a millisecond.
    ///
    /// Memory that a device or a peer has at that time comes back later, by [`Event::Released`]; so it is known then that an
    /// operation has taken too long, not that it will not be carried out.
    ///
    /// A receive whose message is already being read ends at its time too. If the message is read into the receive's own
    /// memory, it goes with it: that comes back by `Released` once the device is done, and the peer gets its
    /// [`Event::Sent`]. If it is read into memory of the worker's own, as for [`recv`](Worker::recv), another receive takes
    /// it, or it is handed out without one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use qpair_transport::{Config, Event, Flow, OpError, Source, Tag, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let never = worker.recv(Source::Any, Tag(7))?;
    /// worker.set_deadline(never, Duration::from_millis(5));
    /// worker.run(|event, _worker| match event {
    ///     Event::Failed { op, error, .. } => {
    ///         assert_eq!((op, error), (never, OpError::TimedOut));
    ///         Flow::Stop
    ///     }
    ///     _ => Flow::Continue,
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_deadline(&mut self, op: OpId, limit: Duration) {
        let due = self.now().saturating_add(limit);
        self.deadlines.set(op, due);
    }

    /// Ends an operation early, with [`Event::Failed`] and [`OpError::Cancelled`]. False if it is over, or a device has it: it
    /// ends with its own event then. A long message that was offered to the peer is taken back from it, unless it is being
    /// read; either event may follow then.
    pub fn cancel(&mut self, op: OpId) -> bool {
        match self.end_early(op, OpError::Cancelled) {
            Ended::Now => true,
            Ended::Asked => true,
            Ended::WithDevice | Ended::Unknown => false,
        }
    }

    /// Ends the operations whose time is over.
    pub(in crate::worker) fn expire_operations(&mut self, now: Duration) {
        while let Some(op) = self.deadlines.pop(now) {
            if let Ended::Asked | Ended::WithDevice = self.end_early(op, OpError::TimedOut)
                && let Some(ep) = self.disown(op)
            {
                let ep = Some(ep);
                let (error, returned) = (OpError::TimedOut, Returned::Withheld);
                self.ready.push_back(Event::Failed { op, ep, error, returned });
            }
        }
    }

    fn end_early(&mut self, op: OpId, error: OpError) -> Ended {
        // First what is found by its number alone, of however many.
        if let Some(ended) = self.end_sending(op, &error) {
            return ended;
        }
        let number = op.number;
        let endpoints = &self.endpoints;
        let is_closing = |peer| endpoints.get(EndpointId::of(peer)).is_none_or(|endpoint| endpoint.link.is_closing());
        if let Some(posted) = self.inbox.cancel(number, is_closing) {
            let (op, returned) = (receive_op(&posted), Returned::Memory(posted.memory.memory));
            self.ready.push_back(Event::Failed { op, ep: None, error, returned });
            self.deliver_due();
            return Ended::Now;
        }
        if let Some(ended) = self.end_reading(op, &error) {
            return ended;
        }
        if self.counter_table.cancel(number) {
            self.ready.push_back(Event::Failed { op, ep: None, error, returned: Returned::Nothing });
            return Ended::Now;
        }
        let Some(endpoint) = self.endpoints.at(op.index as usize) else { return Ended::Unknown };
        let ep = Some(endpoint.id);
        if endpoint.link.cancel_flush(number) {
            self.ready.push_back(Event::Failed { op, ep, error, returned: Returned::Nothing });
            return Ended::Now;
        }
        let is_with_device = endpoint.works().any(|one| one.is_of(number));
        if is_with_device || self.withheld.iter().any(|one| one.is_awaited(number)) {
            return Ended::WithDevice;
        }
        Ended::Unknown
    }

    /// Ends a request, or a send that is queued or offered. `None` if it is none.
    fn end_sending(&mut self, op: OpId, error: &OpError) -> Option<Ended> {
        let (number, error) = (op.number, error.clone());
        let call = self.calls.cancel(number);
        let endpoint = self.endpoints.at(op.index as usize)?;
        let (id, ep) = (endpoint.id, Some(endpoint.id));
        let sent = endpoint.link.cancel(number);
        if let Some(call) = call {
            let returned = match sent {
                Cancelled::Taken(_, carried) => self.taken(number, id, carried),
                Cancelled::Asked => {
                    endpoint.link.disown(number);
                    Returned::Withheld
                }
                Cancelled::Unknown => returned(call),
            };
            self.ready.push_back(Event::Failed { op, ep, error, returned });
            self.advance(op.index as usize);
            return Some(Ended::Now);
        }
        match sent {
            Cancelled::Taken(envelope, carried) => {
                let returned = self.taken(number, id, carried);
                self.ready.push_back(Event::Failed { op, ep, error, returned });
                self.leave_gap(number, id, envelope);
                // A flush, or the end, may have waited for it.
                self.advance(op.index as usize);
                Some(Ended::Now)
            }
            Cancelled::Asked => {
                self.advance(op.index as usize);
                Some(Ended::Asked)
            }
            Cancelled::Unknown => None,
        }
    }

    /// Ends a receive whose message is being read, or was and waits for its turn. `None` if it is none.
    fn end_reading(&mut self, op: OpId, error: &OpError) -> Option<Ended> {
        let Some(peer) = self.inbox.reads_for(op.number) else { return self.end_read(op, error) };
        let endpoint = self.endpoints.get_mut(EndpointId::of(peer))?;
        let ep = Some(endpoint.id);
        let found = endpoint.works().find(|one| one.is_of(op.number));
        let (reading, is_own) = match found {
            Some(InFlight { what: OneSided::Pull(reading), .. }) => {
                let is_own = reading.pooled == 0;
                (reading, is_own)
            }
            Some(_) => return None,
            None => self.staging.reading_of(op.number)?,
        };
        if is_own {
            return Some(Ended::WithDevice);
        }
        // It is read into memory of the pool: another receive may have it.
        let posted = reading.posted.take()?;
        self.inbox.detach(reading.key);
        let returned = Returned::Memory(posted.memory.memory);
        self.ready.push_back(Event::Failed { op, ep, error: error.clone(), returned });
        Some(Ended::Now)
    }

    /// Ends a receive whose message was read into its memory, but has its turn later: the message goes with it.
    fn end_read(&mut self, op: OpId, error: &OpError) -> Option<Ended> {
        if *error != OpError::TimedOut {
            return None;
        }
        let body = self.inbox.take_whole(|body| matches!(body, Body::Into { op: of, .. } if *of == op))?;
        let Body::Into { memory, .. } = body else { return None };
        let returned = Returned::Memory(memory);
        self.ready.push_back(Event::Failed { op, ep: None, error: error.clone(), returned });
        Some(Ended::Now)
    }

    /// The application waits no more for an operation whose memory is elsewhere. Gives the connection, unless it did not
    /// before.
    fn disown(&mut self, op: OpId) -> Option<EndpointId> {
        if let Some(endpoint) = self.endpoints.at(op.index as usize)
            && endpoint.link.disown(op.number)
        {
            return Some(endpoint.id);
        }
        let index = match self.inbox.reads_for(op.number) {
            Some(peer) => EndpointId::of(peer).index,
            None => op.index,
        };
        let endpoint = self.endpoints.at(index as usize)?;
        let work = endpoint.works().find(|one| one.is_of(op.number));
        let was_awaited = work.map(|one| std::mem::replace(&mut one.awaited, false));
        let was_awaited = was_awaited.or_else(|| self.staging.disown(op.number));
        let was_awaited = was_awaited.or_else(|| {
            let withheld = self.withheld.iter_mut().find(|one| one.is_awaited(op.number));
            withheld.map(|one| std::mem::replace(&mut one.exposed.awaited, false))
        });
        was_awaited?.then_some(endpoint.id)
    }

    /// What belonged to a send that did not go out.
    pub(in crate::worker) fn taken(&mut self, number: u64, ep: EndpointId, carried: Carried) -> Returned {
        match self.take_back(ep, carried) {
            Ok(payload) => Returned::Payload(payload),
            Err(payload) => {
                let exposed = Exposed::new(number, Envelope::bare(0), payload);
                self.withhold(ep, Exposed { awaited: false, ..exposed });
                Returned::Withheld
            }
        }
    }
}
