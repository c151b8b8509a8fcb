//! The choice of an algorithm: the one that was the fastest, where that was measured; else the one that takes the least time by the
//! cost model.

use std::borrow::Cow;

use super::{Case, Fastest, Tuning};
use crate::algorithms::{Algorithm, Nodes, Recipe, RecipeError, Shape, outline};
use crate::cost::{
    CostModel, EAGER_BETWEEN, EAGER_BY_SOFTWARE, EAGER_ONE_WAY, Price, SLOT, SLOTS, Seats, Spread, eager_on_one_node,
};
use crate::plan::{Collective, Spec};

/// Chooses algorithms by what they cost, or by what was measured of them.
///
/// ```
/// use qpair_collectives::tune::Tuner;
/// use qpair_collectives::{Algorithm, Elements, Ranks, Spec};
///
/// let tuner = Tuner::default(); // a core for each rank, on one node
/// let all_reduce = |n| tuner.choose(&Spec::all_reduce(Ranks(16), Elements(n), 4), Algorithm::Auto);
/// assert_eq!(all_reduce(2)?, Algorithm::RecursiveDoubling);
/// assert_eq!(all_reduce(1 << 20)?, Algorithm::Direct);
/// # Ok::<(), qpair_collectives::RecipeError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tuner {
    /// What the program sets.
    pub tuning: Tuning,
    /// What operations, messages and bytes cost.
    pub model: CostModel,
    /// Where ranks are.
    pub seats: Seats,
    /// What was measured of algorithms, which counts for more than the model.
    pub fastest: Fastest,
}

/// An algorithm that does what is asked for, and what it takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// What it takes by the cost model.
    pub price: Price,
}

