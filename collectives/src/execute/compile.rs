//! A plan made ready to run on one rank: decided, built, verified, and put into [steps](super::steps).

use qpair_verbs::calc::{Calc, DataType, ReduceOp, Scale};

use super::call::Call;
use super::fuse::{fuse, join};
use super::lower::{Lowered, Way, lower, lower_alone};
use super::net::Net;
use super::numbers::stream;
use super::source::{Known, OwnPlan, Programs, Source};
use super::steps::{NO_SLOT, PlanPeer, Step, number, peers, span, step};
use super::straight::{Order, SCRATCH, straight_order};
use super::tag::MAX_MESSAGES;
use crate::algorithms::{Algorithm, Recipe, RecipeError};
use crate::error::CollectiveError;
use crate::plan::{Counts, Graph, Program, Spec, StepKind};
use crate::tune::Tuner;

/// What a compiled plan is looked up by. Two are equal if one plan serves both: by what a rank multiplies its own vector first
/// is none of the plan's.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) spec: Spec,
    pub(crate) data_type: Option<DataType>,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) wish: Algorithm,
    /// Whether another algorithm is taken where that one does not do it.
    pub(crate) lenient: bool,
    /// Whether the vectors are memory of GPUs.
    pub(crate) on_gpu: bool,
}

/// What an operation goes by.
pub(crate) enum Decision<'a> {
    /// A plan that the program, or who started it, has given.
    Own(&'a OwnPlan),
    /// What an algorithm makes.
    Recipe(Recipe),
}

impl Decision<'_> {
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self {
            Decision::Own(_) => Algorithm::Listed,
            Decision::Recipe(recipe) => recipe.algorithm,
        }
    }
}

impl Key {
    /// What the operation goes by. `tuner`: for where the vectors are.
    pub(crate) fn decide<'a>(&self, tuner: &Tuner, plans: &'a [OwnPlan]) -> Result<Decision<'a>, RecipeError> {
        let own = plans.iter().find(|own| own.plan.spec == self.spec);
        if let Some(own) = own.filter(|own| own.fixed || matches!(self.wish, Algorithm::Auto | Algorithm::Listed)) {
            return Ok(Decision::Own(own));
        }
        let recipe = |wish| tuner.recipe(self.spec.clone(), wish);
        let recipe = match recipe(self.wish) {
            Err(_) if self.lenient => recipe(Algorithm::Auto)?,
            other => other?,
        };
        Ok(Decision::Recipe(recipe))
    }

    /// The operation, but for the factor by which this rank multiplies first: it may be another on each.
    #[inline]
    fn combined(&self) -> Option<ReduceOp> {
        match self.op {
            Some(ReduceOp::PreMulSum(_)) => Some(ReduceOp::pre_mul_sum(1.0)),
            other => other,
        }
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
            && self.data_type == other.data_type
            && self.combined() == other.combined()
            && (self.wish, self.lenient, self.on_gpu) == (other.wish, other.lenient, other.on_gpu)
    }
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
    /// Receives, then sends, each by slot and message.
    messages: Vec<u32>,
    /// Sends of what a copy makes, by copy.
    pub(super) given: Vec<u32>,
    /// Whether messages are not copied: memory is exposed, for peers to read what they receive; or they go by slots.
    pub(super) large: bool,
    /// The order in which its steps are run straight, if they may be.
    pub(super) straight: Option<Order>,
    /// Whether they go by slots, since a device does not reach the memory of a GPU.
    pub(super) staged: bool,
    /// Whether each peer is told of nothing but what it is given, since it knows its own part of the plan alone.
    pub(super) named_apart: bool,
    pub(super) scratch: usize,
    pub(super) calc: Option<Calc>,
    /// How elements are finished that all contributions are in.
    pub(super) finish: Option<(DataType, Scale)>,
    /// The epoch of the connections in which all peers were connected and told what the number stands for; 0 for none.
    pub(super) introduced: u64,
}

