//! The queue pairs of a device by their numbers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::MAX_QP;
use super::visited::{Member, Visited};

/// The queue pairs of a device by their numbers. A number that one had is another's again only after many more were closed:
/// what a peer, a packet or a completion says of the one before is not taken for a word about the other.
#[derive(Default)]
pub(super) struct Roster {
    known: HashMap<u32, Weak<dyn Member>>,
    /// Numbers of those that were closed last, longest ago first.
    closed: VecDeque<u32>,
}

impl Roster {
    /// Adds a queue pair under a number that `draw` gives; `None` if there are as many as may be.
    pub(super) fn add<M: Member + 'static>(
        &mut self,
        mut draw: impl FnMut() -> u32,
        make: impl FnOnce(u32) -> Arc<M>,
    ) -> Option<Arc<M>> {
        if self.known.len() >= MAX_QP {
            return None;
        }
        let qpn = loop {
            let qpn = draw();
            // 0 and 1 are reserved for management, 0xffffff for multicast.
            if (2..0x00ff_ffff).contains(&qpn) && !self.known.contains_key(&qpn) && !self.closed.contains(&qpn) {
                break qpn;
            }
        };
        let made = make(qpn);
        let member: Arc<dyn Member> = made.clone();
        self.known.insert(qpn, Arc::downgrade(&member));
        Some(made)
    }

    /// Forgets a queue pair, if it is known still: when it is closed, or dropped without that.
    pub(super) fn remove<M: Member>(&mut self, qpn: u32, member: &M) {
        let is_it = |known: &Weak<dyn Member>| std::ptr::addr_eq(known.as_ptr(), member);
        if !self.known.get(&qpn).is_some_and(is_it) {
            return;
        }
        self.known.remove(&qpn);
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(qpn);
    }

    pub(super) fn get(&self, qpn: u32) -> Option<Visited> {
        self.known.get(&qpn).and_then(Weak::upgrade).map(Visited::new)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Visited> + '_ {
        self.known.values().filter_map(Weak::upgrade).map(Visited::new)
    }
}

/// Closed queue pairs whose numbers are not given again.
const CLOSED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::qp::SoftQp;
    use crate::{CompletionQueue, Context, ProtectionDomain};

    fn make(pd: &ProtectionDomain, cq: &CompletionQueue) -> Arc<SoftQp> {
        pd.rc(cq).build().unwrap().soft().unwrap().clone()
    }

    #[test]
    fn a_queue_pair_that_goes_late_does_not_take_along_who_has_its_number_now() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let mut roster = Roster::default();
        let first = roster.add(|| 7, |_| make(&pd, &cq)).unwrap();
        roster.remove(7, &*first);
        assert!(roster.get(7).is_none());
        // As after so many others were closed.
        roster.closed.clear();
        let second = roster.add(|| 7, |_| make(&pd, &cq)).unwrap();
        roster.remove(7, &*first);
        assert!(roster.get(7).is_some() && roster.all().count() == 1);
        roster.remove(7, &*second);
        assert_eq!((roster.all().count(), roster.closed.len()), (0, 1));
    }

    #[test]
    fn a_number_is_not_given_again_until_many_more_were_closed() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let qp = make(&pd, &cq);
        let mut roster = Roster::default();
        let add = |roster: &mut Roster| {
            let mut numbers = 0..;
            let mut given = 0;
            roster.add(|| numbers.next().unwrap(), |qpn| (given = qpn, qp.clone()).1).unwrap();
            given
        };
        for round in 0..CLOSED as u32 + 1 {
            assert_eq!(add(&mut roster), 2 + round, "0 and 1 are reserved");
            roster.remove(2 + round, &*qp);
        }
        assert_eq!(add(&mut roster), 2, "the first to be closed");
    }
}
