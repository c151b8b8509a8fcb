//! Memory of sends: the application's again once the peer has read it or let go of it, unless a peer is in the middle of an access
//! just then.

use super::Worker;
use super::endpoint::Carried;
use super::error::OpError;
use super::event::{Event, Returned};
use super::ids::{EndpointId, OpId};
use super::memory::Payload;
use crate::engine::Exposed;

/// Memory that a peer may still be in the middle of reading; looked at until it is free.
#[derive(Debug)]
pub(crate) struct Withheld {
    /// Its connection, which may have ended.
    ep: EndpointId,
    pub(super) exposed: Exposed<Carried>,
}

impl Withheld {
    /// True if it is of that operation, and the application awaits its end.
    pub(super) fn is_awaited(&self, number: u64) -> bool {
        self.exposed.op == number && self.exposed.is_awaited()
    }
}

impl Worker {
    /// The peer has read a payload, or let go of it. Where another peer is in the middle of an access just now, which may be
    /// to anything, its memory comes back a little later.
    pub(super) fn finish_send(&mut self, ep: EndpointId, exposed: Exposed<Carried>) {
        let Exposed { op, envelope, payload, awaited, was_read } = exposed;
        if !was_read {
            self.break_stream(ep, envelope);
        }
        if let Carried::Slot(gpu, slot) = payload {
            // It says so itself.
            return self.staging.give(gpu, slot);
        }
        match self.take_back(ep, payload) {
            Ok(payload) => self.conclude(ep, Exposed { op, envelope, payload, awaited, was_read }, OpError::Cancelled),
            Err(payload) => self.withhold(ep, Exposed { op, envelope, payload, awaited, was_read }),
        }
    }

    /// The memory of a send is the application's own again. `error`: why, if the peer has not read it.
    pub(super) fn conclude(&mut self, ep: EndpointId, exposed: Exposed<Payload>, error: OpError) {
        let Exposed { op: number, envelope, payload, awaited, was_read } = exposed;
        if envelope.is_own() {
            return;
        }
        if !awaited {
            let op = OpId::new(number, Some(ep));
            self.ready.push_back(Event::Released { op, returned: Returned::Payload(payload) });
        } else if was_read {
            self.sent(number, ep, envelope, payload);
        } else {
            self.send_failed(number, ep, envelope, error, Returned::Payload(payload));
        }
    }

    /// Looks after memory that a peer may be in the middle of reading.
    pub(super) fn withhold(&mut self, ep: EndpointId, exposed: Exposed<Carried>) {
        self.withheld.push_back(Withheld { ep, exposed });
    }

    /// True if the memory of a send comes back once its peer has left it.
    pub(crate) fn withholds(&self, op: OpId) -> bool {
        self.withheld.iter().any(|one| one.ep.index == op.index && one.exposed.op == op.number)
    }

    /// A send whose end was told, and whose memory a peer is in the middle of reading until the worker is polled next.
    #[cfg(test)]
    pub(crate) fn withhold_for_a_poll(&mut self, op: OpId, ep: EndpointId) {
        let region = self.pd.expose(8, qpair_verbs::Access::REMOTE_READ).unwrap();
        let exposed = Exposed::new(op.number, crate::Envelope::bare(1), Carried::Region(region));
        self.withhold(ep, Exposed { awaited: false, ..exposed });
    }

    /// A send of a connection that is over but for its memory, and whose end the application awaits.
    pub(super) fn next_withheld_of(&mut self, ep: EndpointId) -> Option<&mut Exposed<Carried>> {
        let next = self.withheld.iter_mut().find(|one| one.ep == ep && one.exposed.is_awaited());
        next.map(|one| &mut one.exposed)
    }

    /// Makes a payload of a connection the application's own again; `Err` if a peer is in the middle of an access. Never waits.
    pub(super) fn take_back(&mut self, ep: EndpointId, carried: Carried) -> Result<Payload, Carried> {
        match carried {
            Carried::Region(region) => match region.try_revoke() {
                Ok(buffer) => Ok(Payload::Buffer(buffer)),
                Err(failed) => Err(Carried::Region(failed.region)),
            },
            // Nobody writes it, so that it is the application's to read even while a peer is.
            Carried::Shared(registration, bytes) => {
                self.registrations.release(registration);
                Ok(Payload::Bytes(bytes))
            }
            Carried::Copy(region, payload) => match region.try_revoke() {
                Ok(buffer) => {
                    self.pool.give_copy(buffer);
                    Ok(payload)
                }
                Err(failed) => Err(Carried::Copy(failed.region, payload)),
            },
            Carried::Slot(..) if self.may_be_read(ep) => Err(carried),
            Carried::Slot(gpu, slot) => {
                self.staging.give(gpu, slot);
                Ok(Payload::Bytes(bytes::Bytes::new()))
            }
            plain => plain.into_payload(),
        }
    }

    /// Looks at the memory that is withheld longest, at most so many pieces.
    pub(super) fn look_at_withheld(&mut self, most: usize) {
        for _ in 0..most.min(self.withheld.len()) {
            let Some(Withheld { ep, exposed }) = self.withheld.pop_front() else { return };
            let Exposed { op, envelope, payload, awaited, was_read } = exposed;
            match self.take_back(ep, payload) {
                Ok(payload) => {
                    self.conclude(ep, Exposed { op, envelope, payload, awaited, was_read }, OpError::Cancelled);
                }
                Err(payload) => self.withhold(ep, Exposed { op, envelope, payload, awaited, was_read }),
            }
        }
    }
}
