//! Which plan is meant: an algorithm with its parameters, or a file.

use std::path::PathBuf;

use clap::Args;
use qpair::DataType;
use qpair::collectives::tune::{Tuner, Tuning};
use qpair::collectives::{Algorithm, Collective, Elements, Nodes, Ranks, Recipe, Spec};

use super::error::PlanError;
use super::limits::{Limit, MAX_CHANNELS, MAX_RANKS};
use super::setting::Setting;
use crate::algorithm;
use crate::period::Period;
use crate::size::Size;

/// A plan: an algorithm's, or a file's.
#[derive(Debug, Clone, Args)]
pub struct Asked {
    #[arg(required_unless_present = "from", conflicts_with = "from", value_parser = algorithm::named, help = algorithms())]
    pub algorithm: Option<Algorithm>,
    #[arg(required_unless_present = "from", conflicts_with = "from", value_parser = collective, help = collectives())]
    pub collective: Option<Collective>,
    /// Read a plan or recipe from this file, as --save writes it
    #[arg(long, value_name = "FILE", conflicts_with = "terms")]
    pub from: Option<PathBuf>,
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "RANKS", required_unless_present = "from", conflicts_with = "from",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: Option<u32>,
    /// Elements of the vector, or of each block where the collective is of blocks; takes K, M, G
    #[arg(short, long, value_name = "COUNT", default_value = "64K", conflicts_with = "from")]
    count: Size,
    #[command(flatten)]
    pub terms: Terms,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    setting: Setting,
    /// Give up after this time
    #[arg(long, value_name = "TIME", default_value = "60")]
    time_limit: Period,
}

/// What beside collective and count says which plan.
#[derive(Debug, Clone, Args)]
#[group(id = "terms", multiple = true)]
pub struct Terms {
    /// Type of the elements: f64, f32, f16, bf16, f8e4m3, f8e5m2, or i or u with 8, 32 or 64 [default: f32]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<DataType>,
    /// The rank whose vector is taken, or that gets the result; of a transfer the one that gives to the next [default: 0]
    #[arg(long, value_name = "RANK")]
    root: Option<u32>,
    /// From one vector into another, instead of in place; scatter and gather do so always
    #[arg(long)]
    separate: bool,
    /// Bytes of a segment, in which long vectors are pipelined; takes K, M, G [default: 128K]
    #[arg(long, value_name = "BYTES")]
    segment: Option<Size>,
    /// Rings that share the vector, for ring [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHANNELS)))]
    channels: Option<u32>,
    /// Ranks that reduce for all, for parameter-server [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    servers: Option<u32>,
    /// Combine in the canonical order where the algorithm can, so that results do not depend on it
    #[arg(long)]
    ordered: bool,
    /// Finish each result once, as the division of an average
    #[arg(long)]
    finish: bool,
}

/// Where ranks and vectors are. Of a file's plan that is a matter of its time alone.
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// So many ranks in a row share a node [default: all; of a recipe from a file, as it says]
    #[arg(long, value_name = "RANKS_PER_NODE", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// So many ranks in a row share an island of their node: a socket, or GPUs joined by NVLink [default: all of the node]
    #[arg(long, value_name = "RANKS_PER_ISLAND", value_parser = clap::value_parser!(u32).range(1..))]
    islands: Option<u32>,
    /// Vectors are in memory of GPUs, whose kernels copy and combine
    #[arg(long)]
    gpu: bool,
}

impl Asked {
    /// How long it may take.
    pub fn limit(&self) -> Limit {
        Limit(self.time_limit.0)
    }

    /// What is asked for if it is an algorithm.
    ///
    /// # Errors
    /// [`PlanError`] if there is no such plan.
    pub fn recipe(&self, tuner: &Tuner) -> Result<Option<Recipe>, PlanError> {
        let (Some(algorithm), Some(collective)) = (self.algorithm, self.collective) else { return Ok(None) };
        let spec = self.terms.spec(collective, self.ranks.unwrap_or(1), self.count.0)?;
        self.terms.recipe(spec, algorithm, tuner).map(Some)
    }

