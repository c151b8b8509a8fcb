//! Algorithms by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::{Collective, Counts, Spec};

/// An algorithm by name, or the choice of one. N is the number of ranks, S the vector or all blocks together.
///
/// ```
/// use qpair_collectives::Algorithm;
///
/// assert_eq!("recursive-doubling".parse(), Ok(Algorithm::RecursiveDoubling));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// By collective, ranks and size. No recipe can be made of it.
    #[default]
    Auto,
    /// All-reduce, reduce-scatter, all-gather round a ring, each rank with its two neighbours alone. 2 (N - 1) messages in
    /// a row for an all-reduce and half for the others, of S / N each, the least there is on the wire. Wins for large
    /// vectors where each rank has a link of its own to its neighbour. With [`channels`](super::Shape::channels), several
    /// rings over other neighbours share the vector.
    Ring,
    /// All-reduce by exchanging whole vectors with ever farther partners: log2 N messages in a row of S each, 2 more where
    /// N is no power of two. Wins for short vectors. In the canonical order.
    RecursiveDoubling,
    /// All-reduce, reduce-scatter, all-gather by halving what is exchanged from partner to partner, and doubling it:
    /// 2 log2 N messages in a row for an all-reduce, 2 S (N - 1) / N on the wire, as little as the ring. Wins for
    /// middling and large vectors among many ranks. All-reduce is in the canonical order; the others take any number of
    /// ranks without folding.
    HalvingDoubling,
    /// All-reduce, reduce-scatter, all-gather, all-to-all in which every rank talks to every other: 2 messages in a row for
    /// an all-reduce and 1 for the others, the least there is on the wire, N - 1 peers. Wins in shared memory and on a
    /// full crossbar. In the canonical order [where asked for](super::Shape::ordered).
    Direct,
    /// All-reduce and barrier in which every rank gives all it has to every other at once: 1 message in a row, (N - 1) S on
    /// the wire. Wins for short vectors among few ranks. In the canonical order.
    Exchange,
    /// Broadcast, reduce, scatter, gather, transfer between the root and each rank by itself: 1 message in a row, (N - 1) S
    /// at the root. Wins among few ranks, and in shared memory, where each reads by its own core. Reduce-scatter, all-gather,
    /// barrier by way of the first rank, all-to-all by way of the first of each four: 2 messages in a row, up to N S in or out
    /// of such a rank. Wins for short vectors where ranks share cores: there are 2 (N - 1) messages, in an all-to-all N²/4 + N.
    Flat,
    /// Broadcast, reduce, all-reduce, scatter, gather by way of a binomial tree: log2 N messages in a row of S each (of
    /// ever less for scatter and gather). Wins for short vectors among many ranks.
    BinomialTree,
    /// Broadcast, reduce, all-reduce by two binary trees, each for half of the vector; a rank that is inside one is a leaf
    /// of the other, so that all links are used alike: 2 log2 N messages in a row, twice for an all-reduce; S in and out
    /// of each rank. Wins for middling and large vectors among very many ranks.
    DoubleTree,
    /// Broadcast, reduce, all-reduce from rank to rank, pipelined in segments: N - 1 messages in a row (twice for an
    /// all-reduce) and one more for each further segment. S in and out of each rank. Wins for broadcasts of large vectors
    /// among many ranks.
    Chain,
    /// All-gather and all-to-all in log2 N messages in a row: each carries what has been collected so far. As little as
    /// there can be on the wire for an all-gather, S log2 N / 2 for an all-to-all. Wins for short blocks among many ranks.
    Bruck,
    /// All-to-all, reduce-scatter and all-gather with one partner at a time: N - 1 messages in a row of S / N, the least
    /// there is on the wire. Wins for large blocks where many messages at once would crowd the network.
    Pairwise,
    /// All-reduce by [servers](super::Shape::servers) that reduce a part each for all and give it back: 2 messages in a
    /// row, 2 (N - 1) S / servers in and out of a server. The baseline that other ways are held against.
    ParameterServer,
    /// All-reduce, reduce-scatter, all-gather, all-to-all, broadcast, barrier by [nodes](super::Shape::nodes): within the
    /// node, then between ranks of the same place across nodes, then within. Each rank sends S / N per node over the
    /// network for an all-reduce. Wins where ranks of a node reach each other faster than other nodes.
    Hierarchical,
    /// Barrier in log2 N messages in a row, with ever farther partners.
    Dissemination,
    /// A plan of the user's own, see [`set_plan`](crate::Communicator::set_plan). No recipe can be made of it.
    Listed,
}

