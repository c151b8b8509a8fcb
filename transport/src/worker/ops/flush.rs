//! Order beyond that of a connection: waiting until all has come to the peer, and keeping later requests behind earlier ones.

use qpair_verbs::{Local, RemoteSlice, Rkey};

use super::onesided::not_up;
use crate::worker::Worker;
use crate::worker::endpoint::{Endpoint, Stage};
use crate::worker::error::OneSidedFailure;
use crate::worker::event::Event;
use crate::worker::ids::{EndpointId, OpId};
use crate::worker::work_id::{Job, wr_id};

impl Worker {
    /// [`Event::Flushed`] follows when all that was begun before on this connection has come to the peer: puts, gets and
    /// atomics are done, short messages are in the peer's memory, long ones have been read by it.
    ///
    /// # Errors
    /// [`OneSidedFailure::Closed`].
    pub fn flush(&mut self, ep: EndpointId) -> Result<OpId, OneSidedFailure> {
        let number = self.op();
        let lives = |endpoint: &&mut Endpoint| {
            let stands = endpoint.broken.is_none() || endpoint.link.retains();
            stands && !matches!(endpoint.stage, Stage::Ending { .. })
        };
        let endpoint = self.endpoints.get_mut(ep).filter(lives);
        let endpoint = endpoint.ok_or(OneSidedFailure::Closed(ep))?;
        endpoint.link.flush(number);
        self.see_to_flushes(ep.index as usize);
        Ok(OpId::new(number, Some(ep)))
    }

    /// Later requests on this connection, messages among them, begin only after earlier gets and atomics are done; puts and
    /// messages are in order without it. No event follows.
    ///
    /// # Errors
    /// [`OneSidedFailure::WouldBlock`] while there is no room for another request; [`OneSidedFailure::Closed`].
    pub fn fence(&mut self, ep: EndpointId) -> Result<(), OneSidedFailure> {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return Err(OneSidedFailure::Closed(ep)) };
        if !endpoint.up {
            return Err(not_up(&endpoint.stage, ep));
        }
        if endpoint.is_of_datagrams() {
            // Messages are all there is, and they come in order.
            return Ok(());
        }
        let (Some(work), Some(qp)) = (endpoint.link.take_send_slot(), &mut endpoint.qp) else {
            return Err(OneSidedFailure::WouldBlock);
        };
        // Requests begin in order: what comes after one that waits, waits too.
        let nowhere = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
        let request = qp.write(Local::None, nowhere).id(wr_id(Job::Send, ep, work.number)).fenced();
        let request = if work.signal { request.signaled() } else { request };
        request.post().map_err(|rejected| {
            endpoint.link.untake_slot(work);
            rejected.error.into()
        })
    }

    /// Tells of flushes that are done.
    pub(in crate::worker) fn see_to_flushes(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let oldest = endpoint.reads.iter().map(|one| one.number).find(|&number| number != 0);
        while let Some(number) = endpoint.link.next_flushed(oldest) {
            self.ready.push_back(Event::Flushed { op: OpId::new(number, Some(ep)), ep });
        }
        if endpoint.up && endpoint.link.flush_needs_probe() {
            // Without room for it, completions are on their way.
            self.post_probe(index);
        }
    }
}
