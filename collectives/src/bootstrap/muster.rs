//! Who is left of the ranks, once those that are ask for each other.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::regroup::Spot;
use crate::deadline::Deadline;

/// The ranks that are left, and where they meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remnant {
    /// In order; empty where others may have gone on.
    pub(crate) ranks: Vec<u32>,
    /// Where the first of them listens.
    pub(crate) spot: Spot,
}

/// Which ranks ask who is left, and which could.
#[derive(Debug)]
pub(super) struct Roll {
    ranks: Vec<Standing>,
    /// While one asks: until then the others may.
    until: Option<Deadline>,
    /// One that had asked took its leave: it may have found others to go on with.
    is_deserted: bool,
}

/// What a rank has done, and may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It may ask.
    Here,
    /// It has ended, or dropped its communicator.
    Gone,
    /// It asks, and listens there.
    Asks(Spot),
    /// It was told, and meets the others; if that fails, it may ask again.
    Told,
    /// The others went on without it.
    Out,
}

impl Roll {
    pub(super) fn new(ranks: u32) -> Self {
        Roll { ranks: vec![Standing::Here; ranks as usize], until: None, is_deserted: false }
    }

    /// A rank asks. The limit of the first that does counts. False if the others have gone on without it.
    pub(super) fn ask(&mut self, rank: u32, spot: Spot, limit: Duration) -> bool {
        match self.ranks.get_mut(rank as usize) {
            Some(standing @ (Standing::Here | Standing::Told)) => {
                *standing = Standing::Asks(spot);
                self.until.get_or_insert_with(|| Deadline::after(limit));
                true
            }
            _ => false,
        }
    }

    pub(super) fn leave(&mut self, rank: u32) {
        if let Some(standing) = self.ranks.get_mut(rank as usize) {
            *standing = Standing::Gone;
        }
        // The time was for those that asked.
        if !self.ranks.iter().any(|standing| matches!(standing, Standing::Asks(_))) {
            self.until = None;
        }
    }

    /// A rank is here, though it was said to be gone.
    pub(super) fn come(&mut self, rank: u32) {
        if let Some(standing @ Standing::Gone) = self.ranks.get_mut(rank as usize) {
            *standing = Standing::Here;
        }
    }

    /// A rank takes its leave. One that had asked may go on with others that know nothing of those here.
    pub(super) fn desert(&mut self, rank: u32) {
        let standing = self.ranks.get(rank as usize);
        self.is_deserted |= matches!(standing, Some(Standing::Asks(_) | Standing::Told));
        self.leave(rank);
    }

    /// How long the others may still ask; `None` if nobody does, or for ever.
    pub(super) fn left(&self) -> Option<Duration> {
        self.until?.left()
    }

    /// Who is left, once all have asked that can, or had the time to. Those that have not are left out; and all are, if they are no
    /// more than half where some [deserted](Self::desert), who may be the other half.
    pub(super) fn settle(&mut self) -> Option<Remnant> {
        let until = self.until?;
        let is_awaited = |standing: &Standing| matches!(standing, Standing::Here | Standing::Told);
        if !until.is_over() && self.ranks.iter().any(is_awaited) {
            return None;
        }
        self.until = None;
        let asking = (0..).zip(&self.ranks).filter_map(|(rank, standing)| match standing {
            Standing::Asks(spot) => Some((rank, *spot)),
            _ => None,
        });
        let (mut ranks, spots): (Vec<u32>, Vec<Spot>) = asking.unzip();
        // None, if those that asked have ended since.
        let spot = *spots.first()?;
        if self.is_deserted && 2 * ranks.len() <= self.ranks.len() {
            ranks.clear();
        }
        for standing in &mut self.ranks {
            *standing = match *standing {
                Standing::Here | Standing::Told => Standing::Out,
                Standing::Asks(_) if ranks.is_empty() => Standing::Out,
                Standing::Asks(_) => Standing::Told,
                other => other,
            };
        }
        Some(Remnant { ranks, spot })
    }
}

/// Where ranks that are threads of one process ask.
#[derive(Debug)]
pub(crate) struct Muster {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    roll: Roll,
    /// What those were told that asked last.
    remnant: Option<Remnant>,
}

