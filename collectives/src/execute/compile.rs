//! A plan made ready to run on one rank: byte ranges, slots for peers, and which receive takes which message.

use qpair_transport::EndpointId;
use qpair_verbs::calc::{Calc, DataType, ReduceOp};

use super::call::Call;
use super::tag::MAX_MESSAGES;
use crate::error::CollectiveError;
use crate::plan::{Buffer, Collective, Elements, Graph, Plan, Program, Ranks, Slice, StepKind};
use crate::tune::{self, Algorithm, Tuning};

/// What a compiled plan is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) collective: Collective,
    pub(crate) elements: u64,
    pub(crate) data_type: Option<DataType>,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) wish: Algorithm,
}

/// One rank's part of a plan.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(super) key: Key,
    pub(super) call: Call,
    /// The number that this rank's messages carry.
    pub(super) number: u16,
    pub(super) steps: Vec<Step>,
    pub(super) graph: Graph,
    /// The steps that wait for nothing, in order.
    pub(super) first: Vec<u32>,
    pub(super) peers: Vec<PlanPeer>,
    /// Slots by rank.
    slots: Vec<u16>,
    /// Receives by slot and message.
    receives: Vec<u32>,
    /// Whether memory is exposed, for peers to read what they receive.
    pub(super) large: bool,
    pub(super) scratch: usize,
    pub(super) calc: Option<Calc>,
    /// The epoch of the connections in which all peers were connected and told what the number stands for; 0 for none.
    pub(super) introduced: u64,
}

/// A peer in a plan.
#[derive(Debug)]
pub(super) struct PlanPeer {
    pub(super) rank: u32,
    pub(super) ep: Option<EndpointId>,
    /// The peer's number for the plan, once it was seen and found to stand for the same.
    pub(super) theirs: Option<u16>,
    /// Its receives: where they begin in `receives`, and how many they are.
    start: u32,
    pub(super) receives: u32,
    pub(super) sends: u32,
}

/// A step, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) what: What,
    /// The peer's slot.
    pub(super) slot: u16,
    pub(super) message: u32,
    /// What a send, copy or reduction reads.
    pub(super) src: Span,
    /// What a receive, copy or reduction writes.
    pub(super) dst: Span,
    /// The send that gives away what this copy makes, and is its only reader.
    pub(super) send: Option<u32>,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Send,
    Recv,
    RecvReduce,
    Copy,
    Reduce,
}

/// Bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) buffer: Buffer,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Compiled {
    /// Decides, builds, verifies and compiles the plan for `key`.
    pub(super) fn new(key: Key, me: u32, ranks: u32, tuning: &Tuning, eager: usize) -> Result<Self, CollectiveError> {
        let size = key.data_type.map_or(1, DataType::size);
        let bytes = key.elements.saturating_mul(size as u64);
        let algorithm = tune::choose(key.collective, Ranks(ranks), bytes, tuning, key.wish)?;
        let plan = tune::plan(key.collective, Ranks(ranks), Elements(key.elements), size as u32, tuning, algorithm)?;
        plan.verify().map_err(|error| CollectiveError::Plan(error.to_string().into()))?;
        let call = Call {
            collective: key.collective,
            data_type: key.data_type,
            op: key.op,
            elements: key.elements,
            algorithm,
            hash: plan.hash(),
        };
        Compiled::of(key, call, &plan, me, eager)
    }

    fn of(key: Key, call: Call, plan: &Plan, me: u32, eager: usize) -> Result<Self, CollectiveError> {
        let none = Program::new();
        let program = plan.program(me).unwrap_or(&none);
        let graph = Graph::of(program);
        let (peers, slots) = peers(program, plan.ranks.0);
        let size = plan.element_size as usize;
        let step = |(kind, &message): (&StepKind, &u32)| {
            step(kind, kind.peer().map_or(0, |peer| slots[peer as usize]), message, size)
        };
        let kinds = program.steps().iter().map(|step| &step.kind);
        let mut steps: Vec<Step> = kinds.zip(graph.messages()).map(step).collect();
        if graph.messages().iter().any(|&message| message >= MAX_MESSAGES) {
            return Err(CollectiveError::Plan("more messages between two ranks than a tag can number".into()));
        }
        let large = plan.programs.iter().flat_map(Program::steps).any(|step| {
            step.kind.is_send() && step.kind.elements().saturating_mul(u64::from(plan.element_size)) > eager as u64
        });
        if !large {
            fuse(&mut steps, program);
        }
        let mut receives = vec![0; peers.iter().map(|peer| peer.receives as usize).sum()];
        for (number, step) in (0..).zip(&steps).filter(|(_, step)| step.what.is_receive()) {
            receives[(peers[step.slot as usize].start + step.message) as usize] = number;
        }
        let first = (0..).zip(graph.dep_counts()).filter(|(_, count)| **count == 0).map(|(step, _)| step).collect();
        let calc = key.data_type.zip(key.op).map(|(data_type, op)| Calc { data_type, op });
        Ok(Compiled {
            key,
            call,
            number: 0,
            steps,
            graph,
            first,
            peers,
            slots,
            receives,
            large,
            scratch: plan.scratch as usize * size,
            calc,
            introduced: 0,
        })
    }

    /// The slot of `rank`, if the plan has messages with it.
    #[inline]
    pub(super) fn slot(&self, rank: u32) -> Option<u16> {
        self.slots.get(rank as usize).copied().filter(|&slot| slot != NO_SLOT)
    }

    /// The receive of that message, if there is such a message.
    #[inline]
    pub(super) fn receive(&self, slot: u16, message: u32) -> Option<u32> {
        let peer = &self.peers[slot as usize];
        if message < peer.receives { self.receives.get((peer.start + message) as usize).copied() } else { None }
    }

    /// What it does.
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// The number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether peers read exposed memory, instead of taking copies.
    pub(crate) fn is_large(&self) -> bool {
        self.large
    }
}

