//! What runs first in a new rank's process: it ties the process to its launcher, then becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use thiserror::Error;

use super::descriptors;
use crate::machine::{self, PinError};

/// Arguments of the hidden subcommand that a launcher starts its ranks with.
#[derive(Debug, clap::Args)]
pub struct EnterArgs {
    /// Process number of the launcher.
    #[arg(long)]
    pub parent: i32,
    /// CPU to bind to.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// How many descriptors it may have at first.
    #[arg(long)]
    pub descriptors: Option<u64>,
    /// The command to become.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// A rank's process could not become its command.
#[derive(Debug, Error)]
pub enum EnterError {
    /// The launcher is gone already.
    #[error("the launcher ended before this rank started")]
    Orphaned,
    /// The system did not tie this process to its launcher.
    #[error("could not tie this process to its launcher: {0}")]
    Tie(io::Error),
    /// No CPU to bind to.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The command can not be run.
    #[error("can not run `{command}`: {source}")]
    Exec {
        /// The program.
        command: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// Becomes the command; returns only if that fails.
pub fn enter(args: &EnterArgs) -> EnterError {
    match prepare(args) {
        Ok(()) => become_command(&args.command),
        Err(error) => error,
    }
}

/// The kernel kills this process when the launcher's thread that started it ends, and the command after it, since
/// the setting survives `exec`.
fn prepare(args: &EnterArgs) -> Result<(), EnterError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| EnterError::Tie(errno.into()))?;
    // The launcher may have ended before the tie was made.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(args.parent) {
        return Err(EnterError::Orphaned);
    }
    if let Some(descriptors) = args.descriptors {
        descriptors::keep_to(descriptors);
    }
    if let Some(cpu) = args.cpu {
        machine::pin_to(cpu)?;
    }
    Ok(())
}

fn become_command(command: &[OsString]) -> EnterError {
    let Some((program, arguments)) = command.split_first() else {
        return EnterError::Exec { command: String::new(), source: io::ErrorKind::InvalidInput.into() };
    };
    let source = Command::new(program).args(arguments).exec();
    EnterError::Exec { command: program.to_string_lossy().into_owned(), source }
}
