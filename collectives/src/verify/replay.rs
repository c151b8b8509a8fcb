//! Runs a plan without data, in one order that every timing allows, and finds deadlocks.

use std::collections::HashMap;

use super::error::VerifyError;
use super::matching::Matching;
use crate::plan::{Graph, Plan, Program};

/// A step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) rank: u32,
    pub(super) step: u32,
}

/// What happens next.
pub(super) enum Event {
    /// A copy or reduction within a rank.
    Local(At),
    /// A message is taken.
    Transfer { send: At, recv: At },
}

/// Calls `visit` with every event. A message is taken once both its steps have started, and both
/// then complete: as late as a send can complete; and a rank has one message under way to another at a time, in the order
/// of its program. So what does not deadlock here never does, however little room there is.
///
/// # Errors
/// What `visit` returns; [`VerifyError::Deadlock`] if steps are left that wait for each other.
pub(super) fn replay(
    plan: &Plan,
    matching: &Matching,
    graphs: &[Graph],
    mut visit: impl FnMut(Event) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    let mut state = State::new(plan, matching, graphs);
    while let Some(at) = state.ready.pop() {
        let Some(kind) = plan.programs[at.rank as usize].kind(at.step) else {
            continue;
        };
        let Some(peer) = kind.peer() else {
            visit(Event::Local(at))?;
            state.complete(at);
            continue;
        };
        state.phases[at.rank as usize][at.step as usize] = Phase::Started;
        let step = matching.partner(at.rank, at.step);
        let other = At { rank: peer, step };
        if state.phase(other) != Phase::Started {
            continue;
        }
        let (send, recv) = if kind.is_send() { (at, other) } else { (other, at) };
        visit(Event::Transfer { send, recv })?;
        state.complete(recv);
        state.complete(send);
    }
    state.deadlock()
}

/// For a step that is no send, or the last or first to its peer.
const NONE: u32 = u32::MAX;

/// For each step that is a send: the next one to its peer, and the one before.
fn sends_in_order(program: &Program) -> (Vec<u32>, Vec<u32>) {
    let mut last: HashMap<u32, u32> = HashMap::new();
    let (mut next, mut before) = (vec![NONE; program.len()], vec![NONE; program.len()]);
    for (step, kind) in program.numbered().filter(|(_, kind)| kind.is_send()) {
        let Some(peer) = kind.peer() else { continue };
        if let Some(earlier) = last.insert(peer, step) {
            next[earlier as usize] = step;
            before[step as usize] = earlier;
        }
    }
    (next, before)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Started,
    Complete,
}

struct State<'a> {
    plan: &'a Plan,
    matching: &'a Matching,
    graphs: &'a [Graph],
    counts: Vec<Vec<u32>>,
    phases: Vec<Vec<Phase>>,
    /// By step: the next send to the same peer, if it is one; and the one before.
    next: Vec<Vec<u32>>,
    before: Vec<Vec<u32>>,
    ready: Vec<At>,
}

impl<'a> State<'a> {
    fn new(plan: &'a Plan, matching: &'a Matching, graphs: &'a [Graph]) -> Self {
        let mut counts: Vec<_> = graphs.iter().map(|g| g.dep_counts().to_vec()).collect();
        let (mut next, mut before) = (Vec::new(), Vec::new());
        for (program, counts) in plan.programs.iter().zip(&mut counts) {
            let (after, behind) = sends_in_order(program);
            behind.iter().zip(counts).for_each(|(&step, count)| *count += u32::from(step != NONE));
            next.push(after);
            before.push(behind);
        }
        let mut ready = Vec::new();
        for (rank, counts) in (0..).zip(&counts) {
            let free = (0..).zip(counts).filter(|&(_, &count)| count == 0);
            ready.extend(free.map(|(step, _)| At { rank, step }));
        }
        ready.reverse();
        let phases = counts.iter().map(|c| vec![Phase::Waiting; c.len()]);
        Self { plan, matching, graphs, phases: phases.collect(), counts, next, before, ready }
    }

    fn phase(&self, at: At) -> Phase {
        self.phases[at.rank as usize][at.step as usize]
    }

    fn complete(&mut self, at: At) {
        let rank = at.rank as usize;
        self.phases[rank][at.step as usize] = Phase::Complete;
        let next = self.next[rank][at.step as usize];
        let next = (next != NONE).then_some(next);
        for &step in self.graphs[rank].dependents(at.step).iter().chain(&next) {
            let count = &mut self.counts[rank][step as usize];
            *count -= 1;
            if *count == 0 {
                let rank = at.rank;
                self.ready.push(At { rank, step });
            }
        }
    }

    /// Whether all steps are complete; else follows what an incomplete one waits for until a step
    /// comes up again.
    fn deadlock(&self) -> Result<(), VerifyError> {
        let stuck = (0..).zip(&self.phases).find_map(|(rank, phases)| {
            let step = phases.iter().position(|&phase| phase != Phase::Complete)?;
            let step = step as u32;
            Some(At { rank, step })
        });
        let Some(mut at) = stuck else { return Ok(()) };
        let mut path = Vec::new();
        while !path.contains(&at) {
            path.push(at);
            at = self.waits_for(at);
        }
        let start = path.iter().position(|&seen| seen == at).unwrap_or(0);
        let mut cycle: Vec<_> = path[start..].iter().map(|at| (at.rank, at.step)).collect();
        cycle.rotate_left(1);
        let At { rank, step } = at;
        Err(VerifyError::Deadlock { rank, step, cycle })
    }

    /// An incomplete step that `at` waits for: a dependency, or the other side of its message.
    fn waits_for(&self, at: At) -> At {
        let program = &self.plan.programs[at.rank as usize];
        if self.phase(at) == Phase::Started {
            let peer = program.kind(at.step).and_then(|kind| kind.peer());
            return At { rank: peer.unwrap_or(at.rank), step: self.matching.partner(at.rank, at.step) };
        }
        let incomplete = |&&step: &&u32| {
            let rank = at.rank;
            self.phase(At { rank, step }) != Phase::Complete
        };
        let before = self.before[at.rank as usize][at.step as usize];
        let before = (before != NONE).then_some(before);
        let dep = program.deps(at.step).iter().chain(&before).find(incomplete);
        At { step: dep.copied().unwrap_or(at.step), ..at }
    }
}
