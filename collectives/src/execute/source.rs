//! Where programs come from: a recipe, of which each is made when it is needed, or a plan that lists them.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::algorithms::Recipe;
use crate::plan::{Counts, Graph, Plan, PlanHash, Program, Spec};
use crate::verify::{VerifyError, check_alone};

/// A plan that a user lists, which was proved.
#[derive(Debug, Clone)]
pub(crate) struct OwnPlan {
    pub(crate) plan: Plan,
    /// Whether it combines in the canonical order.
    pub(crate) canonical: bool,
    /// Whether it is used whatever the program asks for.
    pub(crate) fixed: bool,
}

/// Where programs come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Recipe(&'a Recipe),
    Plan(&'a Plan),
}

impl<'a> Source<'a> {
    pub(super) fn spec(&self) -> &'a Spec {
        match self {
            Source::Recipe(recipe) => &recipe.spec,
            Source::Plan(plan) => &plan.spec,
        }
    }

    /// A bound on the elements of a message.
    pub(super) fn longest_message(&self) -> u64 {
        match self {
            Source::Recipe(recipe) => recipe.longest_message(),
            Source::Plan(plan) => plan.longest_message(),
        }
    }

    pub(super) fn hash(&self) -> PlanHash {
        match self {
            Source::Recipe(recipe) => recipe.hash(),
            Source::Plan(plan) => plan.hash(),
        }
    }

    pub(super) fn program(&self, rank: u32) -> Cow<'a, Program> {
        match self {
            Source::Recipe(recipe) => Cow::Owned(recipe.program(rank)),
            Source::Plan(plan) => plan.program(rank).map_or_else(|| Cow::Owned(Program::new()), Cow::Borrowed),
        }
    }

    /// Proves the plan before it runs. One that a user lists was proved when it was set. A recipe gives the same plan on all
    /// ranks, so that where there are many, rank 0 proves it for all, and the others what their own program must satisfy by
    /// itself; so does each rank where it alone knows its part, or where even rank 0 would take too long.
    pub(super) fn prove(&self, me: u32, program: &Program) -> Result<(), VerifyError> {
        let spec = self.spec();
        match self {
            Source::Plan(_) => Ok(()),
            Source::Recipe(recipe) => {
                let steps = recipe.proof_size();
                let alone = matches!(spec.counts, Counts::Own { .. });
                if !alone && (steps <= PROVED_BY_ALL || (me == 0 && steps <= PROVED_BY_ONE)) {
                    recipe.plan().verify().map(drop)
                } else {
                    check_alone(spec, me, program)
                }
            }
        }
    }
}

/// Steps of all ranks, or pieces of their vectors. The latter are those of an all-reduce among 1,024 ranks, which two cores
/// prove in 2 s (ring) to 3 s (direct).
const PROVED_BY_ALL: usize = 1 << 16;
const PROVED_BY_ONE: usize = 1 << 22;

/// Programs that were looked at, with what they are looked up by.
pub(super) struct Programs<'a> {
    source: Source<'a>,
    known: HashMap<u32, Known<'a>>,
}

/// A program, who waits for its steps, and its messages by direction and peer.
pub(super) struct Known<'a> {
    pub(super) program: Cow<'a, Program>,
    pub(super) graph: Graph,
    /// Whether it is sent, the peer, and the step, in order: of a direct plan each rank looks at all others', which have as many
    /// peers.
    messages: Vec<(bool, u32, u32)>,
}

impl<'a> Programs<'a> {
    pub(super) fn new(source: Source<'a>) -> Self {
        Self { source, known: HashMap::new() }
    }

    pub(super) fn of(&mut self, rank: u32) -> &Known<'a> {
        let source = self.source;
        self.known.entry(rank).or_insert_with(|| {
            let program = source.program(rank);
            let numbered = program.numbered();
            let mut messages: Vec<_> =
                numbered.filter_map(|(number, step)| Some((step.kind.is_send(), step.kind.peer()?, number))).collect();
            messages.sort_unstable();
            messages.shrink_to_fit();
            Known { graph: Graph::of(&program), program, messages }
        })
    }

    /// The other side of a message step of `rank`, as (rank, step).
    pub(super) fn partner(&mut self, rank: u32, step: u32) -> Option<(u32, u32)> {
        let own = self.of(rank);
        let kind = own.program.kind(step)?;
        let number = own.graph.messages()[step as usize] as usize;
        let peer = kind.peer()?;
        let messages = &self.of(peer).messages;
        let between = (!kind.is_send(), rank);
        let first = messages.partition_point(|&(is_sent, peer, _)| (is_sent, peer) < between);
        let &(is_sent, back, other) = messages.get(first + number)?;
        ((is_sent, back) == between).then_some((peer, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Algorithm;
    use crate::plan::{Collective, Elements, Ranks, Slice, StepKind};

    /// Whether a rank looks at its own program alone, which races here, or proves the whole plan, which is right.
    #[test]
    fn plans_are_proved_by_those_that_have_the_time() {
        let mut racing = Program::new();
        let copy = |from, to| StepKind::Copy { src: Slice::data(from, 1), dst: Slice::data(to, 1) };
        racing.push(copy(0, 1), []);
        racing.push(copy(1, 0), []);
        let alone = |recipe: &Recipe| [0, 1].map(|rank| Source::Recipe(recipe).prove(rank, &racing).is_err());
        let of = |ranks| {
            let spec = Spec::new(Collective::ReduceScatter, Ranks(ranks), Elements(1), 4);
            Recipe::new(spec, Algorithm::Direct).unwrap()
        };
        let sized = [of(4), of(200), of(2100)];
        let limits = sized.each_ref().map(|recipe| {
            let size = recipe.proof_size();
            (size <= PROVED_BY_ALL, size <= PROVED_BY_ONE)
        });
        assert_eq!(limits, [(true, true), (false, true), (false, false)]);
        assert_eq!(sized.each_ref().map(alone), [[false, false], [false, true], [true, true]]);
    }
}
