//! Messages that do not belong to the operation that runs: of another one, or of a rank that was asked for another.

use qpair_transport::EndpointId;

use super::call::Call;
use super::exec::Exec;
use super::net::Link;
use super::stash::{Arrival, Early};
use super::tag::{Fields, Kind};
use crate::fault::{Fault, Mismatch, Outcome, Side};

impl Exec<'_> {
    /// Something came that is not for the operation that runs.
    pub(super) fn arrived_other(&mut self, ep: EndpointId, fields: Fields, arrival: Arrival) -> Outcome<()> {
        match (fields.kind, arrival) {
            (Kind::Hello, Arrival::Message(message)) => self.net.hello(ep, fields.rank, &message),
            (Kind::Announce, Arrival::Message(message)) => {
                return self.net.announced(ep, fields.rank, fields.plan, &message);
            }
            (Kind::Data, arrival) => {
                if self.net.peers.get(fields.rank as usize).is_none_or(|peer| peer.link != Link::Up(ep)) {
                    tracing::warn!(rank = fields.rank, "a message of a rank on a connection that is not its own");
                    return Ok(());
                }
                return self.of_another(fields, arrival);
            }
            (Kind::Hello | Kind::Announce, Arrival::Offer(_)) => {}
        }
        Ok(())
    }

    fn of_another(&mut self, fields: Fields, arrival: Arrival) -> Outcome<()> {
        let ahead = fields.sequence.wrapping_sub(self.run.sequence()) as i16;
        if ahead < 0 {
            return Err(self.differs(fields));
        }
        if ahead > 0 && self.run.is_active() && self.lacks(fields.rank) {
            return Err(self.differs(fields));
        }
        let Fields { rank, plan, sequence, message, .. } = fields;
        self.run.stash.push(Early { rank, plan, sequence, message, arrival });
        Ok(())
    }

    /// Delivers what came before the operation began.
    #[cold]
    pub(super) fn unstash(&mut self) -> Outcome<()> {
        while let Some(early) = self.run.stash.take_due(self.run.sequence()) {
            let Early { rank, plan, sequence, message, arrival } = early;
            let fields = Fields { kind: Kind::Data, rank, plan, sequence, message };
            if sequence != self.run.sequence() {
                return Err(self.differs(fields));
            }
            self.deliver(None, fields, arrival)?;
        }
        // A peer that is in a later operation has sent all that it has for this one.
        let lacking = (0..self.net.ranks()).filter(|&rank| self.lacks(rank));
        let ahead = lacking.filter_map(|rank| self.run.stash.first_of(rank)).next();
        match ahead {
            Some(&Early { rank, plan, sequence, message, .. }) => {
                Err(self.differs(Fields { kind: Kind::Data, rank, plan, sequence, message }))
            }
            None => Ok(()),
        }
    }

    /// Whether messages of `rank` for the operation that runs have not come.
    fn lacks(&self, rank: u32) -> bool {
        let Some(slot) = self.plan.slot(rank) else { return false };
        self.run.arrived[slot as usize] < self.plan.peers[slot as usize].receives
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
