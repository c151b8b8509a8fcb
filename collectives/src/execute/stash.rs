//! Messages that nothing takes yet: of operations that this rank has not begun, as a peer may be ahead, and of one that is run
//! straight, for a step that has to wait for others.

use std::collections::VecDeque;

use qpair_transport::Message;

use super::call::Call;
use super::tag::Fields;

/// A message that came early.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) fields: Fields,
    /// The slab that it landed in.
    pub(super) contents: Message,
    /// What its plan's number stood for when it came, if that is something else by now.
    pub(super) meant: Option<Call>,
}

/// Messages that came early, in their order.
///
/// A message keeps its slab, and a peer has but so many, so that the transport bounds how many there are.
#[derive(Debug)]
pub(super) struct Stash {
    early: VecDeque<Early>,
    /// How many there are of each rank's.
    counts: Vec<u32>,
}

impl Stash {
    pub(super) fn new(ranks: usize) -> Self {
        Stash { early: VecDeque::with_capacity(64 * ranks), counts: vec![0; ranks] }
    }

    /// Whether a rank's next fits: their numbers tell so many apart.
    #[inline]
    pub(super) fn has_room(&self, rank: u32) -> bool {
        self.counts.get(rank as usize).is_some_and(|&count| count < MOST)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    /// Keeps a message of a rank that has room.
    pub(super) fn push(&mut self, early: Early) {
        if let Some(count) = self.counts.get_mut(early.fields.rank as usize) {
            *count += 1;
        }
        self.early.push_back(early);
    }

    /// A rank's plan number stands for something else from now on.
    pub(super) fn renumber(&mut self, rank: u32, plan: u16, before: Call) {
        let of = |early: &&mut Early| early.fields.rank == rank && early.fields.plan == plan;
        for early in self.early.iter_mut().filter(of) {
            early.meant.get_or_insert(before);
        }
    }

    fn remove(&mut self, at: usize) -> Option<Early> {
        let early = self.early.remove(at)?;
        if let Some(count) = self.counts.get_mut(early.fields.rank as usize) {
            *count -= 1;
        }
        Some(early)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Early> {
        self.early.iter()
    }

    /// How many there are of `rank`'s for its operation `sequence` with this rank.
    pub(super) fn count(&self, rank: u32, sequence: u16) -> usize {
        let of = |early: &&Early| early.fields.rank == rank && early.fields.sequence == sequence;
        self.early.iter().filter(of).count()
    }

    /// The first one of `rank`'s for its operation `sequence` with this rank.
    pub(super) fn take(&mut self, rank: u32, sequence: u16) -> Option<Early> {
        let due = |early: &Early| early.fields.rank == rank && early.fields.sequence == sequence;
        let at = self.early.iter().position(due)?;
        self.remove(at)
    }

    /// That message.
    pub(super) fn take_message(&mut self, due: Fields) -> Option<Message> {
        let at = self.early.iter().position(|early| early.fields == due && early.meant.is_none())?;
        self.remove(at).map(|early| early.contents)
    }
}

/// Messages of a rank that wait, at most: half as many as operations whose numbers are told apart.
pub(super) const MOST: u32 = 4096;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use qpair_transport::{Config, Event, Tag, Worker};

    use super::*;
    use crate::execute::tag::Kind;

    fn message() -> Message {
        let mut worker = Worker::new(Config::default()).unwrap();
        let listener = worker.listen("127.0.0.1:0").unwrap();
        let ep = worker.connect(listener.local_addr()).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            match worker.poll().unwrap() {
                Some(Event::Connected { .. }) => worker.send_copy(ep, Tag(0), b"early").unwrap(),
                Some(Event::Received { message, .. }) => return message,
                _ => {}
            }
        }
        panic!("nothing comes");
    }

    #[test]
    fn a_rank_has_room_for_as_many_as_can_be_told_apart() {
        let (mut stash, contents) = (Stash::new(2), message());
        let early = |rank, number: u32| {
            let fields = Fields { kind: Kind::Data, rank, plan: 0, sequence: number as u16, message: 0 };
            Early { fields, contents: contents.clone(), meant: None }
        };
        for number in 0..MOST {
            assert!(stash.has_room(1));
            stash.push(early(1, number));
        }
        assert!(!stash.has_room(1) && stash.has_room(0) && !stash.has_room(2));
        assert_eq!((stash.count(1, 7), stash.count(0, 7)), (1, 0));
        assert!(stash.take(0, 7).is_none() && !stash.has_room(1));
        assert!(stash.take(1, 7).is_some() && stash.has_room(1));
        assert!(stash.take_message(early(1, 8).fields).is_some());
        assert_eq!(stash.counts, [0, MOST - 2]);
    }
}
