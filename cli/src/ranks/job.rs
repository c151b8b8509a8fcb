//! A job: N ranks of one command on this machine.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

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
    /// The device of the ranks' communicators; by their own environment if none is given.
    pub device: Option<String>,
    /// Port for the ranks to meet at; a free one if none is given.
    pub port: Option<u16>,
    /// What becomes of the ranks' output.
    pub output: Output,
    /// Whether each rank is bound to a CPU: its own, or one that it shares where there are fewer CPUs than ranks.
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
        let meeting = Meeting::reserve(self.port)?;
        let mut supervisor = Supervisor::new(self.limit, self.grace)?;
        for rank in 0..self.ranks {
            let child = self.start(rank, meeting.port)?;
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
        if let Some(device) = &self.device {
            command.env("QPAIR_DEVICE", device);
        }
    }

    fn cpu_for(&self, rank: u32) -> Option<usize> {
        let cpus = machine::cpus();
        if !self.pin || cpus.is_empty() {
            return None;
        }
        // Where there are more ranks than CPUs, neighbours share one: evenly from the start, which a scheduler takes a
        // while to find.
        let (rank, ranks) = (rank as usize, self.ranks as usize);
        let place = if ranks <= cpus.len() { rank } else { rank * cpus.len() / ranks };
        cpus.get(place).copied()
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

/// The port for the ranks to meet at, kept for them.
#[derive(Debug)]
struct Meeting {
    port: u16,
    /// Bound and not listening, with SO_REUSEADDR: as long as it is there, the system gives the port to nobody who does
    /// not ask for it, and lets one that does listen there.
    _kept: OwnedFd,
}

impl Meeting {
    /// Makes sure that rank 0 will be able to listen at `port`, or finds a port where it will.
    fn reserve(port: Option<u16>) -> Result<Self, JobError> {
        let asked = port.unwrap_or(0);
        Self::bind(asked).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => JobError::PortTaken { port: asked },
            _ => JobError::Port { port: asked, source },
        })
    }

    fn bind(port: u16) -> io::Result<Self> {
        let kept = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseaddr(&kept, true)?;
        bind(&kept, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
        Ok(Meeting { port: SocketAddr::try_from(getsockname(&kept)?)?.port(), _kept: kept })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_taken_port_is_a_typed_error_that_says_what_to_do() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = holder.local_addr().expect("bound").port();
        let error = Meeting::reserve(Some(port)).expect_err("taken");
        assert!(matches!(error, JobError::PortTaken { port: taken } if taken == port));
        assert!(error.to_string().contains("--port"), "{error}");
    }

    #[test]
    fn a_port_is_kept_until_a_rank_listens_at_it() {
        let meeting = Meeting::reserve(None).expect("a free port");
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, meeting.port);
        // Who does not know of the meeting does not ask for an address in use.
        let stranger =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        assert_eq!(bind(&stranger, &address), Err(rustix::io::Errno::ADDRINUSE));
        let rank = TcpListener::bind(address).expect("it is kept for the ranks");
        assert_eq!(rank.local_addr().expect("bound").port(), meeting.port);
    }

    #[test]
    fn a_program_that_is_not_there_is_one_error() {
        for command in ["no-such-program-anywhere", "./no/such/program", "/dev/null"] {
            let job = Job {
                ranks: 4,
                command: vec![command.into()],
                device: None,
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
