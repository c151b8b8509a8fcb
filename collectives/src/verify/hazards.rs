//! No two steps of a rank touch the same elements at once, if one of them writes.

use std::collections::BinaryHeap;
use std::ops::Range;

use super::error::VerifyError;
use super::most_followed;
use crate::parallel;
use crate::pieces::Pieces;
use crate::plan::{Plan, Program, Slice, Spec, Step};
use crate::touched::{Reads, Touched};

/// No rank's program has races.
pub(super) fn check_all(plan: &Plan) -> Result<(), VerifyError> {
    let some = |range: Range<usize>| {
        range.into_iter().try_for_each(|rank| check(&plan.spec, rank as u32, &plan.programs[rank]))
    };
    parallel::in_ranges(plan.programs.len(), plan.total_steps(), some).into_iter().collect()
}

/// Goes through a rank's program in order, and asks of each access whether it waits for the
/// accesses before it that it must not overtake. Dependencies point back, so this order is a legal
/// one; and a write that waits for the reads since the last write waits for that write too.
pub(super) fn check(spec: &Spec, rank: u32, program: &Program) -> Result<(), VerifyError> {
    let mut buffers = spec.sizes(rank, program).map(|size| Pieces::new(size, Touched::NEVER));
    let limit = most_followed(program.len());
    let (mut reads, mut order) = (Reads::default(), Order::of(program));
    for (number, step) in program.numbered() {
        order.come_to(number, step);
        order.within_limit(rank)?;
        let race = |slice: Slice, (from, to), other| {
            let slice = Slice { offset: from, len: to - from, ..slice };
            Err(VerifyError::Race { rank, step: number, other, slice })
        };
        if let Some(src) = step.kind.src() {
            buffers[src.buffer].visit(src.offset, src.offset + src.len, |from, to, touched| {
                if let Some(writer) = touched.writer().filter(|&writer| !order.is_after(writer)) {
                    return race(src, (from, to), writer);
                }
                touched.read(number, &mut reads);
                order.steps_searched += 1;
                if reads.len() > limit {
                    return Err(VerifyError::Reads { rank, step: number, limit });
                }
                order.within_limit(rank)
            })?;
        }
        if let Some(dst) = step.kind.dst() {
            let (pieces, end) = (&mut buffers[dst.buffer], dst.offset + dst.len);
            pieces.read(dst.offset, end, |from, to, touched| {
                let early = if touched.is_read() {
                    let early = touched.readers(&reads).filter(|&reader| {
                        // They may be many, and again for each piece.
                        order.steps_searched += 1;
                        order.steps_searched > MOST_SEARCHED || !order.is_after(reader)
                    });
                    early.min()
                } else {
                    touched.writer().filter(|&writer| !order.is_after(writer))
                };
                order.within_limit(rank)?;
                early.map_or(Ok(()), |other| race(dst, (from, to), other))
            })?;
            pieces.set(dst.offset, end, Touched::by(number));
        }
    }
    Ok(())
}

/// Answers whether a step of a program always completes before the one that it has come to starts.
struct Order<'a> {
    program: &'a Program,
    number: u32,
    step: Option<Step<'a>>,
    /// By step: the first of the steps in a row before it that it depends on, all of them; itself if it does not depend on the one
    /// before it.
    row: Vec<u32>,
    /// By step: the last step that was found to be after it, by a search.
    before: Vec<u32>,
    /// Steps before the one it has come to that were found, and whose dependencies were not looked at.
    found: BinaryHeap<u32>,
    searched: bool,
    /// By all searches; and pieces that are read, and readers of what is written.
    steps_searched: u64,
}

impl<'a> Order<'a> {
    fn of(program: &'a Program) -> Self {
        Self {
            program,
            number: 0,
            step: None,
            row: Vec::with_capacity(program.len()),
            before: Vec::new(),
            found: BinaryHeap::new(),
            searched: false,
            steps_searched: 0,
        }
    }

    /// Whether it has come so far by bounded work.
    fn within_limit(&self, rank: u32) -> Result<(), VerifyError> {
        let (step, limit) = (self.number, MOST_SEARCHED);
        if self.steps_searched > limit { Err(VerifyError::Searches { rank, step, limit }) } else { Ok(()) }
    }

    /// The next step.
    fn come_to(&mut self, number: u32, step: Step<'a>) {
        let follows = number > 0 && step.deps.last_below(NONE, |_| true) == Some(number - 1);
        self.row.push(if follows { self.row[number as usize - 1] } else { number });
        (self.number, self.step, self.searched) = (number, Some(step), false);
    }

    /// Whether the step depends on `early`. Looks at direct dependencies first, which is where an algorithm puts them.
    #[inline]
    fn is_after(&mut self, early: u32) -> bool {
        let direct = self.step.is_some_and(|step| step.deps.contains(early));
        direct || self.row[self.number as usize] <= early || self.finds(early)
    }

