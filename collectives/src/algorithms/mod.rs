//! The algorithms, one file each: pure functions from a [`Recipe`] and a rank to that rank's program. Each says how many
//! steps it takes, what it puts on the wire and when it wins; [`Algorithm`] repeats it for those who choose.

mod bruck;
mod builder;
mod chain;
mod combine;
mod direct;
mod dissemination;
mod double_tree;
mod exchange;
mod extent;
mod flat;
mod fold;
mod group;
mod halving_doubling;
mod hierarchical;
mod name;
mod outline;
mod pairwise;
mod parameter_server;
mod parts;
mod recipe;
mod recursive_doubling;
mod ring;
mod tree;

pub use name::{Algorithm, UnknownAlgorithm};
pub(crate) use outline::{Outline, Phase, Reach, Side};
pub use recipe::{Nodes, Recipe, RecipeError, Shape};

use builder::Builder;
use extent::Extent;
use group::Group;

use crate::plan::{Collective, Program, Spec};

/// What an algorithm is given.
struct Task<'a> {
    recipe: &'a Recipe,
    spec: &'a Spec,
    rank: u32,
    /// All ranks.
    group: Group,
}

/// By which algorithm its programs are made: its own, but where there are no elements. Then there would be no message, and a rank that
/// calls it on some would take what comes next for it: ranks meet as at a barrier.
fn its_own(recipe: &Recipe) -> Algorithm {
    if recipe.spec.is_void() { Algorithm::Dissemination } else { recipe.algorithm }
}

/// The program of a rank.
fn program(recipe: &Recipe, rank: u32) -> Program {
    let spec = &recipe.spec;
    let mut b = Builder::new(recipe.segment(), spec.finish);
    let task = Task { recipe, spec, rank, group: Group::all(spec.ranks.0, rank) };
    let build = match its_own(recipe) {
        Algorithm::Auto | Algorithm::Listed | Algorithm::Direct => direct::build,
        Algorithm::Ring => ring::build,
        Algorithm::RecursiveDoubling => recursive_doubling::build,
        Algorithm::HalvingDoubling => halving_doubling::build,
        Algorithm::Exchange => exchange::build,
        Algorithm::Flat => flat::build,
        Algorithm::BinomialTree => tree::build,
        Algorithm::DoubleTree => double_tree::build,
        Algorithm::Chain => chain::build,
        Algorithm::Bruck => bruck::build,
        Algorithm::Pairwise => pairwise::build,
        Algorithm::ParameterServer => parameter_server::build,
        Algorithm::Hierarchical => hierarchical::build,
        Algorithm::Dissemination => dissemination::build,
    };
    build(&mut b, &task);
    b.into_program()
}

/// What a recipe's algorithm does, in numbers. Its messages are `copied` from rank to rank, or go straight from memory to memory.
pub(crate) fn outline(recipe: &Recipe, copied: bool) -> Outline {
    let outline = match its_own(recipe) {
        Algorithm::Auto | Algorithm::Listed | Algorithm::Direct => direct::outline,
        Algorithm::Ring => ring::outline,
        Algorithm::RecursiveDoubling => recursive_doubling::outline,
        Algorithm::HalvingDoubling => halving_doubling::outline,
        Algorithm::Exchange => exchange::outline,
        Algorithm::Flat => flat::outline,
        Algorithm::BinomialTree => tree::outline,
        Algorithm::DoubleTree => double_tree::outline,
        Algorithm::Chain => chain::outline,
        Algorithm::Bruck => bruck::outline,
        Algorithm::Pairwise => pairwise::outline,
        Algorithm::ParameterServer => parameter_server::outline,
        Algorithm::Hierarchical => hierarchical::outline,
        Algorithm::Dissemination => dissemination::outline,
    };
    if recipe.spec.ranks.0 < 2 {
        return Outline::default();
    }
    let outline = outline(&Extent::of(recipe, copied));
    let is_rooted =
        recipe.spec.collective.root().is_some() || matches!(recipe.spec.collective, Collective::Transfer { .. });
    if is_rooted && !recipe.spec.is_void() { outline.one_way() } else { outline }
}