/// How two vectors are combined for `op`.
fn calc(data_type: DataType, op: ReduceOp) -> Result<Calc, CollectiveError> {
    Calc::new(data_type, op).map_err(|_| CollectiveError::Unsupported { op, data_type })
}

impl Compiled {
    /// Decides, builds, verifies and compiles the plan for `key`.
    pub(super) fn new(key: Key, me: u32, tuner: &Tuner, plans: &[OwnPlan]) -> Result<Self, CollectiveError> {
        let tuner = tuner.where_vectors_are(key.on_gpu);
        let eager = tuner.eager(key.spec.collective);
        let staged = key.on_gpu && tuner.seats.gpus_are_staged;
        let recipe = match key.decide(&tuner, plans)? {
            Decision::Recipe(recipe) => recipe,
            Decision::Own(own) => {
                if tuner.tuning.deterministic && key.spec.collective.reduces() && !own.canonical {
                    return Err(CollectiveError::OwnPlan(NOT_CANONICAL.into()));
                }
                return Compiled::of(key, Algorithm::Listed, Source::Plan(&own.plan), me, (eager, staged));
            }
        };
        let algorithm = recipe.algorithm;
        Compiled::of(key, algorithm, Source::Recipe(&recipe), me, (eager, staged))
    }

    /// Verifies and compiles a plan.
    fn of(
        key: Key,
        algorithm: Algorithm,
        source: Source<'_>,
        me: u32,
        (eager, staged): (u64, bool),
    ) -> Result<Self, CollectiveError> {
        let mut programs = Programs::new(source);
        let spec = source.spec();
        let Known { program, graph, .. } = programs.of(me);
        let (program, graph) = (program.clone(), graph.clone());
        source.prove(me, &program).map_err(|error| CollectiveError::Plan(error.to_string().into()))?;
        let named_apart = matches!(spec.counts, Counts::Own { .. });
        let call = Call {
            collective: spec.collective,
            data_type: key.data_type,
            op: key.combined(),
            elements: if named_apart { 0 } else { spec.total() },
            in_place: spec.in_place,
            on_gpu: key.on_gpu,
            algorithm,
            hash: source.hash(),
        };
        if has_too_many_messages(&program) {
            return Err(CollectiveError::Plan("more messages between two ranks than a tag can number".into()));
        }
        let size = spec.element_size as usize;
        // By what all ranks know, so that all decide the same. What is on a GPU is not copied by the processor.
        let large = key.on_gpu || !spec.copies(source.longest_message(), eager);
        let (mut peers, slots) = peers(&program, spec.ranks.0);
        let slot = |kind: &StepKind| kind.peer().map_or(0, |peer| slots[peer as usize]);
        let kinds = program.steps().iter().map(|step| step.kind);
        let mut steps: Vec<Step> =
            kinds.zip(graph.messages()).map(|(kind, &message)| step(&kind, slot(&kind), message, size)).collect();
        if staged {
            for step in steps.iter_mut().filter(|step| step.what.is_message() && step.src.len.max(step.dst.len) > 0) {
                step.way = Way::Staged;
            }
        } else if large {
            let lowered = if named_apart { lower_alone(&program) } else { lower(&mut programs, me)? };
            for (step, lowered) in steps.iter_mut().zip(lowered) {
                let Some(Lowered { way, remote }) = lowered else { continue };
                (step.way, step.remote) = (way, span(remote, size));
            }
            if !key.on_gpu {
                join(&mut steps, &program, &graph);
            }
        }
        let program = &program;
        let given = if large { Vec::new() } else { fuse(&mut steps, program) };
        let messages = number(&steps, &mut peers, named_apart);
        let first = (0..).zip(graph.dep_counts()).filter(|(_, count)| **count == 0).map(|(step, _)| step).collect();
        let calc = key.data_type.zip(key.combined()).map(|(data_type, op)| calc(data_type, op)).transpose()?;
        if let (true, Some(op @ ReduceOp::User(_))) = (key.on_gpu, key.op) {
            return Err(CollectiveError::NotOnGpu { op });
        }
        let after = key.op.and_then(|op| op.scale_after(spec.ranks.0));
        let finish = key.data_type.zip(after);
        let scratch = (program.scratch() as usize).saturating_mul(size);
        let straight = if large || scratch > SCRATCH { None } else { straight_order(&steps, &given, program) };
        Ok(Compiled {
            key,
            call,
            number: 0,
            steps,
            graph,
            first,
            peers,
            slots,
            messages,
            given,
            large,
            straight,
            staged,
            named_apart,
            scratch,
            calc,
            finish,
            introduced: 0,
        })
    }

