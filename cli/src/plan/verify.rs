//! `qpair plan verify`: proves the plan of a file.

use std::path::PathBuf;

use clap::Args;
use qpair::collectives::tune::Tuner;

use super::error::PlanError;
use super::examined::Examined;
use super::limits::Limit;
use super::show::summary;
use crate::output::print;
use crate::period::Period;

/// Proves that a plan from a file does what it says: right results, no race, no deadlock.
///
/// Exits with 1 if it does not, and shows the first fault with the steps around it. Files of anyone are safe to look at: what
/// is too large, or takes too long, is refused.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair plan show ring all-reduce -n 4 --save plan.json
  qpair plan verify plan.json")]
pub struct VerifyArgs {
    /// The file, as `qpair plan show --save` writes it
    file: PathBuf,
    /// Give up after this time
    #[arg(long, value_name = "TIME", default_value = "60")]
    time_limit: Period,
}

/// Proves it and prints what was proved.
///
/// # Errors
/// [`PlanError`] if it is not right, or no plan.
pub fn run(args: VerifyArgs) -> Result<(), PlanError> {
    let examined = Limit(args.time_limit.0).within(move || Examined::read(&args.file, Tuner::default()))?;
    let results = match examined.plan().spec.collective.reduces() {
        true => "each result holds each contribution once, and nothing else",
        false => "each result is what it is to be, and nothing else",
    };
    let proved = [
        results,
        "no step races with another of its rank",
        "no deadlock, even where each send waits for its receive",
        "each message has its receive, of its length",
        "all slices lie within their buffers, and the input stays as it is",
    ];
    print(&summary(&examined))?;
    print("\nProved, whatever the timing of the ranks:")?;
    proved.iter().try_for_each(|line| print(&format!("  {line}")))?;
    Ok(())
}
