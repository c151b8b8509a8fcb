//! How much an algorithm is to do: what its outline follows from.

use super::fold::Fold;
use super::outline::{Phase, Reach};
use super::recipe::{Nodes, Recipe};
use crate::plan::{Collective, Counts, Spec};

/// How much an algorithm is to do. Blocks of different lengths count as equal ones of the same sum.
pub(super) struct Extent<'a> {
    pub(super) spec: &'a Spec,
    pub(super) nodes: &'a Nodes,
    pub(super) ranks: u32,
    /// Bytes of the vector, or of all blocks.
    pub(super) bytes: f64,
    /// Bytes of a segment.
    segment: f64,
    pub(super) ordered: bool,
    pub(super) servers: u32,
    /// Whether messages are copied from rank to rank, by which a copy that is only sent need not be made.
    pub(super) copied: bool,
}

impl<'a> Extent<'a> {
    pub(super) fn of(recipe: &'a Recipe, copied: bool) -> Self {
        let (spec, shape) = (&recipe.spec, &recipe.shape);
        let size = f64::from(spec.element_size);
        // What one rank alone knows is not to decide.
        let apart = matches!(spec.counts, Counts::Own { .. });
        let elements = if apart { 0.0 } else { spec.total() as f64 };
        Self {
            spec,
            nodes: &shape.nodes,
            ranks: spec.ranks.0,
            bytes: elements * size,
            segment: recipe.segment() as f64 * size,
            ordered: shape.ordered,
            servers: shape.servers.clamp(1, spec.ranks.0.max(1)),
            copied,
        }
    }

    pub(super) fn collective(&self) -> Collective {
        self.spec.collective
    }

    pub(super) fn n(&self) -> f64 {
        f64::from(self.ranks)
    }

    pub(super) fn others(&self) -> f64 {
        f64::from(self.ranks.saturating_sub(1))
    }

    /// Bytes of a part: of a block, or of the vector cut into one part per rank.
    pub(super) fn part(&self) -> f64 {
        self.bytes / self.n().max(1.0)
    }

    /// Segments of so many bytes.
    pub(super) fn segments(&self, bytes: f64) -> f64 {
        (bytes / self.segment).ceil().max(1.0)
    }

    /// log2 of a number, rounded up.
    pub(super) fn log2(count: u32) -> u32 {
        count.max(1).next_power_of_two().ilog2()
    }

    /// Distances of ever farther partners, nearest first: 1, 2, 4 and so on, below `count`.
    pub(super) fn distances(count: u32) -> impl DoubleEndedIterator<Item = u32> {
        (0..Self::log2(count)).map(|round| 1 << round)
    }

    /// What the ranks do that [fold](super::fold) before the rounds of the core, and after.
    pub(super) fn folding(&self, ranks: u32, bytes: f64, reach: impl Fn(u32) -> Reach) -> [Option<Phase>; 2] {
        let folded = Fold::of(ranks).folded;
        let phase = Phase::among(folded, self.segments(bytes), bytes, reach(1));
        let some = |phase: Phase| (folded > 0).then_some(phase);
        [some(phase.combining()), some(phase.passing_on())]
    }

    /// What is copied beside, where so many messages of that many bytes are combined in the canonical order.
    pub(super) fn sums(&self, ordered: bool, messages: f64, bytes: f64) -> f64 {
        // Of each pair that is combined for itself, one is copied first.
        if ordered { ((messages + 1.0) / 2.0 - 1.0).max(0.0) * bytes } else { 0.0 }
    }
}
