//! A job: N ranks of one command on this machine.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::child::{TiedChild, tied};
use super::error::JobError;
use super::relay;
use super::supervise::Supervisor;
use crate::machine;

/// N ranks of one command, which find each other by torchrun's variables.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number of ranks, at least 1.
    pub ranks: u32,
    /// The command with its arguments.
    pub command: Vec<OsString>,
    /// Port for the ranks to meet at; a free one if none is given.
    pub port: Option<u16>,
    /// What becomes of the ranks' output.
    pub output: Output,
    /// Whether rank i is bound to the i-th core. Ignored where there are fewer cores than ranks.
    pub pin: bool,
    /// How long the job may take.
    pub limit: Option<Duration>,
    /// How long ranks may take to end after they were asked to, before they are killed.
    pub grace: Duration,
}

/// What becomes of the ranks' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Lines of both streams are passed on with the rank in front.
    Prefixed,
    /// Standard output is the launcher's own; lines of standard error get the rank in front.
    PrefixedErrors,
    /// Both streams are the launcher's own.
    Inherited,
}

impl Job {
    /// Runs the job to its end. All ranks have ended when this returns.
    ///
    /// The ranks end with the calling thread, however it ends; so call this on the main thread.
    ///
    /// # Errors
    /// [`JobError`] if the job could not start, a rank failed, a signal came, or the time is over.
    pub fn run(&self) -> Result<(), JobError> {
        self.check_command()?;
        let port = reserve(self.port)?;
        let mut supervisor = Supervisor::new(self.limit, self.grace)?;
        for rank in 0..self.ranks {
            let child = self.start(rank, port)?;
            supervisor.add(rank, child, &relay::prefix(rank, self.ranks))?;
        }
        supervisor.run()
    }

    fn start(&self, rank: u32, port: u16) -> Result<TiedChild, JobError> {
        let failed = |source| JobError::System { what: format!("start rank {rank}"), source };
        let mut command = tied(self.cpu_for(rank), &self.command).map_err(failed)?;
        self.environment(&mut command, rank, port);
        // A group of its own, so that signals reach what the rank itself starts. Such a group can not read the terminal.
        command.process_group(0).stdin(Stdio::null());
        if self.output == Output::Prefixed {
            command.stdout(Stdio::piped());
        }
        if self.output != Output::Inherited {
            command.stderr(Stdio::piped());
        }
        TiedChild::start(&mut command).map_err(failed)
    }

    /// The variables that torchrun sets.
    fn environment(&self, command: &mut Command, rank: u32, port: u16) {
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", self.ranks.to_string())
            .env("GROUP_RANK", "0")
            .env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string())
            .env("MASTER_PORT", port.to_string());
    }

    fn cpu_for(&self, rank: u32) -> Option<usize> {
        let cpus = machine::allowed_cpus();
        if !self.pin || cpus.len() < self.ranks as usize {
            return None;
        }
        cpus.get(rank as usize).copied()
    }

    /// Finds the program as `exec` will, so that a typing error is one message and not one per rank.
    fn check_command(&self) -> Result<(), JobError> {
        let program: &OsStr = self.command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let found = if program.as_encoded_bytes().contains(&b'/') {
            is_program(Path::new(program))
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)))
        };
        if found { Ok(()) } else { Err(JobError::NoSuchCommand { command: program.to_string_lossy().into_owned() }) }
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Makes sure that rank 0 will be able to listen at `port`, or finds a port where it will.
fn reserve(port: Option<u16>) -> Result<u16, JobError> {
    let asked = port.unwrap_or(0);
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, asked)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => JobError::PortTaken { port: asked },
        _ => JobError::Port { port: asked, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_a_typed_error_that_says_what_to_do() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = holder.local_addr().expect("bound").port();
        let error = reserve(Some(port)).expect_err("taken");
        assert!(matches!(error, JobError::PortTaken { port: taken } if taken == port));
        assert!(error.to_string().contains("--port"), "{error}");
    }

    #[test]
    fn a_free_port_is_found() {
        assert_ne!(reserve(None).expect("a free port"), 0);
    }

    #[test]
    fn a_program_that_is_not_there_is_one_error() {
        for command in ["no-such-program-anywhere", "./no/such/program", "/dev/null"] {
            let job = Job {
                ranks: 4,
                command: vec![command.into()],
                port: None,
                output: Output::Prefixed,
                pin: false,
                limit: None,
                grace: Duration::ZERO,
            };
            assert!(matches!(job.run(), Err(JobError::NoSuchCommand { command: named }) if named == command));
        }
    }
}
