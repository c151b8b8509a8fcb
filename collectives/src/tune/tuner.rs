//! The choice of an algorithm: the one that takes the least time by the cost model.

use std::borrow::Cow;

use super::Tuning;
use crate::algorithms::{Algorithm, Nodes, Recipe, RecipeError, Shape, outline};
use crate::cost::{CostModel, Price, Seats};
use crate::plan::Spec;

/// Chooses algorithms by what they cost.
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
    /// What chooses where vectors are: this one, unless they are in memory of GPUs. Then no message is copied or cut, since what
    /// a GPU does takes the longer to begin the less it is, and costs are a GPU's ([`CostModel::on_gpus`]).
    pub fn where_vectors_are(&self, on_gpu: bool) -> Cow<'_, Self> {
        if !on_gpu {
            return Cow::Borrowed(self);
        }
        let tuning = Tuning { segment: WHOLE, eager: 0, ..self.tuning };
        Cow::Owned(Self { tuning, model: self.model.on_gpus(), seats: self.seats.clone() })
    }

    /// Decides the algorithm for what is asked for.
    ///
    /// # Errors
    /// [`RecipeError`] if `wish` names an algorithm that does not do that, or not in the canonical order where results are to
    /// be deterministic.
    pub fn choose(&self, spec: &Spec, wish: Algorithm) -> Result<Algorithm, RecipeError> {
        if wish != Algorithm::Auto {
            if !self.may(spec, wish) {
                let hint = "its results depend on how ranks are arranged: name direct, or none, for deterministic ones";
                return Err(RecipeError::Spec { algorithm: wish, spec: spec.to_string(), hint });
            }
            return Recipe::new(spec.clone(), wish).map(|recipe| recipe.algorithm);
        }
        let none = || RecipeError::Spec { algorithm: wish, spec: spec.to_string(), hint: "no algorithm does that" };
        self.candidates(spec).first().map(|best| best.algorithm).ok_or_else(none)
    }

    /// Decides, and gives the recipe.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn recipe(&self, spec: Spec, wish: Algorithm) -> Result<Recipe, RecipeError> {
        let algorithm = self.choose(&spec, wish)?;
        self.with(spec, algorithm)
    }

    /// The algorithms that [`choose`](Self::choose) chooses from, the fastest by the cost model first.
    pub fn candidates(&self, spec: &Spec) -> Vec<Candidate> {
        let apart = !matches!(self.seats.nodes, Nodes::One);
        let all = CHOSEN.into_iter().filter(|&algorithm| {
            // On one node it is another algorithm by a longer way.
            (apart || algorithm != Algorithm::Hierarchical) && self.may(spec, algorithm)
        });
        let recipes = all.filter_map(|algorithm| self.with(spec.clone(), algorithm).ok());
        let mut candidates: Vec<Candidate> =
            recipes.map(|recipe| Candidate { algorithm: recipe.algorithm, price: self.price(&recipe) }).collect();
        // Those that are alike stay in their order.
        candidates.sort_by(|a, b| a.price.seconds.total_cmp(&b.price.seconds));
        candidates
    }

    /// What a recipe takes by the cost model, without a look at its plan.
    pub fn price(&self, recipe: &Recipe) -> Price {
        let copied = recipe.spec.copies(recipe.longest_message(), self.tuning.eager);
        self.model.price(&outline(recipe, copied), recipe.spec.ranks.0, &self.seats, copied)
    }

    /// Whether results may be had by it, if they are to be deterministic.
    fn may(&self, spec: &Spec, algorithm: Algorithm) -> bool {
        !self.tuning.deterministic || !spec.collective.reduces() || algorithm.orders(spec.collective)
    }

    fn with(&self, spec: Spec, algorithm: Algorithm) -> Result<Recipe, RecipeError> {
        let segments = Shape::segments(spec.element_size, self.tuning.segment);
        let nodes = if algorithm == Algorithm::Hierarchical { self.seats.nodes.clone() } else { Nodes::One };
        let ordered = self.tuning.deterministic && spec.collective.reduces();
        Recipe::with(spec, algorithm, Shape { nodes, ordered, ..segments })
    }
}

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
