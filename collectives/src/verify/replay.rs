//! Runs a plan without data, in one order that every timing allows, and finds deadlocks.

use std::collections::{HashMap, VecDeque};

use super::error::VerifyError;
use super::matching::Matching;
use crate::plan::{Deps, Plan, Program, Step, StepIter, StepKind};

/// A step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct At {
    pub(super) rank: u32,
    pub(super) step: u32,
}

/// What happens next.
pub(super) enum Event {
    /// A copy, reduction or finish within a rank.
    Local(At, StepKind),
    /// A message is taken.
    Transfer { send: (At, StepKind), recv: (At, StepKind) },
}

/// Calls `visit` with every event. A message is taken once both its steps have started, and both
/// then complete: as late as a send can complete; and a rank has one message under way to another at a time, in the order
/// of its program. So what does not deadlock here never does, however little room there is.
///
/// What an event waits for is the plan's, and no matter of time: whichever of those that may happen comes next, in the end
/// all have happened that can. So each rank first goes through its program in order as far as it can, and stops at a step
/// that waits: next to nothing need be known for that, and what it touches lies close to what it touched before. What can
/// only go in another order, if anything, comes after.
///
/// # Errors
/// What `visit` returns; [`VerifyError::Deadlock`] if steps are left that wait for each other.
pub(super) fn replay(
    plan: &Plan,
    matching: &Matching,
    mut visit: impl FnMut(Event) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    let mut in_order = InOrder::new(plan, matching);
    if in_order.run(&mut visit)? {
        return Ok(());
    }
    let mut state = State::after(in_order);
    state.begin();
    while let Some((at, kind)) = state.ready.pop_front() {
        let Some(peer) = kind.peer() else {
            visit(Event::Local(at, kind))?;
            state.complete(at);
            continue;
        };
        let Some(transfer) = transfer(plan, matching, at, kind, peer) else { continue };
        visit(transfer)?;
        state.complete(At { rank: peer, step: matching.partner(at.rank, at.step) });
        state.complete(at);
    }
    state.deadlock()
}

/// The message of a step, which goes to `peer` or comes from it.
#[inline]
fn transfer(plan: &Plan, matching: &Matching, at: At, kind: StepKind, peer: u32) -> Option<Event> {
    let other = At { rank: peer, step: matching.partner(at.rank, at.step) };
    let far = plan.programs[peer as usize].kind(other.step)?;
    let (own, other) = ((at, kind), (other, far));
    let (send, recv) = if kind.is_send() { (own, other) } else { (other, own) };
    Some(Event::Transfer { send, recv })
}

/// A step's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Started,
    Complete,
}

/// No step.
const NONE: u32 = u32::MAX;

/// Steps that a rank starts before others have their turn. Enough that it pays to come to a rank; and few enough that the next
/// rank, which has to do with nearly the same peers, finds what is looked up of them in the cache.
const TURN: u32 = 32;

/// All ranks, each at a step of its program that waits for another of its own, with all steps before it started: here, a
/// send has also started if the one before it to its peer is still under way, which must be taken first.
struct InOrder<'a> {
    plan: &'a Plan,
    matching: &'a Matching,
    cursors: Vec<Cursor<'a>>,
    phases: Vec<Vec<Phase>>,
    /// Ranks that may go on.
    awake: VecDeque<u32>,
    incomplete: usize,
}

struct Cursor<'a> {
    steps: StepIter<'a>,
    /// The number of the next.
    number: u32,
    /// What it waits for.
    waits_for: u32,
    /// Of what the next depends on, all from here on is complete.
    open_below: u32,
}

