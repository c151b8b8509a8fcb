//! How a plan's long messages go: read by their receiver, or written by their sender, without the other's doing.
//!
//! Both follow from the plan alone, so that all ranks decide the same, and most messages need no word before or after:
//! - A send that waits for nothing is read as soon as its rank has begun.
//! - A send is written if its receive's memory is known to be free by then: each step that the receive waits for is a
//!   send to the very rank that writes, which has read it before it writes.
//! - Any other send is read once its rank says that it is ready.
//!
//! What one rank does to another's memory ends with one word, which completes all steps of it that nothing waits for.

use std::collections::HashMap;

use super::source::Programs;
use crate::error::CollectiveError;
use crate::plan::{Program, Slice, StepKind};

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is copied into a slab of the receiver's.
    Copied,
    /// The receiver reads it.
    Read {
        /// Whether the sender says when it may be read; else it may once its rank has begun.
        told: bool,
        /// Whether the receiver says when it was read, since something waits for that.
        acknowledged: bool,
    },
    /// The sender writes it.
    Written {
        /// Whether the sender says when it was written, since something waits for that.
        told: bool,
    },
    /// Part by part through slots, since a device does not reach its memory.
    Staged,
}

impl Way {
    /// Whether it goes without copies by the processor.
    #[inline]
    pub(super) fn is_direct(self) -> bool {
        !matches!(self, Way::Copied)
    }

    /// Whether it goes through slots.
    #[inline]
    pub(super) fn is_staged(self) -> bool {
        matches!(self, Way::Staged)
    }
}

/// A message of this rank: how it goes, and the other rank's memory of it.
pub(super) struct Lowered {
    pub(super) way: Way,
    pub(super) remote: Slice,
}

/// By step of rank `me`: how its message goes, if it has one and messages are long.
pub(super) fn lower(programs: &mut Programs<'_>, me: u32) -> Result<Vec<Option<Lowered>>, CollectiveError> {
    let mut lowering = Lowering { programs, written: HashMap::new() };
    let steps = lowering.programs.of(me).program.len() as u32;
    (0..steps).map(|step| lowering.one((me, step))).collect()
}

/// The same for an all-to-all of which a rank knows its own part alone: each message is read from what its giver names.
pub(super) fn lower_alone(program: &Program) -> Vec<Option<Lowered>> {
    let lowered = |kind: &StepKind| {
        kind.peer()?;
        let elements = kind.elements();
        let way = if elements == 0 { Way::Copied } else { Way::Read { told: false, acknowledged: false } };
        Some(Lowered { way, remote: Slice::input(0, elements) })
    };
    program.steps().iter().map(|step| lowered(&step.kind)).collect()
}

type At = (u32, u32);

struct Lowering<'a, 'p> {
    programs: &'a mut Programs<'p>,
    /// Whether their senders may write, by receive: several steps ask.
    written: HashMap<At, bool>,
}

impl Lowering<'_, '_> {
    fn one(&mut self, at: At) -> Result<Option<Lowered>, CollectiveError> {
        let Some(kind) = self.kind(at).filter(|kind| kind.peer().is_some()) else { return Ok(None) };
        let unmatched = || CollectiveError::Plan(format!("step {} of rank {} has no other side", at.1, at.0).into());
        let other = self.programs.partner(at.0, at.1).ok_or_else(unmatched)?;
        let far = self.kind(other).ok_or_else(unmatched)?;
        let (send, receive) = if kind.is_send() { (at, other) } else { (other, at) };
        let remote = far.src().or(far.dst()).ok_or_else(unmatched)?;
        let way = if remote.len == 0 { Way::Copied } else { self.way(send, receive) };
        Ok(Some(Lowered { way, remote }))
    }

    fn way(&mut self, send: At, receive: At) -> Way {
        if self.is_written(send, receive) {
            return Way::Written { told: !self.programs.of(receive.0).graph.dependents(receive.1).is_empty() };
        }
        // Of those that wait for the send, only writes into its memory know by themselves that it was read.
        let waiting = self.programs.of(send.0).graph.dependents(send.1).to_vec();
        let acknowledged = !waiting.into_iter().all(|step| {
            let waiting = (send.0, step);
            let receives = matches!(self.kind(waiting), Some(StepKind::Recv { .. }));
            let sender = if receives { self.programs.partner(send.0, step) } else { None };
            sender.is_some_and(|sender| self.is_written(sender, waiting))
        });
        let told = !self.programs.of(send.0).program.deps(send.1).is_empty();
        Way::Read { told, acknowledged }
    }

    /// Whether the sender may write, once it comes to the send.
    fn is_written(&mut self, send: At, receive: At) -> bool {
        if let Some(&known) = self.written.get(&receive) {
            return known;
        }
        let is_written = self.may_write(send, receive);
        self.written.insert(receive, is_written);
        is_written
    }

    fn may_write(&mut self, send: At, receive: At) -> bool {
        let plain = matches!(self.kind(receive), Some(StepKind::Recv { .. }));
        if !plain || self.programs.of(send.0).program.deps(send.1).is_empty() {
            return false;
        }
        let deps = self.programs.of(receive.0).program.deps(receive.1).to_vec();
        deps.len() <= MOST_DEPS
            && deps.into_iter().all(|dep| {
                let gives = self.kind((receive.0, dep)).filter(|kind| kind.is_send() && kind.peer() == Some(send.0));
                let taken = gives.and_then(|_| self.programs.partner(receive.0, dep));
                taken.is_some_and(|(_, taken)| self.follows(send, taken))
            })
    }

