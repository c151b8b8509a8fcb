//! The plans that were compiled.

use super::compile::{Compiled, Key};
use super::source::OwnPlan;
use super::tag::MAX_PLANS;
use crate::error::CollectiveError;
use crate::tune::Tuner;

/// A short list of compiled plans, each in a place of its own while it is used. Programs do the same again and again: the plan that
/// followed the last one, when another last did, is found by one comparison, and the last one itself by two at most.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    places: Vec<Place>,
    /// Where the last plan is.
    last: usize,
    clock: u64,
    next: u16,
}

#[derive(Debug, Default)]
struct Place {
    plan: Option<Box<Compiled>>,
    /// When it was used last.
    used: u64,
    /// Where the plan was that was used after it, when that was another.
    followed_by: usize,
}

impl PlanCache {
    /// The place of the plan for `key`, which is compiled if need be. Plans at places that are `busy` stay.
    ///
    /// # Errors
    /// As [`Compiled::new`]; [`CollectiveError::TooManyPlans`].
    #[inline]
    pub(crate) fn find(
        &mut self,
        key: &Key,
        me: u32,
        tuner: &Tuner,
        own: &[OwnPlan],
        busy: impl Fn(usize) -> bool,
    ) -> Result<usize, CollectiveError> {
        let expected = self.expected();
        let at = if self.is_at(expected, key) {
            expected
        } else if self.is_at(self.last, key) {
            self.last
        } else {
            self.find_elsewhere(key, me, (tuner, own), busy)?
        };
        self.clock += 1;
        self.places[at].used = self.clock;
        self.last = at;
        Ok(at)
    }

    /// Where the next plan is, if it follows the last one as it did before.
    #[inline]
    fn expected(&self) -> usize {
        self.places.get(self.last).map_or(0, |place| place.followed_by)
    }

    #[inline]
    fn is_at(&self, at: usize, key: &Key) -> bool {
        self.places.get(at).and_then(|place| place.plan.as_ref()).is_some_and(|plan| plan.key == *key)
    }

    /// As [`find`](PlanCache::find), for a plan that is neither the last one nor where it is expected: there it is from now on.
    #[cold]
    fn find_elsewhere(
        &mut self,
        key: &Key,
        me: u32,
        (tuner, own): (&Tuner, &[OwnPlan]),
        busy: impl Fn(usize) -> bool,
    ) -> Result<usize, CollectiveError> {
        let at = match (0..self.places.len()).find(|&at| self.is_at(at, key)) {
            Some(at) => at,
            None => self.add(Compiled::new(key.clone(), me, tuner, own)?, busy)?,
        };
        if let Some(last) = self.places.get_mut(self.last) {
            last.followed_by = at;
        }
        Ok(at)
    }

    fn add(&mut self, mut plan: Compiled, busy: impl Fn(usize) -> bool) -> Result<usize, CollectiveError> {
        while self.iter().count() >= MAX_CACHED || self.iter().map(Compiled::len).sum::<usize>() > MAX_STEPS {
            let kept = (0..self.places.len()).filter(|&at| self.places[at].plan.is_some() && !busy(at));
            let Some(oldest) = kept.min_by_key(|&at| self.places[at].used) else { break };
            self.places[oldest].plan = None;
        }
        // Numbers come round again; those of plans that are kept do not.
        let is_free = |number: &u16| self.iter().all(|plan| plan.number != *number);
        let mut numbers = (0..MAX_PLANS).map(|ahead| (self.next + ahead) % MAX_PLANS);
        let limit = usize::from(MAX_PLANS);
        plan.number = numbers.find(is_free).ok_or(CollectiveError::TooManyPlans { limit })?;
        self.next = plan.number + 1;
        let at = self.places.iter().position(|place| place.plan.is_none()).unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        self.places[at].plan = Some(Box::new(plan));
        Ok(at)
    }

