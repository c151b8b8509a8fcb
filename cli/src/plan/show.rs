//! `qpair plan show`: what a plan takes, and its steps.

use std::path::PathBuf;

use clap::Args;
use qpair::collectives::cost::{Cost, Work};
use qpair::collectives::{Nodes, Plan, Program, Spec};
use serde::Serialize;

use super::args::Asked;
use super::error::PlanError;
use super::examined::Examined;
use super::figures::{Figures, Span};
use super::words::{self, Range, us};
use crate::output::{print, print_object, write_file};
use crate::text::amount;

/// Shows what a plan takes: steps, messages, bytes and time; and its steps if they are few.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair plan show ring all-reduce -n 4
  qpair plan show auto broadcast -n 16 -c 1M --root 3
  qpair plan show hierarchical all-reduce -n 16 --nodes 8 --rank 0
  qpair plan show direct all-to-all -n 4 --separate --save plan.json
  qpair plan show --from plan.json --json | jq .messages_in_a_row")]
pub struct ShowArgs {
    #[command(flatten)]
    asked: Asked,
    /// List the steps of this rank; else those of all ranks, if they are few
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// Write the plan, as JSON
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// With --save, write the compact form, from which each rank makes its steps
    #[arg(long, requires = "save")]
    recipe: bool,
    /// Print one JSON object, with the steps of --rank
    #[arg(long)]
    json: bool,
}

/// Prints and saves.
///
/// # Errors
/// [`PlanError`] if there is no such plan, or it is not right.
pub fn run(args: ShowArgs) -> Result<(), PlanError> {
    let examined = Examined::asked(&args.asked)?;
    let plan = examined.plan();
    let ranks = plan.spec.ranks.0;
    if let Some(rank) = args.rank.filter(|&rank| rank >= ranks) {
        return Err(PlanError::Rank { rank, ranks });
    }
    if let Some(path) = &args.save {
        write_file(path, &saved(&examined, args.recipe)?)?;
    }
    if args.json {
        return Ok(print_object(&Object::of(&examined, args.rank))?);
    }
    print(&summary(&examined))?;
    if let Some(listing) = listing(plan, args.rank) {
        print(&format!("\n{}", listing.trim_end()))?;
    }
    if let Some(path) = &args.save {
        print(&format!("\nsaved, as a {}: {}", if args.recipe { "recipe" } else { "plan" }, path.display()))?;
    }
    Ok(())
}

fn saved(examined: &Examined, recipe: bool) -> Result<String, PlanError> {
    let json = match (recipe, examined.recipe()) {
        (true, None) => return Err(PlanError::NoRecipe { path: examined.loaded.path.clone().unwrap_or_default() }),
        (true, Some(recipe)) => serde_json::to_string(recipe),
        (false, _) => serde_json::to_string(examined.plan()),
    };
    // Plain data: there is nothing that JSON could not hold.
    Ok(json.unwrap_or_default() + "\n")
}

/// What a plan takes, a line for each thing.
pub fn summary(examined: &Examined) -> String {
    let (plan, figures, cost) = (examined.plan(), &examined.figures, examined.timeline.cost());
    let mut lines = vec![format!("{} by {}", plan.spec, words::name(&plan.algorithm))];
    let mut line = |name: &str, text: String| lines.push(format!("  {name:<12}{text}"));
    if let Some(path) = &examined.loaded.path {
        line("from", format!("{}, a {}", path.display(), examined.loaded.origin()));
    }
    let recipe = examined.recipe().map(|recipe| format!("; of the recipe {}", recipe.hash()));
    line("hash", format!("{}{}", examined.hash, recipe.unwrap_or_default()));
    let each = Range(figures.steps_per_rank.min, figures.steps_per_rank.max);
    line("steps", format!("{} of all ranks, {each} each", figures.steps));
    line("messages", format!("{} of all ranks, {} in a row", figures.messages, figures.messages_in_a_row));
    line("sent", format!("{} by each rank", span(figures.sent)));
    line("received", format!("{} by each rank", span(figures.received)));
    line("in all", format!("{} sent, {}", amount(figures.total), least(figures)));
    line("scratch", format!("{} at most", amount(figures.scratch)));
    let canonical = if examined.proof.canonical { "yes" } else { "no" };
    line("canonical", format!("{canonical}{}", canonical_means(plan, examined.proof.canonical)));
    line("predicted", format!("{}{}", predicted(cost), on_nodes(&examined.nodes)));
    lines.join("\n")
}

