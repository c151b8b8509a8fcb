//! How a job ends other than well, and how a rank ended.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

/// A job that did not end well. [`exit_code`](JobError::exit_code) is what the launcher shall exit with.
#[derive(Debug, Error)]
pub enum JobError {
    /// The port for the ranks to meet at is in use.
    #[error("port {port} is taken: give another with --port, or leave --port out and a free one is chosen")]
    PortTaken {
        /// The port asked for.
        port: u16,
    },
    /// No port could be had for the ranks to meet at.
    #[error("can not reserve port {port} for the ranks to meet at: {source}")]
    Port {
        /// The port asked for; 0 for any.
        port: u16,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no such program.
    #[error("there is no program `{command}`; give its path (./{command}), or one that PATH leads to")]
    NoSuchCommand {
        /// The program asked for.
        command: String,
    },
    /// The system refused a process, thread or signal handler.
    #[error("could not {what}: {source}")]
    System {
        /// The step that failed.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A rank failed, and the others were ended.
    #[error("rank {rank} {end}; the other ranks were ended")]
    RankFailed {
        /// The first rank that failed.
        rank: u32,
        /// How it ended.
        end: RankEnd,
    },
    /// A signal came, was passed on to the ranks, and they ended.
    #[error("ended by {}", signal_name(*signal))]
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// The job took longer than allowed.
    #[error("not done within {limit:?} ({}); the ranks were ended: give more time with --timeout", list(running))]
    TimedOut {
        /// The time allowed.
        limit: Duration,
        /// The ranks that were still running.
        running: Vec<u32>,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankEnd {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

impl JobError {
    /// The failed rank's own code; 128 + number after a signal; 124 after a time limit; else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            JobError::RankFailed { end, .. } => end.exit_code(),
            JobError::Interrupted { signal } => RankEnd::Killed(*signal).exit_code(),
            JobError::TimedOut { .. } => 124,
            JobError::PortTaken { .. }
            | JobError::Port { .. }
            | JobError::NoSuchCommand { .. }
            | JobError::System { .. } => 1,
        }
    }
}

impl RankEnd {
    /// The code that a shell would show.
    pub fn exit_code(self) -> u8 {
        match self {
            RankEnd::Exited(code) => u8::try_from(code).unwrap_or(1),
            RankEnd::Killed(signal) => u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128)),
        }
    }
}

impl From<ExitStatus> for RankEnd {
    fn from(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => RankEnd::Killed(signal),
            None => RankEnd::Exited(status.code().unwrap_or(1)),
        }
    }
}

impl fmt::Display for RankEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankEnd::Exited(code) => write!(f, "ended with exit code {code}"),
            RankEnd::Killed(signal) => write!(f, "was killed by {}", signal_name(*signal)),
        }
    }
}

fn signal_name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

fn list(ranks: &[u32]) -> String {
    let numbers = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    format!("{} {numbers} still ran", if ranks.len() == 1 { "rank" } else { "ranks" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(RankEnd::Exited(3).exit_code(), 3);
        assert_eq!(RankEnd::Killed(9).exit_code(), 137);
        assert_eq!(JobError::Interrupted { signal: 2 }.exit_code(), 130);
        assert_eq!(JobError::PortTaken { port: 1 }.exit_code(), 1);
    }

    #[test]
    fn messages_name_the_rank_and_how_it_ended() {
        let killed = JobError::RankFailed { rank: 2, end: RankEnd::Killed(9) };
        assert_eq!(killed.to_string(), "rank 2 was killed by signal 9 (SIGKILL); the other ranks were ended");
        let late = JobError::TimedOut { limit: Duration::from_secs(2), running: vec![0, 3] };
        assert!(late.to_string().contains("ranks 0, 3 still ran"), "{late}");
    }
}
