//! What a plan takes, counted step by step.

use qpair::collectives::{Collective, Plan, Spec};
use serde::Serialize;

/// The numbers of a plan. Bytes are those of its elements.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Steps of all ranks.
    pub steps: u64,
    /// Steps of the rank with the least, and of that with the most.
    pub steps_per_rank: Span,
    /// Messages of all ranks.
    pub messages: u64,
    /// The longest chain of messages, each of which waits for the one before.
    pub messages_in_a_row: u64,
    /// Bytes that a rank sends.
    pub sent: Span,
    /// Bytes that a rank receives.
    pub received: Span,
    /// Bytes of all messages.
    pub total: u64,
    /// The least there can be, whatever the algorithm.
    pub least_total: u64,
    /// The most bytes of scratch that a rank needs.
    pub scratch: u64,
    /// Bytes of the vector, or of all blocks together.
    pub vector: u64,
}

/// The least and the most of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Of the rank with the least.
    pub min: u64,
    /// Of the rank with the most.
    pub max: u64,
}

impl Span {
    fn of(numbers: impl Iterator<Item = u64> + Clone) -> Self {
        Self { min: numbers.clone().min().unwrap_or(0), max: numbers.max().unwrap_or(0) }
    }
}

impl Figures {
    /// Those of a plan that verifies.
    pub fn of(plan: &Plan, messages_in_a_row: u64) -> Self {
        let size = u64::from(plan.spec.element_size);
        let programs = || plan.programs.iter();
        let sent: Vec<u64> = programs().map(|program| moved(program, size, |step| step.is_send())).collect();
        let received = programs().map(|program| moved(program, size, |step| step.is_recv()));
        let kinds = programs().flat_map(|program| program.steps());
        let scratch = programs().map(|program| program.scratch()).max().unwrap_or(0);
        Self {
            steps: plan.total_steps() as u64,
            steps_per_rank: Span::of(programs().map(|program| program.len() as u64)),
            messages: kinds.filter(|step| step.kind.is_send()).count() as u64,
            messages_in_a_row,
            sent: Span::of(sent.iter().copied()),
            received: Span::of(received),
            total: sent.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            least_total: least(&plan.spec).saturating_mul(size),
            scratch: scratch.saturating_mul(size),
            vector: plan.spec.bytes().unwrap_or(u64::MAX),
        }
    }

    /// The total as a multiple of the least there can be; `None` where nothing need be sent.
    pub fn above_least(&self) -> Option<f64> {
        (self.least_total > 0).then(|| self.total as f64 / self.least_total as f64)
    }
}

fn moved(
    program: &qpair::collectives::Program,
    size: u64,
    counts: impl Fn(&qpair::collectives::StepKind) -> bool,
) -> u64 {
    let steps = program.steps().iter().filter(|step| counts(&step.kind));
    steps.fold(0, |sum: u64, step| sum.saturating_add(step.kind.elements().saturating_mul(size)))
}

/// Elements that must be sent at least, by all ranks together: each contribution has to be combined with the others, which
/// takes a message less than there are ranks; and each result has to reach all who get it.
fn least(spec: &Spec) -> u64 {
    let (total, others) = (spec.total(), u64::from(spec.ranks.0).saturating_sub(1));
    match spec.collective {
        Collective::AllReduce => total.saturating_mul(2).saturating_mul(others),
        Collective::ReduceScatter | Collective::AllGather => total.saturating_mul(others),
        Collective::Broadcast { .. } | Collective::Reduce { .. } => total.saturating_mul(others),
        Collective::Scatter { root } | Collective::Gather { root } => total.saturating_sub(spec.block(root)),
        Collective::AllToAll => {
            let ranks = 0..spec.ranks.0;
            let pairs = ranks.clone().flat_map(|from| ranks.clone().map(move |to| (from, to)));
            pairs.filter(|(from, to)| from != to).fold(0, |sum, (from, to)| sum.saturating_add(spec.pair(from, to)))
        }
        Collective::Transfer { from, to } if from != to => total,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use qpair::collectives::{Algorithm, Elements, Ranks, Recipe};

    use super::*;

    #[test]
    fn no_algorithm_sends_less_than_the_least_and_some_send_that() {
        for collective in Collective::ALL {
            let mut best = None;
            for algorithm in Algorithm::ALL {
                let spec = Spec::new(collective, Ranks(4), Elements(64), 4);
                let Ok(recipe) = Recipe::new(spec, algorithm) else { continue };
                let figures = Figures::of(&recipe.plan(), 0);
                assert!(figures.total >= figures.least_total, "{algorithm} {collective}: {figures:?}");
                let excess = figures.total - figures.least_total;
                best = Some(best.map_or(excess, |best: u64| best.min(excess)));
            }
            assert_eq!(best, Some(0), "{collective}");
        }
    }

    #[test]
    fn a_ring_is_counted_by_hand() {
        let recipe = Recipe::new(Spec::all_reduce(Ranks(4), Elements(64), 4), Algorithm::Ring).expect("a ring");
        let figures = Figures::of(&recipe.plan(), 6);
        // 6 messages of 16 elements of 4 B for each rank, each sent and received.
        assert_eq!((figures.steps, figures.messages), (48, 24));
        assert_eq!((figures.sent, figures.received), (Span { min: 384, max: 384 }, Span { min: 384, max: 384 }));
        assert_eq!((figures.total, figures.least_total, figures.scratch, figures.vector), (1536, 1536, 0, 256));
        assert_eq!(figures.above_least(), Some(1.0));
    }
}
