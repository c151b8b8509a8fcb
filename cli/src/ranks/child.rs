//! Children that end with their parent, however it ends.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::descriptors;

/// A command that runs `program` tied to this process: the kernel kills it when the calling thread ends, though not what
/// it has started by then. Bound to `cpu` if one is given. It may have as many descriptors as this process might at first.
///
/// # Errors
/// If the system does not tell where this program lies.
pub fn tied<S: AsRef<OsStr>>(cpu: Option<usize>, program: impl IntoIterator<Item = S>) -> io::Result<Command> {
    let mut command = Command::new(this_program()?);
    command.args([ENTER, "--parent", &std::process::id().to_string()]);
    if let Some(cpu) = cpu {
        command.args(["--cpu", &cpu.to_string()]);
    }
    if let Some(descriptors) = descriptors::before() {
        command.args(["--descriptors", &descriptors.to_string()]);
    }
    command.arg("--").args(program);
    Ok(command)
}

/// Where this program lies, for starting it again.
///
/// # Errors
/// If the system does not tell.
pub fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// A child that is killed when dropped before it ended.
#[derive(Debug)]
pub struct TiedChild(Child);

impl TiedChild {
    /// Starts `command`.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(TiedChild)
    }

    /// Its standard input, once, if that is a pipe.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// Its standard output, once, if that is a pipe.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Its standard error, once, if that is a pipe.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Its process number.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }

    /// Waits for its end, but not longer than `limit`. `None` if it still runs then.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait_within(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let handle = pidfd_open(self.pid(), PidfdFlags::empty())?;
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                Ok(_) => return self.wait().map(Some),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for TiedChild {
    fn drop(&mut self) {
        // Both are without effect on a child that was waited for.
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            tracing::warn!(%error, "a child could not be ended");
        }
    }
}

/// Name of the hidden subcommand that runs [`enter`](super::enter).
const ENTER: &str = "__rank";
