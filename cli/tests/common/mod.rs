//! Runs the `qpair` command for tests: never longer than a limit, and never beyond the test that started it.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

#[path = "../../../collectives/tests/communicator/port.rs"]
pub mod port;
pub mod svg;

/// The command with these arguments.
pub fn qpair(args: &[&str]) -> Command {
    tied(QPAIR, args)
}

/// The command with these arguments, which heeds signals though whoever runs the tests may ignore some, as what a script has in
/// the background does.
pub fn heeding(args: &[&str]) -> Command {
    tied("env", &[&["--default-signal=HUP,INT,QUIT,TERM", QPAIR], args].concat())
}

/// A program, without the variables that a launcher around the tests may have set. It is tied to the test: it ends with
/// the test's thread, however that ends.
pub fn tied(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(QPAIR);
    command.args(["__rank", "--parent", &std::process::id().to_string(), "--", program]).args(args);
    let launcher = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RUST_LOG"];
    let gpus = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "QPAIR_TOPOLOGY"];
    for name in launcher.into_iter().chain(gpus) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn finish(command: Command) -> Output {
    Running::start(command).finish()
}

/// A command that runs. It is killed when dropped, and everything that waits for it panics after [`LIMIT`].
pub struct Running {
    child: Child,
    what: String,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Running {
    /// Starts `command`; its standard output can be read line by line.
    pub fn start(command: Command) -> Self {
        Self::with_output(command, Stdio::piped())
    }

    /// Starts `command` with a standard output that has no reader.
    pub fn unread(command: Command) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Self::with_output(command, writer.into())
    }

    /// Starts `command` with this standard output.
    pub fn with_output(mut command: Command, output: Stdio) -> Self {
        let mut child = command.stdout(output).stderr(Stdio::piped()).spawn().expect("the command starts");
        let out = child.stdout.take().map_or_else(|| texts(std::io::empty()), texts);
        let err = texts(child.stderr.take().expect("a pipe"));
        Running { child, what: format!("{command:?}"), out, err }
    }

    /// The next line of standard output, without its end.
    pub fn line(&mut self) -> String {
        match self.out.recv_timeout(LIMIT) {
            Ok(line) => line.trim_end().to_owned(),
            Err(why) => panic!("no more output ({why}): {}\n{}", self.what, self.err.try_iter().collect::<String>()),
        }
    }

    /// The next line of standard error, without its end.
    pub fn error_line(&mut self) -> String {
        match self.err.recv_timeout(LIMIT) {
            Ok(line) => line.trim_end().to_owned(),
            Err(why) => panic!("no more errors ({why}): {}", self.what),
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it still runs");
    }

    /// Waits for its end, with what was not read of its output.
    pub fn finish(mut self) -> Output {
        let until = Instant::now() + LIMIT;
        let stdout = self.rest(&self.out, until).into_bytes();
        let stderr = self.rest(&self.err, until).into_bytes();
        Output { status: self.wait(), stdout, stderr }
    }

    fn rest(&self, from: &Receiver<String>, until: Instant) -> String {
        let mut text = String::new();
        loop {
            match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => text.push_str(&line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return text,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("not done within {LIMIT:?}: {}", self.what),
            }
        }
    }

    fn wait(&mut self) -> ExitStatus {
        assert_ended(self.pid());
        self.child.wait().expect("it was not waited for")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Without effect on a child that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines with their ends, as they come.
fn texts(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            // A test that is over needs no more.
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            line.clear();
        }
    });
    receiver
}

/// Waits until the process has ended.
pub fn assert_ended(pid: Pid) {
    // If there is no such process any more, it has ended.
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let limit = Timespec::try_from(LIMIT).expect("in range");
    let ready = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)).expect("poll works");
    assert_eq!(ready, 1, "process {pid:?} still runs");
}

/// The process number at the end of a line.
pub fn pid(line: &str) -> Pid {
    let number = line.rsplit(' ').next().and_then(|number| number.parse().ok());
    Pid::from_raw(number.expect("a process number")).expect("a process number")
}

/// Waits until the two processes have ended whose numbers are at the end of a line.
pub fn assert_both_ended(line: &str) {
    let (first, second) = line.rsplit_once(' ').expect("two numbers");
    assert_ended(pid(first));
    assert_ended(pid(second));
}

/// A file of a test's own, which goes with it.
pub struct File(PathBuf);

impl File {
    /// A name for one that is not there yet.
    pub fn new(name: &str) -> File {
        File(std::env::temp_dir().join(format!("qpair-test-{}-{name}", std::process::id())))
    }

    pub fn with(name: &str, contents: &str) -> File {
        let file = File::new(name);
        fs::write(&file.0, contents).expect("a file of the test's own");
        file
    }

    pub fn path(&self) -> &str {
        self.0.to_str().expect("a name in UTF-8")
    }

    pub fn text(&self) -> String {
        fs::read_to_string(&self.0).expect("it was written")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The objects that a command printed, which must have ended well.
pub fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output).lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect()
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub const QPAIR: &str = env!("CARGO_BIN_EXE_qpair");
/// Far above what any test needs on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);
