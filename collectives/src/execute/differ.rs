//! Messages that do not belong to what runs: of another operation, or of a rank that was asked for another.

use qpair_transport::EndpointId;

use super::call::Call;
use super::exec::Exec;
use super::net::Net;
use super::stash::Early;
use super::tag::Fields;
use crate::fault::{Fault, Mismatch, Outcome, Side};

impl Exec<'_> {
    /// The sender's slot, if that is for this operation.
    #[inline]
    pub(super) fn takes(&self, ep: EndpointId, fields: Fields) -> Option<u16> {
        let slot = self.plan.slot(fields.rank)?;
        let number = self.run.numbers.get(slot as usize)?;
        // One that is complete may be kept for long, until messages carry its number again.
        let due = self.run.active && number.sequence() == fields.sequence && !self.is_complete();
        (due && self.plan.peers[slot as usize].ep == Some(ep)).then_some(slot)
    }

    /// Delivers what came before the operation began, or while it was run straight.
    #[cold]
    pub(super) fn unstash(&mut self) -> Outcome<()> {
        for slot in 0..self.plan.peers.len() as u16 {
            let (rank, number) = (self.plan.peers[slot as usize].rank, self.run.numbers[slot as usize]);
            while let Some(Early { fields, contents, meant }) = self.net.stash.take(rank, number.sequence()) {
                match meant {
                    None => self.deliver(slot, fields, contents)?,
                    Some(call) if call == self.plan.call => {
                        self.run.arrived[slot as usize] += 1;
                        self.hand_on(slot, fields, contents)?;
                    }
                    Some(call) => {
                        return Err(self.net.differs_as((fields, Some(call)), Some((number.number, self.plan.call))));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether something of `rank` for the operation has not come.
    pub(super) fn lacks(&self, rank: u32) -> bool {
        let Some(slot) = self.plan.slot(rank) else { return false };
        self.run.arrived.get(slot as usize).is_some_and(|&arrived| arrived < self.plan.peers[slot as usize].expected)
    }

    /// A peer's plan number comes for the first time: does it stand for the same?
    #[cold]
    pub(super) fn check_peer(&mut self, slot: u16, fields: Fields) -> Outcome<()> {
        match self.net.call(fields.rank, fields.plan) {
            Some(call) if *call == self.plan.call => {
                self.plan.peers[slot as usize].theirs = Some(fields.plan);
                Ok(())
            }
            _ => Err(self.differs(fields)),
        }
    }

    /// The fault that a peer does something else in this operation.
    #[cold]
    pub(super) fn differs(&self, fields: Fields) -> Box<Fault> {
        let number = self.plan.slot(fields.rank).map(|slot| self.run.numbers[slot as usize]);
        self.net.differs_from(fields, number.map(|number| (number.number, self.plan.call)))
    }
}

impl Net {
    /// The fault that a peer sends something for an operation that was another here, or is over.
    #[cold]
    pub(super) fn differs(&self, fields: Fields) -> Box<Fault> {
        let number = self.number(fields.rank, fields.sequence);
        self.differs_from(fields, self.past(fields.rank, fields.sequence).map(|call| (number, call)))
    }

    fn differs_from(&self, fields: Fields, ours: Option<(u64, Call)>) -> Box<Fault> {
        let theirs = self.call(fields.rank, fields.plan).copied();
        self.differs_as((fields, theirs), ours)
    }

    /// The same where a peer's plan number stood for that.
    fn differs_as(&self, (fields, theirs): (Fields, Option<Call>), ours: Option<(u64, Call)>) -> Box<Fault> {
        let number = self.number(fields.rank, fields.sequence);
        match (theirs, ours) {
            (Some(theirs), Some((own, ours))) if (own, ours) != (number, theirs) => {
                let one = Side { rank: self.me, number: own, call: ours };
                let other = Side { rank: fields.rank, number, call: theirs };
                Box::new(Fault::Differs(Mismatch { one, other }))
            }
            _ => {
                let reason = format!(
                    "it sent message {} of its plan {} for operation {number} with rank {}, which that has no use for",
                    fields.message, fields.plan, self.me
                );
                Box::new(Fault::Failed { rank: fields.rank, reason })
            }
        }
    }
}
