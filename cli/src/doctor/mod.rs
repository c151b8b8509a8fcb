//! `qpair doctor`: looks at the machine, says what is wrong or will hurt, and what mends it; compares with another machine.

mod checks;
mod finding;
#[cfg(test)]
mod fixture;
mod peer;
mod report;
pub mod system;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use thiserror::Error;

use crate::output::{PrintError, print, print_object};
use finding::{Finding, Severity};
use peer::{Patience, ServeError, Summary};
use report::Style;
use system::System;

/// Finds out what is wrong with RDMA on this machine, and says what mends it.
///
/// Checks limits, device files, libibverbs and its providers, modules, ports, GIDs, MTUs and settings. Changes nothing.
/// With HOST it also compares this machine with another, where `qpair doctor --serve` runs.
///
/// Exits with 0 if there is no problem (there may be warnings and notes), with 1 if there is, with 2 if the arguments make
/// no sense, and with 3 if it could not look or serve: then it says nothing of the machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair doctor
  qpair doctor -v                  also what is well
  qpair doctor --json | jq 'select(.severity == \"problem\") | .message'
  qpair doctor --serve --bind 0.0.0.0        and on another machine:
  qpair doctor 10.0.0.1            kinds of GIDs, networks, MTUs, releases of both")]
pub struct DoctorArgs {
    /// Also compare with this machine
    host: Option<String>,
    /// Tell other machines what this one has, until interrupted
    #[arg(long, conflicts_with_all = ["host", "json", "verbose"])]
    serve: bool,
    /// Address to serve at. Whoever connects learns device names, GIDs and releases: bind to no more than is needed
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), requires = "serve")]
    bind: IpAddr,
    /// TCP port of the exchange; 0 lets a server choose
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Show also what is well
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object per finding, also for what is well
    #[arg(long)]
    json: bool,
}

/// The findings could not be given.
#[derive(Debug, Error)]
pub enum DoctorError {
    /// Serving ended.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Nothing can be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

impl DoctorError {
    /// What the command shall exit with: not 1, by which it tells of a problem that was found.
    pub fn exit_code(&self) -> u8 {
        3
    }

    /// Whether the reader of standard output has gone.
    pub fn is_closed_output(&self) -> bool {
        match self {
            DoctorError::Print(error) | DoctorError::Serve(ServeError::Print(error)) => error.is_closed(),
            DoctorError::Serve(_) => false,
        }
    }
}

/// Prints what is found; the exit code tells whether there is a problem.
///
/// # Errors
/// [`DoctorError`] if it can not serve or print.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, DoctorError> {
    if args.serve {
        match peer::serve(args.bind, args.port, PATIENCE_WITH_CLIENTS, || Summary::new(&System::this_machine()))? {}
    }
    let system = System::this_machine();
    let mut findings = checks::all(&system);
    if let Some(host) = &args.host {
        findings.extend(peer::compare_with(&system, host, args.port, PATIENCE));
    }
    if args.json {
        findings.iter().try_for_each(print_object)?;
    } else {
        print(&report::render(&findings, Style::for_output(args.verbose)))?;
    }
    Ok(exit_code(&findings))
}

fn exit_code(findings: &[Finding]) -> ExitCode {
    let is_problem = |finding: &Finding| finding.severity == Severity::Problem;
    if findings.iter().any(is_problem) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Not registered for anything, and not that of perftest.
const DEFAULT_PORT: u16 = 18525;
/// Both sides answer at once; a machine with very many GIDs takes a second to read them.
const PATIENCE: Patience = Patience(Duration::from_secs(10));
/// Clients are served in turn: one that is silent must not use up the patience of the next.
const PATIENCE_WITH_CLIENTS: Patience = Patience(Duration::from_secs(3));
