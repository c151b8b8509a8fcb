//! How a plan's long messages go: read by their receiver, or written by their sender, without the other's doing.
//!
//! Both follow from the plan alone, so that all ranks decide the same, and most messages need no word before or after:
//! - A send that waits for nothing is read as soon as its rank has begun.
//! - A send is written if its receive's memory is known to be free by then: each step that the receive waits for is a
//!   send to the very rank that writes, which has read it before it writes.
//! - Any other send is read once its rank says that it is ready.
//!
//! What one rank does to another's memory ends with one word, which completes all steps of it that nothing waits for.

use crate::error::CollectiveError;
use crate::plan::{Graph, Plan, Slice, StepKind};
use crate::verify::Matching;

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
}

impl Way {
    /// Whether it goes without copies in between.
    #[inline]
    pub(super) fn is_direct(self) -> bool {
        !matches!(self, Way::Copied)
    }
}

/// A message of this rank: how it goes, and the other rank's memory of it.
pub(super) struct Lowered {
    pub(super) way: Way,
    pub(super) remote: Slice,
}

/// By step of rank `me`: how its message goes, if it has one and messages are long.
pub(super) fn lower(plan: &Plan, me: u32) -> Result<Vec<Option<Lowered>>, CollectiveError> {
    let matching = Matching::of(plan).map_err(|error| CollectiveError::Plan(error.to_string().into()))?;
    let lowering = Lowering { plan, matching, graphs: plan.programs.iter().map(Graph::of).collect() };
    let Some(program) = plan.program(me) else { return Ok(Vec::new()) };
    let lowered = |(step, kind): (u32, &StepKind)| {
        let peer = kind.peer()?;
        let other = lowering.matching.partner(me, step);
        let far = plan.program(peer)?.kind(other)?;
        let (send, receive) = if kind.is_send() { ((me, step), (peer, other)) } else { ((peer, other), (me, step)) };
        let remote = far.src().or(far.dst())?;
        let way = if remote.len == 0 { Way::Copied } else { lowering.way(send, receive) };
        Some(Lowered { way, remote })
    };
    Ok(program.numbered().map(lowered).collect())
}

type At = (u32, u32);

struct Lowering<'a> {
    plan: &'a Plan,
    matching: Matching,
    graphs: Vec<Graph>,
}

impl Lowering<'_> {
    fn way(&self, send: At, receive: At) -> Way {
        if self.is_written(send, receive) {
            return Way::Written { told: !self.dependents(receive).is_empty() };
        }
        // Of those that wait for the send, only writes into its memory know by themselves that it was read.
        let knows = |&step: &u32| {
            let waiting = (send.0, step);
            let receives = self.kind(waiting).filter(|kind| matches!(kind, StepKind::Recv { .. }));
            let sender = receives.and_then(StepKind::peer).map(|peer| (peer, self.matching.partner(send.0, step)));
            sender.is_some_and(|sender| self.is_written(sender, waiting))
        };
        let told = !self.deps(send).is_empty();
        Way::Read { told, acknowledged: !self.dependents(send).iter().all(knows) }
    }

    /// Whether the sender may write, once it comes to the send.
    fn is_written(&self, send: At, receive: At) -> bool {
        let plain = matches!(self.kind(receive), Some(StepKind::Recv { .. }));
        if !plain || self.deps(send).is_empty() {
            return false;
        }
        self.deps(receive).iter().all(|&dep| {
            let gives = self.kind((receive.0, dep)).filter(|kind| kind.is_send() && kind.peer() == Some(send.0));
            gives.is_some() && self.follows(send, self.matching.partner(receive.0, dep))
        })
    }

    /// Whether `late` waits for step `early` of its rank, directly or not.
    fn follows(&self, late: At, early: u32) -> bool {
        let mut open = vec![late.1];
        let mut seen = Vec::new();
        while let Some(step) = open.pop() {
            for &dep in self.deps((late.0, step)) {
                if dep == early {
                    return true;
                }
                if dep > early && !seen.contains(&dep) && seen.len() < MOST_STEPS {
                    seen.push(dep);
                    open.push(dep);
                }
            }
        }
        false
    }

    fn kind(&self, (rank, step): At) -> Option<&StepKind> {
        self.plan.program(rank)?.kind(step)
    }

    fn deps(&self, (rank, step): At) -> &[u32] {
        self.plan.program(rank).map_or(&[], |program| program.deps(step))
    }

    fn dependents(&self, (rank, step): At) -> &[u32] {
        self.graphs.get(rank as usize).map_or(&[], |graph| graph.dependents(step))
    }
}

/// Steps to look back at. Algorithms put what a send waits for close before it; where they do not, the message is read.
const MOST_STEPS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms;
    use crate::plan::{Elements, Grain, Ranks};

    fn ways(plan: &Plan) -> Vec<Vec<Way>> {
        let rank = |rank| lower(plan, rank).unwrap().into_iter().flatten().map(|lowered| lowered.way).collect();
        (0..plan.ranks.0).map(rank).collect()
    }

    #[test]
    fn the_direct_plan_needs_no_word_for_any_message() {
        for ranks in [2, 3, 8] {
            let plan = algorithms::direct_all_reduce(Ranks(ranks), Elements(10_000), Grain::new(4, 1024));
            for way in ways(&plan).into_iter().flatten() {
                let read = Way::Read { told: false, acknowledged: false };
                assert!(way == read || way == Way::Written { told: false }, "{way:?}");
            }
        }
    }

    #[test]
    fn a_chain_is_read_at_the_root_and_written_on() {
        let plan = algorithms::chain_broadcast(Ranks(4), 0, Elements(1000), Grain::new(4, 1024));
        let ways = ways(&plan);
        assert!(ways[0].iter().all(|&way| way == Way::Read { told: false, acknowledged: false }));
        assert!(ways[1].contains(&Way::Written { told: true }));
        assert!(ways[3].iter().all(|&way| way == Way::Written { told: false }));
    }

    #[test]
    fn both_sides_of_a_message_see_it_alike() {
        let grain = Grain::new(8, 512);
        let plans = [
            algorithms::ring_all_reduce(Ranks(5), Elements(1000), grain),
            algorithms::recursive_doubling_all_reduce(Ranks(6), Elements(100), grain),
            algorithms::direct_all_reduce(Ranks(3), Elements(100), grain),
            algorithms::binomial_broadcast(Ranks(7), 2, Elements(100), grain),
            algorithms::chain_broadcast(Ranks(4), 1, Elements(1000), grain),
        ];
        for plan in &plans {
            let matching = Matching::of(plan).unwrap();
            let all: Vec<_> = (0..plan.ranks.0).map(|rank| lower(plan, rank).unwrap()).collect();
            for (rank, steps) in (0_u32..).zip(&all) {
                for (step, lowered) in (0_u32..).zip(steps) {
                    let Some(lowered) = lowered else { continue };
                    let kind = plan.programs[rank as usize].kind(step).unwrap();
                    let peer = kind.peer().unwrap();
                    let other = all[peer as usize][matching.partner(rank, step) as usize].as_ref().unwrap();
                    assert_eq!(lowered.way, other.way);
                    assert_eq!(Some(other.remote), kind.src().or(kind.dst()));
                }
            }
        }
    }
}
