//! Which operation with a peer it is: both number alike what they do with each other.

use super::call::Call;
use super::net::Net;
use super::steps::PlanPeer;
use crate::plan::Collective;

/// Operations with a peer of which one comes after the other. Both number them alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// How many this rank has begun.
    begun: u64,
    /// What the last of them were, by number.
    past: [Option<Call>; PAST],
}

/// Which operation with a peer it is, in full. A message carries 16 bits of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    stream: u8,
    pub(super) number: u64,
}

impl Number {
    /// What messages carry of it: two bits of the stream, and the rest of the number.
    #[inline]
    pub(super) fn sequence(self) -> u16 {
        u16::from(self.stream) << NUMBER_BITS | (self.number as u16 & NUMBER_MASK)
    }
}

const NUMBER_BITS: u32 = 14;
const NUMBER_MASK: u16 = (1 << NUMBER_BITS) - 1;

/// Which of a peer's streams an operation belongs to.
#[inline]
pub(crate) fn stream(collective: Collective) -> u8 {
    match collective {
        Collective::Transfer { from, to } => 1 + u8::from(from > to),
        _ => 0,
    }
}

/// Operations with a peer that are remembered, to tell what a late message was for.
const PAST: usize = 4;

impl Stream {
    pub(super) const NEW: Stream = Stream { begun: 0, past: [None; PAST] };
}

impl Net {
    /// Begins an operation with a peer. Gives its number.
    #[inline]
    pub(super) fn enlist(&mut self, rank: u32, call: Call) -> Number {
        let stream = stream(call.collective);
        let Stream { begun, past } = &mut self.peers[rank as usize].streams[usize::from(stream)];
        let number = *begun;
        past[number as usize % PAST] = Some(call);
        *begun += 1;
        Number { stream, number }
    }

    /// Whether all of a peer's part in an operation has come, and nothing is its to take: the operation does without it. `before`:
    /// how many that it numbers alike begin before.
    pub(super) fn has_given_all(&self, peer: &PlanPeer, call: &Call, before: u64) -> bool {
        let stream = stream(call.collective);
        let Some(known) = self.peers.get(peer.rank as usize) else { return false };
        let number = Number { stream, number: known.streams[usize::from(stream)].begun + before };
        let takes = peer.sends.1 > 0 || peer.ahead > 0 || peer.reaches > 0 || peer.reached;
        !takes && self.stash.count(peer.rank, number.sequence()) >= peer.expected as usize
    }

    fn stream(&self, rank: u32, sequence: u16) -> Option<&Stream> {
        self.peers.get(rank as usize)?.streams.get(usize::from(sequence >> NUMBER_BITS))
    }

    /// How far after the next operation of its stream the one is that a message is for: the closest. A peer is never ahead by more
    /// than is kept of it, which is far less than can be told apart.
    fn ahead(sequence: u16, next: u64) -> i64 {
        let unused = u16::BITS - NUMBER_BITS;
        i64::from((sequence.wrapping_sub(next as u16) << unused) as i16 >> unused)
    }

    /// The number of the operation with a peer that a message is for; 0 if it is for none that there was.
    pub(super) fn number(&self, rank: u32, sequence: u16) -> u64 {
        let next = self.stream(rank, sequence).map_or(0, |stream| stream.begun);
        next.saturating_add_signed(Self::ahead(sequence, next))
    }

    /// Whether that is one that this rank has not begun.
    pub(super) fn is_to_come(&self, rank: u32, sequence: u16) -> bool {
        self.stream(rank, sequence).is_some_and(|stream| Self::ahead(sequence, stream.begun) >= 0)
    }

    /// What that operation was, if it was one of the last of its stream.
    pub(super) fn past(&self, rank: u32, sequence: u16) -> Option<Call> {
        let stream = self.stream(rank, sequence)?;
        let ago = -Self::ahead(sequence, stream.begun);
        let number = stream.begun.checked_sub(u64::try_from(ago).ok()?)?;
        if (1..=PAST as i64).contains(&ago) { stream.past[number as usize % PAST] } else { None }
    }
}
