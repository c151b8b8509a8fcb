//! The `qpair` command: launches ranks, measures collectives, verbs and transport, lists devices, finds
//! out what is wrong, shows what collectives do.
#![forbid(unsafe_code)]

mod algorithm;
mod bench;
mod devices;
mod doctor;
mod gpus;
mod launch;
mod machine;
mod output;
mod perf;
mod period;
mod plan;
mod ranks;
mod round;
mod size;
mod table;
mod text;
mod topo;

use std::error::Error;
use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

/// RDMA transport middleware: launches ranks, measures collectives, verbs and transport, lists and checks devices.
#[derive(Debug, Parser)]
#[command(name = "qpair", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  qpair devices                          what RDMA devices there are
  qpair doctor                           what is wrong with them, and what mends it
  qpair topo                             what hangs where, and which NIC serves which GPU
  qpair bench all-reduce -n 4            4 ranks on this machine, 8 B to 64 MiB
  qpair plan compare all-reduce -n 8     which algorithm, at which size; plan show and draw: how it goes
  qpair perf write-lat --local           one-sided latency between two processes
  qpair launch -n 4 -- ./train           run a program as 4 ranks

Set RUST_LOG=debug (or qpair_transport=trace, ...) to see what happens inside.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Launch(launch::LaunchArgs),
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    Perf(perf::PerfArgs),
    Devices(devices::DevicesArgs),
    Doctor(doctor::DoctorArgs),
    Topo(topo::TopoArgs),
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    #[command(name = "__rank", hide = true)]
    Rank(ranks::EnterArgs),
    #[command(name = "__watch", hide = true)]
    Watch,
}

/// What made a command fail.
#[derive(Debug, Error)]
enum CommandError {
    #[error(transparent)]
    Launch(#[from] ranks::JobError),
    #[error(transparent)]
    Bench(#[from] bench::BenchError),
    #[error(transparent)]
    Perf(#[from] perf::PerfError),
    #[error(transparent)]
    Devices(#[from] devices::DevicesError),
    #[error(transparent)]
    Doctor(#[from] doctor::DoctorError),
    #[error(transparent)]
    Topo(#[from] topo::TopoError),
    #[error(transparent)]
    Plan(#[from] plan::PlanError),
    #[error(transparent)]
    Enter(#[from] ranks::EnterError),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    match run(cli.command) {
        Ok(code) => code,
        // Who read has enough; there is nobody to tell.
        Err(error) if error.is_closed_output() => output::CLOSED_EXIT_CODE.into(),
        Err(error) => {
            output::tell(&report(&error));
            error.exit_code()
        }
    }
}

/// Runs it; the exit code is that of a command that did its work.
fn run(command: Command) -> Result<ExitCode, CommandError> {
    match command {
        Command::Launch(args) => launch::run(args)?,
        Command::Bench(command) => bench::run(&command)?,
        Command::Perf(args) => perf::run(&args)?,
        Command::Devices(args) => devices::run(&args)?,
        Command::Topo(args) => topo::run(&args)?,
        Command::Plan(command) => plan::run(command)?,
        Command::Doctor(args) => return Ok(doctor::run(&args)?),
        Command::Watch => ranks::watch(),
        Command::Rank(args) => return Err(ranks::enter(&args).into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn start_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

impl CommandError {
    fn is_closed_output(&self) -> bool {
        match self {
            CommandError::Bench(error) => error.is_closed_output(),
            CommandError::Perf(perf::PerfError::Print(error)) => error.is_closed(),
            CommandError::Devices(devices::DevicesError::Print(error)) => error.is_closed(),
            CommandError::Doctor(error) => error.is_closed_output(),
            CommandError::Topo(topo::TopoError::Print(error)) => error.is_closed(),
            CommandError::Plan(plan::PlanError::Print(error)) => error.is_closed(),
            _ => false,
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            CommandError::Launch(error) => error.exit_code().into(),
            CommandError::Bench(error) => error.exit_code().into(),
            CommandError::Perf(error) => error.exit_code().into(),
            CommandError::Doctor(error) => error.exit_code().into(),
            // As shells do for commands that can not be run.
            CommandError::Enter(ranks::EnterError::Exec { .. }) => 127.into(),
            _ => ExitCode::FAILURE,
        }
    }
}

/// The error, and each cause that its message does not already tell.
fn report(error: &dyn Error) -> String {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(&format!("\n  caused by: {message}"));
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_report_tells_each_cause_once() {
        #[derive(Debug, Error)]
        #[error("could not start: {source}")]
        struct Inlined {
            source: io::Error,
        }
        #[derive(Debug, Error)]
        #[error("no luck")]
        struct Apart {
            #[source]
            inner: Inlined,
        }
        let error = Apart { inner: Inlined { source: io::Error::other("disk on fire") } };
        assert_eq!(report(&error), "error: no luck\n  caused by: could not start: disk on fire");
    }
}
