//! What is over on a link once those of this device are who are inside an access: arenas of the peer that are gone, its
//! questions whether what was under way has passed, and the link itself, if the peer makes no sense. None is waited for, since
//! peers need the control thread.

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
    /// The peer is heard no more. It is told so after all before it: it takes the end of the link for that of all accesses.
    Spurned(Initiators),
}

/// What the peer is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// What was under way in that turn has passed.
    Quiet(u64),
    /// Nothing follows.
    HangUp,
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

    pub(super) fn spurned(&self, inside: Initiators) {
        lock(&self.0).push(Departure::Spurned(inside));
    }

    /// Goes on with what can; true if something is left. `is_over` says whether initiators have left, `tell` tells the peer.
    pub(super) fn settle(&self, mut is_over: impl FnMut(&mut Initiators) -> bool, mut tell: impl FnMut(Told)) -> bool {
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
                        tell(Told::Quiet(turn));
                        None
                    }
                    false => Some(Departure::Asked(turn, inside)),
                },
                Departure::Spurned(mut inside) => match is_over(&mut inside) && all.is_empty() {
                    true => {
                        tell(Told::HangUp);
                        None
                    }
                    false => Some(Departure::Spurned(inside)),
                },
            };
            all.extend(left);
        }
        !all.is_empty()
    }
}

/// More than there are for any time, unless a thread is stopped.
const MANY: usize = 64;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::soft::home::Home;

    /// Settles while those who were inside an access have left it, or not; whether something is left, and what is told.
    fn settle(departures: &Departures, have_left: bool) -> (bool, Vec<Told>) {
        let mut answered = Vec::new();
        let left = departures.settle(|_| have_left, |told| answered.push(told));
        (left, answered)
    }

    #[test]
    fn a_turn_is_answered_after_the_accesses_and_what_went_before_it() {
        let (home, departures) = (Home::new().unwrap(), Departures::default());
        departures.asked(1, home.sight_initiators());
        let open = Arc::new(());
        lock(&departures.0).push(Departure::Closing(Arc::downgrade(&open)));
        departures.asked(2, home.sight_initiators());
        assert_eq!(settle(&departures, false), (true, vec![]));
        assert_eq!(settle(&departures, true), (true, vec![Told::Quiet(1)]));
        drop(open);
        assert_eq!(settle(&departures, false), (true, vec![]));
        assert_eq!(settle(&departures, true), (false, vec![Told::Quiet(2)]));
        assert_eq!(settle(&departures, true), (false, vec![]));
    }

    #[test]
    fn the_end_is_told_last() {
        let (home, departures) = (Home::new().unwrap(), Departures::default());
        departures.asked(1, home.sight_initiators());
        departures.spurned(home.sight_initiators());
        assert_eq!(settle(&departures, false), (true, vec![]));
        assert_eq!(settle(&departures, true), (false, vec![Told::Quiet(1), Told::HangUp]));
    }

    #[test]
    fn a_peer_that_asks_and_asks_takes_no_more_memory() {
        let (home, departures) = (Home::new().unwrap(), Departures::default());
        (1..=1000).for_each(|turn| departures.asked(turn, home.sight_initiators()));
        assert_eq!(lock(&departures.0).len(), MANY);
        assert_eq!(settle(&departures, true).1.last(), Some(&Told::Quiet(1000)));
    }
}
