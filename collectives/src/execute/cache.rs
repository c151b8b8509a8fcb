//! The plans that were compiled.

use super::compile::{Compiled, Key};
use super::tag::MAX_PLANS;
use crate::algorithms::Nodes;
use crate::error::CollectiveError;
use crate::plan::Plan;
use crate::tune::Tuning;

/// A short list of compiled plans. The last one used is found by one comparison.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    plans: Vec<Compiled>,
    /// When each was used last.
    used: Vec<u64>,
    current: usize,
    clock: u64,
    next: u16,
}

impl PlanCache {
    /// Makes the plan for `key` the current one, compiling it if need be.
    ///
    /// # Errors
    /// As [`Compiled::new`].
    #[inline]
    pub(crate) fn find(
        &mut self,
        key: &Key,
        me: u32,
        tuning: &Tuning,
        nodes: (&Nodes, &[Plan]),
        eager: usize,
    ) -> Result<(), CollectiveError> {
        if self.plans.get(self.current).is_none_or(|plan| plan.key != *key) {
            self.current = match self.plans.iter().position(|plan| plan.key == *key) {
                Some(at) => at,
                None => self.add(Compiled::new(key.clone(), me, tuning, nodes, eager)?),
            };
            self.clock += 1;
            self.used[self.current] = self.clock;
        }
        Ok(())
    }

    fn add(&mut self, mut plan: Compiled) -> usize {
        let steps = |plans: &[Compiled]| plans.iter().map(Compiled::len).sum::<usize>();
        while self.plans.len() >= MAX_CACHED || (!self.plans.is_empty() && steps(&self.plans) > MAX_STEPS) {
            let oldest = (0..self.plans.len()).min_by_key(|&at| self.used[at]).unwrap_or(0);
            self.plans.swap_remove(oldest);
            self.used.swap_remove(oldest);
        }
        // Numbers come round again; those of plans that are kept do not.
        let is_free = |number: &u16| self.plans.iter().all(|plan| plan.number != *number);
        let mut numbers = (0..MAX_PLANS).map(|ahead| (self.next + ahead) % MAX_PLANS);
        plan.number = numbers.find(is_free).unwrap_or_default();
        self.next = plan.number + 1;
        self.plans.push(plan);
        self.used.push(0);
        self.plans.len() - 1
    }

    /// The plan of the operation that runs.
    #[inline]
    pub(crate) fn current(&mut self) -> Option<&mut Compiled> {
        self.plans.get_mut(self.current)
    }

    /// Forgets all plans, for a new tuning.
    pub(crate) fn clear(&mut self) {
        self.plans.clear();
        self.used.clear();
    }

    /// All plans.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Compiled> {
        self.plans.iter()
    }
}

/// Enough for the buckets of a large model; few enough to go through.
const MAX_CACHED: usize = 128;
/// Some 64 MiB.
const MAX_STEPS: usize = 1 << 19;

#[cfg(test)]
mod tests {
    use qpair_verbs::calc::{DataType, ReduceOp};

    use super::*;
    use crate::algorithms::Algorithm;
    use crate::plan::{Elements, Ranks, Spec};

    #[test]
    fn numbers_come_round_but_for_those_of_plans_that_are_kept() {
        let mut cache = PlanCache::default();
        let mut number = |elements| {
            let (data_type, op) = (Some(DataType::F32), Some(ReduceOp::Sum));
            let spec = Spec::all_reduce(Ranks(1), Elements(elements), 4);
            let key = Key { spec, data_type, op, wish: Algorithm::Auto };
            cache.find(&key, 0, &Tuning::default(), (&Nodes::One, &[]), 64).unwrap();
            cache.current().unwrap().number
        };
        let most = u64::from(MAX_PLANS);
        for elements in 0..2 * most {
            let expected = if elements < most { elements } else { 1 + (elements - most) % (most - 1) };
            assert_eq!(u64::from(number(elements)), expected);
            assert_eq!(number(0), 0, "the first is kept, as it is used all the time");
        }
    }
}
