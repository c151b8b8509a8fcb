//! Runs the `qpair` command for tests, never longer than a limit.

use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The command, without the variables that a launcher around the tests may have set.
pub fn qpair(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qpair"));
    command.args(args);
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}

/// Runs it to its end. Panics if that takes longer than [`LIMIT`].
pub fn finish(mut command: Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the command starts");
    let pid = Pid::from_child(&child);
    let (sender, done) = channel();
    let waiter = thread::spawn(move || sender.send(child.wait_with_output()).expect("the test waits"));
    let Ok(output) = done.recv_timeout(LIMIT) else {
        kill_process(pid, Signal::KILL).expect("it still runs");
        panic!("not done within {LIMIT:?}: {command:?}");
    };
    waiter.join().expect("no panic");
    output.expect("the output can be read")
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Far above what any test needs on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);
