//! What every element of every buffer holds, followed through the plan.

use super::contract::{Part, Promises, given};
use super::error::{OutputFault, VerifyError};
use super::matching::Matching;
use super::order::Order;
use super::rank_set::RankSet;
use super::replay::{At, Event, replay};
use crate::pieces::Pieces;
use crate::plan::{Buffers, Plan, Program, Slice, Spec, StepKind};

/// Checks that every rank ends with what the collective promises. Gives whether all contributions are combined in the
/// canonical order.
///
/// Where there are no races, which are looked for elsewhere, any legal order of its steps gives the same contents.
pub(super) fn check(plan: &Plan, matching: &Matching) -> Result<bool, VerifyError> {
    let memory = plan.by_rank().map(|(rank, program)| initial(&plan.spec, rank, program)).collect();
    let mut all = All { plan, memory, parts: Vec::new() };
    replay(plan, matching, |event| match event {
        Event::Local(at, StepKind::Finish { dst }) => all.finish(at, dst),
        Event::Local(at, kind) => all.apply((at, kind), (at, kind)),
        Event::Transfer { send, recv } => all.apply(send, recv),
    })?;
    all.outputs()
}

/// What an element holds: the combination of some ranks' contributions to one element. `None` is undefined.
type Value = Option<Combination>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Combination {
    /// The element is the one held's position plus this, wrapping.
    shift: u64,
    ranks: RankSet,
    order: Order,
    finished: bool,
}

/// A rank's buffers.
type Memory = Buffers<Pieces<Value>>;

/// What a rank's buffers hold before its first step.
fn initial(spec: &Spec, rank: u32, program: &Program) -> Memory {
    let mut memory = spec.sizes(rank, program).map(|len| Pieces::new(len, None));
    let Part { slice, shift, ranks } = given(spec, rank);
    let own = Combination { shift, ranks, order: Order::of(rank), finished: false };
    memory[slice.buffer].set(slice.offset, slice.offset + slice.len, Some(own));
    memory
}

struct All<'a> {
    plan: &'a Plan,
    memory: Vec<Memory>,
    /// What a step moves: from, to, and what it holds. Kept, so that it is not allocated each time.
    parts: Vec<(u64, u64, Combination)>,
}

impl All<'_> {
    /// Moves what `reader` reads to where `writer` writes; the two are one step, or sides of a message.
    fn apply(&mut self, (reader, read): (At, StepKind), (writer, write): (At, StepKind)) -> Result<(), VerifyError> {
        let (Some(src), Some(dst), reduce) = (read.src(), write.dst(), write.is_reduction()) else {
            return Ok(());
        };
        // What comes from position p goes to p - src.offset + dst.offset.
        let moved = src.offset.wrapping_sub(dst.offset);
        let Self { memory, parts, .. } = self;
        parts.clear();
        let source = &mut memory[reader.rank as usize][src.buffer];
        source.read(src.offset, src.offset + src.len, |from, to, value| {
            let Some(value) = value else {
                return Err(VerifyError::Undefined {
                    rank: reader.rank,
                    step: reader.step,
                    slice: part(src, from, to),
                });
            };
            let value = Combination { shift: value.shift.wrapping_add(moved), ..value.clone() };
            parts.push((from.wrapping_sub(moved), to.wrapping_sub(moved), value));
            Ok(())
        })?;
        let target = &mut memory[writer.rank as usize][dst.buffer];
        for (from, to, value) in parts.drain(..) {
            if reduce {
                target.visit(from, to, |from, to, held| combine(writer, part(dst, from, to), held, &value))?;
            } else {
                target.set(from, to, Some(value));
            }
        }
        Ok(())
    }

    fn finish(&mut self, at: At, dst: Slice) -> Result<(), VerifyError> {
        let (wanted, all) = (self.plan.spec.finish, RankSet::all(self.plan.spec.ranks.0));
        let target = &mut self.memory[at.rank as usize][dst.buffer];
        target.visit(dst.offset, dst.offset + dst.len, |from, to, held| {
            let slice = part(dst, from, to);
            match held {
                None => Err(VerifyError::Undefined { rank: at.rank, step: at.step, slice }),
                Some(held) if wanted && !held.finished && held.ranks == all => {
                    held.finished = true;
                    Ok(())
                }
                Some(_) => Err(VerifyError::Finish { rank: at.rank, step: at.step, slice }),
            }
        })
    }

    /// Checks all results. Gives whether they are combined in the canonical order.
    fn outputs(self) -> Result<bool, VerifyError> {
        let canonical = Order::canonical(self.plan.spec.ranks.0);
        let mut promises = Promises::new(&self.plan.spec);
        let mut ordered = true;
        for (rank, memory) in (0..).zip(self.memory) {
            ordered &= output(&self.plan.spec, rank, memory, promises.next(rank), canonical)?;
        }
        Ok(ordered)
    }
}

/// Checks a rank's result. Gives whether it is combined in the canonical order.
fn output(
    spec: &Spec,
    rank: u32,
    mut memory: Memory,
    promised: Vec<Part>,
    canonical: Order,
) -> Result<bool, VerifyError> {
    let mut ordered = true;
    for want in promised {
        let Slice { offset, len, buffer } = want.slice;
        memory[buffer].read(offset, offset + len, |from, to, value| {
            let fault = match value {
                None => OutputFault::Undefined,
                Some(value) => {
                    ordered &= !spec.collective.reduces() || value.order == canonical;
                    if value.shift != want.shift {
                        OutputFault::Misplaced
                    } else if let Some(missing) = want.ranks.first_beyond(&value.ranks) {
                        OutputFault::Missing(missing)
                    } else if let Some(foreign) = value.ranks.first_beyond(&want.ranks) {
                        OutputFault::Foreign(foreign)
                    } else if value.finished != spec.finish {
                        OutputFault::Unfinished
                    } else {
                        return Ok(());
                    }
                }
            };
            Err(VerifyError::Output { rank, slice: part(want.slice, from, to), fault })
        })?;
    }
    Ok(ordered)
}

fn combine(at: At, slice: Slice, held: &mut Value, new: &Combination) -> Result<(), VerifyError> {
    let At { rank, step } = at;
    let Some(held) = held else {
        return Err(VerifyError::Undefined { rank, step, slice });
    };
    if held.shift != new.shift {
        return Err(VerifyError::Misplaced { rank, step, slice });
    }
    if let Some(contributor) = held.ranks.first_common(&new.ranks) {
        return Err(VerifyError::Duplicate { rank, step, contributor, slice });
    }
    if held.finished || new.finished {
        return Err(VerifyError::Finish { rank, step, slice });
    }
    held.ranks = held.ranks.union(&new.ranks);
    held.order = held.order.with(new.order);
    Ok(())
}

fn part(whole: Slice, from: u64, to: u64) -> Slice {
    Slice { offset: from, len: to - from, ..whole }
}
