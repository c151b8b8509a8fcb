//! No two steps of a rank touch the same elements at once, if one of them writes.

use super::error::VerifyError;
use crate::pieces::Pieces;
use crate::plan::{Buffer, Program, Slice, Spec};

/// Goes through a rank's program in order, and asks of each access whether it waits for the
/// accesses before it that it must not overtake. Dependencies point back, so this order is a legal
/// one; and a write that waits for the reads since the last write waits for that write too.
pub(super) fn check(spec: &Spec, rank: u32, program: &Program) -> Result<(), VerifyError> {
    let mut input = Pieces::new(spec.input_len(rank), Access::default());
    let mut data = Pieces::new(spec.data_len(rank), Access::default());
    let mut scratch = Pieces::new(program.scratch(), Access::default());
    let mut order = Order::of(program);
    for (step, kind) in program.numbered() {
        let accesses = [(kind.src(), false), (kind.dst(), true)];
        for (slice, write) in accesses {
            let Some(slice) = slice else { continue };
            let map = match slice.buffer {
                Buffer::Input => &mut input,
                Buffer::Data => &mut data,
                Buffer::Scratch => &mut scratch,
            };
            let end = slice.offset + slice.len;
            map.visit(slice.offset, end, |from, to, access| {
                if let Some(other) = access.unordered(step, write, &mut order) {
                    let slice = Slice { offset: from, len: to - from, ..slice };
                    return Err(VerifyError::Race { rank, step, other, slice });
                }
                access.add(step, write);
                Ok(())
            })?;
            if write {
                let writer = Some(step);
                let readers = Vec::new();
                map.set(slice.offset, end, Access { writer, readers });
            }
        }
    }
    Ok(())
}

/// Who touched a piece of a buffer.
#[derive(Clone, Default)]
struct Access {
    /// The last step that wrote it.
    writer: Option<u32>,
    /// The steps that read it since.
    readers: Vec<u32>,
}

impl Access {
    /// A step that must be complete before `step` starts, but that `step` does not wait for.
    fn unordered(&self, step: u32, write: bool, order: &mut Order<'_>) -> Option<u32> {
        let waits_on = if write && !self.readers.is_empty() { &self.readers[..] } else { self.writer.as_slice() };
        waits_on.iter().copied().find(|&other| !order.before(other, step))
    }

    fn add(&mut self, step: u32, write: bool) {
        if !write {
            self.readers.push(step);
        }
    }
}

/// Answers whether one step of a program always completes before another starts.
struct Order<'a> {
    program: &'a Program,
    /// By step: the number of the query that last saw it.
    seen: Vec<u32>,
    query: u32,
    stack: Vec<u32>,
}

impl<'a> Order<'a> {
    fn of(program: &'a Program) -> Self {
        Self { program, seen: vec![0; program.len()], query: 0, stack: Vec::new() }
    }

    /// Whether `late` depends on `early`. Looks at direct dependencies first, which is where an
    /// algorithm puts them; else searches the steps between the two.
    fn before(&mut self, early: u32, late: u32) -> bool {
        self.query = self.query.wrapping_add(1);
        self.stack.clear();
        self.stack.push(late);
        while let Some(step) = self.stack.pop() {
            let deps = self.program.deps(step);
            if deps.binary_search(&early).is_ok() {
                return true;
            }
            for &dep in deps.iter().filter(|&&dep| dep > early) {
                let seen = &mut self.seen[dep as usize];
                if *seen != self.query {
                    *seen = self.query;
                    self.stack.push(dep);
                }
            }
        }
        false
    }
}
