//! A job: ranks of one command, on this machine or on several.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};
use rustix::termios::{LocalModes, tcgetattr};

use super::child::{TiedChild, tied};
use super::descriptors;
use super::error::JobError;
use super::hosts::{Seat, own_name};
use super::rank::{Lifeline, Started};
use super::relay;
use super::remote::{Remote, is_name, script};
use super::supervise::Supervisor;
use crate::machine;

/// Ranks of one command, which find each other by torchrun's variables.
#[derive(Clone, Debug)]
pub struct Job {
    /// Where the ranks run, at least one.
    pub seats: Vec<Seat>,
    /// How hosts are reached that are not this machine, and what ranks there need of it.
    pub remote: Remote,
    /// The host at which ranks of several hosts meet; that of rank 0 if none is given.
    pub master: Option<String>,
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
        let is_away = |seat: &Seat| seat.host.is_some();
        if self.seats.iter().any(is_away) {
            check_program(self.remote.ssh.first(), std::env::var_os("PATH"))?;
            if self.pin {
                return Err(JobError::NotRemote { what: "--pin" });
            }
        }
        if !self.seats.iter().all(is_away) {
            // The last of several values is the one that ranks have.
            let path = self.remote.variables.iter().rev().find(|(name, _)| name == "PATH");
            let path = path.map(|(_, path)| path.clone()).or_else(|| std::env::var_os("PATH"));
            check_program(self.command.first(), path)?;
        }
        self.allow_descriptors()?;
        let (host, meeting) = self.meeting()?;
        let supervisor = Supervisor::new(self.limit, self.grace, &self.remote)?;
        supervisor.run(self.seats.clone(), |seat| {
            let variables = self.variables(seat, &host, meeting.port);
            match &seat.host {
                None => self.start(seat, &variables),
                Some(host) => self.start_on(host, seat, variables),
            }
        })
    }

    /// Each rank has pipes that lead here, and is started by more of them for a moment.
    fn allow_descriptors(&self) -> Result<(), JobError> {
        let local = self.piped().into_iter().filter(|piped| *piped).count() as u64;
        let pipes = |seat: &Seat| if seat.host.is_some() { 3 } else { local };
        let needed = self.seats.iter().map(pipes).sum::<u64>() + OWN_DESCRIPTORS;
        let ranks = self.ranks();
        descriptors::allow(needed).map_err(|allowed| JobError::Descriptors { ranks, needed, allowed })
    }

    /// The host and the port at which the ranks meet.
    fn meeting(&self) -> Result<(String, Meeting), JobError> {
        let here = Ipv4Addr::LOCALHOST;
        if self.seats.iter().all(|seat| seat.host.is_none()) {
            return Ok((self.master.clone().unwrap_or_else(|| here.to_string()), Meeting::reserve(here, self.port)?));
        }
        match self.seats.first().and_then(|seat| seat.host.as_deref()) {
            // What is free there, only rank 0 will see.
            Some(host) => {
                let host = self.master.as_deref().unwrap_or_else(|| host.rsplit('@').next().unwrap_or(host));
                let port = self.port.unwrap_or_else(any_port);
                Ok((host.to_owned(), Meeting { port, _kept: None }))
            }
            None => {
                Ok((self.master.clone().unwrap_or_else(own_name), Meeting::reserve(Ipv4Addr::UNSPECIFIED, self.port)?))
            }
        }
    }

    fn start(&self, seat: &Seat, variables: &[(&str, String)]) -> Result<Started, JobError> {
        let rank = seat.rank;
        let failed = |source| JobError::System { what: format!("start rank {rank}"), source };
        let mut command = tied(self.cpu_for(rank), &self.command).map_err(failed)?;
        // A store that torchrun keeps for its own ranks is none for these.
        command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
        command.envs(self.remote.variables.iter().map(|(name, value)| (name, value)));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        // A group of its own, so that signals reach what the rank itself starts. Such a group can not read the terminal.
        command.process_group(0).stdin(Stdio::null());
        let [out, err] = self.piped();
        if out {
            command.stdout(Stdio::piped());
        }
        if err {
            command.stderr(Stdio::piped());
        }
        let child = TiedChild::start(&mut command).map_err(failed)?;
        let out_prefix = self.prefix(rank).filter(|_| self.output == Output::Prefixed);
        Ok(Started { child, out_prefix, err_prefix: self.prefix(rank), remote: None })
    }

    /// Starts a rank on another host.
    fn start_on(&self, host: &str, seat: &Seat, variables: Vec<(&str, String)>) -> Result<Started, JobError> {
        let rank = seat.rank;
        let failed = |source| JobError::System { what: format!("start rank {rank} on {host}"), source };
        let shell = [OsString::from(host), "exec /bin/sh".into()];
        let mut command = tied(None, self.remote.ssh.iter().chain(&shell)).map_err(failed)?;
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let folder = std::env::current_dir().map_err(failed)?;
        let mut all = passed_on(std::env::vars_os());
        all.extend(self.remote.variables.iter().cloned());
        all.extend(variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
        let mark = format!("qpair launch: rank {rank} of {}", RandomState::new().hash_one(rank));
        let script = script(folder.as_os_str(), &all, &self.command, &mark);
        let mut child = TiedChild::start(&mut command).map_err(failed)?;
        let input = child.take_stdin().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let remote = Some(Lifeline { input, script, mark });
        Ok(Started { child, out_prefix: self.prefix(rank), err_prefix: self.prefix(rank), remote })
    }

    /// Whether standard output and error of ranks here go through this process. A terminal may stop who writes to it from the
    /// background, where their groups are.
    fn piped(&self) -> [bool; 2] {
        [
            self.output == Output::Prefixed || stops_writers(io::stdout()),
            self.output != Output::Inherited || stops_writers(io::stderr()),
        ]
    }

    fn prefix(&self, rank: u32) -> Option<String> {
        (self.output != Output::Inherited).then(|| relay::prefix(rank, self.ranks()))
    }

    fn ranks(&self) -> u32 {
        self.seats.len() as u32
    }

    /// The variables that torchrun sets.
    fn variables(&self, seat: &Seat, host: &str, port: u16) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("RANK", seat.rank.to_string()),
            ("WORLD_SIZE", self.ranks().to_string()),
            ("LOCAL_RANK", seat.local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", seat.local_size.to_string()),
            ("GROUP_RANK", seat.node.to_string()),
            ("MASTER_ADDR", host.to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        variables.extend(self.device.iter().map(|device| ("QPAIR_DEVICE", device.clone())));
        variables
    }

    fn cpu_for(&self, rank: u32) -> Option<usize> {
        let cpus = machine::cpus();
        if !self.pin || cpus.is_empty() {
            return None;
        }
        // Where there are more ranks than CPUs, neighbours share one: evenly from the start, which a scheduler takes a
        // while to find.
        let (rank, ranks) = (rank as usize, self.seats.len());
        let place = if ranks <= cpus.len() { rank } else { rank * cpus.len() / ranks };
        cpus.get(place).copied()
    }
}

/// Whether that is a terminal that only the group in its foreground may write to (`stty tostop`).
fn stops_writers(stream: impl AsFd) -> bool {
    tcgetattr(stream).is_ok_and(|terminal| terminal.local_modes.contains(LocalModes::TOSTOP))
}

/// Beside those for ranks: the standard ones, the signals, the watcher, the port and what starting a process takes.
const OWN_DESCRIPTORS: u64 = 32;

/// Finds the program as `exec` will with this PATH, so that a typing error is one message and not one per rank.
fn check_program(program: Option<&OsString>, path: Option<OsString>) -> Result<(), JobError> {
    let program: &OsStr = program.map_or(OsStr::new(""), OsString::as_os_str);
    let found = if program.as_encoded_bytes().contains(&b'/') {
        is_program(Path::new(program))
    } else {
        // Without one, what the C library takes instead.
        let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
        std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)))
    };
    if found { Ok(()) } else { Err(JobError::NoSuchCommand { command: program.to_string_lossy().into_owned() }) }
}

