//! What failed: requests and receives that come back so, and messages that no correct peer sends.

use qpair_verbs::{CompletionError, Local, Slab, WcStatus, WorkCompletion};

use super::Worker;
use super::arrival::At;
use super::endpoint::{InFlight, OneSided, Reading, Stage};
use super::error::{CloseReason, Lost, OpError};
use super::event::{Event, Returned};
use super::ids::{EndpointId, OpId};
use super::memory::Target;
use super::work_id::Job;
use crate::engine::Violation;

impl Worker {
    /// A request failed: the connection breaks; memory of an operation goes back.
    #[cold]
    pub(super) fn work_failed(&mut self, index: usize, job: Job, wc: &WorkCompletion, memory: Local) {
        match job {
            Job::Read => self.read_failed(index, memory),
            Job::SendBuffer => self.copy_done(index, memory),
            Job::Send | Job::Probe => {}
        }
        self.break_off(index, reason_of(wc));
        self.settle(index);
        if job == Job::SendBuffer && self.pool.has_line() {
            self.feed();
        }
    }

    fn read_failed(&mut self, index: usize, memory: Local) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Some(work) = endpoint.reads.pop_front() else { return };
        if endpoint.link.retains() && !matches!(endpoint.stage, Stage::Ending { .. }) {
            return endpoint.repeats.lost.push((work, memory));
        }
        self.work_lost(index, work, memory, OpError::Closed);
    }

    /// One-sided work that will not be done, for that reason.
    pub(super) fn work_lost(&mut self, index: usize, work: InFlight, memory: Local, error: OpError) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let InFlight { number, awaited, what, .. } = work;
        let (memory, error) = match what {
            OneSided::Pull(reading) => return self.unread(index, reading, awaited, memory),
            OneSided::Get { .. } => (memory, error),
            OneSided::Put { own, .. } => (self.own_memory(own, memory), error),
            OneSided::Combine { target, pooled, .. } => {
                self.unstage(memory, pooled);
                (target.memory, error)
            }
            OneSided::Fetch { .. } => {
                self.give_back(memory);
                (Local::None, OpError::Unknown)
            }
        };
        let (op, returned) = (OpId::new(number, Some(ep)), Returned::Memory(memory));
        self.ready.push_back(match awaited {
            true => Event::Failed { op, ep: Some(ep), error, returned },
            false => Event::Released { op, returned },
        });
    }

    /// A payload can not be read: its receive fails with the connection.
    pub(super) fn unread(&mut self, index: usize, reading: Reading, awaited: bool, memory: Local) {
        let (reading, awaited, memory) = match reading.piece {
            Some(piece) => match self.piece_lost(piece, Some(memory)) {
                Some(whole) => whole,
                None => return,
            },
            None => (reading, awaited, memory),
        };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        self.inbox.fail(reading.key);
        self.deliver_due();
        let memory = self.unstage(memory, reading.pooled);
        let Some(posted) = reading.posted else { return };
        let Target { memory: own, .. } = posted.memory;
        let memory = if reading.pooled > 0 { own } else { memory };
        let (op, error) = (OpId::new(posted.op, posted.pattern.source.map(EndpointId::of)), OpError::Closed);
        let returned = Returned::Memory(memory);
        self.ready.push_back(match awaited {
            true => Event::Failed { op, ep: Some(ep), error, returned },
            false => Event::Released { op, returned },
        });
    }

    /// A message that no correct peer sends: the connection breaks.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_message(&mut self, ep: EndpointId, slab: Slab, violation: Violation) {
        self.announce(ep.index as usize);
        // Its slot is not counted as taken.
        match self.endpoints.get_mut(ep) {
            Some(endpoint) => self.slabs.refuse(slab, endpoint),
            None => self.slabs.put_by(slab),
        }
        self.break_off(ep.index as usize, CloseReason::Protocol(violation));
    }

    /// A receive that failed: the connection breaks.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_failed(&mut self, device: usize, wc: &WorkCompletion, memory: Local) {
        let Local::Slab(slab) = memory else { return };
        let at = At { device, qpn: wc.qpn };
        let Some(endpoint) = self.endpoints.receiver(wc.wr_id, wc.qpn.0) else {
            return self.slabs.stray(slab, device > 0);
        };
        if !at.is_of(endpoint) {
            // Of a queue pair whose place another has taken, or will.
            return self.slabs.put_by(slab);
        }
        endpoint.flushed += 1;
        let index = endpoint.id.index as usize;
        self.slabs.put_by(slab);
        if wc.status != WcStatus::WR_FLUSH_ERR {
            self.announce(index);
        }
        self.break_off(index, reason_of(wc));
    }
}

/// Why a connection ends with this completion.
#[cold]
pub(super) fn reason_of(wc: &WorkCompletion) -> CloseReason {
    let WorkCompletion { qpn, opcode, status, vendor_err, .. } = *wc;
    let error = CompletionError { qpn, opcode, status, vendor_err };
    match status {
        WcStatus::RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR | WcStatus::WR_FLUSH_ERR => {
            CloseReason::PeerLost(Lost::Completion(error))
        }
        _ => CloseReason::Completion(error),
    }
}
