//! For tests: another process, which is this test program run for one test. What it says stands in lines that begin with `!`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Such a process. It is killed when this is dropped.
pub(crate) struct Companion {
    child: Child,
    lines: Receiver<String>,
}

impl Companion {
    /// Has `command`, which starts this program, run the test of that name.
    pub(crate) fn start(mut command: Command, test: &str) -> Self {
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok).filter(|line| line.starts_with('!')) {
                let _ = sender.send(line[1..].to_owned());
            }
        });
        Companion { child, lines }
    }

    /// What it says next.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("the process says something")
    }

    /// Tells it something.
    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    /// Stops it where it is.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        // The signal alone may find it at work still.
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// True if it ends well by itself.
    pub(crate) fn ends_well(mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Within this time it says something.
const LIMIT: Duration = Duration::from_secs(30);
