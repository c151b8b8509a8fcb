//! What a compiled plan is made of: its steps in bytes, and its peers, with the receive that takes each of their messages.

use qpair_transport::EndpointId;

use super::lower::Way;
use crate::cost::SLOT;
use crate::plan::{Buffer, Program, Slice, StepKind, What};

/// A step, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) what: What,
    /// The peer's slot.
    pub(super) slot: u16,
    pub(super) message: u32,
    /// What a send, copy or reduction reads; of a receive that combines by reading, what is first put where the result goes, if that
    /// is not there already.
    pub(super) src: Span,
    /// What a receive, copy or reduction writes.
    pub(super) dst: Span,
    /// How its message goes.
    pub(super) way: Way,
    /// The peer's memory of the message.
    pub(super) remote: Span,
    /// The sends that give away what this copy makes and are its only readers: a range of `given`.
    pub(super) sends: (u32, u32),
}

impl Step {
    /// Whether it is a copy that is given away as it is made.
    #[inline]
    pub(super) fn gives(&self) -> bool {
        self.sends != (0, 0)
    }
}

/// Bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) buffer: Buffer,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Span {
    /// The byte after the last.
    pub(super) fn end(&self) -> u64 {
        (self.start + self.len) as u64
    }
}

/// A peer in a plan.
#[derive(Debug)]
pub(super) struct PlanPeer {
    pub(super) rank: u32,
    pub(super) ep: Option<EndpointId>,
    /// The peer's number for the plan, once it was seen and found to stand for the same.
    pub(super) theirs: Option<u16>,
    /// The receives from it: where they begin in `messages`, and how many they are.
    pub(super) receives: (u32, u32),
    /// The sends to it, likewise.
    pub(super) sends: (u32, u32),
    /// Words and messages that it sends in an operation.
    pub(super) expected: u32,
    /// Those that this rank sends it, and that may come before it has begun.
    pub(super) ahead: u32,
    /// How often this rank reads or writes its memory.
    pub(super) reaches: u32,
    /// Whether it reads or writes this rank's memory.
    pub(super) reached: bool,
    /// Whether it is told how much it is given, which goes by slots.
    pub(super) named: bool,
    /// Steps of this rank that can not go before it has begun.
    pub(super) opened: Vec<u32>,
    /// Steps of this rank that are done when it does nothing more to this rank's memory.
    pub(super) ended: Vec<u32>,
}

pub(super) const NO_SLOT: u16 = u16::MAX;

/// The peers of a program, in order of their first step, and their slots by rank.
pub(super) fn peers(program: &Program, ranks: u32) -> (Vec<PlanPeer>, Vec<u16>) {
    let mut slots = vec![NO_SLOT; ranks as usize];
    let mut peers: Vec<PlanPeer> = Vec::new();
    for rank in program.steps().iter().filter_map(|step| step.kind.peer()) {
        let slot = &mut slots[rank as usize];
        if *slot == NO_SLOT {
            *slot = peers.len() as u16;
            peers.push(PlanPeer {
                rank,
                ep: None,
                theirs: None,
                receives: (0, 0),
                sends: (0, 0),
                expected: 0,
                ahead: 0,
                reaches: 0,
                reached: false,
                named: false,
                opened: Vec::new(),
                ended: Vec::new(),
            });
        }
    }
    (peers, slots)
}

/// Lists the steps of each message, and counts for each peer what it sends and what is done to whose memory.
pub(super) fn number(steps: &[Step], peers: &mut [PlanPeer], named_apart: bool) -> Vec<u32> {
    for step in steps {
        let Some(peer) = peers.get_mut(step.slot as usize) else { continue };
        match step.what {
            What::Send => peer.sends.1 += 1,
            What::Recv | What::RecvReduce => peer.receives.1 += 1,
            What::Copy | What::Reduce | What::Finish => {}
        }
    }
    let mut start = 0;
    for peer in peers.iter_mut() {
        peer.receives.0 = start;
        peer.sends.0 = start + peer.receives.1;
        start += peer.receives.1 + peer.sends.1;
    }
    let mut messages = vec![0; start as usize];
    for (number, step) in (0..).zip(steps).filter(|(_, step)| step.what.is_message()) {
        let peer = &mut peers[step.slot as usize];
        let receive = step.what != What::Send;
        let start = if receive { peer.receives.0 } else { peer.sends.0 };
        messages[(start + step.message) as usize] = number;
        let (ours, words, opened, ended) = match step.way {
            Way::Copied => (None, u32::from(receive), false, false),
            Way::Read { told, .. } if receive => (Some(true), told.into(), !told, false),
            Way::Read { acknowledged, .. } => (Some(false), acknowledged.into(), false, !acknowledged),
            Way::Written { told } if receive => (Some(false), told.into(), false, !told),
            Way::Written { .. } => (Some(true), 0, true, false),
            // One for each part, and before them how long all are; and that the peer is ready.
            Way::Staged if receive => {
                let parts = step.dst.len.div_ceil(SLOT) as u32;
                (None, parts + u32::from(named_apart), named_apart, false)
            }
            Way::Staged => (None, 1, false, false),
        };
        peer.expected += words;
        peer.ahead += u32::from(match step.way {
            Way::Copied | Way::Read { told: true, .. } => !receive,
            Way::Staged => receive,
            Way::Read { .. } | Way::Written { .. } => false,
        });
        peer.named |= named_apart && !receive && step.way.is_staged();
        peer.reaches += u32::from(ours == Some(true));
        peer.reached |= ours == Some(false);
        peer.opened.extend(opened.then_some(number));
        peer.ended.extend(ended.then_some(number));
    }
    for peer in peers.iter_mut() {
        peer.expected += u32::from(peer.reaches > 0) + u32::from(peer.reached);
        peer.ahead += u32::from(peer.reached || peer.named);
    }
    messages
}

/// The bytes of a slice, with elements of so many bytes.
pub(super) fn span(slice: Slice, size: usize) -> Span {
    Span { buffer: slice.buffer, start: slice.offset as usize * size, len: slice.len as usize * size }
}

/// A step of a program, with elements of so many bytes.
pub(super) fn step(kind: &StepKind, slot: u16, message: u32, size: usize) -> Step {
    let what = What::of(kind);
    let [src, dst] = [kind.src(), kind.dst()].map(|slice| span(slice.unwrap_or(Slice::EMPTY), size));
    Step { what, slot, message, src, dst, way: Way::Copied, remote: span(Slice::EMPTY, size), sends: (0, 0) }
}