impl What {
    #[inline]
    pub(super) fn is_receive(self) -> bool {
        matches!(self, What::Recv | What::RecvReduce)
    }
}

const NO_SLOT: u16 = u16::MAX;

/// The peers of a program, in order of their first step, and their slots by rank.
fn peers(program: &Program, ranks: u32) -> (Vec<PlanPeer>, Vec<u16>) {
    let mut slots = vec![NO_SLOT; ranks as usize];
    let mut peers: Vec<PlanPeer> = Vec::new();
    for kind in program.steps().iter().map(|step| &step.kind) {
        let Some(rank) = kind.peer() else { continue };
        let slot = &mut slots[rank as usize];
        if *slot == NO_SLOT {
            *slot = peers.len() as u16;
            peers.push(PlanPeer { rank, ep: None, theirs: None, start: 0, receives: 0, sends: 0 });
        }
        let peer = &mut peers[*slot as usize];
        peer.receives += u32::from(kind.is_recv());
        peer.sends += u32::from(kind.is_send());
    }
    let mut start = 0;
    for peer in &mut peers {
        peer.start = start;
        start += peer.receives;
    }
    (peers, slots)
}

fn step(kind: &StepKind, slot: u16, message: u32, size: usize) -> Step {
    let span = |slice: Option<Slice>| {
        let slice = slice.unwrap_or(Slice::EMPTY);
        Span { buffer: slice.buffer, start: slice.offset as usize * size, len: slice.len as usize * size }
    };
    let what = match kind {
        StepKind::Send { .. } => What::Send,
        StepKind::Recv { .. } => What::Recv,
        StepKind::RecvReduce { .. } => What::RecvReduce,
        StepKind::Copy { .. } => What::Copy,
        StepKind::Reduce { .. } => What::Reduce,
    };
    Step { what, slot, message, src: span(kind.src()), dst: span(kind.dst()), send: None }
}

/// Finds copies to scratch that only a send reads, which waits for nothing else: the send may as well take the data
/// when the copy would. Done only where scratch has no other readers.
fn fuse(steps: &mut [Step], program: &Program) {
    let mut pairs = Vec::new();
    for (number, step) in (0..).zip(steps.iter()).filter(|(_, step)| step.what != What::Copy) {
        if step.src.buffer == Buffer::Data || step.src.len == 0 {
            continue;
        }
        let copy = match program.deps(number) {
            &[copy] if step.what == What::Send => copy,
            _ => return,
        };
        let made = &steps[copy as usize];
        if made.what != What::Copy || made.src.buffer != Buffer::Data || made.dst != step.src {
            return;
        }
        pairs.push((copy, number));
    }
    let scratch_is_copied = |step: &Step| step.what == What::Copy && step.src.buffer == Buffer::Scratch;
    if steps.iter().any(scratch_is_copied) {
        return;
    }
    for (copy, send) in pairs {
        steps[copy as usize].send = Some(send);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(wish: Algorithm, me: u32, ranks: u32, elements: u64, eager: usize) -> Compiled {
        let key = Key {
            collective: Collective::AllReduce,
            elements,
            data_type: Some(DataType::F64),
            op: Some(ReduceOp::Sum),
            wish,
        };
        Compiled::new(key, me, ranks, &Tuning::default(), eager).unwrap()
    }

    #[test]
    fn each_message_finds_its_receive() {
        for wish in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct] {
            let plan = compiled(wish, 2, 5, 1000, 1 << 20);
            let receives = plan.steps.iter().filter(|step| step.what.is_receive()).count();
            let mut found = 0;
            for (slot, peer) in plan.peers.iter().enumerate() {
                assert_eq!(plan.slot(peer.rank), Some(slot as u16));
                for message in 0..peer.receives {
                    let step = plan.receive(slot as u16, message).unwrap();
                    let step = &plan.steps[step as usize];
                    assert!(step.what.is_receive() && step.message == message && step.slot == slot as u16);
                    found += 1;
                }
                assert_eq!(plan.receive(slot as u16, peer.receives), None);
            }
            assert_eq!(found, receives);
            assert_eq!(plan.slot(2), None);
        }
    }

    #[test]
    fn copies_that_only_a_send_reads_are_fused_where_messages_are_small() {
        let small = compiled(Algorithm::RecursiveDoubling, 0, 4, 10, 80);
        let copies = small.steps.iter().filter(|step| step.what == What::Copy).count();
        assert_eq!(copies, 2);
        assert_eq!(small.steps.iter().filter(|step| step.send.is_some()).count(), copies);
        let large = compiled(Algorithm::RecursiveDoubling, 0, 4, 10, 79);
        assert!(large.large && large.steps.iter().all(|step| step.send.is_none()));
    }

    #[test]
    fn whether_it_is_large_is_the_same_on_all_ranks() {
        for rank in 0..3 {
            assert!(compiled(Algorithm::Direct, rank, 3, 7, 20).large);
            assert!(!compiled(Algorithm::Direct, rank, 3, 7, 24).large);
        }
    }
}
