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

/// What ranks must end with, told from the first on.
pub(super) struct Promises<'a> {
    spec: &'a Spec,
    /// Elements of the blocks of earlier ranks; in an all-to-all, by giver, those that it gives to earlier ones.
    before: Vec<u64>,
}

impl<'a> Promises<'a> {
    pub(super) fn new(spec: &'a Spec) -> Self {
        let counts = if spec.collective == Collective::AllToAll { spec.ranks.0 as usize } else { 1 };
        Self { spec, before: vec![0; counts] }
    }

    /// What the next rank, which is `rank`, must end with.
    pub(super) fn next(&mut self, rank: u32) -> Vec<Part> {
        let (spec, output) = (self.spec, self.spec.output(rank));
        let one = |shift, ranks| vec![Part { slice: output, shift, ranks }];
        let all = || RankSet::all(spec.ranks.0);
        match spec.collective {
            Collective::AllReduce => one(0, all()),
            Collective::Reduce { root } if rank == root => one(0, all()),
            Collective::ReduceScatter => one(self.offset(rank).wrapping_sub(output.offset), all()),
            Collective::Broadcast { root } => one(0, RankSet::one(root)),
            Collective::Scatter { root } => one(self.offset(rank).wrapping_sub(output.offset), RankSet::one(root)),
            Collective::Transfer { from, to } if rank == to => one(0, RankSet::one(from)),
            Collective::AllGather => blocks(spec, output),
            Collective::Gather { root } if rank == root => blocks(spec, output),
            Collective::AllToAll => self.pairs(rank, output),
            Collective::Reduce { .. }
            | Collective::Gather { .. }
            | Collective::Transfer { .. }
            | Collective::Barrier => Vec::new(),
        }
    }

    /// Where `rank`'s block begins.
    fn offset(&mut self, rank: u32) -> u64 {
        let end = self.before[0] + self.spec.block(rank);
        std::mem::replace(&mut self.before[0], end)
    }

    fn pairs(&mut self, rank: u32, output: Slice) -> Vec<Part> {
        let mut at = output.offset;
        let pair = |(from, element): (u32, &mut u64)| {
            let slice = Slice { offset: at, len: self.spec.pair(from, rank), ..output };
            let shift = element.wrapping_sub(slice.offset);
            at += slice.len;
            *element += slice.len;
            Part { slice, shift, ranks: RankSet::one(from) }
        };
        (0..).zip(&mut self.before).map(pair).collect()
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
