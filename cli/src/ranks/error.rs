//! How a job ends other than well, and how a rank ended.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use super::hosts::HostsError;

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
    #[error("there is no program `{command}`; {}", where_from(command))]
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
    /// So many ranks are more than this process may watch.
    #[error(
        "{ranks} ranks take {needed} descriptors here, and this process may have {allowed}: allow it more, as by \
         `ulimit -n {needed}`, or start fewer ranks"
    )]
    Descriptors {
        /// The number of ranks.
        ranks: u32,
        /// How many descriptors it takes to watch them.
        needed: u64,
        /// How many the system allows.
        allowed: u64,
    },
    /// The hosts make no sense.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A variable can not be passed on.
    #[error("{name} can not be passed on to the ranks: {why}")]
    Variable {
        /// Its name, as far as it is one.
        name: String,
        /// What is wrong, and what to do.
        why: &'static str,
    },
    /// Something that is not possible on other hosts was asked for.
    #[error("{what} is for ranks of this machine: leave it out where others run on other hosts")]
    NotRemote {
        /// The option.
        what: &'static str,
    },
    /// A host does not answer.
    #[error(
        "{host} has not answered within {limit:?}, and the ranks were ended: see whether `{ssh} {host} true` ends well"
    )]
    Silent {
        /// The host.
        host: String,
        /// What was to reach it.
        ssh: String,
        /// How long was waited.
        limit: Duration,
    },
    /// Ranks failed, and the others were ended.
    #[error("rank {rank}{} {end}{}{}{}", on(host.as_deref()), advice(*end, host.as_deref(), ssh), also_failed(also), were_ended(*ended))]
    RankFailed {
        /// The rank to blame.
        rank: u32,
        /// Its host, if that is another.
        host: Option<String>,
        /// What was to reach that.
        ssh: String,
        /// How it ended.
        end: RankEnd,
        /// The ranks that failed about the same time, in the order of their ends.
        also: Vec<(u32, RankEnd)>,
        /// Number of ranks that ran on and were ended.
        ended: usize,
    },
    /// What ranks printed could not be passed on.
    #[error(
        "what the ranks print could not be passed on, and the rest of it is lost: {source}; see where standard output and \
         error lead"
    )]
    Output {
        /// The system's reason.
        source: io::Error,
    },
    /// A signal came, was passed on to the ranks, and they ended.
    #[error("ended by {}", signal_name(*signal))]
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// The job took longer than allowed.
    #[error("not done within {limit:?} ({}); the ranks were ended: give more time with --timeout", still(running))]
    TimedOut {
        /// The time allowed.
        limit: Duration,
        /// The ranks that were still running; none if only their output was not read yet.
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
    /// Its host was not reached: what was to do that exited with this code.
    NotReached(i32),
}

impl JobError {
    /// The error of a job whose ranks failed as `failures` tells, in the order of their ends, while `ended` others ran
    /// on; `None` if none failed.
    ///
    /// Ranks that work together fail together: those that only hear of a failure may well exit before the one that
    /// failed. So the first is not simply to blame. A rank that a signal killed comes before ranks that exited, since
    /// no rank gets a signal because of another. Among equals the rarest end counts, since those that heard of it end
    /// alike; then the first.
    ///
    /// `hosts` are those of the ranks that are not on this machine, which `ssh` was to reach. A rank whose host was not reached
    /// comes first of all.
    pub fn failed(
        mut failures: Vec<(u32, RankEnd)>,
        ended: usize,
        hosts: &HashMap<u32, String>,
        ssh: &str,
    ) -> Option<Self> {
        let alike = |end: RankEnd| failures.iter().filter(|(_, other)| *other == end).count();
        let kind = |end: RankEnd| match end {
            RankEnd::NotReached(_) => 0,
            RankEnd::Killed(_) => 1,
            RankEnd::Exited(_) => 2,
        };
        let order = |at: &usize| (kind(failures[*at].1), alike(failures[*at].1), *at);
        let blamed = (0..failures.len()).min_by_key(order)?;
        let (rank, end) = failures.remove(blamed);
        let (host, ssh) = (hosts.get(&rank).cloned(), ssh.to_owned());
        Some(JobError::RankFailed { rank, host, ssh, end, also: failures, ended })
    }

    /// The failed rank's own code; 128 + number after a signal; 124 after a time limit; else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            JobError::RankFailed { end, .. } => end.exit_code(),
            JobError::Interrupted { signal } => RankEnd::Killed(*signal).exit_code(),
            JobError::TimedOut { .. } => 124,
            JobError::PortTaken { .. }
            | JobError::Port { .. }
            | JobError::NoSuchCommand { .. }
            | JobError::Descriptors { .. }
            | JobError::Hosts(_)
            | JobError::Variable { .. }
            | JobError::NotRemote { .. }
            | JobError::Silent { .. }
            | JobError::Output { .. }
            | JobError::System { .. } => 1,
        }
    }
}

impl RankEnd {
    /// The code that a shell would show. A host that was not reached is a failure, whatever was to reach it says.
    pub fn exit_code(self) -> u8 {
        match self {
            RankEnd::NotReached(0) => 1,
            RankEnd::Exited(code) | RankEnd::NotReached(code) => u8::try_from(code).unwrap_or(1),
            RankEnd::Killed(signal) => u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128)),
        }
    }
}

impl RankEnd {
    /// The same of a rank whose end a shell on its host has told, or ssh in its place if that was never `reached`.
    pub fn of_shell(self, reached: bool) -> Self {
        match self {
            RankEnd::Exited(code) if !reached => RankEnd::NotReached(code),
            RankEnd::Exited(code @ 129..=192) => RankEnd::Killed(code - 128),
            other => other,
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
            RankEnd::NotReached(code) => write!(f, "could not be started: its host was not reached (exit code {code})"),
        }
    }
}

