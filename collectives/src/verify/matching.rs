//! Which receive takes which message, and which send comes after which to the same peer.

use std::ops::Range;

use super::error::VerifyError;
use crate::parallel;
use crate::plan::{Plan, Program};

/// For every message step of every rank, the step at the peer which is its other side; and for a send, its neighbours.
pub(crate) struct Matching {
    ranks: Vec<Partners>,
}

/// Of a rank, by step.
type Partners = Vec<Side>;

/// What a step of a message goes with. Steps are those of the peer, and of the rank itself.
#[derive(Debug, Clone, Copy)]
struct Side {
    /// The other side.
    partner: u32,
    /// Of a send: the one before it to the same peer, and the next.
    before: u32,
    next: u32,
}

impl Matching {
    /// Matches the k-th send from a to b with the k-th receive at b from a.
    ///
    /// # Errors
    /// A side that is left over, or lengths that differ.
    pub(crate) fn of(plan: &Plan) -> Result<Self, VerifyError> {
        let (count, steps) = (plan.programs.len(), plan.total_steps());
        let sorted = |range: Range<usize>| plan.programs[range].iter().map(Messages::of).collect::<Vec<_>>();
        let messages: Vec<Messages> = parallel::in_ranges(count, steps, sorted).into_iter().flatten().collect();
        let matched = |range: Range<usize>| Matcher::new(plan, &messages, range.start).all(range);
        let (mut ranks, mut unheard) = (Vec::with_capacity(count), None);
        for matched in parallel::in_ranges(count, steps, matched) {
            let (some, left) = matched?;
            ranks.extend(some);
            unheard = unheard.or(left);
        }
        // Sends that nobody takes are told last.
        unheard.map_or(Ok(Self { ranks }), Err)
    }

    /// The other side of a message step.
    #[inline]
    pub(crate) fn partner(&self, rank: u32, step: u32) -> u32 {
        self.ranks[rank as usize][step as usize].partner
    }

    /// The send before a send to the same peer.
    #[inline]
    pub(super) fn before(&self, rank: u32, step: u32) -> Option<u32> {
        let before = self.ranks[rank as usize][step as usize].before;
        (before != NONE).then_some(before)
    }

    /// The send after a send to the same peer.
    #[inline]
    pub(super) fn next(&self, rank: u32, step: u32) -> Option<u32> {
        let next = self.ranks[rank as usize][step as usize].next;
        (next != NONE).then_some(next)
    }
}

/// For a step that is no message, or the first or last to its peer.
const NONE: u32 = u32::MAX;

/// A rank's messages by peer, in order.
struct Messages {
    sends: Vec<Message>,
    receives: Vec<Message>,
}

/// The peer, then the step.
type Message = (u32, u32);

impl Messages {
    fn of(program: &Program) -> Self {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (step, kind) in program.numbered().map(|(number, step)| (number, step.kind)) {
            if let Some(peer) = kind.peer() {
                if kind.is_send() { &mut sends } else { &mut receives }.push((peer, step));
            }
        }
        // Steps ascend already, so that this keeps the order of each peer's.
        sends.sort_unstable();
        receives.sort_unstable();
        Self { sends, receives }
    }
}

/// Goes through ranks in order, and matches their messages with those of their peers. Since ranks ascend, what a peer has
/// with the next one comes after what it has with this one: a place in each peer's messages is all that need be known.
struct Matcher<'a> {
    plan: &'a Plan,
    messages: &'a [Messages],
    /// By peer: how far its sends, and receives, are through.
    sends: Vec<usize>,
    receives: Vec<usize>,
}

impl<'a> Matcher<'a> {
    /// Matches ranks from `first` on.
    fn new(plan: &'a Plan, messages: &'a [Messages], first: usize) -> Self {
        let before = |of: &[Message]| of.partition_point(|message| (message.0 as usize) < first);
        let sends = messages.iter().map(|messages| before(&messages.sends)).collect();
        let receives = messages.iter().map(|messages| before(&messages.receives)).collect();
        Self { plan, messages, sends, receives }
    }