fn span(span: Span) -> String {
    Range(amount(span.min), amount(span.max)).to_string()
}

fn least(figures: &Figures) -> String {
    match figures.above_least() {
        None => "and there need be none".to_owned(),
        Some(_) if figures.total == figures.least_total => "the least there can be".to_owned(),
        Some(times) => format!("{times:.2} times the least there can be, {}", amount(figures.least_total)),
    }
}

fn canonical_means(plan: &Plan, canonical: bool) -> &'static str {
    match (plan.spec.collective.reduces(), canonical) {
        (false, _) => ", since nothing is combined",
        (true, true) => ": results have the same bits whichever such plan makes them",
        (true, false) => ": results may differ in their last bits from those of other plans",
    }
}

fn predicted(cost: &Cost) -> String {
    let parts = [("latency", cost.latency), ("copies", cost.copy), ("reductions", cost.reduce)];
    let parts = parts.map(|(name, seconds)| format!("{name} {}", us(seconds))).join(", ");
    let (rank, work) = cost.bottleneck();
    format!("{} us: {parts}; most of it {} at rank {rank}", us(cost.seconds), work_name(work))
}

/// Where it takes that long, if ranks are on several nodes.
fn on_nodes(nodes: &Nodes) -> String {
    match nodes {
        Nodes::One => String::new(),
        Nodes::Of(ranks) => format!("; {ranks} ranks a node"),
        Nodes::Listed(_) => "; on the nodes that it names".to_owned(),
    }
}

fn work_name(work: Work) -> &'static str {
    match work {
        Work::Latency => "latency",
        Work::Copy => "copies",
        Work::Reduce => "reductions",
    }
}

/// The steps of that rank, or of all if that is not too much to read.
fn listing(plan: &Plan, rank: Option<u32>) -> Option<String> {
    let of = |rank: u32| {
        let program = plan.program(rank)?;
        Some(format!("rank {rank}, scratch of {}\n{program}", program.scratch()))
    };
    match rank {
        Some(rank) => of(rank),
        None if plan.total_steps() <= FEW => Some((0..plan.spec.ranks.0).filter_map(of).collect()),
        None => None,
    }
}

/// Steps that fit a screen or two.
const FEW: usize = 64;

/// All that is known of a plan, for programs.
#[derive(Debug, Serialize)]
struct Object<'a> {
    source: &'static str,
    collective: &'static str,
    algorithm: &'a str,
    hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    recipe_hash: Option<String>,
    spec: &'a Spec,
    #[serde(flatten)]
    figures: &'a Figures,
    canonical: bool,
    predicted: Predicted,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a Program>,
}

/// A prediction, for programs.
#[derive(Debug, Serialize)]
pub struct Predicted {
    #[serde(flatten)]
    cost: Cost,
    /// What most of the time goes for.
    bottleneck: &'static str,
}

impl Predicted {
    /// That cost.
    pub fn of(cost: &Cost) -> Self {
        Self { cost: *cost, bottleneck: work_name(cost.bottleneck().1) }
    }

    /// Of the whole.
    pub fn seconds(&self) -> f64 {
        self.cost.seconds
    }
}

impl<'a> Object<'a> {
    fn of(examined: &'a Examined, rank: Option<u32>) -> Self {
        let plan = examined.plan();
        Self {
            source: examined.loaded.origin(),
            collective: plan.spec.collective.name(),
            algorithm: &plan.algorithm,
            hash: examined.hash.to_string(),
            recipe_hash: examined.recipe().map(|recipe| recipe.hash().to_string()),
            spec: &plan.spec,
            figures: &examined.figures,
            canonical: examined.proof.canonical,
            predicted: Predicted::of(examined.timeline.cost()),
            rank,
            program: rank.and_then(|rank| plan.program(rank)),
        }
    }
}
