//! Plans and recipes from files, and the making of plans, within limits.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use qpair::collectives::{FORMAT, Plan, Recipe};
use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};

use super::error::PlanError;
use super::limits::{MAX_CHANNELS, MAX_FILE, MAX_RANKS, MAX_STEPS};
use super::words;

/// A plan, and where it comes from.
#[derive(Debug)]
pub struct Loaded {
    /// The plan.
    pub plan: Plan,
    /// Its compact form, unless it comes from a file that has none.
    pub recipe: Option<Recipe>,
    /// The file, if it comes from one.
    pub path: Option<PathBuf>,
}

impl Loaded {
    /// That of an algorithm.
    ///
    /// # Errors
    /// [`PlanError`] if there is none, or it is too large.
    pub fn of(recipe: Recipe) -> Result<Self, PlanError> {
        Ok(Self { plan: plan(&recipe)?, recipe: Some(recipe), path: None })
    }

    /// What a file holds. Of a plan nothing is proved yet.
    ///
    /// # Errors
    /// [`PlanError`] if that is neither plan nor recipe, or too large.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let path = path.to_owned();
        let text = contents(&path)?;
        let nonsense = |reason: String| PlanError::Nonsense { path: path.clone(), reason };
        let head: Head = serde_json::from_str(&text).map_err(|error| nonsense(error.to_string()))?;
        match (head.format, &head.programs, head.shape) {
            (None, ..) | (_, None, None) => {
                return Err(nonsense("it has no `format`, `programs` or `shape`".to_owned()));
            }
            (Some(format), ..) if format != FORMAT => return Err(PlanError::Format { path, format }),
            _ => {}
        }
        let Some(count) = head.programs else {
            let recipe: Recipe = serde_json::from_str(&text).map_err(|error| nonsense(error.to_string()))?;
            let plan = plan(&recipe)?;
            return Ok(Self { plan, recipe: Some(recipe), path: Some(path) });
        };
        count.check()?;
        let plan: Plan = serde_json::from_str(&text).map_err(|error| nonsense(error.to_string()))?;
        Ok(Self { plan, recipe: None, path: Some(path) })
    }

    /// What it comes from, in one word.
    pub fn origin(&self) -> &'static str {
        match (&self.path, &self.recipe) {
            (None, _) => "algorithm",
            (Some(_), Some(_)) => "recipe",
            (Some(_), None) => "plan",
        }
    }

    /// What to call it in an error.
    pub fn name(&self) -> String {
        let name = || words::name(&self.plan.algorithm);
        self.path.as_ref().map_or_else(name, |path| path.display().to_string())
    }
}

/// No more of a file than may be: it may have no end.
fn contents(path: &Path) -> Result<String, PlanError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|source| PlanError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(PlanError::Long { path: path.to_owned() });
    }
    let nonsense = |_| PlanError::Nonsense { path: path.to_owned(), reason: "it is no text".to_owned() };
    String::from_utf8(bytes).map_err(nonsense)
}

/// The plan of a recipe of anyone.
fn plan(recipe: &Recipe) -> Result<Plan, PlanError> {
    let (spec, shape) = (&recipe.spec, &recipe.shape);
    if spec.ranks.0 > MAX_RANKS {
        return Err(PlanError::Ranks { ranks: spec.ranks.0.into() });
    }
    if shape.channels > MAX_CHANNELS {
        return Err(PlanError::Channels { channels: shape.channels });
    }
    spec.check().map_err(PlanError::Spec)?;
    recipe.check()?;
    let mut count = Count::default();
    let mut programs = Vec::new();
    for rank in 0..spec.ranks.0 {
        let program = recipe.program(rank);
        count.ranks += 1;
        count.steps += program.len() as u64;
        count.check()?;
        programs.push(program);
    }
    let algorithm = recipe.algorithm.name().to_owned();
    Ok(Plan { format: recipe.format, spec: spec.clone(), algorithm, programs })
}

/// What tells a plan from a recipe, read without keeping anything.
#[derive(Deserialize)]
struct Head {
    format: Option<u32>,
    programs: Option<Count>,
    shape: Option<IgnoredAny>,
}

/// How many programs there are, and steps in all of them.
#[derive(Debug, Default)]
struct Count {
    ranks: u64,
    steps: u64,
}

impl Count {
    fn check(&self) -> Result<(), PlanError> {
        if self.ranks > u64::from(MAX_RANKS) {
            return Err(PlanError::Ranks { ranks: self.ranks });
        }
        if self.steps > MAX_STEPS { Err(PlanError::Steps) } else { Ok(()) }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Programs)
    }
}

struct Programs;

impl<'de> Visitor<'de> for Programs {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of programs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut programs: A) -> Result<Count, A::Error> {
        let mut count = Count::default();
        // Of nothing: the lists take no memory, however long they are.
        while let Some(steps) = programs.next_element::<Vec<IgnoredAny>>()? {
            count.ranks += 1;
            count.steps += steps.len() as u64;
        }
        Ok(count)
    }
}