    /// Whether `late` waits for step `early` of its rank, directly or not.
    fn follows(&mut self, late: At, early: u32) -> bool {
        let program = &self.programs.of(late.0).program;
        let mut open = vec![late.1];
        let (mut seen, mut looked) = (Vec::new(), 0);
        while let Some(step) = open.pop() {
            for dep in program.deps(step).iter() {
                if dep == early {
                    return true;
                }
                looked += 1;
                if looked > MOST_LOOKS {
                    return false;
                }
                if dep > early && !seen.contains(&dep) && seen.len() < MOST_STEPS {
                    seen.push(dep);
                    open.push(dep);
                }
            }
        }
        false
    }

    fn kind(&mut self, (rank, step): At) -> Option<StepKind> {
        self.programs.of(rank).program.kind(step)
    }
}

/// Steps to look back at. Algorithms put what a send waits for close before it; where they do not, the message is read.
const MOST_STEPS: usize = 256;
/// Dependencies of those to look at, and those of a receive that is written. Of a plan that has more, which no algorithm makes,
/// messages are read: anybody may give one, and all ranks wait while it is looked at.
const MOST_LOOKS: usize = 1024;
const MOST_DEPS: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;
    use crate::algorithms::{Algorithm, Recipe, Shape};
    use crate::plan::{Collective, Elements, FORMAT, Plan, Ranks, Spec};

    fn recipe(spec: Spec, algorithm: Algorithm, segment: u64) -> Recipe {
        Recipe::with(spec, algorithm, Shape { segment, ..Shape::default() }).unwrap()
    }

    fn ways(recipe: &Recipe) -> Vec<Vec<Way>> {
        let mut programs = Programs::new(Source::Recipe(recipe));
        let mut rank =
            |rank| lower(&mut programs, rank).unwrap().into_iter().flatten().map(|lowered| lowered.way).collect();
        (0..recipe.spec.ranks.0).map(&mut rank).collect()
    }

    const READ: Way = Way::Read { told: false, acknowledged: false };

    #[test]
    fn the_direct_plan_needs_no_word_for_any_message() {
        for ranks in [2, 3, 8] {
            let spec = Spec::all_reduce(Ranks(ranks), Elements(10_000), 4);
            for spec in [spec.clone(), spec.separate()] {
                for way in ways(&recipe(spec, Algorithm::Direct, 256)).into_iter().flatten() {
                    assert!(way == READ || matches!(way, Way::Written { told: false }), "{way:?}");
                }
            }
        }
    }

    /// It took time by the fourth power of the steps.
    #[test]
    fn a_plan_in_which_all_waits_for_all_does_not_take_for_ever() {
        const STEPS: u32 = 1000;
        let whole = |at| Slice::data(u64::from(at), 1);
        let (mut gives, mut gets) = (Program::new(), Program::new());
        for at in 0..STEPS {
            gives.push(StepKind::Send { peer: 1, src: whole(at) }, []);
            gets.push(StepKind::Recv { peer: 0, dst: whole(at) }, []);
        }
        for at in STEPS..2 * STEPS {
            gives.push(StepKind::Recv { peer: 1, dst: whole(at) }, 0..STEPS);
            gets.push(StepKind::Send { peer: 0, src: whole(at) }, 0..STEPS);
        }
        let spec = Spec::new(Collective::AllGather, Ranks(2), Elements(u64::from(STEPS)), 4);
        let plan = Plan { format: FORMAT, spec, algorithm: "by hand".to_owned(), programs: [gives, gets].into() };
        let mut programs = Programs::new(Source::Plan(&plan));
        let ways = [0, 1].map(|rank| lower(&mut programs, rank).unwrap().into_iter().flatten().map(|one| one.way));
        let [gives, gets] = ways.map(Vec::from_iter);
        assert_eq!(gives, gets);
        assert!(gives.iter().all(|way| matches!(way, Way::Read { .. })));
    }

    #[test]
    fn what_is_only_read_is_read_without_a_word() {
        for collective in [Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll] {
            let spec = Spec::new(collective, Ranks(5), Elements(1000), 4).separate();
            assert!(ways(&recipe(spec, Algorithm::Direct, 256)).into_iter().flatten().all(|way| way == READ));
        }
    }

    #[test]
    fn a_chain_is_read_at_the_root_and_written_on() {
        let spec = Spec::new(Collective::Broadcast { root: 0 }, Ranks(4), Elements(1000), 4);
        let ways = ways(&recipe(spec, Algorithm::Chain, 256));
        assert!(ways[0].iter().all(|&way| way == READ));
        assert!(ways[1].contains(&Way::Written { told: true }));
        assert!(ways[3].iter().all(|&way| way == Way::Written { told: false }));
    }

    #[test]
    fn both_sides_of_a_message_see_it_alike() {
        for algorithm in Algorithm::ALL {
            for collective in Collective::ALL.map(|collective| collective.with_root(2)) {
                for in_place in [true, false] {
                    let spec = Spec { in_place, ..Spec::new(collective, Ranks(6), Elements(100), 8) };
                    let shape = Shape { segment: 16, ..Shape::default() };
                    let Ok(recipe) = Recipe::with(spec, algorithm, shape) else { continue };
                    let mut programs = Programs::new(Source::Recipe(&recipe));
                    let all: Vec<_> = (0..6).map(|rank| lower(&mut programs, rank).unwrap()).collect();
                    for (rank, steps) in (0_u32..).zip(&all) {
                        for (step, lowered) in (0_u32..).zip(steps) {
                            let Some(lowered) = lowered else { continue };
                            let kind = programs.of(rank).program.kind(step).unwrap();
                            let (peer, other) = programs.partner(rank, step).unwrap();
                            let other = all[peer as usize][other as usize].as_ref().unwrap();
                            assert_eq!(lowered.way, other.way);
                            assert_eq!(Some(other.remote), kind.src().or(kind.dst()));
                        }
                    }
                }
            }
        }
    }
}