impl<'a> InOrder<'a> {
    fn new(plan: &'a Plan, matching: &'a Matching) -> Self {
        let cursor = |program: &'a Program| Cursor {
            steps: program.steps().iter(),
            number: 0,
            waits_for: NONE,
            open_below: NONE,
        };
        let phases = plan.programs.iter().map(|program| vec![Phase::Waiting; program.len()]).collect();
        let cursors = plan.programs.iter().map(cursor).collect();
        let awake = (0..plan.spec.ranks.0).collect();
        Self { plan, matching, cursors, phases, awake, incomplete: plan.total_steps() }
    }

    /// Lets all ranks go as far as they can. Whether that is to the end.
    fn run(&mut self, visit: &mut impl FnMut(Event) -> Result<(), VerifyError>) -> Result<bool, VerifyError> {
        while let Some(rank) = self.awake.pop_front() {
            let mut left = TURN;
            while left > 0
                && let Some((at, kind)) = self.next(rank)
            {
                let Some(peer) = kind.peer() else {
                    visit(Event::Local(at, kind))?;
                    self.complete(at);
                    continue;
                };
                left -= 1;
                if left == 0 {
                    self.awake.push_back(rank);
                }
                self.transfers(at, kind, peer, visit)?;
            }
        }
        Ok(self.incomplete == 0)
    }

    /// Lets the message of a step be taken that has just started, if it may be; then those behind it.
    fn transfers(
        &mut self,
        mut at: At,
        mut kind: StepKind,
        peer: u32,
        visit: &mut impl FnMut(Event) -> Result<(), VerifyError>,
    ) -> Result<(), VerifyError> {
        let sends = kind.is_send();
        loop {
            let other = At { rank: peer, step: self.matching.partner(at.rank, at.step) };
            if self.phase(other) != Phase::Started {
                return Ok(());
            }
            let send = if sends { at } else { other };
            let before = self.matching.before(send.rank, send.step);
            if before.is_some_and(|before| self.phase(At { step: before, ..send }) != Phase::Complete) {
                return Ok(());
            }
            let Some(transfer) = transfer(self.plan, self.matching, at, kind, peer) else { return Ok(()) };
            visit(transfer)?;
            self.complete(other);
            self.complete(at);
            let Some(next) = self.matching.next(send.rank, send.step) else { return Ok(()) };
            let step = if sends { next } else { self.matching.partner(send.rank, next) };
            // The step that started may have been all that those behind it waited for.
            if self.phase(At { step, ..at }) != Phase::Started {
                return Ok(());
            }
            let Some(behind) = self.plan.programs[at.rank as usize].kind(step) else { return Ok(()) };
            (at, kind) = (At { step, ..at }, behind);
        }
    }

    fn phase(&self, at: At) -> Phase {
        self.phases[at.rank as usize][at.step as usize]
    }

    fn complete(&mut self, at: At) {
        self.phases[at.rank as usize][at.step as usize] = Phase::Complete;
        self.incomplete -= 1;
        let waits_for = &mut self.cursors[at.rank as usize].waits_for;
        if *waits_for == at.step {
            *waits_for = NONE;
            self.awake.push_back(at.rank);
        }
    }

    /// Starts the next step of a rank, if it waits for nothing.
    #[inline]
    fn next(&mut self, rank: u32) -> Option<(At, StepKind)> {
        let (cursor, phases) = (&mut self.cursors[rank as usize], &mut self.phases[rank as usize]);
        let mut steps = cursor.steps.clone();
        let Step { kind, deps } = steps.next()?;
        // The last is mostly the one that takes longest. None is looked at twice, however many there are.
        if let Some(open) = deps.last_below(cursor.open_below, |step| phases[step as usize] != Phase::Complete) {
            (cursor.waits_for, cursor.open_below) = (open, open);
            return None;
        }
        cursor.open_below = NONE;
        let at = At { rank, step: cursor.number };
        phases[at.step as usize] = Phase::Started;
        (cursor.steps, cursor.number) = (steps, at.step + 1);
        Some((at, kind))
    }
}

/// A rank's steps. A step that can not start is in the list of one that it waits for, and looks for another to wait for
/// when that one is complete: so each is looked at as often as it waits for something, and no list of who waits for whom
/// need be made first.
struct Progress {
    phases: Vec<Phase>,
    /// By step: the first of those that wait for it.
    waiting: Vec<u32>,
    /// By step: the next of those that wait for what it waits for.
    next: Vec<u32>,
}

/// All ranks, with steps that start in any order.
struct State<'a> {
    plan: &'a Plan,
    matching: &'a Matching,
    ranks: Vec<Progress>,
    /// Local steps that may start, and messages both sides of which have started, each by one of them.
    ready: VecDeque<(At, StepKind)>,
}

