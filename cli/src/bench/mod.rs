//! `qpair bench`: times collectives over a range of sizes and checks their results, as nccl-tests does.
//! Without a launcher it starts its own local ranks; each rank runs `sweep`. What can be measured is a table, `operation`.

mod args;
mod compare;
mod error;
mod measure;
mod operation;
mod pattern;
mod plot;
mod progress;
mod report;
mod row;
mod scalar;
mod sizes;
mod sweep;
mod ticks;
mod vectors;
mod wanted;
mod workload;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::time::Duration;

use qpair::collectives::Environment;
use qpair::verbs::Gpu;

use crate::output::try_file;
use crate::ranks::{Job, JobError, Output, Remote, Seat, this_program};

pub use args::BenchCommand;
pub use error::BenchError;

use args::Settings;
use workload::Workload;

/// Runs a benchmark: as a rank if a launcher started this process and others, else with local ranks of its own. One of a launcher's
/// variables tells: without the others it is an error, and no reason to start ranks from each of the launcher's processes. A single
/// rank, as a shell is that `srun --pty` starts, has nobody to measure with, and starts others beside it.
///
/// # Errors
/// [`BenchError`] if the arguments do not fit, ranks can not be started, a collective fails or a result is wrong.
pub fn run(command: &BenchCommand) -> Result<(), BenchError> {
    let settings = command.parts().settings;
    let workload = Workload::new(command)?;
    if workload.gpu {
        Gpu::count()?;
    }
    let environment = match Environment::launcher() {
        Some(_) => Some(Environment::from_env().map_err(BenchError::Environment)?),
        None => None,
    };
    let Some(environment) = environment.filter(|environment| settings.spawned || environment.size > 1) else {
        let ranks = settings.ranks.unwrap_or(DEFAULT_RANKS);
        // One message, and not one per rank.
        check(&workload, ranks)?;
        open_plot(&workload)?;
        return Ok(spawn(settings, ranks)?);
    };
    if !settings.spawned {
        check_launched(settings)?;
    }
    let launched = environment.size;
    if let Some(asked) = settings.ranks.filter(|&asked| asked != launched) {
        return Err(BenchError::RankCount { asked, launched });
    }
    check(&workload, launched)?;
    if environment.rank == 0 {
        open_plot(&workload)?;
    }
    sweep::run(&workload, &environment)
}

/// Whether all that was asked for is a matter of a rank, and not of who starts ranks.
fn check_launched(settings: &Settings) -> Result<(), BenchError> {
    let of_launcher = [
        ("--device", settings.device.is_some(), "name the device to it, `qpair launch -d`, or set QPAIR_DEVICE"),
        ("--timeout", settings.timeout.is_some(), "give it to that, `qpair launch --timeout`"),
        ("--port", settings.port.is_some(), "leave it out"),
        ("--no-pin", settings.no_pin, "leave it out: `qpair launch` binds ranks to CPUs with --pin only"),
    ];
    match of_launcher.into_iter().find(|&(_, is_given, _)| is_given) {
        Some((option, _, hint)) => Err(BenchError::OfLauncher { option, hint }),
        None => Ok(()),
    }
}

/// Whether that can be measured and drawn with so many ranks.
fn check(workload: &Workload, ranks: u32) -> Result<(), BenchError> {
    workload.check_root(ranks as usize)?;
    if workload.plot.is_some() && workload.operation.bus().factor(ranks as usize) == 0.0 {
        return Err(BenchError::NothingToPlot);
    }
    Ok(())
}

/// Whether there can be a picture where it shall be: before it takes any time. For rank 0, which draws it, and who starts
/// it; other ranks may be on hosts where there is no such folder.
fn open_plot(workload: &Workload) -> Result<(), BenchError> {
    match &workload.plot {
        Some(path) => Ok(try_file(path)?),
        None => Ok(()),
    }
}

/// Runs this very command as local ranks. Rank 0 prints the table.
fn spawn(settings: &Settings, ranks: u32) -> Result<(), JobError> {
    let failed = |source| JobError::System { what: "find this program".to_owned(), source };
    let program = this_program().map_err(failed)?;
    // Standard error of ranks goes through this process, which puts their number in front of its lines.
    let progress = io::stderr().is_terminal().then(|| OsString::from("--progress"));
    let own = std::env::args_os().skip(1).chain(progress).chain([OsString::from("--spawned")]);
    let command = std::iter::once(OsString::from(program)).chain(own).collect();
    let job = Job {
        seats: Seat::here(ranks),
        remote: Remote::none(),
        master: None,
        command,
        device: settings.device.clone(),
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
const GRACE: Duration = Duration::from_secs(2);