    /// What it is chosen and priced by.
    ///
    /// # Errors
    /// [`PlanError::Model`] if there is no such model.
    pub fn tuner(&self) -> Result<Tuner, PlanError> {
        self.terms.tuner(&self.place, &self.setting)
    }
}

impl Place {
    /// Whether it is said which ranks share a node.
    pub fn has_nodes(&self) -> bool {
        self.nodes.is_some()
    }

    /// Whether it is said which ranks share a node, or an island.
    pub fn has_parts(&self) -> bool {
        self.nodes.or(self.islands).is_some()
    }
}

/// No island is of two nodes.
///
/// # Errors
/// [`PlanError::Islands`].
pub fn check_islands(islands: Option<&Nodes>, nodes: &Nodes) -> Result<(), PlanError> {
    match (islands, nodes) {
        (Some(&Nodes::Of(ranks)), &Nodes::Of(node)) if node % ranks != 0 => Err(PlanError::Islands { ranks, node }),
        _ => Ok(()),
    }
}

impl Terms {
    /// What is to be done.
    ///
    /// # Errors
    /// [`PlanError::Spec`] if that can not be.
    pub fn spec(&self, collective: Collective, ranks: u32, count: u64) -> Result<Spec, PlanError> {
        let root = self.root.unwrap_or(0);
        let collective = match collective {
            Collective::Transfer { .. } => {
                // Of one rank, to one that is not there, which is told.
                Collective::Transfer { from: root, to: root.saturating_add(1) % ranks.max(2) }
            }
            other => other.with_root(root),
        };
        let element_size = match collective {
            Collective::Barrier => 1,
            _ => self.dtype.unwrap_or(DataType::F32).size() as u32,
        };
        let mut spec = Spec::new(collective, Ranks(ranks), Elements(count), element_size);
        // As operations of communicators are.
        let has_two = matches!(collective, Collective::Scatter { .. } | Collective::Gather { .. });
        if (self.separate || has_two) && collective != Collective::Barrier {
            spec = spec.separate();
        }
        if self.finish {
            spec = spec.finished();
        }
        spec.check().map_err(PlanError::Spec)?;
        Ok(spec)
    }

    /// What recipes are chosen and priced by.
    ///
    /// # Errors
    /// [`PlanError::Model`] if there is no such model; [`PlanError::Islands`].
    pub fn tuner(&self, place: &Place, setting: &Setting) -> Result<Tuner, PlanError> {
        let tuning = Tuning { deterministic: self.ordered, ..Tuning::default() };
        let Place { nodes, islands, gpu } = *place;
        let (nodes, islands) = (nodes.map_or(Nodes::One, Nodes::Of), islands.map(Nodes::Of));
        check_islands(islands.as_ref(), &nodes)?;
        let islands = islands.filter(|islands| *islands != nodes);
        let tuner = setting.tuner(tuning, nodes, islands)?;
        let mut tuner = tuner.where_vectors_are(gpu).into_owned();
        if let Some(segment) = self.segment {
            tuner.tuning.segment = segment.0;
        }
        Ok(tuner)
    }

    /// The recipe for that, as communicators make it.
    ///
    /// # Errors
    /// [`PlanError::Recipe`] if the algorithm does not do that.
    pub fn recipe(&self, spec: Spec, algorithm: Algorithm, tuner: &Tuner) -> Result<Recipe, PlanError> {
        let mut recipe = tuner.recipe(spec, algorithm)?;
        recipe.shape.channels = self.channels.unwrap_or(recipe.shape.channels);
        recipe.shape.servers = self.servers.unwrap_or(recipe.shape.servers);
        Ok(recipe)
    }
}

/// A collective by its name.
pub fn collective(name: &str) -> Result<Collective, String> {
    let found = Collective::ALL.into_iter().find(|collective| collective.name() == name);
    found.ok_or_else(|| format!("unknown collective `{name}`: use one of {}", collective_names()))
}

/// Help that lists them.
pub fn collectives() -> String {
    format!("Collective: {}", collective_names())
}

fn collective_names() -> String {
    Collective::ALL.map(Collective::name).join(", ")
}

fn algorithms() -> String {
    format!("Algorithm: {}; auto is what is chosen by --model", algorithm::names())
}