impl Algorithm {
    /// Every algorithm, [`Auto`](Self::Auto) first.
    pub const ALL: [Algorithm; 16] = [
        Self::Auto,
        Self::Ring,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::Direct,
        Self::Exchange,
        Self::Flat,
        Self::BinomialTree,
        Self::DoubleTree,
        Self::Chain,
        Self::Bruck,
        Self::Pairwise,
        Self::ParameterServer,
        Self::Hierarchical,
        Self::Dissemination,
        Self::Listed,
    ];

    /// The name it prints and parses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ring => "ring",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::HalvingDoubling => "halving-doubling",
            Self::Direct => "direct",
            Self::Exchange => "exchange",
            Self::Flat => "flat",
            Self::BinomialTree => "binomial-tree",
            Self::DoubleTree => "double-tree",
            Self::Chain => "chain",
            Self::Bruck => "bruck",
            Self::Pairwise => "pairwise",
            Self::ParameterServer => "parameter-server",
            Self::Hierarchical => "hierarchical",
            Self::Dissemination => "dissemination",
            Self::Listed => "listed",
        }
    }

    /// Whether it does that collective.
    pub const fn does(self, collective: Collective) -> bool {
        use Collective as C;
        match self {
            Self::Auto | Self::Listed => true,
            Self::Ring | Self::HalvingDoubling => {
                matches!(collective, C::AllReduce | C::ReduceScatter | C::AllGather)
            }
            Self::RecursiveDoubling | Self::ParameterServer => matches!(collective, C::AllReduce),
            Self::Direct => {
                matches!(collective, C::AllReduce | C::ReduceScatter | C::AllGather | C::AllToAll)
            }
            Self::Exchange => matches!(collective, C::AllReduce | C::Barrier),
            Self::Flat => !matches!(collective, C::AllReduce),
            Self::BinomialTree => matches!(
                collective,
                C::AllReduce | C::Broadcast { .. } | C::Reduce { .. } | C::Scatter { .. } | C::Gather { .. }
            ),
            Self::DoubleTree | Self::Chain => {
                matches!(collective, C::AllReduce | C::Broadcast { .. } | C::Reduce { .. })
            }
            Self::Bruck => matches!(collective, C::AllGather | C::AllToAll),
            Self::Pairwise => matches!(collective, C::AllToAll | C::ReduceScatter | C::AllGather),
            Self::Hierarchical => matches!(
                collective,
                C::AllReduce | C::ReduceScatter | C::AllGather | C::AllToAll | C::Broadcast { .. } | C::Barrier
            ),
            Self::Dissemination => matches!(collective, C::Barrier),
        }
    }

    /// Whether it can combine what all ranks give in [the canonical order](crate::Proof::canonical), where it does a
    /// collective that reduces.
    pub const fn orders(self, collective: Collective) -> bool {
        match self {
            Self::Auto | Self::Listed | Self::RecursiveDoubling | Self::Direct | Self::Exchange => true,
            Self::Flat | Self::ParameterServer => true,
            Self::HalvingDoubling => matches!(collective, Collective::AllReduce),
            _ => false,
        }
    }

    /// What it needs that `spec`, whose collective it does, has not.
    pub(super) fn objection(self, spec: &Spec) -> Option<&'static str> {
        let even = matches!(spec.counts, Counts::Even(_));
        match (self, spec.collective) {
            (Self::Auto | Self::Listed, _) => Some("name an algorithm"),
            (_, Collective::AllToAll) if !even && spec.in_place => Some("give another vector for the result"),
            (_, Collective::AllToAll) if matches!(spec.counts, Counts::Ragged(_)) => {
                Some("give the counts of each pair")
            }
            (Self::Bruck | Self::Hierarchical | Self::Flat, Collective::AllToAll) if !even => {
                Some("use direct or pairwise where blocks differ")
            }
            (_, collective) if !even && !collective.has_blocks() => Some("give one length for all"),
            (_, collective)
                if matches!(spec.counts, Counts::Pairs(_) | Counts::Own { .. })
                    && collective != Collective::AllToAll =>
            {
                Some("give one length per rank")
            }
            (_, Collective::Broadcast { .. }) if !spec.in_place => Some("a broadcast is in place"),
            (_, Collective::Transfer { .. }) if spec.in_place => Some("a transfer is from one vector into another"),
            _ => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| UnknownAlgorithm { name: text.to_owned() })
    }
}

/// The name is no algorithm's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm `{name}`: use one of {}", Algorithm::ALL.map(Algorithm::name).join(", "))]
pub struct UnknownAlgorithm {
    /// The name.
    pub name: String,
}
