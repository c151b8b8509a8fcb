//! `qpair launch`: runs a command as N local ranks.

use std::ffi::OsString;

use clap::Args;

use crate::period::Period;
use crate::ranks::{Job, JobError, Output};

/// Runs a command as N ranks on this machine.
///
/// The ranks find each other by torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT. Each line of output gets the rank in front. SIGINT, SIGTERM and SIGHUP go to all ranks; a second one
/// kills them.
///
/// If a rank fails, the others have half a second to fail with it and to say why, and are ended then. The exit code is
/// that of the rank that failed: one that a signal killed (128 + number), else the one that ended unlike the others.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair launch -n 4 -- ./train --epochs 3
  qpair launch -n 2 --pin -- target/release/examples/data_parallel
  qpair launch -n 4 --timeout 5m --port 29500 -- python3 train.py")]
pub struct LaunchArgs {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Port for the ranks to meet at [default: a free one]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Device for the ranks' communicators (QPAIR_DEVICE in their environment) [default: soft0]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// End the job after this time: 90, 500ms, 5m, 2h [default: none]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Period>,
    /// Time for ranks to end after SIGTERM, before they are killed
    #[arg(long, value_name = "TIME", default_value = "3s")]
    grace: Period,
    /// Pass output on as it is, without the rank in front of each line
    #[arg(long)]
    no_prefix: bool,
    /// Bind each rank to a CPU, cores before hyperthreads; its own where there are enough, else shared evenly
    #[arg(long)]
    pin: bool,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the job.
///
/// # Errors
/// [`JobError`] unless every rank ended well.
pub fn run(args: LaunchArgs) -> Result<(), JobError> {
    let job = Job {
        ranks: args.ranks,
        command: args.command,
        device: args.device,
        port: args.port,
        output: if args.no_prefix { Output::Inherited } else { Output::Prefixed },
        pin: args.pin,
        limit: args.timeout.map(|limit| limit.0),
        grace: args.grace.0,
    };
    job.run()
}
