//! What is over on a link once those of this device are who are inside an access: arenas of the peer that are gone, and its
//! questions whether what was under way has passed. None is waited for, since peers need the control thread.

use std::sync::{Mutex, Weak};

use super::peer_arenas::Forgotten;
use crate::soft::home::Initiators;
use crate::sync::lock;

/// In the order in which the peer told of them.
#[derive(Debug, Default)]
pub(super) struct Departures(Mutex<Vec<Departure>>);

#[derive(Debug)]
enum Departure {
    /// An arena that they may be at.
    Arena(Forgotten, Initiators),
    /// One that a driver is closing; over once nothing is left of what that was given.
    Closing(Weak<()>),
    /// The peer asked in that turn. It is answered after all before it: an owner frees what nobody has open then.
    Asked(u64, Initiators),
}

impl Departures {
    pub(super) fn arena(&self, arena: Forgotten, inside: Initiators) {
        lock(&self.0).push(Departure::Arena(arena, inside));
    }

    pub(super) fn asked(&self, turn: u64, inside: Initiators) {
        let mut all = lock(&self.0);
        // The answer to a later turn is one to those before it, too: a peer that asks and asks takes no more memory.
        if all.len() >= MANY
            && let Some(Departure::Asked(last, seen)) = all.last_mut()
        {
            return (*last, *seen) = (turn, inside);
        }
        all.push(Departure::Asked(turn, inside));
    }

    /// Goes on with what can; true if something is left. `is_over` says whether initiators have left, `answer` answers a turn.
    pub(super) fn settle(&self, mut is_over: impl FnMut(&mut Initiators) -> bool, mut answer: impl FnMut(u64)) -> bool {
        let mut all = lock(&self.0);
        for departure in std::mem::take(&mut *all) {
            let left = match departure {
                Departure::Arena(mut arena, mut inside) => match is_over(&mut inside) {
                    true => arena.close().map(Departure::Closing),
                    false => Some(Departure::Arena(arena, inside)),
                },
                Departure::Closing(closing) => (closing.strong_count() > 0).then_some(Departure::Closing(closing)),
                Departure::Asked(turn, mut inside) => match is_over(&mut inside) && all.is_empty() {
                    true => {
                        answer(turn);
                        None
                    }
                    false => Some(Departure::Asked(turn, inside)),
                },
            };
            all.extend(left);
        }
        !all.is_empty()
    }
}

/// More than there are for any time, unless a thread is stopped.
const MANY: usize = 64;
