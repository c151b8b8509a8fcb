//! What each rank's buffers hold at the start, and what the collective promises at the end.
//!
//! Elements are told apart by an index that all ranks share: the position in the whole vector where there is one, that in the
//! giver's vector for an all-to-all. What lies at position p of a buffer is element p + shift.

use super::rank_set::RankSet;
use crate::plan::{Collective, Slice, Spec};

/// A part of a buffer, and whose contributions to which elements it holds.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) slice: Slice,
    pub(super) shift: u64,
    pub(super) ranks: RankSet,
}

/// What `rank` gives.
pub(super) fn given(spec: &Spec, rank: u32) -> Part {
    let slice = spec.contribution(rank);
    let at = match spec.collective {
        Collective::AllGather | Collective::Gather { .. } => spec.offset(rank),
        _ => slice.offset,
    };
    Part { slice, shift: at.wrapping_sub(slice.offset), ranks: RankSet::one(rank) }
}

/// What `rank` must end with.
pub(super) fn promised(spec: &Spec, rank: u32) -> Vec<Part> {
    let output = spec.output(rank);
    let one = |shift, ranks| vec![Part { slice: output, shift, ranks }];
    match spec.collective {
        Collective::AllReduce => one(0, RankSet::all(spec.ranks.0)),
        Collective::Reduce { root } if rank == root => one(0, RankSet::all(spec.ranks.0)),
        Collective::ReduceScatter => one(spec.offset(rank).wrapping_sub(output.offset), RankSet::all(spec.ranks.0)),
        Collective::Broadcast { root } => one(0, RankSet::one(root)),
        Collective::Scatter { root } => one(spec.offset(rank).wrapping_sub(output.offset), RankSet::one(root)),
        Collective::Transfer { from, to } if rank == to => one(0, RankSet::one(from)),
        Collective::AllGather => blocks(spec, output),
        Collective::Gather { root } if rank == root => blocks(spec, output),
        Collective::AllToAll => pairs(spec, rank, output),
        Collective::Reduce { .. } | Collective::Gather { .. } | Collective::Transfer { .. } | Collective::Barrier => {
            Vec::new()
        }
    }
}

fn blocks(spec: &Spec, output: Slice) -> Vec<Part> {
    let mut at = output.offset;
    let block = |rank| {
        let slice = Slice { offset: at, len: spec.block(rank), ..output };
        at += slice.len;
        Part { slice, shift: 0, ranks: RankSet::one(rank) }
    };
    (0..spec.ranks.0).map(block).collect()
}

fn pairs(spec: &Spec, rank: u32, output: Slice) -> Vec<Part> {
    let mut at = output.offset;
    let pair = |from| {
        let slice = Slice { offset: at, len: spec.pair(from, rank), ..output };
        at += slice.len;
        let element: u64 = (0..rank).map(|to| spec.pair(from, to)).sum();
        Part { slice, shift: element.wrapping_sub(slice.offset), ranks: RankSet::one(from) }
    };
    (0..spec.ranks.0).map(pair).collect()
}