    /// The plan at a place.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&Compiled> {
        self.places.get(at)?.plan.as_deref()
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn plan(&mut self, at: usize) -> Option<&mut Compiled> {
        self.places.get_mut(at)?.plan.as_deref_mut()
    }

    /// Forgets all plans, for a new tuning.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
    }

    /// All plans.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Compiled> {
        self.places.iter().filter_map(|place| place.plan.as_deref())
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Compiled> {
        self.places.iter_mut().filter_map(|place| place.plan.as_deref_mut())
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

    fn key(elements: u64) -> Key {
        let (data_type, op) = (Some(DataType::F32), Some(ReduceOp::Sum));
        let spec = Spec::all_reduce(Ranks(1), Elements(elements), 4);
        Key { spec, data_type, op, wish: Algorithm::Auto, lenient: false, on_gpu: false }
    }

    #[test]
    fn plans_are_found_in_whatever_order_they_are_asked_for() {
        let (mut cache, tuner) = (PlanCache::default(), Tuner::default());
        let mut find = |elements: u64| {
            let at = cache.find(&key(elements), 0, &tuner, &[], |_| false).unwrap();
            assert!(cache.get(at).unwrap().key == key(elements));
            at
        };
        // In turn, twice each, then another way round, with one that is new, and from the first again.
        let orders = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 1, 2, 2], [4, 3, 2, 1], [4, 9, 2, 9], [1, 2, 3, 4]];
        for elements in orders.into_iter().flatten() {
            assert_eq!(find(elements), if elements == 9 { 4 } else { elements as usize - 1 });
        }
    }

    #[test]
    fn what_follows_a_plan_as_it_did_before_is_expected() {
        let (mut cache, tuner) = (PlanCache::default(), Tuner::default());
        let mut elsewhere = |elements: u64| {
            let known = [cache.expected(), cache.last];
            !known.contains(&cache.find(&key(elements), 0, &tuner, &[], |_| false).unwrap())
        };
        let mut round = |order: [u64; 3]| order.map(&mut elsewhere).into_iter().filter(|&is| is).count();
        assert_eq!([round([1, 2, 3]), round([1, 2, 3]), round([1, 2, 3])], [2, 0, 0]);
        // Where the order changes it is learnt anew.
        assert_eq!([round([2, 1, 3]), round([2, 1, 3]), round([2, 1, 3])], [3, 0, 0]);
        // One that is repeated in between, as where it waits for room, changes nothing.
        assert_eq!([round([2, 2, 1]), round([1, 3, 3]), round([2, 1, 3])], [0, 0, 0]);
    }

    #[test]
    fn numbers_come_round_but_for_those_of_plans_that_are_kept() {
        let mut cache = PlanCache::default();
        let tuner = Tuner::default();
        let mut number = |elements| {
            let at = cache.find(&key(elements), 0, &tuner, &[], |_| false).unwrap();
            cache.plan(at).unwrap().number
        };
        let most = u64::from(MAX_PLANS);
        for elements in 0..2 * most {
            let expected = if elements < most { elements } else { 1 + (elements - most) % (most - 1) };
            assert_eq!(u64::from(number(elements)), expected);
            assert_eq!(number(0), 0, "the first is kept, as it is used all the time");
        }
    }

    #[test]
    fn more_plans_than_there_are_numbers_are_not_under_way_at_once() {
        let (mut cache, tuner) = (PlanCache::default(), Tuner::default());
        let mut find = |elements| cache.find(&key(elements), 0, &tuner, &[], |_| true);
        for elements in 0..u64::from(MAX_PLANS) {
            find(elements).unwrap();
        }
        let error = find(u64::from(MAX_PLANS)).unwrap_err();
        assert!(matches!(error, CollectiveError::TooManyPlans { limit: 4096 }) && !error.is_fatal(), "{error}");
        find(7).unwrap();
        let mut numbers: Vec<_> = cache.iter().map(|plan| plan.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), usize::from(MAX_PLANS));
    }
}
