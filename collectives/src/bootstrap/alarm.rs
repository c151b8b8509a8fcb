//! What this process knows of the end of ranks. The first fault counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::muster::Remnant;
use crate::fault::{Fault, Place};

/// The first fault, the ranks that have left, and those that are left.
#[derive(Debug)]
pub(crate) struct Alarm {
    raised: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    fault: Option<Fault>,
    left: Vec<bool>,
    /// Where ranks of this process wait, if they do so for long; of one that only looks now and then, until when that is taken to be
    /// so.
    places: HashMap<u32, (Place, Option<Instant>)>,
    /// What the store said last, and this rank has not looked at.
    remnant: Option<Remnant>,
    /// The store says nothing more.
    is_deaf: bool,
}

impl Alarm {
    pub(crate) fn new(ranks: u32) -> Arc<Self> {
        let left = vec![false; ranks as usize];
        let state = State { fault: None, left, places: HashMap::new(), remnant: None, is_deaf: false };
        Arc::new(Alarm { raised: AtomicBool::new(false), state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Whether there is a fault.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// The first fault.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.lock().fault.clone()
    }

    /// Takes note of a fault. Gives the first one. A rank that has left is not gone.
    pub(crate) fn raise(&self, fault: Fault) -> Fault {
        let mut state = self.lock();
        let fault = match fault {
            Fault::Gone { rank } if state.left.get(rank as usize) == Some(&true) => Fault::Left { rank },
            fault => fault,
        };
        let first = state.fault.get_or_insert(fault).clone();
        self.raised.store(true, Ordering::Release);
        self.changed.notify_all();
        first
    }

    /// Where a rank waits that does so for long; `None` once it goes on.
    pub(crate) fn waits(&self, rank: u32, place: Option<Place>) {
        self.set(rank, place, None);
    }

    /// The same of a rank that looks whether there is something, and does other things meanwhile: for so long.
    pub(crate) fn waits_for_now(&self, rank: u32, place: Option<Place>, long: Duration) {
        self.set(rank, place, Instant::now().checked_add(long));
    }

    fn set(&self, rank: u32, place: Option<Place>, until: Option<Instant>) {
        let places = &mut self.lock().places;
        match place {
            Some(place) => drop(places.insert(rank, (place, until))),
            None => drop(places.remove(&rank)),
        }
    }

    /// Where a rank of this process waits.
    pub(crate) fn place_of(&self, rank: u32) -> Option<Place> {
        self.lock().place_of(rank)
    }

    /// Where all ranks wait, where all are in this process.
    pub(crate) fn all_places(&self) -> Vec<(u32, Option<Place>)> {
        let state = self.lock();
        (0..state.left.len() as u32).map(|rank| (rank, state.place_of(rank))).collect()
    }

    /// A rank has dropped its communicator.
    pub(crate) fn leave(&self, rank: u32) {
        if let Some(left) = self.lock().left.get_mut(rank as usize) {
            *left = true;
        }
    }

    pub(crate) fn has_left(&self, rank: u32) -> bool {
        self.lock().left.get(rank as usize) == Some(&true)
    }

    /// Waits for a fault.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Fault> {
        let waiting = self.changed.wait_timeout_while(self.lock(), limit, |state| state.fault.is_none());
        waiting.unwrap_or_else(PoisonError::into_inner).0.fault.clone()
    }

    /// The store said who is left.
    pub(super) fn remains(&self, remnant: Remnant) {
        self.lock().remnant = Some(remnant);
        self.changed.notify_all();
    }

    /// The store says nothing more.
    pub(super) fn go_deaf(&self) {
        self.lock().is_deaf = true;
        self.changed.notify_all();
    }

    /// Waits until the store says who is left; `None` if it does not in that time, or can not.
    pub(super) fn wait_for_remnant(&self, limit: Duration) -> Option<Remnant> {
        let is_open = |state: &mut State| state.remnant.is_none() && !state.is_deaf;
        let waiting = self.changed.wait_timeout_while(self.lock(), limit, is_open);
        waiting.unwrap_or_else(PoisonError::into_inner).0.remnant.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn place_of(&self, rank: u32) -> Option<Place> {
        let (place, until) = self.places.get(&rank)?;
        until.is_none_or(|until| Instant::now() < until).then(|| place.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Spot;

    #[test]
    fn what_one_says_that_only_looks_counts_for_a_while() {
        let alarm = Alarm::new(1);
        let call = crate::execute::Call {
            collective: crate::plan::Collective::Barrier,
            data_type: None,
            op: None,
            elements: 0,
            in_place: true,
            on_gpu: false,
            algorithm: crate::algorithms::Algorithm::Auto,
            hash: crate::plan::PlanHash(0),
        };
        let place = Place { rank: 0, step: 1, call };
        alarm.waits_for_now(0, Some(place.clone()), Duration::from_secs(3600));
        assert!(alarm.place_of(0).is_some() && alarm.all_places()[0].1.is_some());
        alarm.waits_for_now(0, Some(place.clone()), Duration::ZERO);
        assert!(alarm.place_of(0).is_none() && alarm.all_places()[0].1.is_none());
        alarm.waits(0, Some(place));
        assert!(alarm.place_of(0).is_some());
    }

    #[test]
    fn the_first_fault_counts() {
        let alarm = Alarm::new(3);
        assert!(!alarm.is_raised());
        alarm.leave(1);
        assert_eq!(alarm.raise(Fault::Gone { rank: 1 }), Fault::Left { rank: 1 });
        assert_eq!(alarm.raise(Fault::Gone { rank: 2 }), Fault::Left { rank: 1 });
        assert!(alarm.is_raised());
        assert_eq!(alarm.wait(Duration::ZERO), Some(Fault::Left { rank: 1 }));
    }

    #[test]
    fn what_the_store_said_last_is_heard_though_it_is_gone() {
        let alarm = Alarm::new(3);
        assert_eq!(alarm.wait_for_remnant(Duration::ZERO), None);
        let spot = Spot { address: "127.0.0.1:9".parse().unwrap(), ticket: 7 };
        let remnant = Remnant { ranks: vec![0, 2], spot };
        alarm.remains(remnant.clone());
        alarm.go_deaf();
        assert_eq!(alarm.wait_for_remnant(Duration::MAX), Some(remnant));
        assert_eq!(alarm.wait_for_remnant(Duration::MAX), None);
    }
}
