//! No two steps of a rank touch the same elements at once, if one of them writes.

use std::ops::Range;

use super::error::VerifyError;
use crate::parallel;
use crate::pieces::Pieces;
use crate::plan::{Buffer, Plan, Program, Slice, Spec, Step};
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
    let sizes = [spec.input_len(rank), spec.data_len(rank), program.scratch()];
    let mut buffers = sizes.map(|size| Pieces::new(size, Touched::NEVER));
    let (mut reads, mut order) = (Reads::default(), Order::of(program));
    for (number, step) in program.numbered() {
        order.come_to(number, step);
        let race = |slice: Slice, (from, to), other| {
            let slice = Slice { offset: from, len: to - from, ..slice };
            Err(VerifyError::Race { rank, step: number, other, slice })
        };
        if let Some(src) = step.kind.src() {
            buffers[index(&src)].visit(src.offset, src.offset + src.len, |from, to, touched| {
                if let Some(writer) = touched.writer().filter(|&writer| !order.is_after(writer)) {
                    return race(src, (from, to), writer);
                }
                touched.read(number, &mut reads);
                Ok(())
            })?;
        }
        if let Some(dst) = step.kind.dst() {
            let (pieces, end) = (&mut buffers[index(&dst)], dst.offset + dst.len);
            pieces.read(dst.offset, end, |from, to, touched| {
                let early = if touched.is_read() {
                    touched.readers(&reads).filter(|&reader| !order.is_after(reader)).min()
                } else {
                    touched.writer().filter(|&writer| !order.is_after(writer))
                };
                early.map_or(Ok(()), |other| race(dst, (from, to), other))
            })?;
            pieces.set(dst.offset, end, Touched::by(number));
        }
    }
    Ok(())
}

fn index(slice: &Slice) -> usize {
    match slice.buffer {
        Buffer::Input => 0,
        Buffer::Data => 1,
        Buffer::Scratch => 2,
    }
}

/// Answers whether a step of a program always completes before the one that it has come to starts.
struct Order<'a> {
    program: &'a Program,
    number: u32,
    step: Option<Step<'a>>,
    /// By step: the number of the search that last saw it.
    seen: Vec<u32>,
    search: u32,
    stack: Vec<u32>,
}

impl<'a> Order<'a> {
    fn of(program: &'a Program) -> Self {
        Self { program, number: 0, step: None, seen: Vec::new(), search: 0, stack: Vec::new() }
    }

    fn come_to(&mut self, number: u32, step: Step<'a>) {
        (self.number, self.step) = (number, Some(step));
    }

    /// Whether the step depends on `early`. Looks at direct dependencies first, which is where an algorithm puts them.
    #[inline]
    fn is_after(&mut self, early: u32) -> bool {
        let direct = self.step.is_some_and(|step| match *step.deps {
            [] => false,
            [one] => one == early,
            ref all => all.binary_search(&early).is_ok(),
        });
        direct || self.finds(early)
    }

    /// Searches the steps between the two.
    fn finds(&mut self, early: u32) -> bool {
        self.seen.resize(self.program.len(), 0);
        self.search = self.search.wrapping_add(1);
        self.stack.clear();
        self.stack.push(self.number);
        while let Some(step) = self.stack.pop() {
            let deps = self.program.deps(step);
            if deps.binary_search(&early).is_ok() {
                return true;
            }
            for &dep in deps.iter().filter(|&&dep| dep > early) {
                let seen = &mut self.seen[dep as usize];
                if *seen != self.search {
                    *seen = self.search;
                    self.stack.push(dep);
                }
            }
        }
        false
    }
}
