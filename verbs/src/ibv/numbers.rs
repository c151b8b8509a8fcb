//! Numbers of queues, which travel in the `wr_id` of each request: a completion names its queue by them, and one that
//! was meant for a queue that is gone names nobody.

use std::collections::VecDeque;

/// A queue's number, and how often it was given out before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId {
    pub(super) number: u32,
    pub(super) generation: u32,
}

/// What a `wr_id` holds: from the top a bit for receives, 20 bits of number, 11 of generation, 32 of the queue's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) queue: QueueId,
    pub(super) receive: bool,
    pub(super) own: u32,
}

/// The numbers of one opened device.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    generations: Vec<u16>,
    /// Numbers given back, the oldest first.
    free: VecDeque<u32>,
}

impl Tag {
    /// What tags of receives have, and those of sends have not.
    pub(super) const RECEIVE: u64 = 1 << 63;

    #[inline(always)]
    pub(super) fn encode(self) -> u64 {
        (if self.receive { Tag::RECEIVE } else { 0 })
            | u64::from(self.queue.number) << NUMBER_SHIFT
            | u64::from(self.queue.generation) << OWN_BITS
            | u64::from(self.own)
    }

    /// What all tags of one queue's sends, or of its receives, have in common.
    #[inline(always)]
    pub(super) fn key(wr_id: u64) -> u32 {
        (wr_id >> OWN_BITS) as u32
    }

    /// The number of the queue whose send has this tag; beyond all numbers for a receive.
    #[inline(always)]
    pub(super) fn sender(wr_id: u64) -> usize {
        (wr_id >> NUMBER_SHIFT) as usize
    }

    /// The number of the queue whose receive has this tag.
    #[inline(always)]
    pub(super) fn receiver(wr_id: u64) -> usize {
        (wr_id << 1 >> (NUMBER_SHIFT + 1)) as usize
    }

    /// Any 64 bits mean something; whether there is such a queue is for the caller to find.
    #[inline(always)]
    pub(super) fn decode(wr_id: u64) -> Self {
        let number = Tag::receiver(wr_id) as u32;
        let generation = (wr_id >> OWN_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
        Tag { queue: QueueId { number, generation }, receive: wr_id & Tag::RECEIVE != 0, own: wr_id as u32 }
    }
}

impl Numbers {
    /// A number that no queue has; `None` once there are more queues than any device has.
    pub(super) fn take(&mut self) -> Option<QueueId> {
        // Fresh ones first, so that a number rests long before it comes again.
        let fresh = self.free.len() < RESTING && self.generations.len() < 1 << NUMBER_BITS;
        let number = if fresh { None } else { self.free.pop_front() };
        let number = match number {
            Some(number) => number,
            None if self.generations.len() < 1 << NUMBER_BITS => {
                self.generations.push(0);
                self.generations.len() as u32 - 1
            }
            None => return None,
        };
        let generation = self.generations.get(number as usize).copied().unwrap_or_default().into();
        Some(QueueId { number, generation })
    }

    pub(super) fn give(&mut self, id: QueueId) {
        if let Some(generation) = self.generations.get_mut(id.number as usize) {
            *generation = (*generation + 1) & ((1 << GENERATION_BITS) - 1);
            self.free.push_back(id.number);
        }
    }
}

const NUMBER_BITS: u32 = 20;
const GENERATION_BITS: u32 = 11;
const OWN_BITS: u32 = 32;
const NUMBER_SHIFT: u32 = OWN_BITS + GENERATION_BITS;
/// Numbers that rest before the oldest of them is used again.
const RESTING: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_survive_the_way_through_a_device() {
        for receive in [false, true] {
            for (number, generation, own) in [(0, 0, 0), (1, 2, 3), ((1 << 20) - 1, (1 << 11) - 1, u32::MAX)] {
                let tag = Tag { queue: QueueId { number, generation }, receive, own };
                assert_eq!(Tag::decode(tag.encode()), tag);
            }
        }
        assert_eq!(Tag::decode(u64::MAX).encode(), u64::MAX);
    }

    #[test]
    fn a_number_rests_and_comes_back_as_another() {
        let mut numbers = Numbers::default();
        let first = numbers.take().unwrap();
        numbers.give(first);
        let others: Vec<_> = (0..RESTING).map(|_| numbers.take().unwrap()).collect();
        assert!(others.iter().all(|other| other.number != first.number));
        others.into_iter().for_each(|other| numbers.give(other));
        let again = numbers.take().unwrap();
        assert_eq!((again.number, again.generation), (first.number, first.generation + 1));
    }

    #[test]
    fn there_is_an_end_of_numbers() {
        let mut numbers = Numbers::default();
        assert!((0..1 << NUMBER_BITS).all(|_| numbers.take().is_some()));
        assert_eq!(numbers.take(), None);
        numbers.give(QueueId { number: 7, generation: 0 });
        assert_eq!(numbers.take(), Some(QueueId { number: 7, generation: 1 }));
    }
}