impl<'a> State<'a> {
    /// As far as they went in order.
    fn after(in_order: InOrder<'a>) -> Self {
        let InOrder { plan, matching, mut phases, .. } = in_order;
        for (rank, phases) in (0..).zip(&mut phases) {
            for step in 0..phases.len() {
                // Here, a send starts when the one before it is through.
                let before = matching.before(rank, step as u32);
                let behind = before.is_some_and(|before| phases[before as usize] != Phase::Complete);
                if behind && phases[step] == Phase::Started {
                    phases[step] = Phase::Waiting;
                }
            }
        }
        let progress = |phases: Vec<Phase>| {
            let none = vec![NONE; phases.len()];
            Progress { phases, waiting: none.clone(), next: none }
        };
        Self { plan, matching, ranks: phases.into_iter().map(progress).collect(), ready: VecDeque::new() }
    }

    /// Looks at all steps that have not started.
    fn begin(&mut self) {
        for (rank, program) in self.plan.by_rank() {
            for (number, step) in program.numbered() {
                let at = At { rank, step: number };
                if self.phase(at) == Phase::Waiting {
                    self.look(at, step.kind, step.deps, NONE);
                }
            }
        }
    }

    fn phase(&self, at: At) -> Phase {
        self.ranks[at.rank as usize].phases[at.step as usize]
    }

    /// Starts a step that waits for nothing any more, or lets it wait for a step that is not complete. What it depends on from
    /// `open_below` on is complete.
    #[inline]
    fn look(&mut self, at: At, kind: StepKind, deps: Deps<'_>, open_below: u32) {
        let progress = &mut self.ranks[at.rank as usize];
        let incomplete = |step: u32| progress.phases[step as usize] != Phase::Complete;
        let open = deps.last_below(open_below, incomplete);
        let open = open.or_else(|| self.matching.before(at.rank, at.step).filter(|&step| incomplete(step)));
        if let Some(open) = open {
            progress.next[at.step as usize] = progress.waiting[open as usize];
            progress.waiting[open as usize] = at.step;
            return;
        }
        progress.phases[at.step as usize] = Phase::Started;
        let starts = match kind.peer() {
            None => true,
            Some(rank) => self.phase(At { rank, step: self.matching.partner(at.rank, at.step) }) == Phase::Started,
        };
        if starts {
            self.ready.push_back((at, kind));
        }
    }

    fn complete(&mut self, at: At) {
        let progress = &mut self.ranks[at.rank as usize];
        progress.phases[at.step as usize] = Phase::Complete;
        let mut waiting = std::mem::replace(&mut progress.waiting[at.step as usize], NONE);
        while waiting != NONE {
            let step = waiting;
            waiting = self.ranks[at.rank as usize].next[step as usize];
            if let Some(found) = self.plan.programs[at.rank as usize].step(step) {
                // It waited for this one, so that those behind it are complete; or all, where this is the send before it.
                self.look(At { step, ..at }, found.kind, found.deps, at.step);
            }
        }
    }

    /// Whether all steps are complete; else follows what an incomplete one waits for until a step
    /// comes up again.
    fn deadlock(&self) -> Result<(), VerifyError> {
        let stuck = (0..).zip(&self.ranks).find_map(|(rank, progress)| {
            let step = progress.phases.iter().position(|&phase| phase != Phase::Complete)?;
            Some(At { rank, step: step as u32 })
        });
        let Some(mut at) = stuck else { return Ok(()) };
        // Where in the path each step is.
        let (mut path, mut seen) = (Vec::new(), HashMap::new());
        let start = loop {
            if let Some(start) = seen.insert(at, path.len()) {
                break start;
            }
            path.push(at);
            at = self.waits_for(at);
        };
        let mut cycle: Vec<_> = path[start..].iter().map(|at| (at.rank, at.step)).collect();
        cycle.rotate_left(1);
        let At { rank, step } = at;
        Err(VerifyError::Deadlock { rank, step, cycle })
    }

    /// An incomplete step that `at` waits for: a dependency, the send before it, or the other side of its message.
    fn waits_for(&self, at: At) -> At {
        let program = &self.plan.programs[at.rank as usize];
        if self.phase(at) == Phase::Started {
            let peer = program.kind(at.step).and_then(|kind| kind.peer());
            return At { rank: peer.unwrap_or(at.rank), step: self.matching.partner(at.rank, at.step) };
        }
        let incomplete = |step: &u32| self.phase(At { step: *step, ..at }) != Phase::Complete;
        let dep = program.deps(at.step).iter().find(incomplete);
        let before = || self.matching.before(at.rank, at.step).filter(incomplete);
        At { step: dep.or_else(before).unwrap_or(at.step), ..at }
    }
}
