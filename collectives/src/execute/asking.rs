//! Ranks that wait for long ask those whom they wait for whether they do the same.

use qpair_transport::EndpointId;

use super::engine::Engine;
use super::exec::Exec;
use super::run::Word;
use super::steps::PlanPeer;
use super::tag::{Fields, Kind};
use crate::fault::Outcome;

impl Engine<'_> {
    /// Where nothing has come for long, asks those who are waited for whether they do the same: of two that both receive first, none
    /// would ever hear of what the other was asked for.
    #[cold]
    pub(super) fn ask_if_long(&mut self) -> Outcome<()> {
        if !self.wait.is_to_ask() {
            return Ok(());
        }
        let (mut asked, count) = (Vec::new(), self.runs.len());
        // Of another operation first each time: the one that the peer does as well may be any.
        let first = self.wait.rounds;
        for at in (0..count).map(|number| (first + number) % count) {
            let mut exec = self.exec(at)?;
            if exec.is_active() && !exec.is_complete() {
                exec.ask(&mut asked)?;
            }
        }
        Ok(())
    }

    /// A peer waits for this rank, in the same operation or in another, or in one that is over or to come.
    #[cold]
    pub(super) fn asked(&mut self, ep: EndpointId, fields: Fields) -> Outcome<bool> {
        if !self.net.is_up(ep, fields.rank) {
            return self.foreign(ep);
        }
        for at in 0..self.runs.len() {
            let mut exec = self.exec(at)?;
            if let Some(slot) = exec.takes(ep, fields) {
                if exec.plan.peers[slot as usize].theirs != Some(fields.plan) {
                    exec.check_peer(slot, fields)?;
                }
                return Ok(false);
            }
        }
        let ours = self.net.past(fields.rank, fields.sequence);
        let differs = ours.zip(self.net.call(fields.rank, fields.plan)).is_some_and(|(ours, theirs)| ours != *theirs);
        // Of one that is to come it is asked again.
        if differs { Err(self.net.differs(fields)) } else { Ok(false) }
    }
}

impl Exec<'_> {
    /// Tells those who are waited for that they are, unless they were `asked` already: one that does not look is to have room for the
    /// rest.
    #[cold]
    fn ask(&mut self, asked: &mut Vec<u32>) -> Outcome<()> {
        for slot in 0..self.plan.peers.len() as u16 {
            let PlanPeer { ep, rank, .. } = self.plan.peers[slot as usize];
            if ep.is_some() && !asked.contains(&rank) && self.needs(rank) {
                asked.push(rank);
                // One that has no room for it has not looked for long, and is asked again.
                self.try_say(Word { slot, kind: Kind::Waits, message: 0, step: None })?;
            }
        }
        Ok(())
    }
}