impl Tuner {
    /// What chooses where vectors are: this one, unless they are in memory of GPUs. Then no message is copied, since what a GPU does
    /// takes the longer to begin the less it is, nor cut, but for what goes by slots, at as much as there are; and costs are a
    /// GPU's ([`CostModel::on_gpus`], or [`on_staged_gpus`](CostModel::on_staged_gpus)).
    pub fn where_vectors_are(&self, on_gpu: bool) -> Cow<'_, Self> {
        if !on_gpu {
            return Cow::Borrowed(self);
        }
        let staged = self.seats.gpus_are_staged;
        // What goes by slots is cut in any case, and may be handed on part by part: as much as there are slots for.
        let segment = if staged { self.tuning.segment.max((SLOTS * SLOT) as u64) } else { WHOLE };
        let tuning = Tuning { segment, eager: Some(0), ..self.tuning };
        let model = if staged { self.model.on_staged_gpus() } else { self.model.on_gpus() };
        // Measured were vectors in the processor's memory.
        Cow::Owned(Self { tuning, model, seats: self.seats.on_gpus(), fastest: Fastest::default() })
    }

    /// Bytes of the longest message of a plan for that whose messages are copied.
    pub fn eager(&self, collective: Collective) -> u64 {
        self.tuning.eager.unwrap_or_else(|| match &self.seats.nodes {
            Nodes::One => eager_on_one_node(collective),
            _ => self.most_eager(),
        })
    }

    /// The most that can be: what all ranks have room for, and know alike.
    pub(crate) fn most_eager(&self) -> u64 {
        match (&self.seats.nodes, self.seats.by_software) {
            (Nodes::One, _) => EAGER_ONE_WAY,
            (_, false) => EAGER_BETWEEN,
            (_, true) => EAGER_BY_SOFTWARE,
        }
    }

    /// Decides the algorithm for what is asked for.
    ///
    /// # Errors
    /// [`RecipeError`] if `wish` names an algorithm that does not do that, or not in the canonical order where results are to
    /// be deterministic.
    pub fn choose(&self, spec: &Spec, wish: Algorithm) -> Result<Algorithm, RecipeError> {
        self.recipe(spec.clone(), wish).map(|recipe| recipe.algorithm)
    }

    /// Decides, and gives the recipe.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn recipe(&self, spec: Spec, wish: Algorithm) -> Result<Recipe, RecipeError> {
        let refused = |hint| RecipeError::Spec { algorithm: wish, spec: spec.to_string(), hint };
        if wish == Algorithm::Auto {
            let chosen = self.measured(&spec).or_else(|| self.plainest(&spec));
            return chosen.ok_or_else(|| refused("no algorithm does that"));
        }
        if !self.may(&spec, wish) {
            let hint = "its results depend on how ranks are arranged: name direct, or none, for deterministic ones";
            return Err(refused(hint));
        }
        let spread = Spread::of(&self.seats, spec.ranks.0);
        self.best(&spec, wish, &spread).map(|(_, recipe)| recipe)
    }

    /// The algorithms that [`choose`](Self::choose) chooses from, the fastest by the cost model first. Where no [case](Self::case)
    /// decides, it chooses of those that take no more than a twentieth longer the one with the plainest plan.
    pub fn candidates(&self, spec: &Spec) -> Vec<Candidate> {
        let priced = self.priced(spec).into_iter();
        priced.map(|(price, recipe)| Candidate { algorithm: recipe.algorithm, price }).collect()
    }

    /// What a recipe takes by the cost model, without a look at its plan.
    pub fn price(&self, recipe: &Recipe) -> Price {
        self.price_among(&Spread::of(&self.seats, recipe.spec.ranks.0), recipe)
    }

    /// What was measured that decides the algorithm for that: with segments and copies as they are by default.
    pub fn case(&self, spec: &Spec) -> Option<Case> {
        if !self.goes_by_cases() {
            return None;
        }
        self.fastest.nearest(spec, &self.seats, &self.model).filter(|case| self.chooses(spec, case.algorithm()))
    }

    /// Whether what was measured counts.
    pub(crate) fn goes_by_cases(&self) -> bool {
        self.tuning.segment == Tuning::default().segment && self.tuning.eager.is_none()
    }

    /// The recipe for that by the algorithm that was the fastest.
    fn measured(&self, spec: &Spec) -> Option<Recipe> {
        let algorithm = self.case(spec)?.algorithm();
        self.best(spec, algorithm, &Spread::of(&self.seats, spec.ranks.0)).ok().map(|(_, recipe)| recipe)
    }

    /// The recipe for that with the plainest plan of those that are about as fast as the fastest.
    fn plainest(&self, spec: &Spec) -> Option<Recipe> {
        let priced = self.priced(spec);
        let bound = priced.first()?.0.seconds * ALIKE;
        let fast = priced.into_iter().filter(|(price, _)| price.seconds <= bound).map(|(_, recipe)| recipe);
        fast.min_by_key(|recipe| CHOSEN.iter().position(|&algorithm| algorithm == recipe.algorithm))
    }

    /// The recipes for that, the fastest first.
    fn priced(&self, spec: &Spec) -> Vec<(Price, Recipe)> {
        let spread = Spread::of(&self.seats, spec.ranks.0);
        let all = CHOSEN.into_iter().filter(|&algorithm| self.chooses(spec, algorithm));
        let recipes = all.filter_map(|algorithm| self.best(spec, algorithm, &spread).ok());
        let mut priced: Vec<_> = recipes.collect();
        // Those that are alike stay in their order.
        priced.sort_by(|(a, _), (b, _)| a.seconds.total_cmp(&b.seconds));
        priced
    }

    fn price_among(&self, spread: &Spread, recipe: &Recipe) -> Price {
        let copied = recipe.spec.copies(recipe.longest_message(), self.eager(recipe.spec.collective));
        self.model.price(&outline(recipe, copied), spread, &recipe.shape.nodes, copied)
    }

    /// The recipe by an algorithm that takes the least time: a hierarchical one may go by nodes or by islands.
    fn best(&self, spec: &Spec, algorithm: Algorithm, spread: &Spread) -> Result<(Price, Recipe), RecipeError> {
        let by = |nodes: Nodes| {
            let recipe = self.with(spec.clone(), algorithm, nodes)?;
            Ok((self.price_among(spread, &recipe), recipe))
        };
        let mut levels = self.levels().filter(|_| algorithm == Algorithm::Hierarchical);
        let best = by(levels.next().cloned().unwrap_or_default())?;
        levels.try_fold(best, |best, nodes| {
            let other = by(nodes.clone())?;
            Ok(if other.0.seconds < best.0.seconds { other } else { best })
        })
    }

    /// What hierarchical algorithms may go by: nodes, and islands, if there are said to be several.
    fn levels(&self) -> impl Iterator<Item = &Nodes> {
        let nodes = Some(&self.seats.nodes).filter(|nodes| !matches!(nodes, Nodes::One));
        nodes.into_iter().chain(&self.seats.islands)
    }

    /// Whether results may be had by it, if they are to be deterministic.
    fn may(&self, spec: &Spec, algorithm: Algorithm) -> bool {
        !self.tuning.deterministic || !spec.collective.reduces() || algorithm.orders(spec.collective)
    }

    /// Whether it is one that is chosen from. On one island a hierarchical one is another by a longer way. A flat all-to-all sorts by
    /// many short copies: where messages go straight they are long, or vectors of GPUs, where each copy is a kernel.
    fn chooses(&self, spec: &Spec, algorithm: Algorithm) -> bool {
        let is_sensible = match (algorithm, spec.collective) {
            (Algorithm::Hierarchical, _) => self.levels().next().is_some(),
            (Algorithm::Flat, Collective::AllToAll) => spec.copies(spec.total(), self.eager(spec.collective)),
            _ => true,
        };
        is_sensible && self.may(spec, algorithm)
    }

    fn with(&self, spec: Spec, algorithm: Algorithm, nodes: Nodes) -> Result<Recipe, RecipeError> {
        let segments = Shape::segments(spec.element_size, self.tuning.segment);
        let ordered = self.tuning.deterministic && spec.collective.reduces();
        Recipe::with(spec, algorithm, Shape { nodes, ordered, ..segments })
    }
}

