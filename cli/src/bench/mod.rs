//! `qpair bench`: times collectives over a range of sizes and checks their results, as nccl-tests does.
//! Without a launcher it starts its own local ranks; each rank runs `sweep`.

mod args;
mod check;
mod error;
mod measure;
mod report;
mod sweep;

use std::ffi::OsString;
use std::io;

use crate::ranks::{Job, JobError, Output};

pub use args::BenchCommand;
pub use error::BenchError;

use args::{Plan, Settings};

/// Runs a benchmark: as a rank if a launcher set torchrun's variables, else with local ranks of its own.
///
/// # Errors
/// [`BenchError`] if the arguments do not fit, ranks can not be started, a collective fails or a result is wrong.
pub fn run(command: &BenchCommand) -> Result<(), BenchError> {
    let settings = command.settings();
    let plan = Plan::new(command)?;
    match world_size()? {
        Some(launched) => {
            if settings.ranks.is_some_and(|asked| asked != launched) {
                return Err(BenchError::RankCount { asked: settings.ranks.unwrap_or_default(), launched });
            }
            sweep::run(&plan)
        }
        None => {
            let ranks = settings.ranks.unwrap_or(DEFAULT_RANKS);
            // One message, and not one per rank.
            plan.check_root(ranks as usize)?;
            Ok(spawn(settings, ranks)?)
        }
    }
}

/// The number of ranks, if a launcher started this process as one of them.
fn world_size() -> Result<Option<u32>, BenchError> {
    if std::env::var_os("RANK").is_none() {
        return Ok(None);
    }
    let Some(text) = std::env::var_os("WORLD_SIZE") else { return Ok(None) };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| BenchError::WorldSize { text: text.to_string_lossy().into_owned() })
}

/// Runs this very command as local ranks. Rank 0 prints the table.
fn spawn(settings: &Settings, ranks: u32) -> Result<(), JobError> {
    let failed = |source: io::Error| JobError::System { what: "find this program".to_owned(), source };
    let program = std::env::current_exe().map_err(failed)?;
    let command = std::iter::once(OsString::from(program)).chain(std::env::args_os().skip(1)).collect();
    let job = Job {
        ranks,
        command,
        port: settings.port,
        output: Output::PrefixedErrors,
        pin: !settings.no_pin,
        limit: settings.timeout.map(|limit| limit.0),
        grace: GRACE,
    };
    job.run()
}

const DEFAULT_RANKS: u32 = 4;
/// Ranks hold nothing that takes time to put away.
const GRACE: std::time::Duration = std::time::Duration::from_secs(2);