/// The variables of this process that ranks on other hosts have too.
fn passed_on(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, OsString)> {
    let named = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    named.filter(|(name, _)| name.starts_with("QPAIR_") && name != "QPAIR_SSH" && is_name(name)).collect()
}

/// A port of another host, where only rank 0 can see which are free: below those that systems give to programs by themselves.
fn any_port() -> u16 {
    20_000 + (RandomState::new().hash_one(0) % 10_000) as u16
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
    _kept: Option<OwnedFd>,
}

impl Meeting {
    /// Makes sure that rank 0 will be able to listen at `port`, or finds a port where it will.
    fn reserve(address: Ipv4Addr, port: Option<u16>) -> Result<Self, JobError> {
        let asked = port.unwrap_or(0);
        Self::bind(address, asked).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => JobError::PortTaken { port: asked },
            _ => JobError::Port { port: asked, source },
        })
    }

    fn bind(address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let kept = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseaddr(&kept, true)?;
        bind(&kept, &SocketAddrV4::new(address, port))?;
        Ok(Meeting { port: SocketAddr::try_from(getsockname(&kept)?)?.port(), _kept: Some(kept) })
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
        let error = Meeting::reserve(Ipv4Addr::LOCALHOST, Some(port)).expect_err("taken");
        assert!(matches!(error, JobError::PortTaken { port: taken } if taken == port));
        assert!(error.to_string().contains("--port"), "{error}");
    }

    #[test]
    fn a_port_is_kept_until_a_rank_listens_at_it() {
        let meeting = Meeting::reserve(Ipv4Addr::LOCALHOST, None).expect("a free port");
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
                seats: Seat::here(4),
                remote: Remote::none(),
                master: None,
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
