//! A rank that runs: its process here, or that of ssh in its place, and what reaches it.

use std::io::{self, Write};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};

use super::child::TiedChild;

/// A rank that was just started.
#[derive(Debug)]
pub struct Started {
    /// Its process, or that of ssh.
    pub child: TiedChild,
    /// What its standard output gets in front of each line; nothing, if that is to pass as it is.
    pub out_prefix: Option<String>,
    /// The same of standard error.
    pub err_prefix: Option<String>,
    /// Of a rank on another host.
    pub remote: Option<Lifeline>,
}

/// What holds a rank of another host: see [`remote`](super::remote).
#[derive(Debug)]
pub struct Lifeline {
    /// What takes the script, then signals, and ends the rank when it is closed.
    pub input: ChildStdin,
    /// What the host is to do.
    pub script: Vec<u8>,
    /// The line of its output that says that the host has answered.
    pub mark: String,
}

/// Writes the script, then the names of signals as they come, until nobody can send more. A pipe takes 64 KiB, and more only as
/// the host reads: whoever writes waits for the host, or for the end of what stands for it here.
///
/// # Errors
/// If nobody reads any more.
pub(super) fn write_to_host(mut input: impl Write, script: &[u8], signals: Receiver<&'static str>) -> io::Result<()> {
    input.write_all(script)?;
    signals.into_iter().try_for_each(|name| writeln!(input, "{name}"))
}

/// A rank that was started.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) number: u32,
    pub(super) child: TiedChild,
    pub(super) pid: Pid,
    pub(super) running: bool,
    /// Of one on another host.
    pub(super) away: Option<Away>,
}

/// How it stands with a rank of another host.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) host: String,
    /// What takes the names of signals. Dropped once it is to be killed.
    pub(super) signals: Option<Sender<&'static str>>,
    /// Until when the host has to answer; `None` if it has.
    pub(super) until: Option<Instant>,
}

impl Rank {
    /// Sends all its processes a signal; over the connection to another host, once that has answered.
    pub(super) fn signal(&mut self, signal: Signal) {
        match &mut self.away {
            // What stands for it here has to live to hear of its end.
            Some(Away { signals: Some(signals), until: None, .. }) if signal != Signal::KILL => {
                let name = signal_hook::low_level::signal_name(signal.as_raw());
                let name = name.and_then(|name| name.strip_prefix("SIG")).unwrap_or("TERM");
                // If that fails, its end is on the way.
                let _ = signals.send(name);
            }
            Some(away) => {
                away.signals = None;
                signal_group(self.pid, Signal::KILL);
            }
            None => signal_group(self.pid, signal),
        }
    }
}

/// Signals a process and those that it started.
pub(super) fn signal_group(group: Pid, signal: Signal) {
    // A group that is gone needs no signal.
    let _ = kill_process_group(group, signal);
}
