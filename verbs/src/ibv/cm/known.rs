//! The ids that events may be about, by where the library has them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::course::Course;
use super::inbox::Inbox;
use crate::sync::lock;

/// Finds what an event is about. Its lock is held for looking alone: the calls that an event asks for may take long, and other
/// connections begin and end meanwhile.
#[derive(Debug, Default)]
pub(super) struct Known {
    entries: Mutex<HashMap<usize, Arc<Entry>>>,
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
    pub(super) fn add(&self, at: usize, about: About) -> Arc<Entry> {
        let entry = Arc::new(Entry { about, is_there: Mutex::new(true) });
        lock(&self.entries).insert(at, entry.clone());
        entry
    }

    pub(super) fn find(&self, at: usize) -> Option<Arc<Entry>> {
        lock(&self.entries).get(&at).cloned()
    }

    /// Forgets an id that is about to go. Whoever found it before may be at work with it: see [`Entry::leave`].
    pub(super) fn remove(&self, at: usize) {
        lock(&self.entries).remove(&at);
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
        known.add(1, About::Connection(Arc::default()));
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
        let busy = known.add(1, About::Connection(Arc::default()));
        let done = busy.while_there(|| {
            let other = known.add(2, About::Connection(Arc::default()));
            known.remove(2);
            other.leave();
        });
        assert!(done.is_some());
    }
}
