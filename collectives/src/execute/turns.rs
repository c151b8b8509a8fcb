//! How far messages that are copied overtake others to the same peer.
//!
//! A plan is proved with one message at a time from one rank to another, in the order of the program. Here, a send that may go
//! does not wait for one before it that may not; what comes early lies at the peer until a step takes it, and takes up room. So a
//! message goes only while the first that has not gone still finds room beside all that have overtaken it: then those before that
//! one are taken, as was proved, and it goes when it may.

use super::exec::Exec;
use super::run::State;

impl Exec<'_> {
    /// Whether a message that is copied may not go yet, as one long before it to the same peer has not.
    #[inline]
    pub(super) fn is_out_of_turn(&mut self, slot: u16, message: u32) -> bool {
        let most = self.net.overtaking();
        // No more are before it than that.
        message >= most && message.saturating_sub(self.first_unsent(slot)) >= most
    }

    /// The first message to a peer that is copied and has not gone; where all have, one that there is not.
    fn first_unsent(&mut self, slot: u16) -> u32 {
        let Exec { plan, run, .. } = self;
        if run.unsent.is_empty() {
            run.unsent.resize(plan.peers.len(), 0);
        }
        let first = &mut run.unsent[slot as usize];
        let has_gone = |number: u32| {
            plan.steps[number as usize].way.is_direct()
                || matches!(run.states[number as usize], State::Given | State::Done)
        };
        while plan.send(slot, *first).is_some_and(has_gone) {
            *first += 1;
        }
        *first
    }

    /// Lets sends go that were early, and are not any more. Whether there are such.
    #[cold]
    pub(super) fn release(&mut self) -> bool {
        let mut at = 0;
        while let Some(&number) = self.run.out_of_turn.get(at) {
            let step = &self.plan.steps[number as usize];
            if self.is_out_of_turn(step.slot, step.message) {
                at += 1;
            } else {
                self.run.out_of_turn.remove(at);
                self.run.ready.push_back(number);
            }
        }
        !self.run.ready.is_empty()
    }
}
