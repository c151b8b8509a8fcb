//! `qpair launch`: runs a command as ranks, here or on several hosts.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::period::Period;
use crate::ranks::{Hosts, Job, JobError, Output, Remote, SSH, Seat, is_here, is_name, own_name};

/// Runs a command as N ranks on this machine, or on several hosts.
///
/// The ranks find each other by torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK (the host),
/// MASTER_ADDR and MASTER_PORT. Each line of output gets the rank in front. SIGINT, SIGQUIT, SIGTERM and SIGHUP go to all ranks;
/// a second one kills them. One that is ignored when this starts, as by nohup, stays so.
///
/// If a rank fails, the others have half a second to fail with it and to say why, and are ended then. The exit code is
/// that of the rank that failed: one that a signal killed (128 + number), else the one that ended unlike the others.
///
/// Other hosts are reached by ssh, which must not ask for anything. They need the command at the same path, and the same
/// working directory; not this program. Ranks there have the login's environment, QPAIR_* of this one, and what -x names.
/// They end when this program does, or the connection. A rank on a host that
/// does not answer in time fails the job.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair launch -n 4 -- ./train --epochs 3
  qpair launch -n 2 --pin -- target/release/examples/data_parallel
  qpair launch -n 4 --timeout 5m --port 29500 -- python3 train.py
  qpair launch -H node1:4,node2:4 -x RUST_LOG -x LD_LIBRARY_PATH=/opt/lib -- ./train
  qpair launch --hostfile hosts --ssh \"ssh -p 2222\" -- ./train    # lines: node1 slots=4")]
pub struct LaunchArgs {
    /// Number of ranks [default with hosts: as many as they take]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096),
        required_unless_present_any = ["hosts", "hostfile"])]
    ranks: Option<u32>,
    /// Hosts, with the number of ranks that each takes: node1:4,node2:4; they are filled in this order
    #[arg(short = 'H', long, value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// File with a line for each host: node1 slots=4
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Command that runs another on a host, instead of ssh; words are parted by spaces [default: QPAIR_SSH, or ssh with options
    /// by which it does not ask, and finds in 15 s that a host is gone]
    #[arg(long, value_name = "CMD")]
    ssh: Option<String>,
    /// Time for a host to answer
    #[arg(long, value_name = "TIME", default_value = "30s")]
    host_timeout: Period,
    /// Variable for the ranks, of this environment or with a value
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    variables: Vec<String>,
    /// Host at which the ranks meet, which rank 0 runs on [default: as it is named among the hosts]
    #[arg(long, value_name = "HOST")]
    master_addr: Option<String>,
    /// Port for the ranks to meet at [default: a free one; where rank 0 is on another host, one of 20000 to 29999]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Device for the ranks' communicators [default: QPAIR_DEVICE, or else soft0 within one host, and what topology names
    /// between hosts]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// End the job after this time: 90, 500ms, 5m, 2h [default: none]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Period>,
    /// Time for ranks to end after SIGTERM, before they are killed
    #[arg(long, value_name = "TIME", default_value = "3s")]
    grace: Period,
    /// Pass output on as it is, without the rank in front of each line
    #[arg(long, conflicts_with = "tag_output")]
    no_prefix: bool,
    /// Put the rank in front of each line of output, as is done anyway
    #[arg(long)]
    tag_output: bool,
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
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Some(Hosts::parse(list)?),
        (None, Some(file)) => Some(Hosts::read(file)?),
        (None, None) => None,
    };
    let seats = match hosts {
        Some(hosts) => hosts.seat(args.ranks, |host| is_here(host, &own_name()))?,
        None => Seat::here(args.ranks.unwrap_or(1)),
    };
    let variables = args.variables.iter().map(|variable| parse_variable(variable)).collect::<Result<_, _>>()?;
    let job = Job {
        seats,
        remote: Remote { ssh: ssh(args.ssh), variables, answer: args.host_timeout.0 },
        master: args.master_addr,
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

fn ssh(named: Option<String>) -> Vec<OsString> {
    let named = named.or_else(|| std::env::var("QPAIR_SSH").ok().filter(|command| !command.trim().is_empty()));
    named.as_deref().unwrap_or(SSH).split_whitespace().map(OsString::from).collect()
}

fn parse_variable(text: &str) -> Result<(String, OsString), JobError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.into())),
        None => (text, std::env::var_os(text)),
    };
    let failed = |why| JobError::Variable { name: name.to_owned(), why };
    if !is_name(name) {
        return Err(failed("a name has letters, digits and underscores; write -x NAME or -x NAME=VALUE"));
    }
    let value = value.ok_or_else(|| failed("it is not set here; set it, or write -x NAME=VALUE"))?;
    Ok((name.to_owned(), value))
}
