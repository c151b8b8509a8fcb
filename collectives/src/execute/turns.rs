//! How far messages that are copied overtake others to the same peer.
//!
//! A plan is proved with one message at a time from one rank to another, in the order of the program. Here, a send that may go
//! does not wait for one before it that may not; what comes early lies at the peer until a step takes it, and takes up room. So a
//! message goes only while the first that has not gone still finds room beside all that have overtaken it: then those before that
//! one are taken, as was proved, and it goes when it may.
//!
//! What is empty takes up no room once the peer has begun. Nothing else is copied where peers read or write memory.

use super::exec::Exec;
use super::run::State;

/// Messages of one operation to one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// The first that has not gone.
    first: u32,
    /// Before that one, none is held back.
    released: u32,
}

impl Exec<'_> {
    /// Whether a message that is copied may not go yet, as one long before it to the same peer has not.
    #[inline]
    pub(super) fn is_out_of_turn(&mut self, slot: u16, message: u32) -> bool {
        let room = self.net.own_room();
        // The first ones have fewer before them than that. What is read or written, and what is empty beside it, has no turn.
        message >= room && !self.plan.large && message.saturating_sub(self.first_unsent(slot)) >= room
    }

    /// The first message to a peer that has not gone; one that there is not, where all have.
    fn first_unsent(&mut self, slot: u16) -> u32 {
        let Exec { plan, run, .. } = self;
        let first = &mut run.turns[slot as usize].first;
        let has_gone = |number: u32| matches!(run.states[number as usize], State::Given | State::Done);
        while plan.send(slot, *first).is_some_and(has_gone) {
            *first += 1;
        }
        *first
    }

    /// Holds a send back until its turn.
    #[cold]
    pub(super) fn hold_back(&mut self, number: u32) {
        // What was given away had its turn, and turns only move on.
        debug_assert_eq!(self.run.states[number as usize], State::Waiting);
        self.run.states[number as usize] = State::OutOfTurn;
        self.run.held_back += 1;
    }

    /// Has those sends be ready whose turn it is. Whether there are such.
    #[cold]
    pub(super) fn release(&mut self) -> bool {
        let room = self.net.own_room();
        for slot in 0..self.plan.peers.len() as u16 {
            let end = self.first_unsent(slot).saturating_add(room);
            let start = std::mem::replace(&mut self.run.turns[slot as usize].released, end);
            for number in (start..end).map_while(|message| self.plan.send(slot, message)) {
                let state = &mut self.run.states[number as usize];
                if *state == State::OutOfTurn {
                    *state = State::Waiting;
                    self.run.held_back -= 1;
                    self.run.ready.push_back(number);
                }
            }
        }
        !self.run.ready.is_empty()
    }
}