    /// Searches the steps between the two, the last first: so that however often it is asked about a step, it looks at none
    /// twice.
    fn finds(&mut self, early: u32) -> bool {
        if !self.searched {
            self.before.resize(self.program.len(), NONE);
            self.found.clear();
            self.found.push(self.number);
            self.searched = true;
        }
        while self.before[early as usize] != self.number
            && let Some(step) = self.found.peek().copied().filter(|&step| step > early)
        {
            self.found.pop();
            let deps = self.program.deps(step);
            self.steps_searched += 1 + deps.len() as u64;
            for dep in deps.iter() {
                if self.before[dep as usize] != self.number {
                    self.before[dep as usize] = self.number;
                    self.found.push(dep);
                }
            }
        }
        self.before[early as usize] == self.number
    }
}

/// No step.
const NONE: u32 = u32::MAX;
/// Of searches for a way from one step of a rank to another, of pieces that are read, and of readers of what is written: some seconds,
/// and far more than any algorithm's plan takes.
const MOST_SEARCHED: u64 = 1 << 27;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Elements, Ranks, StepKind};

    /// Copies of each element by itself, then of all of them, so many times.
    fn apart_then_whole(elements: u64, times: u64) -> Program {
        let mut program = Program::new();
        let mut copy = |offset, len, to| {
            program.push(StepKind::Copy { src: Slice::data(offset, len), dst: Slice::scratch(to, len) }, []);
        };
        (0..elements).for_each(|element| copy(element, 1, element));
        (1..=times).for_each(|time| copy(0, elements, time * elements));
        program
    }

    /// What each step waits for by way of all before it is not looked for step by step.
    #[test]
    fn long_rows_of_steps_that_wait_for_each_other_take_little() {
        let spec = Spec::all_reduce(Ranks(2), Elements(2), 8);
        let mut program = Program::new();
        let copy = |from, to| StepKind::Copy { src: Slice::data(from, 1), dst: Slice::scratch(to, 1) };
        program.push(copy(0, 0), []);
        for step in 1..300_000 {
            program.push(StepKind::Copy { src: Slice::scratch(0, 1), dst: Slice::scratch(1, 1) }, [step - 1]);
        }
        assert_eq!(check(&spec, 1, &program), Ok(()));
        // One that does not wait is found all the same.
        program.push(StepKind::Copy { src: Slice::scratch(1, 1), dst: Slice::data(0, 1) }, [5]);
        let found = check(&spec, 1, &program);
        assert!(matches!(found, Err(VerifyError::Race { step: 300_000, other: 299_999, .. })), "{found:?}");
    }

    /// A write of what many steps have read, and each piece of it one more by itself.
    #[test]
    fn readers_that_are_looked_at_for_each_piece_have_a_bound() {
        let of = |each: u32| {
            let mut program = Program::new();
            let mut push = |src, dst| {
                let before = (program.len() as u32).checked_sub(1);
                program.push(StepKind::Copy { src, dst }, before);
            };
            let elements = u64::from(each);
            (0..each).for_each(|_| push(Slice::data(0, elements), Slice::scratch(0, elements)));
            (0..elements).for_each(|at| push(Slice::data(at, 1), Slice::scratch(0, 1)));
            push(Slice::scratch(0, elements), Slice::data(0, elements));
            check(&Spec::all_reduce(Ranks(2), Elements(elements), 8), 1, &program)
        };
        assert_eq!(of(300), Ok(()));
        let found = of(12_000);
        assert!(matches!(found, Err(VerifyError::Searches { step: 24_000, .. })), "{found:?}");
    }

    /// Elements that were written one by one, all of which are read over and over.
    #[test]
    fn pieces_that_are_read_together_have_a_bound() {
        let of = |each: u32| {
            let (mut program, elements) = (Program::new(), u64::from(each));
            let mut push = |src, dst| {
                let before = (program.len() as u32).checked_sub(1);
                program.push(StepKind::Copy { src, dst }, before);
            };
            (0..elements).for_each(|at| push(Slice::data(0, 1), Slice::scratch(at, 1)));
            (0..each).for_each(|_| push(Slice::scratch(0, elements), Slice::scratch(elements, elements)));
            check(&Spec::all_reduce(Ranks(1), Elements(1), 8), 0, &program)
        };
        assert_eq!(of(300), Ok(()));
        let found = of(12_000);
        assert!(matches!(found, Err(VerifyError::Searches { step: 12_000.., .. })), "{found:?}");
    }

    #[test]
    fn what_is_read_over_and_over_in_other_parts_has_a_bound() {
        let spec = Spec::all_reduce(Ranks(2), Elements(1500), 8);
        assert_eq!(check(&spec, 1, &apart_then_whole(1500, 100)), Ok(()));
        let program = apart_then_whole(1500, 1500);
        let (rank, limit) = (1, most_followed(program.len()));
        // Each whole is 1500 reads; so are the first 1500 steps.
        let step = 1499 + limit as u32 / 1500;
        assert_eq!(check(&spec, 1, &program), Err(VerifyError::Reads { rank, step, limit }));
    }
}
