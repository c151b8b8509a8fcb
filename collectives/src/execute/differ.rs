//! Messages that do not belong to the operation that runs: of another one, or of a rank that was asked for another.

use qpair_transport::{EndpointId, Message};

use super::call::Call;
use super::exec::Exec;
use super::net::Link;
use super::stash::Early;
use super::tag::{Fields, Kind};
use crate::fault::{Fault, Mismatch, Outcome, Side};

impl Exec<'_> {
    /// Something came that is not for the operation that runs.
    pub(super) fn arrived_other(&mut self, ep: EndpointId, fields: Fields, message: Message) -> Outcome<()> {
        let known = self.net.peers.get(fields.rank as usize).is_some_and(|peer| peer.link == Link::Up(ep));
        match fields.kind {
            Kind::Hello => self.net.hello(ep, fields.rank, &message),
            _ if !known => self.net.turn_away(ep),
            Kind::Announce => return self.announced(fields, &message),
            _ => return self.of_another(fields, message),
        }
        Ok(())
    }

    fn announced(&mut self, fields: Fields, text: &[u8]) -> Outcome<()> {
        if let Some(slot) = self.plan.slot(fields.rank) {
            let theirs = &mut self.plan.peers[slot as usize].theirs;
            *theirs = theirs.filter(|&theirs| theirs != fields.plan);
        }
        self.net.announced(fields.rank, fields.plan, text)
    }

    fn of_another(&mut self, fields: Fields, contents: Message) -> Outcome<()> {
        let ahead = fields.sequence.wrapping_sub(self.run.sequence()) as i16;
        // The operation that runs has no messages with a rank that lacks in its plan.
        if ahead < 0 || (self.run.is_active() && (ahead == 0 || self.lacks(fields.rank))) {
            return Err(self.differs(fields));
        }
        self.run.stash.push(Early { fields, contents });
        Ok(())
    }

    /// Delivers what came before the operation began.
    #[cold]
    pub(super) fn unstash(&mut self) -> Outcome<()> {
        while let Some(Early { fields, contents }) = self.run.stash.take_due(self.run.sequence()) {
            if fields.sequence != self.run.sequence() {
                return Err(self.differs(fields));
            }
            let Some(slot) = self.plan.slot(fields.rank) else { return Err(self.differs(fields)) };
            self.deliver(slot, fields, contents)?;
        }
        // A peer that is in a later operation has sent all that it has for this one.
        let lacking = (0..self.net.ranks()).filter(|&rank| self.lacks(rank));
        let ahead = lacking.filter_map(|rank| self.run.stash.first_of(rank)).next();
        ahead.map_or(Ok(()), |early| Err(self.differs(early.fields)))
    }

    /// Whether something of `rank` for the operation that runs has not come.
    pub(super) fn lacks(&self, rank: u32) -> bool {
        let Some(slot) = self.plan.slot(rank) else { return false };
        self.run.arrived[slot as usize] < self.plan.peers[slot as usize].expected
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

    /// The fault that a peer does something else.
    #[cold]
    pub(super) fn differs(&self, fields: Fields) -> Box<Fault> {
        let ahead = fields.sequence.wrapping_sub(self.run.sequence()) as i16;
        let number = self.run.number.wrapping_add_signed(ahead.into());
        let theirs = self.net.call(fields.rank, fields.plan).copied();
        let ours: Option<(u64, Call)> = match ahead {
            0.. if self.run.is_active() => Some((self.run.number, self.plan.call)),
            0.. => None,
            _ => self.run.past(number).map(|call| (number, call)),
        };
        match (theirs, ours) {
            (Some(theirs), Some((own, ours))) if (own, ours) != (number, theirs) => {
                let one = Side { rank: self.net.me, number: own, call: ours };
                let other = Side { rank: fields.rank, number, call: theirs };
                Box::new(Fault::Differs(Mismatch { one, other }))
            }
            _ => {
                let reason = format!(
                    "it sent message {} of its plan {} for operation {number}, which rank {} has no use for",
                    fields.message, fields.plan, self.net.me
                );
                Box::new(Fault::Failed { rank: fields.rank, reason })
            }
        }
    }
}
