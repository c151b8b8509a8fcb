//! What each step must satisfy by itself.

use super::error::VerifyError;
use crate::plan::{Buffer, Collective, FORMAT, Plan, Slice, StepKind};

pub(super) fn check(plan: &Plan) -> Result<(), VerifyError> {
    header(plan)?;
    for (rank, program) in plan.by_rank() {
        for (step, kind) in program.numbered() {
            if let Some(&dep) = program.deps(step).iter().find(|&&dep| dep >= step) {
                return Err(VerifyError::Dependency { rank, step, dep });
            }
            one_step(plan, rank, step, kind)?;
        }
    }
    Ok(())
}

fn header(plan: &Plan) -> Result<(), VerifyError> {
    let (ranks, elements) = (plan.ranks.0, plan.elements.0);
    if plan.format != FORMAT {
        return Err(VerifyError::Format { format: plan.format });
    }
    if ranks == 0 || plan.programs.len() != ranks as usize {
        return Err(VerifyError::Programs { ranks, programs: plan.programs.len() });
    }
    match plan.collective {
        Collective::Broadcast { root } if root >= ranks => {
            return Err(VerifyError::Root { root, ranks });
        }
        _ => {}
    }
    let fits = plan.bytes().is_some_and(|bytes| bytes <= MAX_BYTES);
    let barrier = plan.collective == Collective::Barrier;
    if plan.element_size == 0 || !fits || (barrier && elements > 0) {
        return Err(VerifyError::Size { elements, element_size: plan.element_size });
    }
    let limit = elements.saturating_mul(2);
    if plan.scratch > limit {
        let scratch = plan.scratch;
        return Err(VerifyError::Scratch { scratch, limit });
    }
    Ok(())
}

fn one_step(plan: &Plan, rank: u32, step: u32, kind: &StepKind) -> Result<(), VerifyError> {
    if let Some(peer) = kind.peer().filter(|&p| p == rank || p >= plan.ranks.0) {
        return Err(VerifyError::Peer { rank, step, peer });
    }
    for slice in [kind.src(), kind.dst()].into_iter().flatten() {
        let size = size(plan, slice);
        if slice.end().is_none_or(|end| end > size) {
            return Err(VerifyError::Bounds { rank, step, slice, size });
        }
    }
    if let (Some(src), Some(dst)) = (kind.src(), kind.dst())
        && (src.len != dst.len || src.overlaps(&dst))
    {
        return Err(VerifyError::Operands { rank, step, src, dst });
    }
    Ok(())
}

fn size(plan: &Plan, slice: Slice) -> u64 {
    match slice.buffer {
        Buffer::Data => plan.elements.0,
        Buffer::Scratch => plan.scratch,
    }
}

/// No object of Rust is larger.
const MAX_BYTES: u64 = i64::MAX as u64;
