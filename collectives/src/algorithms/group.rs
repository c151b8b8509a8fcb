//! The ranks that work together in a phase of an algorithm.

use std::sync::Arc;

/// Some ranks in an order, one of them this one. Members are named by their index.
#[derive(Debug, Clone)]
pub(super) struct Group {
    ranks: Members,
    me: u32,
}

#[derive(Debug, Clone)]
enum Members {
    Strided { first: u32, stride: u32, len: u32 },
    Listed(Arc<[u32]>),
}

impl Group {
    /// All of `ranks` ranks.
    pub(super) fn all(ranks: u32, me: u32) -> Self {
        Self { ranks: Members::Strided { first: 0, stride: 1, len: ranks }, me }
    }

    /// These ranks; `None` if `rank` is not among them.
    pub(super) fn listed(ranks: impl Into<Arc<[u32]>>, rank: u32) -> Option<Self> {
        let ranks = ranks.into();
        let me = ranks.iter().position(|&other| other == rank)? as u32;
        Some(Self { ranks: Members::Listed(ranks), me })
    }

    pub(super) fn len(&self) -> u32 {
        match &self.ranks {
            Members::Strided { len, .. } => *len,
            Members::Listed(ranks) => ranks.len() as u32,
        }
    }

    pub(super) fn me(&self) -> u32 {
        self.me
    }

    /// The rank of a member.
    pub(super) fn rank(&self, index: u32) -> u32 {
        match &self.ranks {
            Members::Strided { first, stride, .. } => first + stride * index,
            Members::Listed(ranks) => ranks[index as usize],
        }
    }

    /// The member `ahead` places after this one, round.
    pub(super) fn after(&self, ahead: u32) -> u32 {
        (self.me + ahead) % self.len()
    }

    /// The member `behind` places before this one, round.
    pub(super) fn before(&self, behind: u32) -> u32 {
        (self.me + self.len() - behind % self.len()) % self.len()
    }

    /// All others, the next one first.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, len) = (self.me, self.len());
        (1..len).map(move |ahead| (me + ahead) % len)
    }

    /// All others, the one before this first.
    pub(super) fn others_back(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, len) = (self.me, self.len());
        (1..len).map(move |behind| (me + len - behind) % len)
    }
}
