//! How connections end: closed by either side, or broken. What had come before is delivered first; then every operation
//! ends, memory is taken back from the peer, and the last event says why.

use std::time::Duration;

use super::Worker;
use super::endpoint::{Carried, Endpoint, Stage};
use super::error::{CloseReason, ConnectFailure, OpError};
use super::event::{Event, Returned};
use super::ids::{EndpointId, OpId};
use super::payload::Payload;
use crate::cm::HandshakeError;
use crate::engine::RESERVED_SLOTS;

/// Memory that a peer may still be reading; tried again until it is free.
#[derive(Debug)]
pub(crate) struct Withheld {
    op: u64,
    carried: Carried,
    /// Whether the application waits for it.
    notify: bool,
}

impl Worker {
    /// The application closes a connection.
    pub(super) fn begin_close(&mut self, ep: EndpointId) {
        let deadline = self.now() + self.config.close_timeout;
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) || endpoint.closed_here {
            return;
        }
        endpoint.closed_here = true;
        endpoint.deadline.get_or_insert(deadline);
        endpoint.link.close();
        if endpoint.qp.is_none() && endpoint.link.queued() == 0 {
            return self.fail(ep.index as usize, CloseReason::Local);
        }
        self.advance(ep.index as usize);
    }

    /// The peer sends nothing more, and waits for this side to say so too.
    pub(super) fn peer_closes(&mut self, index: usize) {
        let deadline = self.now() + self.config.close_timeout;
        if let Some(endpoint) = self.endpoints.at(index) {
            endpoint.deadline.get_or_insert(deadline);
        }
    }

    /// Both sides have sent all and know it.
    pub(super) fn finish_close(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let reason = if endpoint.closed_here { CloseReason::Local } else { CloseReason::Remote };
        self.fail(index, reason);
    }

    /// A connection broke. It ends when the completion queue has run empty, so that what had come before is delivered.
    #[cold]
    pub(super) fn break_off(&mut self, index: usize, reason: CloseReason) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            return;
        }
        tracing::debug!(parent: &endpoint.span, %reason, "broken");
        match &mut endpoint.broken {
            None => {
                endpoint.broken = Some((reason, now));
                self.broken += 1;
            }
            Some((vague, _)) if vague.is_vague() => *vague = reason,
            Some(_) => {}
        }
    }

    /// Ends connections that broke, all or those that broke before `since`.
    #[cold]
    pub(super) fn end_broken(&mut self, since: Option<Duration>) {
        for index in 0..self.endpoints.bound() {
            let Some(endpoint) = self.endpoints.at(index) else { continue };
            let due = |(_, broke): &mut (CloseReason, Duration)| since.is_none_or(|since| *broke <= since);
            if let Some((reason, _)) = endpoint.broken.take_if(due) {
                self.broken -= 1;
                self.fail(index, reason);
            }
        }
    }

    /// Ends a connection: its queue pair flushes, every operation ends.
    pub(super) fn fail(&mut self, index: usize, reason: CloseReason) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) {
            return;
        }
        if let Some(qp) = &mut endpoint.qp
            && let Err(error) = qp.to_error()
        {
            tracing::debug!(parent: &endpoint.span, %error, "the queue pair was in error already");
        }
        let ep = endpoint.id;
        let (sends, receives) = endpoint.link.abort();
        for posted in receives {
            let returned = Returned::Memory(posted.memory.memory);
            self.ready.push_back(Event::Failed { op: OpId(posted.op), ep, error: OpError::Closed, returned });
        }
        for (op, carried) in sends {
            match carried.into_payload() {
                Ok(payload) => {
                    let returned = Returned::Payload(payload);
                    self.ready.push_back(Event::Failed { op: OpId(op), ep, error: OpError::Closed, returned });
                }
                Err(exposed) => endpoint.cut.push((op, exposed)),
            }
        }
        (endpoint.stage, endpoint.up) = (Stage::Ending { reason, since: now }, false);
        if let Some(socket) = endpoint.socket.take() {
            self.sockets.close(socket);
        }
        self.settle(index);
    }

    /// Removes an ending connection once nothing of it is with the device.
    pub(super) fn settle(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if matches!(endpoint.stage, Stage::Ending { .. }) && endpoint.reads.is_empty() && endpoint.copies == 0 {
            self.remove(index);
        }
    }

    /// Removes a connection, takes memory back from the peer, and tells the application.
    pub(super) fn remove(&mut self, index: usize) {
        let Some(mut endpoint) = self.endpoints.remove(index) else { return };
        let ep = endpoint.id;
        // The queue pair goes first: after it, the peer can not be reading anything any more.
        drop(endpoint.qp.take());
        self.broken -= usize::from(endpoint.broken.is_some());
        if endpoint.reserved {
            let reserved = self.config.window + RESERVED_SLOTS;
            let posted = endpoint.link.outstanding_slots() + RESERVED_SLOTS;
            self.slabs.release(reserved, posted.saturating_sub(endpoint.flushed));
        }
        for (op, carried) in std::mem::take(&mut endpoint.cut) {
            let returned = match self.take_back(carried) {
                Ok(payload) => Returned::Payload(payload),
                Err(carried) => {
                    self.withhold(op, carried, false);
                    Returned::Withheld
                }
            };
            self.ready.push_back(Event::Failed { op: OpId(op), ep, error: OpError::Closed, returned });
        }
        let Endpoint { stage: Stage::Ending { reason, .. }, listener, peer, span, .. } = endpoint else { return };
        tracing::info!(parent: &span, %reason, "closed");
        match listener {
            Some(listener) => {
                self.counters.rejected += 1;
                let error = match reason {
                    CloseReason::Failed(ConnectFailure::Handshake { error, .. }) => error,
                    CloseReason::Failed(ConnectFailure::TimedOut { .. }) => HandshakeError::TimedOut,
                    _ => HandshakeError::HungUp,
                };
                self.ready.push_back(Event::Rejected { listener, peer, error });
            }
            None => {
                let orderly = matches!(reason, CloseReason::Local | CloseReason::Remote);
                self.counters.lost += u64::from(!orderly);
                self.ready.push_back(Event::Closed { ep, reason });
            }
        }
    }

    /// The peer has read a payload.
    pub(super) fn finish_send(&mut self, op: u64, carried: Carried) {
        match self.take_back(carried) {
            Ok(payload) => self.ready.push_back(Event::Sent { op: OpId(op), payload }),
            Err(carried) => self.withhold(op, carried, true),
        }
    }

    /// Makes a payload the application's own again; `Err` if a peer sits in the middle of reading it.
    pub(super) fn take_back(&mut self, carried: Carried) -> Result<Payload, Carried> {
        match carried {
            Carried::Region(region) => match region.revoke() {
                Ok(buffer) => Ok(Payload::Buffer(buffer)),
                Err(failed) => Err(Carried::Region(failed.region)),
            },
            Carried::Copy(region, bytes) => match region.revoke() {
                Ok(buffer) => {
                    self.pool.give_buffer(buffer);
                    Ok(Payload::Bytes(bytes))
                }
                Err(failed) => Err(Carried::Copy(failed.region, bytes)),
            },
            plain => plain.into_payload(),
        }
    }

    /// Keeps memory that could not be taken back, to be tried again.
    #[cold]
    pub(super) fn withhold(&mut self, op: u64, carried: Carried, notify: bool) {
        tracing::warn!(op, "a peer that does not answer is in the middle of reading; the memory is withheld");
        self.withheld.push(Withheld { op, carried, notify });
    }

    /// Tries again to take memory back.
    pub(super) fn retry_withheld(&mut self) {
        for Withheld { op, carried, notify } in std::mem::take(&mut self.withheld) {
            match self.take_back(carried) {
                Ok(payload) if notify => self.ready.push_back(Event::Sent { op: OpId(op), payload }),
                Ok(_) => {}
                Err(carried) => self.withheld.push(Withheld { op, carried, notify }),
            }
        }
    }
}
