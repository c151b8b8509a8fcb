//! Messages that nothing takes yet: of operations that this rank has not begun, as a peer may be ahead, and of one that is run
//! straight, for a step that has to wait for others.

use std::collections::VecDeque;
use std::ops::Deref;

use qpair_transport::Message;

use super::call::Call;
use super::tag::Fields;

/// A message that came early.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) fields: Fields,
    pub(super) contents: Contents,
    /// What its plan's number stood for when it came, if that is something else by now.
    pub(super) meant: Option<Call>,
}

/// What came in a message.
#[derive(Debug)]
pub(super) enum Contents {
    /// In the slab that it landed in.
    Slab(Message),
    /// Copied from there.
    Copied(Box<[u8]>),
}

impl Deref for Contents {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Contents::Slab(message) => message,
            Contents::Copied(bytes) => bytes,
        }
    }
}

impl From<Message> for Contents {
    #[inline]
    fn from(message: Message) -> Self {
        Contents::Slab(message)
    }
}

/// What can be read, and kept if need be: a message as it came, or what was kept of one.
pub(super) trait Came: Deref<Target = [u8]> + Into<Contents> {}

impl Came for Message {}
impl Came for Contents {}

/// Messages that came early, in their order.
///
/// A message keeps its slab, and a peer has but so many, so that the transport bounds how many there are: a peer that is further
/// ahead waits. Where this rank waits for that peer, whose next message may be for an older operation, it
/// [copies](Self::free_slabs) a number of them, so that slabs are free again.
#[derive(Debug)]
pub(super) struct Stash {
    early: VecDeque<Early>,
    counts: Vec<Counts>,
    /// Of a rank so many in slabs are many: as many as have the transport look for others.
    many: u32,
    /// Bytes that were copied from slabs.
    bytes: usize,
    /// A message was found that there is no room to copy, and none has gone since.
    full: bool,
}

/// Messages of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    all: u32,
    /// Those that are in slabs no longer.
    copied: u32,
}

impl Stash {
    pub(super) fn new(ranks: usize, many: u32) -> Self {
        let (early, counts) = (VecDeque::with_capacity(64 * ranks), vec![Counts::default(); ranks]);
        Stash { early, counts, many: many.max(1), bytes: 0, full: false }
    }

    /// Whether a rank's next fits: their numbers tell so many apart.
    #[inline]
    pub(super) fn has_room(&self, rank: u32) -> bool {
        self.counts.get(rank as usize).is_some_and(|counts| counts.all < MOST)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    /// Whether some rank may have many messages in slabs, and there is room to copy them.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.early.len() >= self.many as usize && !self.full
    }

    /// Copies a rank's messages from their slabs, if there are many. Whether slabs are free now that were not.
    #[cold]
    pub(super) fn free_slabs(&mut self, rank: u32) -> bool {
        let Some(counts) = self.counts.get_mut(rank as usize) else { return false };
        let before = counts.copied;
        if counts.all - before < self.many || before == MOST_COPIED || self.full {
            return false;
        }
        for Early { contents, .. } in self.early.iter_mut().filter(|early| early.fields.rank == rank) {
            let Contents::Slab(message) = contents else { continue };
            self.full = self.bytes + message.len() > MOST_BYTES;
            if self.full || counts.copied == MOST_COPIED {
                break;
            }
            self.bytes += message.len();
            counts.copied += 1;
            *contents = Contents::Copied(Box::from(&message[..]));
        }
        counts.copied > before
    }

