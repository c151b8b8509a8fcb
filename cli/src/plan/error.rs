//! Why there is no plan to show, and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use qpair::collectives::{BootstrapError, FORMAT, RecipeError, VerifyError};
use qpair::verbs::{CreateError, MemoryError, OpenError};
use thiserror::Error;

use super::limits::{MAX_CHANNELS, MAX_FILE, MAX_MEMORY, MAX_RANKS, MAX_STEPS};
use crate::output::{PrintError, WriteError};
use crate::size::Size;

/// There is no such plan, or it is not right.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The algorithm does not do that.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// There is no such cost model.
    #[error(transparent)]
    Model(BootstrapError),
    /// What operations take on a GPU could not be measured.
    #[error("what operations take on a GPU could not be measured: {0}")]
    Gpu(MemoryError),
    /// The software device could not be opened.
    #[error(transparent)]
    Open(OpenError),
    /// It has no domain to give.
    #[error(transparent)]
    Create(CreateError),
    /// There is no such collective.
    #[error(transparent)]
    Spec(VerifyError),
    /// The plan is not right.
    #[error("{plan} is refused: {fault}{around}")]
    Refuted {
        /// Which plan.
        plan: String,
        /// The first fault.
        fault: VerifyError,
        /// The steps to look at, in lines of the listing, after a line's end; or nothing.
        around: String,
    },
    /// The file could not be read.
    #[error("could not read {}: {source}; name a file that `qpair plan show ... --save FILE` wrote", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is too long.
    #[error("{} is longer than {}: save the recipe instead, with --save FILE --recipe", path.display(), Size(MAX_FILE))]
    Long {
        /// The file.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error("{} is no plan and no recipe: {reason}; `qpair plan show ... --save FILE` writes one", path.display())]
    Nonsense {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is of another version.
    #[error("{} is of format {format}, this build takes {FORMAT}: save it anew", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// Too many ranks to look at.
    #[error("{ranks} ranks are more than the {MAX_RANKS} that this command takes: ask for fewer")]
    Ranks {
        /// How many.
        ranks: u64,
    },
    /// An island would be of several nodes.
    #[error("nodes of {node} ranks have no whole islands of {ranks}: give --islands a part of --nodes")]
    Islands {
        /// Ranks of an island.
        ranks: u32,
        /// Ranks of a node.
        node: u32,
    },
    /// Too many rings to look at.
    #[error("{channels} rings are more than the {MAX_CHANNELS} that this command takes: ask for fewer")]
    Channels {
        /// How many.
        channels: u32,
    },
    /// Too many steps to look at.
    #[error("the plan has more than {MAX_STEPS} steps: ask for fewer ranks, or longer segments (--segment)")]
    Steps,
    /// It takes too long.
    #[error("gave up after {0:?}: ask for fewer ranks or longer segments, or give it more with --time-limit")]
    Time(Duration),
    /// It takes too much memory.
    #[error("gave up at {} of memory: ask for fewer ranks, or longer segments (--segment)", Size(MAX_MEMORY))]
    Memory,
    /// Something that must not happen.
    #[error("this plan makes the command fail: please report it, with the file or the arguments")]
    Failed,
    /// The rank to list is none.
    #[error("there is no rank {rank}: name one below {ranks} with --rank")]
    Rank {
        /// The rank.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// A plan from a file has no recipe.
    #[error("{} holds a plan, which has no compact form: leave out --recipe", path.display())]
    NoRecipe {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It could not be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}
