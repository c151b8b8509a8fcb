//! How many elements each rank gives and gets, and where they lie.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::spec::{Collective, Spec};
use super::step::{Buffer, Slice};

/// A number of elements: of the vector, or of each block where the collective is of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Counts {
    /// The vector's length, or that of each block.
    Even(u64),
    /// The length of each rank's block.
    Ragged(Arc<Vec<u64>>),
    /// All-to-all: what each rank gives to each, row by row: rank a gives rank b entry `a * ranks + b`.
    Pairs(Arc<Vec<u64>>),
    /// All-to-all as one rank knows it. Only that rank's program can be made of it.
    Own {
        /// The rank.
        rank: u32,
        /// What it gives to each.
        gives: Arc<Vec<u64>>,
        /// What it gets from each.
        gets: Arc<Vec<u64>>,
    },
}

impl Spec {
    /// The length of `rank`'s block, or of the vector where there are no blocks. For all-to-all, see
    /// [`pair`](Self::pair).
    pub fn block(&self, rank: u32) -> u64 {
        match &self.counts {
            Counts::Even(count) => *count,
            Counts::Ragged(blocks) => blocks.get(rank as usize).copied().unwrap_or(0),
            Counts::Pairs(_) | Counts::Own { .. } => 0,
        }
    }

    /// What `from` gives to `to` in an all-to-all.
    pub fn pair(&self, from: u32, to: u32) -> u64 {
        let ranks = self.ranks.0 as usize;
        match &self.counts {
            Counts::Pairs(pairs) => pairs.get(from as usize * ranks + to as usize).copied().unwrap_or(0),
            Counts::Own { rank, gives, .. } if from == *rank => gives.get(to as usize).copied().unwrap_or(0),
            Counts::Own { rank, gets, .. } if to == *rank => gets.get(from as usize).copied().unwrap_or(0),
            Counts::Own { .. } => 0,
            _ => self.block(to),
        }
    }

    /// The elements of all blocks, or of the vector.
    pub fn total(&self) -> u64 {
        match &self.counts {
            Counts::Even(count) if self.collective.has_blocks() => count.saturating_mul(u64::from(self.ranks.0)),
            Counts::Even(count) => *count,
            Counts::Ragged(blocks) => sum(blocks.iter().copied()),
            Counts::Own { rank, .. } => self.given(*rank).max(self.gotten(*rank)),
            Counts::Pairs(_) => {
                let ranks = 0..self.ranks.0;
                ranks.map(|rank| self.given(rank).max(self.gotten(rank))).max().unwrap_or(0)
            }
        }
    }

    /// Bytes of that; `None` if that is no `u64`.
    pub fn bytes(&self) -> Option<u64> {
        self.total().checked_mul(u64::from(self.element_size))
    }

    /// Where `rank`'s block begins among all blocks.
    pub fn offset(&self, rank: u32) -> u64 {
        match &self.counts {
            Counts::Even(count) => count.saturating_mul(u64::from(rank)),
            Counts::Ragged(blocks) => sum(blocks.iter().copied().take(rank as usize)),
            Counts::Pairs(_) | Counts::Own { .. } => 0,
        }
    }

    /// What `rank` gives to all in an all-to-all.
    fn given(&self, rank: u32) -> u64 {
        if let Counts::Own { rank: own, gives, .. } = &self.counts
            && *own == rank
        {
            return sum(gives.iter().copied());
        }
        sum((0..self.ranks.0).map(|to| self.pair(rank, to)))
    }

    /// What `rank` gets of all in an all-to-all.
    fn gotten(&self, rank: u32) -> u64 {
        if let Counts::Own { rank: own, gets, .. } = &self.counts
            && *own == rank
        {
            return sum(gets.iter().copied());
        }
        sum((0..self.ranks.0).map(|from| self.pair(from, rank)))
    }

    /// Elements of the vector that `rank` gives; 0 in place, where that is [the vector](Self::data_len) that it gets too.
    pub fn input_len(&self, rank: u32) -> u64 {
        match self.collective {
            _ if self.in_place => 0,
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter => self.total(),
            Collective::AllGather | Collective::Gather { .. } => self.block(rank),
            Collective::AllToAll => self.given(rank),
            Collective::Broadcast { root } | Collective::Scatter { root } if rank == root => self.total(),
            Collective::Transfer { from, .. } if rank == from => self.total(),
            _ => 0,
        }
    }

    /// Elements of the vector that `rank` gets; in place, of the one that it gives too.
    pub fn data_len(&self, rank: u32) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::AllGather | Collective::Broadcast { .. } => self.total(),
            Collective::ReduceScatter if self.in_place => self.total(),
            Collective::ReduceScatter => self.block(rank),
            Collective::AllToAll if self.in_place => self.given(rank).max(self.gotten(rank)),
            Collective::AllToAll => self.gotten(rank),
            Collective::Reduce { root } => {
                if self.in_place || rank == root {
                    self.total()
                } else {
                    0
                }
            }
            Collective::Scatter { root } => {
                if self.in_place && rank == root {
                    self.total()
                } else {
                    self.block(rank)
                }
            }
            Collective::Gather { root } => match rank == root {
                true => self.total(),
                false if self.in_place => self.block(rank),
                false => 0,
            },
            Collective::Transfer { to, .. } if rank == to => self.total(),
            Collective::Transfer { .. } | Collective::Barrier => 0,
        }
    }

    /// What `rank` gives: a slice of its input, or in place of its data.
    pub fn contribution(&self, rank: u32) -> Slice {
        if !self.in_place {
            return Slice { buffer: Buffer::Input, offset: 0, len: self.input_len(rank) };
        }
        match self.collective {
            Collective::AllGather => Slice::data(self.offset(rank), self.block(rank)),
            Collective::Gather { root } if rank == root => Slice::data(self.offset(rank), self.block(rank)),
            Collective::Scatter { root } if rank != root => Slice::data(0, 0),
            _ => Slice::data(0, self.data_len(rank)),
        }
    }

    /// Where the collective's result for `rank` lies in its data.
    pub fn output(&self, rank: u32) -> Slice {
        match self.collective {
            Collective::ReduceScatter if self.in_place => Slice::data(self.offset(rank), self.block(rank)),
            Collective::Scatter { root } if self.in_place && rank == root => {
                Slice::data(self.offset(rank), self.block(rank))
            }
            Collective::Reduce { root } | Collective::Gather { root } if rank != root => Slice::EMPTY,
            _ => Slice::data(0, self.data_len(rank)),
        }
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}