/// Times that are no further apart are alike: the model is no better than that.
const ALIKE: f64 = 1.05;

/// Bytes of a segment that no vector has.
const WHOLE: u64 = 1 << 48;

/// The algorithms that are chosen from where none is named, those with plainer plans first.
const CHOSEN: [Algorithm; 14] = [
    Algorithm::Direct,
    Algorithm::Exchange,
    Algorithm::Flat,
    Algorithm::RecursiveDoubling,
    Algorithm::ParameterServer,
    Algorithm::HalvingDoubling,
    Algorithm::BinomialTree,
    Algorithm::Chain,
    Algorithm::Ring,
    Algorithm::Pairwise,
    Algorithm::Bruck,
    Algorithm::DoubleTree,
    Algorithm::Dissemination,
    Algorithm::Hierarchical,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Known, Rail};
    use crate::plan::{Elements, Ranks};

    #[test]
    fn what_is_copied_depends_on_who_carries_it() {
        let eager = |nodes, by_software| {
            let tuner = Tuner { seats: Seats { nodes, by_software, ..Seats::default() }, ..Tuner::default() };
            let both = [Collective::AllReduce, Collective::Reduce { root: 1 }].map(|what| tuner.eager(what) >> 10);
            (both, tuner.most_eager() >> 10)
        };
        assert_eq!([false, true].map(|by_software| eager(Nodes::One, by_software)), [([8, 16], 16); 2]);
        let between = [false, true].map(|by_software| eager(Nodes::Of(1), by_software));
        assert_eq!(between, [([64, 64], 64), ([256, 256], 256)]);
        let one_way = Collective::ALL.into_iter().filter(|collective| collective.goes_one_way()).map(Collective::name);
        assert!(one_way.eq(["broadcast", "reduce", "scatter", "gather", "transfer"]));
    }

    /// Among four containers on two cores, where it takes 175 us by flat, and 208 us by a binomial tree.
    #[test]
    fn what_packets_carry_is_work_of_cores() {
        let soft = |node| Rail { node, device: "soft0", is_software: true, rate_mbps: None };
        let cores = CostModel { copy: 70e9, straight: 70e9, ..CostModel::default() };
        let known = Known { model: cores, ..Known::default() }.with_rails([soft("a"), soft("b")]).model;
        let seats = Seats { nodes: Nodes::Of(1), cores: 0.5, by_software: true, ..Seats::default() };
        let chosen = [known.payload, 0.0].map(|payload| {
            let tuner = Tuner { model: CostModel { payload, ..known }, seats: seats.clone(), ..Tuner::default() };
            let spec = Spec::new(Collective::Broadcast { root: 0 }, Ranks(4), Elements(64 << 10), 4);
            tuner.choose(&spec, Algorithm::Auto).unwrap()
        });
        assert_eq!(chosen, [Algorithm::Flat, Algorithm::BinomialTree]);
    }

    /// Where every rank talks to every other, all of them take turns on their cores for many messages.
    #[test]
    fn ranks_that_share_cores_send_fewer_messages() {
        let chosen = |collective, cores| {
            let tuner = Tuner { seats: Seats { cores, ..Seats::default() }, ..Tuner::default() };
            tuner.choose(&Spec::new(collective, Ranks(8), Elements(4), 4), Algorithm::Auto).unwrap()
        };
        for collective in [Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll] {
            let among = [2.0, 8.0].map(|cores| chosen(collective, cores) == Algorithm::Flat);
            assert_eq!(among, [true, false], "{}", collective.name());
        }
    }

    #[test]
    fn all_algorithms_are_chosen_from() {
        let mut missing = Algorithm::ALL.to_vec();
        missing.retain(|algorithm| !CHOSEN.contains(algorithm));
        assert_eq!(missing, [Algorithm::Auto, Algorithm::Listed]);
        assert_eq!(CHOSEN.len() + missing.len(), Algorithm::ALL.len());
    }
}