    /// The partners of some ranks' steps, and a send that nobody takes, if there is one.
    fn all(mut self, ranks: Range<usize>) -> Result<(Vec<Partners>, Option<VerifyError>), VerifyError> {
        let (mut all, mut unheard) = (Vec::with_capacity(ranks.len()), None);
        for rank in ranks {
            let len = self.plan.programs[rank].len();
            let mut partners = vec![Side { partner: NONE, before: NONE, next: NONE }; len];
            self.receives(rank as u32, &mut partners)?;
            let left = self.sends(rank as u32, &mut partners);
            unheard = unheard.or(left);
            all.push(partners);
        }
        Ok((all, unheard))
    }

    fn receives(&mut self, rank: u32, partners: &mut [Side]) -> Result<(), VerifyError> {
        let messages = self.messages;
        // The first fault of the program, which need not be that of the first peer.
        let mut first: Option<(u32, VerifyError)> = None;
        let mut fault = |step, error| {
            if first.as_ref().is_none_or(|(earlier, _)| step < *earlier) {
                first = Some((step, error));
            }
        };
        let own = self.plan.programs[rank as usize].steps();
        for (peer, taken) in by_peer(&messages[rank as usize].receives) {
            let sends = messages.get(peer as usize).map(|messages| &messages.sends[..]);
            let sent = with(sends, self.sends.get_mut(peer as usize), rank);
            for (place, &(_, step)) in taken.iter().enumerate() {
                let Some(&(_, peer_step)) = sent.get(place) else {
                    fault(step, VerifyError::Unmatched { rank, step, peer });
                    break;
                };
                partners[step as usize].partner = peer_step;
            }
        }
        for (step, kind) in (0..).zip(own.iter().map(|step| step.kind)).filter(|(_, kind)| kind.is_recv()) {
            let (peer, peer_step) = (kind.peer().unwrap_or(rank), partners[step as usize].partner);
            let Some(other) = self.plan.program(peer).and_then(|program| program.kind(peer_step)) else { continue };
            let (expected, sent) = (kind.elements(), other.elements());
            if sent != expected {
                fault(step, VerifyError::MessageLength { rank, step, expected, peer, peer_step, sent });
            }
        }
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn sends(&mut self, rank: u32, partners: &mut [Side]) -> Option<VerifyError> {
        let messages = self.messages;
        let mut left: Option<(u32, u32)> = None;
        for (peer, given) in by_peer(&messages[rank as usize].sends) {
            let receives = messages.get(peer as usize).map(|messages| &messages.receives[..]);
            let taken = with(receives, self.receives.get_mut(peer as usize), rank);
            let mut before = NONE;
            for (place, &(_, step)) in given.iter().enumerate() {
                partners[step as usize].before = before;
                if let Some(before) = partners.get_mut(before as usize) {
                    before.next = step;
                }
                before = step;
                match taken.get(place) {
                    Some(&(_, peer_step)) => partners[step as usize].partner = peer_step,
                    None => left = Some(left.map_or((step, peer), |first| first.min((step, peer)))),
                }
            }
        }
        left.map(|(step, peer)| VerifyError::Unmatched { rank, step, peer })
    }
}

/// The messages of each peer.
fn by_peer(messages: &[Message]) -> impl Iterator<Item = (u32, &[Message])> {
    messages.chunk_by(|one, next| one.0 == next.0).filter_map(|some| Some((some.first()?.0, some)))
}

/// Those with `rank`, which no earlier rank's come after. None of a peer that is no rank.
fn with<'a>(messages: Option<&'a [Message]>, place: Option<&mut usize>, rank: u32) -> &'a [Message] {
    let (Some(messages), Some(place)) = (messages, place) else { return &[] };
    while messages.get(*place).is_some_and(|message| message.0 < rank) {
        *place += 1;
    }
    let rest = &messages[*place..];
    let count = rest.iter().take_while(|message| message.0 == rank).count();
    *place += count;
    &rest[..count]
}