    /// Keeps a message of a rank that has room.
    pub(super) fn push(&mut self, early: Early) {
        if let Some(counts) = self.counts.get_mut(early.fields.rank as usize) {
            counts.all += 1;
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
        if let Some(counts) = self.counts.get_mut(early.fields.rank as usize) {
            counts.all -= 1;
            if let Contents::Copied(bytes) = &early.contents {
                counts.copied -= 1;
                self.bytes -= bytes.len();
                self.full = false;
            }
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
    pub(super) fn take_message(&mut self, due: Fields) -> Option<Contents> {
        let at = self.early.iter().position(|early| early.fields == due && early.meant.is_none())?;
        self.remove(at).map(|early| early.contents)
    }
}

/// Messages of a rank that wait, at most: half as many as operations whose numbers are told apart.
pub(super) const MOST: u32 = 4096;

/// Of those so many are copied at most: a rank that is further ahead waits, and does not fail.
const MOST_COPIED: u32 = MOST / 2;

/// Bytes that are copied at most, of all ranks' messages.
const MOST_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use qpair_transport::{Config, Event, Tag, Worker};

    use super::*;
    use crate::execute::tag::Kind;

    fn message(contents: &[u8]) -> Message {
        let mut worker = Worker::new(Config::default()).unwrap();
        let listener = worker.listen("127.0.0.1:0").unwrap();
        let ep = worker.connect(listener.local_addr()).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            match worker.poll().unwrap() {
                Some(Event::Connected { .. }) => worker.send_copy(ep, Tag(0), contents).unwrap(),
                Some(Event::Received { message, .. }) => return message,
                _ => {}
            }
        }
        panic!("nothing comes");
    }

    fn early(rank: u32, number: u32, contents: &Message) -> Early {
        let fields = Fields { kind: Kind::Data, rank, plan: 0, sequence: number as u16, message: 0 };
        Early { fields, contents: contents.clone().into(), meant: None }
    }

    #[test]
    fn a_rank_has_room_for_as_many_as_can_be_told_apart() {
        let (mut stash, contents) = (Stash::new(2, 16), message(b"early"));
        for number in 0..MOST {
            assert!(stash.has_room(1));
            stash.push(early(1, number, &contents));
        }
        assert!(!stash.has_room(1) && stash.has_room(0) && !stash.has_room(2));
        assert_eq!((stash.count(1, 7), stash.count(0, 7)), (1, 0));
        assert!(stash.take(0, 7).is_none() && !stash.has_room(1));
        assert!(stash.take(1, 7).is_some() && stash.has_room(1));
        assert!(stash.take_message(early(1, 8, &contents).fields).is_some());
        assert_eq!(stash.counts, [Counts::default(), Counts { all: MOST - 2, copied: 0 }]);
    }

    #[test]
    fn what_takes_up_slabs_is_copied() {
        let (mut stash, contents) = (Stash::new(3, 16), message(b"early"));
        stash.push(early(2, 0, &contents));
        for number in 0..15 {
            stash.push(early(1, number, &contents));
        }
        assert!(!stash.free_slabs(1) && !stash.free_slabs(3), "they are few");
        stash.push(early(1, 15, &contents));
        assert!(stash.is_crowded() && stash.free_slabs(1) && !stash.free_slabs(1));
        assert_eq!((stash.counts[1], stash.bytes), (Counts { all: 16, copied: 16 }, 16 * 5));
        assert_eq!(stash.counts[2].copied, 0);
        for number in 16..MOST {
            stash.push(early(1, number, &contents));
        }
        assert!(stash.free_slabs(1) && !stash.free_slabs(1), "no more than that");
        assert_eq!(stash.counts[1].copied, MOST_COPIED);
        for number in 0..MOST {
            assert_eq!(&stash.take(1, number as u16).unwrap().contents[..], b"early");
        }
        assert_eq!((stash.counts[1], stash.bytes), (Counts::default(), 0));
    }

    #[test]
    fn the_memory_that_is_copied_to_is_bounded() {
        const LEN: usize = 8192;
        let (mut stash, contents) = (Stash::new(5, 16), message(&[7; LEN]));
        for rank in 0..5 {
            (0..MOST_COPIED).for_each(|number| stash.push(early(rank, number, &contents)));
            stash.free_slabs(rank);
        }
        assert!(!stash.is_crowded());
        let copied: u32 = stash.counts.iter().map(|counts| counts.copied).sum();
        assert_eq!((stash.bytes, copied as usize), (MOST_BYTES, MOST_BYTES / LEN));
        assert!(stash.take(0, 0).is_some() && stash.is_crowded() && stash.free_slabs(4));
    }
}
