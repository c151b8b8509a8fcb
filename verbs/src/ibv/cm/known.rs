//! The ids that events may be about, by where the library has them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::course::{Course, End, Loss};
use super::inbox::Inbox;
use crate::sync::lock;

/// Finds what an event is about. Its lock is held for looking alone: the calls that an event asks for may take long, and other
/// connections begin and end meanwhile.
#[derive(Debug, Default)]
pub(super) struct Known {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<usize, Arc<Entry>>,
    /// Nobody reads events any more.
    is_over: bool,
}

/// An id, as long as it is there.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) about: About,
    is_there: Mutex<bool>,
}

/// What events about an id are about.
#[derive(Debug)]
pub(super) enum About {
    Listener(Arc<Inbox>),
    Connection(Arc<Course>),
}

impl Known {
    /// One more; none once nobody reads events any more.
    pub(super) fn add(&self, at: usize, about: About) -> Option<Arc<Entry>> {
        let mut state = lock(&self.state);
        if state.is_over {
            return None;
        }
        let entry = Arc::new(Entry { about, is_there: Mutex::new(true) });
        state.entries.insert(at, entry.clone());
        Some(entry)
    }

    pub(super) fn find(&self, at: usize) -> Option<Arc<Entry>> {
        lock(&self.state).entries.get(&at).cloned()
    }

    /// Forgets an id that is about to go. Whoever found it before may be at work with it: see [`Entry::leave`].
    pub(super) fn remove(&self, at: usize) {
        lock(&self.state).entries.remove(&at);
    }

    /// Takes no more in, and tells those that are there: nobody reads events any more.
    pub(super) fn end(&self) {
        let entries: Vec<_> = {
            let mut state = lock(&self.state);
            state.is_over = true;
            state.entries.values().cloned().collect()
        };
        for entry in entries {
            match &entry.about {
                About::Listener(inbox) => inbox.end(Loss::Manager),
                About::Connection(course) => course.ended(End::Lost(Loss::Manager)),
            }
        }
    }
}

impl Entry {
    /// Does something with the id, if it is there still; it stays until that is done.
    pub(super) fn while_there<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let is_there = lock(&self.is_there);
        is_there.then(work)
    }

    /// Waits until nobody is at work with the id, and lets nobody begin. It may be destroyed then.
    pub(super) fn leave(&self) {
        *lock(&self.is_there) = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_works_with_an_id_that_is_about_to_go() {
        let known = Known::default();
        known.add(1, About::Connection(Arc::default())).unwrap();
        let found = known.find(1).unwrap();
        assert_eq!(found.while_there(|| 7), Some(7));
        known.remove(1);
        found.leave();
        assert_eq!(found.while_there(|| 7), None);
        assert!(known.find(1).is_none());
    }

    #[test]
    fn others_come_and_go_while_somebody_works_with_an_id() {
        let known = Known::default();
        let busy = known.add(1, About::Connection(Arc::default())).unwrap();
        let done = busy.while_there(|| {
            let other = known.add(2, About::Connection(Arc::default())).unwrap();
            known.remove(2);
            other.leave();
        });
        assert!(done.is_some());
    }
}
