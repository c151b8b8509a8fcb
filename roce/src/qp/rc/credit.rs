//! Receives that the peer counts. IBA 9.7.7.2.

use super::request::Request;
use crate::types::Msn;
use crate::wire::{Aeth, Syndrome};
use crate::work::Outcome;

/// What the peer has receives for, as far as it told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit {
    /// Number of the last message, if it counts them.
    last: Option<Msn>,
}

impl Credit {
    /// Takes in what an answer says. It never goes back: one that says less is older than what is known.
    pub(super) fn take(&mut self, aeth: Aeth) -> Result<(), Outcome> {
        let Syndrome::Ack(credits) = aeth.syndrome else { return Err(Outcome::BadResponse) };
        let last = credits.count().map(|count| aeth.msn.advance(count));
        let is_older = |(known, told): (Msn, Msn)| told.relative_to(known) < 0;
        if !self.last.zip(last).is_some_and(is_older) {
            self.last = last;
        }
        Ok(())
    }

    /// True if the peer has no receive for the message.
    pub(super) fn lacks<L: Copy>(&self, request: &Request<L>) -> bool {
        request.takes_receive() && self.last.is_some_and(|last| request.ssn.relative_to(last) > 0)
    }
}