    /// The slot of `rank`, if the plan has messages with it.
    #[inline]
    pub(super) fn slot(&self, rank: u32) -> Option<u16> {
        self.slots.get(rank as usize).copied().filter(|&slot| slot != NO_SLOT)
    }

    /// What `rank` does in the plan, if it has messages with it.
    pub(super) fn peer(&self, rank: u32) -> Option<&PlanPeer> {
        self.slot(rank).map(|slot| &self.peers[slot as usize])
    }

    /// The receive of that message, if there is such a message.
    #[inline]
    pub(super) fn receive(&self, slot: u16, message: u32) -> Option<u32> {
        let (start, count) = self.peers[slot as usize].receives;
        if message < count { self.messages.get((start + message) as usize).copied() } else { None }
    }

    /// The send of that message, if there is such a message.
    pub(super) fn send(&self, slot: u16, message: u32) -> Option<u32> {
        let (start, count) = self.peers[slot as usize].sends;
        if message < count { self.messages.get((start + message) as usize).copied() } else { None }
    }

    /// The peers, and how much this rank sends each that may come before it has begun.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = (u32, u32)> {
        self.peers.iter().map(|peer| (peer.rank, peer.ahead))
    }

    /// Whether there are messages with that rank.
    pub(crate) fn has_peer(&self, rank: u32) -> bool {
        self.slot(rank).is_some()
    }

    /// How much this rank sends a rank that may come before that has begun.
    pub(crate) fn ahead_of(&self, rank: u32) -> u32 {
        self.slot(rank).map_or(0, |slot| self.peers[slot as usize].ahead)
    }

    /// Whether there is a rank that numbers both in one stream: the one has to start before the other.
    pub(super) fn is_numbered_with(&self, other: &Compiled) -> bool {
        let is_one = stream(self.call.collective) == stream(other.call.collective);
        is_one && self.peers.iter().any(|peer| other.slot(peer.rank).is_some())
    }

    /// What it does.
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// What it is for.
    pub(crate) fn spec(&self) -> &Spec {
        &self.key.spec
    }

    /// The algorithm that was asked for.
    pub(crate) fn wish(&self) -> Algorithm {
        self.key.wish
    }

    /// Bytes of scratch.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// The number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it may be run straight now: its peers are connected, know it by its number, and have room for what overtakes.
    #[inline]
    pub(crate) fn is_straight(&self, net: &Net) -> bool {
        let has_room = |order: &Order| order.overtakes < net.own_room();
        self.straight.as_ref().is_some_and(has_room) && self.introduced == net.epoch && net.recorder.is_none()
    }

    /// Whether messages go by slots.
    pub(crate) fn is_staged(&self) -> bool {
        self.staged
    }

    /// Whether there are such messages.
    pub(crate) fn needs_slots(&self) -> bool {
        self.staged && !self.peers.is_empty()
    }

    /// Whether peers read exposed memory or slots, instead of taking copies.
    pub(crate) fn is_large(&self) -> bool {
        self.large
    }
}

const NOT_CANONICAL: &str = "its own plan does not combine in the canonical order, and results are to be deterministic: set \
                             another plan, or none";

