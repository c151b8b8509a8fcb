//! The other side as a process of its own: this test binary once more, told over a socket what to do.

use std::borrow::BorrowMut;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{self, Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

use super::machine::{Answer, Machine};
use super::{Command, LIMIT};

/// Set, to the device's name, in a process that is a peer.
pub const PEER_VARIABLE: &str = "QPAIR_TEST_PEER";

/// Set to words that stand before the test binary's name in what starts a peer process, to start it on another host. The
/// command joins its standard input, a socket, with that of the process.
const PEER_COMMAND: &str = "QPAIR_TEST_PEER_COMMAND";

/// A peer process. It is killed when this is dropped, or when the thread that started it ends.
pub struct Peer {
    child: Child,
    stream: BufReader<UnixStream>,
}

impl Peer {
    pub fn start(device: &str) -> Peer {
        let binary = std::env::current_exe().expect("the test binary");
        let prefix = std::env::var(PEER_COMMAND).unwrap_or_default();
        let mut words = prefix.split_whitespace();
        let mut command = match words.next() {
            Some(program) => process::Command::new(program),
            None => process::Command::new(&binary),
        };
        if !prefix.trim().is_empty() {
            command.args(words).arg(&binary);
        }
        Peer::spawn(command, device).expect("starting the peer process")
    }

    /// True if peer processes are started on another host.
    pub fn is_remote() -> bool {
        std::env::var(PEER_COMMAND).is_ok_and(|prefix| !prefix.trim().is_empty())
    }

    /// A peer process of the user with that number, which takes the right to become another.
    pub fn start_as(device: &str, user: u32) -> io::Result<Peer> {
        // Not by its path, which that user may not be allowed to walk.
        let mut command = process::Command::new("/proc/self/exe");
        command.uid(user);
        Peer::spawn(command, device)
    }

    /// A peer process that sees no process but its own children, as in a container; `None` where that is not to be had.
    pub fn start_apart(device: &str) -> Option<Peer> {
        let mut command = process::Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--"]).arg(std::env::current_exe().ok()?);
        let mut peer = Peer::spawn(command.stderr(Stdio::null()), device).ok()?;
        peer.ask(&Command::Abilities).is_ok().then_some(peer)
    }

    fn spawn(mut command: impl BorrowMut<process::Command>, device: &str) -> io::Result<Peer> {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_read_timeout(Some(LIMIT + Duration::from_secs(10))).expect("a time limit");
        let child = command
            .borrow_mut()
            .args(["--exact", "peer_process", "--ignored", "--nocapture"])
            .env(PEER_VARIABLE, device)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Peer { child, stream: BufReader::new(ours) })
    }

    pub fn ask(&mut self, command: &Command) -> Answer {
        self.tell(command);
        self.answer()
    }

    /// The answer to what was told last.
    pub fn answer(&mut self) -> Answer {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err("the peer process has ended".to_owned()),
            Ok(_) => serde_json::from_str::<Result<Value, String>>(&line).expect("an answer"),
            Err(error) => Err(format!("the peer process does not answer: {error}")),
        }
    }

    /// Sends a command, without waiting for its [`answer`](Peer::answer).
    pub fn tell(&mut self, command: &Command) {
        let mut line = serde_json::to_string(command).expect("a command");
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).expect("telling the peer process");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process on the spot, as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().expect("killing the peer process");
        self.child.wait().expect("the peer process's end");
    }

    /// Stops the process, or lets it go on. Once this returns, all its threads have stopped.
    pub fn stop(&self, stopped: bool) {
        let pid = Pid::from_child(&self.child);
        let signal = if stopped { Signal::STOP } else { Signal::CONT };
        kill_process(pid, signal).expect("signalling the peer process");
        if stopped {
            waitpid(Some(pid), WaitOptions::UNTRACED).expect("the peer process's stop");
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Carries out what comes over standard input, until its other end is closed.
pub fn serve(device: &str) {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("dying with the parent");
    let stream = io::stdin().as_fd().try_clone_to_owned().expect("standard input");
    let mut stream = BufReader::new(UnixStream::from(stream));
    let mut machine = Machine::open(device);
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|len| len != 0) {
        let command = serde_json::from_str(&line).expect("a command");
        let mut answer = serde_json::to_string(&machine.run(command)).expect("an answer");
        answer.push('\n');
        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
            break;
        }
        line.clear();
    }
}
