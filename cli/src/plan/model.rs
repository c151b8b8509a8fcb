//! `qpair plan model`: what operations, messages and bytes cost.

use std::path::PathBuf;

use clap::Args;

use super::error::PlanError;
use super::setting::model;
use crate::output::{print, print_object};

/// Shows the parameters of the cost model, by which algorithms are chosen.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair plan model                                  as communicators of this machine have it
  qpair plan model default --json > model.json      to be changed, for --model or QPAIR_COST_MODEL
  qpair plan compare all-reduce -n 8 --model model.json")]
pub struct ModelArgs {
    /// `here`, what QPAIR_COST_MODEL names, or else what is measured once and kept; `measure`; `default`; or a file
    #[arg(value_name = "MODEL", default_value = "here")]
    model: PathBuf,
    /// Print one JSON object, as --model and QPAIR_COST_MODEL take it
    #[arg(long)]
    json: bool,
}

/// Prints it.
///
/// # Errors
/// [`PlanError`] if there is no such model.
pub fn run(args: ModelArgs) -> Result<(), PlanError> {
    let model = model(&args.model)?;
    if args.json { Ok(print_object(&model)?) } else { Ok(print(&model.to_string())?) }
}
