//! A plan, and all that is known of it.

use std::path::Path;

use qpair::collectives::cost::Timeline;
use qpair::collectives::tune::Tuner;
use qpair::collectives::{Nodes, Plan, PlanHash, Program, Proof, Recipe, VerifyError};

use super::args::{Asked, check_islands};
use super::error::PlanError;
use super::figures::Figures;
use super::load::Loaded;

/// A plan that is right, with its numbers.
#[derive(Debug)]
pub struct Examined {
    /// The plan, and where it comes from.
    pub loaded: Loaded,
    /// Its hash.
    pub hash: PlanHash,
    /// What was proved.
    pub proof: Proof,
    /// When each step runs.
    pub timeline: Timeline,
    /// Which ranks share a node there.
    pub nodes: Nodes,
    /// What it takes.
    pub figures: Figures,
}

/// The numbers of a plan, which mean something if it is right.
#[derive(Debug)]
pub struct Known {
    /// When each step runs.
    pub timeline: Timeline,
    /// What it takes.
    pub figures: Figures,
}

impl Known {
    /// Works them out, by that cost model.
    ///
    /// # Errors
    /// Messages that do not match.
    pub fn of(plan: &Plan, tuner: &Tuner) -> Result<Self, VerifyError> {
        let timeline = plan.timeline_at(&tuner.model, &tuner.seats, tuner.eager(plan.spec.collective))?;
        Ok(Self { timeline, figures: Figures::of(plan, plan.messages_in_a_row()?) })
    }
}

impl Examined {
    /// What is asked for, within limits.
    ///
    /// # Errors
    /// [`PlanError`] if there is no such plan, it is not right, or it is too large.
    pub fn asked(asked: &Asked) -> Result<Self, PlanError> {
        let tuner = asked.tuner()?;
        let (recipe, from) = (asked.recipe(&tuner)?, asked.from.clone());
        let says_nodes = asked.place.has_nodes();
        asked.limit().within(move || match (recipe, from) {
            (Some(recipe), _) => Self::of(Loaded::of(recipe)?, tuner),
            (None, path) if says_nodes => Self::of(Loaded::read(&path.unwrap_or_default())?, tuner),
            (None, path) => Self::read(&path.unwrap_or_default(), tuner),
        })
    }

    /// What a file holds, on the nodes that it is for, if it says so.
    ///
    /// # Errors
    /// [`PlanError`] if it is no plan, not right, or too large.
    pub fn read(path: &Path, mut tuner: Tuner) -> Result<Self, PlanError> {
        let loaded = Loaded::read(path)?;
        if let Some(recipe) = &loaded.recipe {
            tuner.seats.nodes = recipe.shape.nodes.clone();
        }
        check_islands(tuner.seats.islands.as_ref(), &tuner.seats.nodes)?;
        Self::of(loaded, tuner)
    }

    /// Proves it and works out its numbers.
    ///
    /// # Errors
    /// [`PlanError::Refuted`] if it is not right.
    fn of(loaded: Loaded, tuner: Tuner) -> Result<Self, PlanError> {
        let plan = &loaded.plan;
        let proof = plan.verify().map_err(|fault| refuted(&loaded, fault))?;
        let Known { timeline, figures } = Known::of(plan, &tuner).map_err(|fault| refuted(&loaded, fault))?;
        Ok(Self { hash: plan.hash(), proof, timeline, figures, nodes: tuner.seats.nodes, loaded })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.loaded.plan
    }

    /// Its compact form, if there is one.
    pub fn recipe(&self) -> Option<&Recipe> {
        self.loaded.recipe.as_ref()
    }
}

/// The error, with the lines of the listing that it is about.
pub fn refuted(loaded: &Loaded, fault: VerifyError) -> PlanError {
    let mut around = String::new();
    for (place, (rank, step)) in fault.places().into_iter().enumerate().take(MOST_PLACES) {
        if let Some(program) = loaded.plan.program(rank) {
            let mark = if place == 0 { '>' } else { '-' };
            around.push_str(&format!(
                "\n\nrank {rank}, scratch of {}\n{}",
                program.scratch(),
                lines(program, step, mark)
            ));
        }
    }
    PlanError::Refuted { plan: loaded.name(), fault, around }
}

/// Some lines of a listing, and the one in the middle marked.
fn lines(program: &Program, step: u32, mark: char) -> String {
    let near = step.saturating_sub(AROUND)..=step.saturating_add(AROUND);
    let near = near.take_while(|&at| (at as usize) < program.len());
    let marked = near.map(|at| {
        let line: String = program.line(at).chars().take(LONGEST).collect();
        format!("{}{line}", if at == step { mark } else { ' ' })
    });
    marked.collect::<Vec<_>>().join("\n")
}

/// Steps that are shown before and after the one at fault.
const AROUND: u32 = 3;
/// Steps of a deadlock that are shown.
const MOST_PLACES: usize = 6;
/// Of a line whose step waits for very many others, what is shown.
const LONGEST: usize = 160;
