//! What every element of every buffer holds, followed through the plan.

use super::error::{OutputFault, VerifyError};
use super::intervals::IntervalMap;
use super::matching::Matching;
use super::rank_set::RankSet;
use super::replay::{At, Event, replay};
use crate::plan::{Buffer, Collective, Graph, Plan, Slice};

/// Checks that every rank's vector ends as all-reduce or broadcast promise.
///
/// The plan has no races, so any legal order of its steps gives the same contents.
pub(super) fn check(plan: &Plan, matching: &Matching, graphs: &[Graph]) -> Result<(), VerifyError> {
    let ranks = plan.ranks.0;
    let mut memory: Vec<Memory> = (0..ranks).map(|rank| Memory::new(plan, rank)).collect();
    replay(plan, matching, graphs, |event| {
        let (reader, writer) = match event {
            Event::Local(at) => (at, at),
            Event::Transfer { send, recv } => (send, recv),
        };
        apply(plan, &mut memory, reader, writer)
    })?;
    let wanted = match plan.collective {
        Collective::Broadcast { root } => RankSet::one(ranks, root),
        _ => RankSet::all(ranks),
    };
    for (rank, memory) in (0..).zip(&mut memory) {
        output(rank, memory, plan.elements.0, &wanted)?;
    }
    Ok(())
}

/// What an element holds: the combination of some ranks' contributions to one element of the
/// vector. `None` is undefined.
type Value = Option<Combination>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Combination {
    /// The element of the vector is the one held's position plus this, wrapping.
    shift: u64,
    ranks: RankSet,
}

/// A rank's buffers.
struct Memory {
    data: IntervalMap<Value>,
    scratch: IntervalMap<Value>,
}

impl Memory {
    fn new(plan: &Plan, rank: u32) -> Self {
        let own = Combination { shift: 0, ranks: RankSet::one(plan.ranks.0, rank) };
        Self { data: IntervalMap::new(plan.elements.0, Some(own)), scratch: IntervalMap::new(plan.scratch, None) }
    }

    fn buffer(&mut self, buffer: Buffer) -> &mut IntervalMap<Value> {
        match buffer {
            Buffer::Data => &mut self.data,
            Buffer::Scratch => &mut self.scratch,
        }
    }
}

/// Moves what `reader` reads to where `writer` writes; the two are one step, or sides of a message.
fn apply(plan: &Plan, memory: &mut [Memory], reader: At, writer: At) -> Result<(), VerifyError> {
    let kind = |at: At| plan.programs[at.rank as usize].kind(at.step);
    let src = kind(reader).and_then(|kind| kind.src());
    let into = kind(writer).and_then(|kind| Some((kind.dst()?, kind.is_reduction())));
    let (Some(src), Some((dst, reduce))) = (src, into) else {
        return Ok(());
    };
    // What comes from position p goes to p - src.offset + dst.offset.
    let moved = src.offset.wrapping_sub(dst.offset);
    let mut parts = Vec::new();
    let source = memory[reader.rank as usize].buffer(src.buffer);
    for (from, to, value) in source.pieces(src.offset, src.offset + src.len) {
        let Some(value) = value else {
            return Err(VerifyError::Undefined { rank: reader.rank, step: reader.step, slice: part(src, from, to) });
        };
        let value = Combination { shift: value.shift.wrapping_add(moved), ranks: value.ranks.clone() };
        parts.push((from.wrapping_sub(moved), to.wrapping_sub(moved), value));
    }
    let target = memory[writer.rank as usize].buffer(dst.buffer);
    for (from, to, value) in parts {
        if reduce {
            for (from, to, held) in target.pieces(from, to) {
                combine(writer, part(dst, from, to), held, &value)?;
            }
        } else {
            target.set(from, to, Some(value));
        }
    }
    Ok(())
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
    held.ranks = held.ranks.union(&new.ranks);
    Ok(())
}

fn output(rank: u32, memory: &mut Memory, len: u64, want: &RankSet) -> Result<(), VerifyError> {
    for (from, to, value) in memory.data.pieces(0, len) {
        let Some(value) = value else { continue };
        let fault = if value.shift != 0 {
            OutputFault::Misplaced
        } else if let Some(missing) = want.first_beyond(&value.ranks) {
            OutputFault::Missing(missing)
        } else if let Some(foreign) = value.ranks.first_beyond(want) {
            OutputFault::Foreign(foreign)
        } else {
            continue;
        };
        return Err(VerifyError::Output { rank, slice: Slice::data(from, to - from), fault });
    }
    Ok(())
}

fn part(whole: Slice, from: u64, to: u64) -> Slice {
    Slice { offset: from, len: to - from, ..whole }
}