fn signal_name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

fn on(host: Option<&str>) -> String {
    host.map(|host| format!(" on {host}")).unwrap_or_default()
}

/// What to write instead. A name with a slash is a path already.
fn where_from(command: &str) -> String {
    if command.contains('/') {
        return "give the path of a file that may be executed".to_owned();
    }
    format!("give its path (./{command}), or one that PATH leads to")
}

/// What to look at on another host.
fn advice(end: RankEnd, host: Option<&str>, ssh: &str) -> String {
    match (end, host) {
        (RankEnd::NotReached(_), Some(host)) => format!("; see whether `{ssh} {host} true` ends well"),
        (RankEnd::Exited(255), Some(host)) => format!(", as ssh does when it loses {host}"),
        _ => String::new(),
    }
}

/// Those that failed beside the one to blame, grouped by how they ended.
fn also_failed(failures: &[(u32, RankEnd)]) -> String {
    let mut groups: Vec<(RankEnd, Vec<u32>)> = Vec::new();
    for &(rank, end) in failures {
        match groups.iter_mut().find(|(of, _)| *of == end) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((end, vec![rank])),
        }
    }
    groups
        .iter_mut()
        .map(|(end, ranks)| {
            ranks.sort_unstable();
            format!(", {} {end}", list(ranks))
        })
        .collect()
}

fn were_ended(ranks: usize) -> String {
    match ranks {
        0 => String::new(),
        1 => "; the other rank was ended".to_owned(),
        more => format!("; the other {more} ranks were ended"),
    }
}

/// What a job still had to do.
fn still(running: &[u32]) -> String {
    if running.is_empty() { "output was still to be read".to_owned() } else { format!("{} still ran", list(running)) }
}

fn list(ranks: &[u32]) -> String {
    let numbers = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    format!("{} {numbers}", if ranks.len() == 1 { "rank" } else { "ranks" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(RankEnd::Exited(3).exit_code(), 3);
        assert_eq!(RankEnd::Killed(9).exit_code(), 137);
        assert_eq!([255, 0].map(|code| RankEnd::NotReached(code).exit_code()), [255, 1]);
        assert_eq!(JobError::Interrupted { signal: 2 }.exit_code(), 130);
        assert_eq!(JobError::PortTaken { port: 1 }.exit_code(), 1);
    }

    #[test]
    fn a_path_is_not_to_be_given_as_a_path() {
        let message = |command: &str| JobError::NoSuchCommand { command: command.to_owned() }.to_string();
        assert_eq!(message("train"), "there is no program `train`; give its path (./train), or one that PATH leads to");
        assert!(message("/no/train").ends_with("`/no/train`; give the path of a file that may be executed"));
    }

    #[test]
    fn messages_name_the_rank_and_how_it_ended() {
        let killed = JobError::failed(vec![(2, RankEnd::Killed(9))], 3, &HashMap::new(), "ssh").expect("a failure");
        assert_eq!(killed.to_string(), "rank 2 was killed by signal 9 (SIGKILL); the other 3 ranks were ended");
        let late = JobError::TimedOut { limit: Duration::from_secs(2), running: vec![0, 3] };
        assert!(late.to_string().contains("ranks 0, 3 still ran"), "{late}");
    }

    #[test]
    fn a_rank_that_only_heard_of_a_failure_is_not_to_blame() {
        let one = RankEnd::Exited(1);
        let failed =
            JobError::failed(vec![(3, one), (0, one), (2, RankEnd::Exited(7)), (1, one)], 0, &HashMap::new(), "ssh")
                .expect("a failure");
        assert_eq!(failed.to_string(), "rank 2 ended with exit code 7, ranks 0, 1, 3 ended with exit code 1");
        assert_eq!(failed.exit_code(), 7);
        let killed = JobError::failed(
            vec![(0, one), (1, RankEnd::Killed(11)), (2, RankEnd::Killed(11))],
            1,
            &HashMap::new(),
            "ssh",
        );
        let killed = killed.expect("a failure").to_string();
        assert!(
            killed.starts_with("rank 1 was killed by signal 11 (SIGSEGV), rank 0 ended with exit code 1, "),
            "{killed}"
        );
        assert!(killed.ends_with("; the other rank was ended"), "{killed}");
    }

    #[test]
    fn a_host_that_was_not_reached_is_to_blame_and_named() {
        let hosts = HashMap::from([(1, "node1".to_owned()), (2, "node2".to_owned())]);
        let failures = vec![(0, RankEnd::Killed(9)), (2, RankEnd::Exited(255).of_shell(false))];
        let failed = JobError::failed(failures, 1, &hosts, "rsh -n").expect("a failure").to_string();
        let named = "rank 2 on node2 could not be started: its host was not reached (exit code 255); see whether `rsh -n node2 true`";
        assert!(failed.starts_with(named), "{failed}");
        let failed =
            JobError::failed(vec![(1, RankEnd::Exited(137).of_shell(true))], 0, &hosts, "rsh -n").expect("a failure");
        assert_eq!(failed.to_string(), "rank 1 on node1 was killed by signal 9 (SIGKILL)");
    }

    #[test]
    fn of_ranks_that_failed_alike_the_first_is_named() {
        let failed =
            JobError::failed(vec![(3, RankEnd::Exited(1)), (0, RankEnd::Exited(1))], 2, &HashMap::new(), "ssh")
                .expect("a failure");
        assert!(matches!(failed, JobError::RankFailed { rank: 3, ended: 2, .. }), "{failed}");
        assert!(JobError::failed(Vec::new(), 4, &HashMap::new(), "ssh").is_none());
    }
}