impl Muster {
    pub(super) fn new(ranks: u32) -> Arc<Self> {
        let state = State { roll: Roll::new(ranks), remnant: None };
        Arc::new(Muster { state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(super) fn ask(&self, rank: u32, spot: Spot, limit: Duration) {
        // Who is not counted any more hears so when it waits.
        let _ = self.lock().roll.ask(rank, spot, limit);
    }

    pub(super) fn leave(&self, rank: u32) {
        self.lock().roll.leave(rank);
        self.changed.notify_all();
    }

    /// Waits until all have asked, or had the time to. `None` if the others went on without this one.
    pub(super) fn wait(&self, rank: u32) -> Option<Remnant> {
        let mut state = self.lock();
        loop {
            if let Some(remnant) = state.roll.settle() {
                state.remnant = Some(remnant);
                self.changed.notify_all();
            }
            match state.roll.ranks.get(rank as usize) {
                Some(Standing::Asks(_)) => {}
                Some(Standing::Told) => return state.remnant.clone(),
                _ => return None,
            }
            let left = state.roll.left().unwrap_or(Duration::MAX);
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn spot(port: u16) -> Spot {
        Spot { address: ([127, 0, 0, 1], port).into(), ticket: port.into() }
    }

    fn remnant(ranks: &[u32], port: u16) -> Option<Remnant> {
        Some(Remnant { ranks: ranks.to_vec(), spot: spot(port) })
    }

    /// Four ranks, of which these ask, with a port each.
    fn asking(ranks: &[u32], limit: Duration) -> Roll {
        let mut roll = Roll::new(4);
        ranks.iter().for_each(|&rank| assert!(roll.ask(rank, spot(100 + rank as u16), limit)));
        roll
    }

    #[test]
    fn nobody_is_told_before_somebody_asks() {
        let mut roll = Roll::new(4);
        assert_eq!(roll.settle(), None);
        (0..4).for_each(|rank| roll.leave(rank));
        assert_eq!(roll.settle(), None);
    }

    #[test]
    fn all_are_told_once_those_have_asked_that_can() {
        let mut roll = asking(&[3, 1], LIMIT);
        assert_eq!(roll.settle(), None);
        roll.leave(0);
        assert_eq!(roll.settle(), None);
        let _ = roll.ask(2, spot(102), LIMIT);
        assert_eq!(roll.settle(), remnant(&[1, 2, 3], 101));
        assert_eq!(roll.settle(), None);
    }

    #[test]
    fn who_has_not_asked_in_time_is_out_for_good() {
        let mut roll = asking(&[1, 2], Duration::ZERO);
        assert_eq!(roll.settle(), remnant(&[1, 2], 101));
        let _ = roll.ask(0, spot(100), LIMIT);
        assert_eq!((roll.until.is_some(), roll.settle()), (false, None));
    }

    #[test]
    fn who_was_said_to_be_gone_and_comes_is_waited_for() {
        let mut roll = asking(&[0, 1, 2], LIMIT);
        roll.leave(3);
        roll.come(3);
        assert_eq!(roll.settle(), None);
        assert!(roll.ask(3, spot(103), LIMIT));
        assert_eq!(roll.settle(), remnant(&[0, 1, 2, 3], 100));
    }

    #[test]
    fn the_limit_of_the_first_counts() {
        let mut roll = asking(&[1], Duration::ZERO);
        let _ = roll.ask(2, spot(102), Duration::MAX);
        assert_eq!(roll.settle(), remnant(&[1, 2], 101));
    }

    #[test]
    fn who_asked_and_ended_is_not_left() {
        let mut roll = asking(&[0, 1, 2, 3], LIMIT);
        roll.leave(0);
        assert_eq!(roll.settle(), remnant(&[1, 2, 3], 101));
        // Nobody is left out by one that has ended since.
        let mut roll = asking(&[1], Duration::ZERO);
        roll.leave(1);
        let _ = roll.ask(2, spot(200), LIMIT);
        assert_eq!(roll.settle(), None);
        [0, 3].into_iter().for_each(|rank| _ = roll.ask(rank, spot(200), LIMIT));
        assert_eq!(roll.settle(), remnant(&[0, 2, 3], 200));
    }

    #[test]
    fn who_was_not_waited_for_does_not_go_on_as_well() {
        // Those that asked before it was ready to answer are half of the ranks, elsewhere.
        let mut roll = asking(&[2, 3], LIMIT);
        [2, 3].into_iter().for_each(|rank| roll.desert(rank));
        [0, 1].into_iter().for_each(|rank| _ = roll.ask(rank, spot(100), LIMIT));
        assert_eq!(roll.settle(), remnant(&[], 100));
        // Those that were told and did not meet them, likewise.
        let mut roll = asking(&[0, 1, 2, 3], LIMIT);
        assert!(roll.settle().is_some());
        [1, 2, 3].into_iter().for_each(|rank| roll.desert(rank));
        let _ = roll.ask(0, spot(100), LIMIT);
        assert_eq!(roll.settle(), remnant(&[], 100));
        // More than half are the only ones.
        let mut roll = asking(&[3], LIMIT);
        roll.desert(3);
        (0..3).for_each(|rank| _ = roll.ask(rank, spot(100), LIMIT));
        assert_eq!(roll.settle(), remnant(&[0, 1, 2], 100));
    }

    #[test]
    fn those_that_did_not_meet_ask_again() {
        let mut roll = asking(&[0, 1, 2, 3], LIMIT);
        assert!(roll.settle().is_some());
        let _ = roll.ask(2, spot(202), LIMIT);
        roll.leave(0);
        let _ = roll.ask(3, spot(203), LIMIT);
        // Rank 1 may still be about to.
        assert_eq!(roll.settle(), None);
        roll.leave(1);
        assert_eq!(roll.settle(), remnant(&[2, 3], 202));
    }

    #[test]
    fn threads_wait_for_each_other_and_not_for_those_that_leave() {
        let muster = Muster::new(3);
        std::thread::scope(|scope| {
            let told = [2, 0].map(|rank| {
                let muster = &muster;
                scope.spawn(move || {
                    muster.ask(rank, spot(100 + rank as u16), Duration::MAX);
                    muster.wait(rank)
                })
            });
            muster.leave(1);
            told.into_iter().for_each(|told| assert_eq!(told.join().unwrap(), remnant(&[0, 2], 100)));
        });
        muster.ask(1, spot(101), Duration::MAX);
        assert_eq!(muster.wait(1), None);
    }
}