/// Whether there are more messages from one rank to another than a tag can number.
pub(crate) fn has_too_many_messages(program: &Program) -> bool {
    let is_beyond = |&message: &u32| message >= MAX_MESSAGES;
    program.len() > MAX_MESSAGES as usize && Graph::of(program).messages().iter().any(is_beyond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Elements, Ranks, What};
    use crate::tune::Tuning;

    fn compiled(wish: Algorithm, me: u32, ranks: u32, elements: u64, eager: u64) -> Compiled {
        compiled_of(Spec::all_reduce(Ranks(ranks), Elements(elements), 8), wish, me, eager)
    }

    fn compiled_of(spec: Spec, wish: Algorithm, me: u32, eager: u64) -> Compiled {
        let key =
            Key { spec, data_type: Some(DataType::F64), op: Some(ReduceOp::Sum), wish, lenient: false, on_gpu: false };
        let tuner = Tuner { tuning: Tuning { eager: Some(eager), ..Tuning::default() }, ..Tuner::default() };
        Compiled::new(key, me, &tuner, &[]).unwrap()
    }

    /// Each part of a vector is copied and combined before the next, also where there are many.
    #[test]
    fn what_is_only_combined_with_is_copied_just_before() {
        let spec = Spec::reduce_scatter(Ranks(3), Elements(100_000), 8).separate();
        let plan = compiled_of(spec.clone(), Algorithm::Direct, 1, 0);
        let copies = || plan.steps.iter().filter(|step| step.what == What::Copy);
        assert!(copies().count() > 1 && copies().all(|copy| copy.src.len == 0 && copy.dst.len == 0));
        let joined: Vec<_> =
            plan.steps.iter().filter(|step| step.what == What::RecvReduce && step.src.len > 0).collect();
        assert_eq!(joined.iter().map(|step| step.src.len).sum::<usize>(), 800_000);
        // The own block of three is the second.
        assert!(joined.iter().all(|step| step.src.len == step.dst.len && step.src.start == 800_000 + step.dst.start));
        // Where messages are copied, the copy is not put off.
        let small = compiled_of(spec, Algorithm::Direct, 1, 1 << 20);
        assert!(small.steps.iter().all(|step| step.what != What::RecvReduce || step.src.len == 0));
    }

    #[test]
    fn each_message_finds_its_receive() {
        for wish in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct] {
            let plan = compiled(wish, 2, 5, 1000, 1 << 20);
            let receives = plan.steps.iter().filter(|step| step.what.is_message() && step.what != What::Send).count();
            let mut found = 0;
            for (slot, peer) in plan.peers.iter().enumerate() {
                assert_eq!(plan.slot(peer.rank), Some(slot as u16));
                for message in 0..peer.receives.1 {
                    let step = plan.receive(slot as u16, message).unwrap();
                    let step = &plan.steps[step as usize];
                    assert!(step.what != What::Send && step.message == message && step.slot == slot as u16);
                    found += 1;
                }
                assert_eq!(plan.receive(slot as u16, peer.receives.1), None);
            }
            assert_eq!(found, receives);
            assert_eq!(plan.slot(2), None);
        }
    }

    #[test]
    fn copies_that_only_sends_read_are_given_away_where_messages_are_small() {
        for (algorithm, copies, sends) in [(Algorithm::RecursiveDoubling, 2, 2), (Algorithm::Exchange, 1, 3)] {
            let small = compiled(algorithm, 3, 4, 10, 80);
            let made: Vec<_> = small.steps.iter().filter(|step| step.what == What::Copy).collect();
            assert_eq!((made.len(), small.given.len()), (copies, sends));
            assert!(made.iter().all(|copy| copy.sends.0 < copy.sends.1));
            let large = compiled(algorithm, 3, 4, 10, 79);
            assert!(large.large && large.given.is_empty());
        }
    }

    #[test]
    fn whether_it_is_large_is_the_same_on_all_ranks() {
        for rank in 0..3 {
            // 3, 2 and 2 elements are the longest messages; and 7.
            assert!(compiled(Algorithm::Direct, rank, 3, 7, 23).large);
            assert!(!compiled(Algorithm::Direct, rank, 3, 7, 24).large);
            assert!(compiled(Algorithm::RecursiveDoubling, rank, 3, 7, 55).large);
            assert!(!compiled(Algorithm::RecursiveDoubling, rank, 3, 7, 56).large);
        }
    }
}
