//! What an operation takes, by an alpha-beta model with the work of ranks and links that they share. A plan is priced step by
//! step; an algorithm by its outline, in closed form, which is what the choice between algorithms goes by.

mod clock;
mod model;
mod price;
mod seats;
mod timeline;

#[cfg(test)]
mod outline_tests;

pub use model::{CostModel, GpuModel, Link, LinkClass, ModelError};
pub use price::Price;
pub use seats::Seats;
pub(crate) use seats::{LEAST_CORES, Spread};
pub use timeline::{Message, Moment, Timeline};

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::{Collective, Plan};
use crate::verify::VerifyError;

/// What a plan takes, and why.
///
/// ```
/// use qpair_collectives::cost::{CostModel, Work};
/// use qpair_collectives::{Algorithm, Elements, Ranks, Recipe, Spec};
///
/// let recipe = Recipe::new(Spec::all_reduce(Ranks(2), Elements(1 << 20), 4), Algorithm::Direct)?;
/// let cost = recipe.plan().cost(&CostModel::default())?;
/// assert_eq!(cost.bottleneck().1, Work::Reduce);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// From the common start to the last rank's end, in seconds.
    pub seconds: f64,
    /// Seconds of these that went for latency, copies and reductions: the sum along the chain of
    /// steps, each of which held up the next, that ends last.
    pub latency: f64,
    /// See `latency`.
    pub copy: f64,
    /// See `latency`.
    pub reduce: f64,
    /// The rank at which most time of that chain was spent.
    pub rank: u32,
}

/// What a rank spends time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Waiting for messages to arrive, or for a core.
    Latency,
    /// Sending and taking messages, and copying bytes.
    Copy,
    /// Combining bytes.
    Reduce,
}

impl Cost {
    /// The rank and the work that most of the time is spent at.
    pub fn bottleneck(&self) -> (u32, Work) {
        let work = if self.latency >= self.copy.max(self.reduce) {
            Work::Latency
        } else if self.copy >= self.reduce {
            Work::Copy
        } else {
            Work::Reduce
        };
        (self.rank, work)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, work) = self.bottleneck();
        let us = 1e6;
        write!(
            f,
            "{:.2} us: latency {:.2}, copies {:.2}, reductions {:.2}; most of it {work:?} at rank \
             {rank}",
            self.seconds * us,
            self.latency * us,
            self.copy * us,
            self.reduce * us,
        )
    }
}

impl Plan {
    /// Predicts the plan's time on one node with a core for each rank. Each rank does one thing at a time, in the order in which
    /// things become possible; a send ends when the receiver has taken the message.
    /// [`timeline_at`](Self::timeline_at) does so where ranks are elsewhere.
    ///
    /// A plan that does not verify may give less than its time.
    ///
    /// # Errors
    /// Messages that do not match, as [`Plan::verify`] would say.
    pub fn cost(&self, model: &CostModel) -> Result<Cost, VerifyError> {
        Ok(*self.timeline(model)?.cost())
    }

    /// How many messages there are in a row: of the longest chain of messages, each of which waits for the one before.
    /// That is the time by the model where a message takes 1 and everything else nothing.
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub fn messages_in_a_row(&self) -> Result<u64, VerifyError> {
        let model = CostModel::of_latency(1.0);
        // A sum of ones, fewer than there are steps: whole, and within range.
        Ok(self.cost(&model)?.seconds as u64)
    }
}

/// Bytes of the longest message that is copied of a plan for that, where ranks are on one node.
pub(crate) const fn eager_on_one_node(collective: Collective) -> u64 {
    if collective.goes_one_way() { EAGER_ONE_WAY } else { EAGER }
}

/// Bytes of the longest message of a plan whose messages are copied, unless the program [says otherwise](crate::tune::Tuning),
/// where ranks are on one node.
pub(crate) const EAGER: u64 = 8 << 10;
/// The same where data [goes one way](Collective::goes_one_way): a rank that only gives has nothing to wait for but that its
/// messages are read, and not even that where they are copied. Measured, see [`Tuning`](crate::tune::Tuning).
pub(crate) const EAGER_ONE_WAY: u64 = 2 * EAGER;
/// The same where they are on several, whichever way data goes.
pub(crate) const EAGER_BETWEEN: u64 = 64 << 10;

/// The same where the software device carries what goes between nodes: a message that is read there instead takes four packets
/// one after the other. Blocks of 128 KiB between two hosts take 59 us instead of 81 so, on two cores of an EPYC.
pub(crate) const EAGER_BY_SOFTWARE: u64 = 4 * EAGER_BETWEEN;

/// Bytes of a slot by which messages of GPUs go that do not go straight, and of each part of one but the last: a multiple of every
/// element's size. Enough for a copy over PCIe to take longer than to start it.
pub(crate) const SLOT: usize = 512 << 10;

/// Slots of a GPU for each direction: some are copied while others are on their way.
pub(crate) const SLOTS: usize = 8;
