//! When each step of a plan begins and ends.

use super::clock::Clock;
use super::{Cost, CostModel, Seats, eager_on_one_node};
use crate::plan::Plan;
use crate::verify::{Matching, VerifyError};

/// When each step of a plan begins and ends by a [`CostModel`], and which step takes which message.
///
/// ```
/// use qpair_collectives::cost::{CostModel, Seats};
/// use qpair_collectives::{Algorithm, Collective, Elements, Ranks, Recipe, Spec};
///
/// let spec = Spec::new(Collective::Broadcast { root: 0 }, Ranks(2), Elements(10), 8);
/// let model = CostModel { straight: 2.0, ..CostModel::of_latency(1.0) };
/// let timeline = Recipe::new(spec, Algorithm::Flat)?.plan().timeline_at(&model, &Seats::default(), 0)?;
/// let message = timeline.messages()[0];
/// assert_eq!((message.from, message.to), (0, 1));
/// // The receiver waits for the message, then copies it; the send ends with that.
/// let (sent, received) = (timeline.steps(0)[0], timeline.steps(1)[0]);
/// assert_eq!((sent.begin, received.begin, received.end, sent.end), (0.0, 1.0, 41.0, 41.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    ranks: Vec<Vec<Moment>>,
    messages: Vec<Message>,
    cost: Cost,
}

/// From when to when, in seconds since the common start.
///
/// A rank receives, combines, copies and finishes one thing at a time: such steps do not overlap. A send lasts from when it
/// could start until its message has been taken, beside other steps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moment {
    /// When the step begins; a receive, when the message is there and the rank is free to take it.
    pub begin: f64,
    /// When it has ended.
    pub end: f64,
}

/// A message: which step sends it, and which takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The rank that sends.
    pub from: u32,
    /// The step at it that sends.
    pub send: u32,
    /// The rank that receives.
    pub to: u32,
    /// The step at it that receives.
    pub recv: u32,
    /// Elements of the message.
    pub elements: u64,
}

impl Timeline {
    /// By step of `rank`; none if there is no such rank.
    pub fn steps(&self, rank: u32) -> &[Moment] {
        self.ranks.get(rank as usize).map_or(&[], Vec::as_slice)
    }

    /// All messages, by sender and its steps.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// What the whole takes, and why.
    pub fn cost(&self) -> &Cost {
        &self.cost
    }
}

impl Plan {
    /// Predicts when each step begins and ends, as [`cost`](Self::cost) does for the whole.
    ///
    /// # Errors
    /// Messages that do not match, as [`Plan::verify`] would say.
    pub fn timeline(&self, model: &CostModel) -> Result<Timeline, VerifyError> {
        self.timeline_at(model, &Seats::default(), eager_on_one_node(self.spec.collective))
    }

    /// The same where ranks are on nodes and share cores, and where a plan's messages are copied if none is longer than `eager`
    /// bytes. The cores of a node are dealt to its ranks in turn; messages between nodes share the rails of each.
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub fn timeline_at(&self, model: &CostModel, seats: &Seats, eager: u64) -> Result<Timeline, VerifyError> {
        let matching = Matching::of(self)?;
        let copied = self.spec.copies(self.longest_message(), eager);
        let mut clock = Clock::new(self, &matching, model, seats, copied);
        clock.run();
        Ok(Timeline { ranks: clock.moments(), messages: messages(self, &matching), cost: clock.cost() })
    }
}

fn messages(plan: &Plan, matching: &Matching) -> Vec<Message> {
    let sends = plan.by_rank().flat_map(|(from, program)| {
        let sends = program.numbered().filter(|(_, step)| step.kind.is_send());
        sends.filter_map(move |(send, step)| {
            let (recv, kind) = (matching.partner(from, send), step.kind);
            Some(Message { from, send, to: kind.peer()?, recv, elements: kind.elements() })
        })
    });
    sends.collect()
}
