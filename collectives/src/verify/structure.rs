//! What each step must satisfy by itself.

use std::ops::Range;

use super::error::VerifyError;
use crate::parallel;
use crate::plan::{Buffer, Buffers, Collective, Counts, FORMAT, Plan, Program, Slice, Spec, Step, StepKind};

pub(super) fn check(plan: &Plan) -> Result<(), VerifyError> {
    header(plan)?;
    let limit = scratch_limit(&plan.spec);
    let some = |range: Range<usize>| {
        range.into_iter().try_for_each(|rank| check_steps(&plan.spec, rank as u32, &plan.programs[rank], limit))
    };
    parallel::in_ranges(plan.programs.len(), plan.total_steps(), some).into_iter().collect()
}

/// What the program of one rank must satisfy by itself.
pub(super) fn check_program(spec: &Spec, rank: u32, program: &Program) -> Result<(), VerifyError> {
    check_steps(spec, rank, program, scratch_limit(spec))
}

fn check_steps(spec: &Spec, rank: u32, program: &Program, limit: u64) -> Result<(), VerifyError> {
    let scratch = program.scratch();
    if scratch > limit {
        return Err(VerifyError::Scratch { rank, scratch, limit });
    }
    if let Collective::Transfer { from, to } = spec.collective
        && rank != from
        && rank != to
        && !program.is_empty()
    {
        return Err(VerifyError::NoPart { rank, from, to });
    }
    let sizes = spec.sizes(rank, program);
    for (step, Step { kind, deps }) in program.numbered() {
        if let Some(dep) = deps.iter().find(|&dep| dep >= step) {
            return Err(VerifyError::Dependency { rank, step, dep });
        }
        one_step(spec, &sizes, rank, step, &kind)?;
    }
    Ok(())
}

fn header(plan: &Plan) -> Result<(), VerifyError> {
    let ranks = plan.spec.ranks.0;
    if plan.format != FORMAT {
        return Err(VerifyError::Format { format: plan.format });
    }
    if ranks == 0 || plan.programs.len() != ranks as usize {
        return Err(VerifyError::Programs { ranks, programs: plan.programs.len() });
    }
    check_spec(&plan.spec)
}

/// What must hold of what is asked for, whoever does it.
pub(super) fn check_spec(spec: &Spec) -> Result<(), VerifyError> {
    let ranks = spec.ranks.0;
    if ranks == 0 {
        return Err(VerifyError::Programs { ranks, programs: 0 });
    }
    let named = match spec.collective {
        Collective::Transfer { from, to } => Some(from.max(to)),
        collective => collective.root(),
    };
    if let Some(root) = named.filter(|&root| root >= ranks) {
        return Err(VerifyError::Root { root, ranks });
    }
    check_counts(spec)?;
    let fits = spec.bytes().is_some_and(|bytes| bytes <= MAX_BYTES);
    let elements = spec.total();
    let barrier = spec.collective == Collective::Barrier;
    let element_size = spec.element_size;
    if element_size == 0 || !fits || (barrier && elements > 0) {
        return Err(VerifyError::Size { elements, element_size });
    }
    Ok(())
}

fn check_counts(spec: &Spec) -> Result<(), VerifyError> {
    let (ranks, blocks) = (spec.ranks.0 as usize, spec.collective.has_blocks());
    let all_to_all = spec.collective == Collective::AllToAll;
    let fits = match &spec.counts {
        Counts::Even(_) => true,
        Counts::Ragged(counts) => blocks && !all_to_all && counts.len() == ranks,
        Counts::Pairs(counts) => all_to_all && Some(counts.len()) == ranks.checked_mul(ranks),
        Counts::Own { .. } => false,
    };
    if fits { Ok(()) } else { Err(VerifyError::Counts { counts: spec.counts.to_string(), ranks: spec.ranks.0 }) }
}

/// Five vectors, and one for each halving of the ranks: among four, flat's all-to-all takes seven.
fn scratch_limit(spec: &Spec) -> u64 {
    spec.total().saturating_mul(5 + u64::from(spec.ranks.0.max(1).ilog2()))
}

#[inline]
fn one_step(spec: &Spec, sizes: &Buffers<u64>, rank: u32, step: u32, kind: &StepKind) -> Result<(), VerifyError> {
    if let Some(peer) = kind.peer().filter(|&p| p == rank || p >= spec.ranks.0) {
        return Err(VerifyError::Peer { rank, step, peer });
    }
    for slice in [kind.src(), kind.dst()].into_iter().flatten() {
        let size = sizes[slice.buffer];
        if slice.end().is_none_or(|end| end > size) {
            return Err(VerifyError::Bounds { rank, step, slice, size });
        }
    }
    // Nothing that comes has to be for somewhere; what is done here has.
    let is_written = |dst: &Slice| dst.buffer == Buffer::Input && (dst.len > 0 || kind.peer().is_none());
    if let Some(slice) = kind.dst().filter(is_written) {
        return Err(VerifyError::InputWritten { rank, step, slice });
    }
    if let (Some(src), Some(dst)) = (kind.src(), kind.dst())
        && (src.len != dst.len || src.overlaps(&dst))
    {
        return Err(VerifyError::Operands { rank, step, src, dst });
    }
    let finishes = matches!(kind, StepKind::Finish { .. });
    if let Some(slice) = kind.dst().filter(|_| finishes && !spec.finish) {
        return Err(VerifyError::Finish { rank, step, slice });
    }
    Ok(())
}

/// No object of Rust is larger.
const MAX_BYTES: u64 = i64::MAX as u64;
