//! Errors of meeting the other ranks.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use qpair_transport::{ClusterKeyError, HandshakeError, ListenError, WorkerError};
use thiserror::Error;

/// The ranks did not find each other.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// No launcher started this process, as far as its variables tell.
    #[error("{}", no_launcher(looked, *is_batch))]
    NoLauncher {
        /// The variables that were looked for, with the launchers that set them.
        looked: String,
        /// Whether this is a batch script of Slurm's.
        is_batch: bool,
    },
    /// A variable is not set.
    #[error("{name} is not set: {hint}")]
    Unset {
        /// The variable.
        name: &'static str,
        /// What to set it to.
        hint: &'static str,
    },
    /// A variable's value makes no sense.
    #[error("{name} is `{value}`: {hint}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What to set it to.
        hint: &'static str,
    },
    /// A plan that was to be used can not be.
    #[error("the plan {}, which QPAIR_PLANS names: {reason}", path.display())]
    PlanFile {
        /// Its file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A cost model that was to be used can not be.
    #[error("the cost model {}: {reason}; `qpair plan model --json` prints one, for QPAIR_COST_MODEL or --model", path.display())]
    CostModel {
        /// Its file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// There is no such rank.
    #[error("{name} is {rank}, but there are {size} ranks: they are numbered from 0 to {}", size - 1)]
    NoSuchRank {
        /// The variable.
        name: &'static str,
        /// Its value.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// Too many ranks, or none.
    #[error("{size} ranks are not possible: choose 1 to {limit}")]
    Size {
        /// The number asked for.
        size: usize,
        /// The most.
        limit: u32,
    },
    /// Another program listens at the port where the ranks are to meet.
    #[error(
        "port {port} of {host} is taken: set MASTER_PORT to a free port, the same for all ranks; where torchrun's agent listens there \
         itself, to one before a free port"
    )]
    PortTaken {
        /// MASTER_ADDR.
        host: String,
        /// MASTER_PORT.
        port: u16,
    },
    /// Rank 0 can not listen where the ranks are to meet.
    #[error("rank 0 can not listen at {host}:{port}: {source}; set MASTER_ADDR to an address of rank 0's host")]
    Bind {
        /// MASTER_ADDR.
        host: String,
        /// MASTER_PORT.
        port: u16,
        /// The system's reason.
        source: io::Error,
    },
    /// MASTER_ADDR leads nowhere.
    #[error("MASTER_ADDR `{host}` is no address and no known name ({source}): set it to the host of rank 0")]
    Resolve {
        /// MASTER_ADDR.
        host: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Rank 0 does not answer.
    #[error(
        "rank 0 does not answer at {host}:{port} within {limit:?} ({source}): is it started, and are MASTER_ADDR and \
         MASTER_PORT the same for all ranks?"
    )]
    NoAnswer {
        /// MASTER_ADDR.
        host: String,
        /// MASTER_PORT.
        port: u16,
        /// How long was waited.
        limit: Duration,
        /// The last attempt's error.
        source: io::Error,
    },
    /// Something else answers.
    #[error("what answers at {host}:{port} is no rank 0 of this release ({what}): set MASTER_PORT to a free port")]
    Stranger {
        /// MASTER_ADDR.
        host: String,
        /// MASTER_PORT.
        port: u16,
        /// What it said.
        what: String,
    },
    /// What answers has another cluster key, or one side has none.
    #[error("rank 0 does not answer this rank at {host}:{port}: {source}")]
    Handshake {
        /// The host of rank 0.
        host: String,
        /// Where it listens.
        port: u16,
        /// What does not go together.
        source: HandshakeError,
    },
    /// The cluster key is not to be had.
    #[error(transparent)]
    ClusterKey(#[from] ClusterKeyError),
    /// Rank 0 may not open as many files as there are ranks.
    #[error(
        "rank 0 needs {needed} open files to meet {size} ranks, and may have {limit}: raise the limit by `ulimit -n {needed}` before \
         it starts, or LimitNOFILE= of its service"
    )]
    Descriptors {
        /// The number of ranks.
        size: u32,
        /// What is needed, with what is open already.
        needed: usize,
        /// What the system allows.
        limit: usize,
    },
    /// The file by which ranks of one host learn where to meet can not be written or read.
    #[error(
        "{path} is where ranks learn where to meet, and can not be used: {source}; set MASTER_PORT to a free port instead"
    )]
    Publish {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Other ranks of the same name meet there.
    #[error("process {process} meets others by {path} already: set MASTER_PORT to a free port for one of the two")]
    Meeting {
        /// The file.
        path: PathBuf,
        /// Their rank 0.
        process: u32,
    },
    /// Rank 0 does not say where it listens.
    #[error("rank 0 has not said within {limit:?}, in {path}, where it listens: is it started?")]
    Unpublished {
        /// The file.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// The process manager is of no help.
    #[error(
        "the process manager does not tell ranks where to meet: {what}; or set MASTER_ADDR and MASTER_PORT for all ranks"
    )]
    Pmi {
        /// What is wrong.
        what: String,
    },
    /// Rank 0 does not run on the host of the launcher, and nobody has told where it does.
    #[error(
        "rank 0 does not run on {launcher}, where mpirun does: pass -x MASTER_ADDR=HOST to mpirun, with the host of rank 0"
    )]
    NotBesideLauncher {
        /// The launcher's host.
        launcher: String,
    },
    /// Ranks are missing.
    #[error(
        "{} of {size} did not arrive within {limit:?}{}: start all ranks, or see why they ended", ranks(missing),
        and_turned_away(turned_away.as_deref())
    )]
    Absent {
        /// The ranks that are missing.
        missing: Vec<u32>,
        /// The number of ranks.
        size: u32,
        /// How long was waited.
        limit: Duration,
        /// Why rank 0 turned somebody away meanwhile: the last one.
        turned_away: Option<String>,
    },
    /// Rank 0 did not let this rank in.
    #[error("rank 0 refused rank {rank}: {reason}")]
    Refused {
        /// This rank.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// A rank could not be set up.
    #[error("rank {rank} could not be set up: {reason}")]
    RankFailed {
        /// The rank.
        rank: u32,
        /// Its own error.
        reason: String,
    },
    /// Ranks that have come are not set up in time.
    #[error("{} of {size} came, and could not be set up within {limit:?}: see their output", ranks(missing))]
    NotSetUp {
        /// The ranks that are not.
        missing: Vec<u32>,
        /// The number of ranks.
        size: u32,
        /// How long was waited.
        limit: Duration,
    },
    /// The devices of ranks do not reach each other.
    #[error(
        "rank {infiniband} is on {device}, which is on InfiniBand, and rank {other} on {other_device}, which is not: the two do not \
         reach each other; name devices of one kind for all ranks by QPAIR_DEVICE or QPAIR_NICS"
    )]
    Links {
        /// A rank on InfiniBand.
        infiniband: u32,
        /// Its device.
        device: String,
        /// A rank on something else.
        other: u32,
        /// Its device.
        other_device: String,
    },
    /// A rank ended while the ranks gathered.
    #[error("rank {rank} ended before all ranks were set up: see its output")]
    RankGone {
        /// The rank.
        rank: u32,
    },
    /// The ranks that were left went on without this one, see [`shrink`](crate::Communicator::shrink).
    #[error(
        "the other ranks went on without rank {rank}, which called shrink later than they waited for it: end it, or let ranks \
         wait longer"
    )]
    LeftOut {
        /// This rank.
        rank: u32,
    },
    /// Neither rank 0, by which ranks that are left find each other, nor one that stands in for it is left, or they have gone on
    /// without this one, see [`shrink`](crate::Communicator::shrink).
    #[error(
        "rank 0, by which the ranks that are left find each other, and those that stand in for it are gone, do not answer, or have \
         gone on without this rank: end it if others go on, else start all ranks again; what operations gave before is right"
    )]
    RankZeroGone,
    /// Rank 0 is gone, and too few of the others have come to go on without it, see [`shrink`](crate::Communicator::shrink).
    #[error(
        "rank 0 is gone, and of {size} ranks only {left} have come to go on without it, fewer than half: others may go on \
         elsewhere; start all ranks again, what operations gave before is right"
    )]
    TooFewLeft {
        /// Those that came.
        left: u32,
        /// The ranks that there were.
        size: u32,
    },
    /// The transport is not to be had.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The transport can not listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system refused.
    #[error("could not {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl BootstrapError {
    /// The same of ranks that have other numbers among others: `number` gives those.
    pub(crate) fn renumbered(mut self, number: impl Fn(u32) -> u32) -> Self {
        match &mut self {
            Self::Absent { missing, .. } | Self::NotSetUp { missing, .. } => {
                missing.iter_mut().for_each(|rank| *rank = number(*rank));
            }
            Self::Refused { rank, .. }
            | Self::RankFailed { rank, .. }
            | Self::RankGone { rank }
            | Self::LeftOut { rank } => {
                *rank = number(*rank);
            }
            Self::Links { infiniband, other, .. } => (*infiniband, *other) = (number(*infiniband), number(*other)),
            _ => {}
        }
        self
    }
}

fn no_launcher(looked: &str, is_batch: bool) -> String {
    let next = if is_batch {
        "in a batch script, start the ranks by `srun`"
    } else {
        "start the ranks by one of those, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
    };
    format!("no launcher started this process, which has none of {looked}: {next}")
}

fn and_turned_away(why: Option<&str>) -> String {
    why.map(|why| format!(", and somebody was turned away ({why})")).unwrap_or_default()
}

/// Ranks in words: at most eight of them.
fn ranks(ranks: &[u32]) -> impl fmt::Display {
    let shown: Vec<_> = ranks.iter().take(8).map(u32::to_string).collect();
    let rest = ranks.len() - shown.len();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{} {}{more}", if ranks.len() == 1 { "rank" } else { "ranks" }, shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_group_are_named_by_their_numbers_outside() {
        let outside = |rank: u32| [5, 2][rank as usize];
        let limit = Duration::from_secs(1);
        let failed = BootstrapError::RankFailed { rank: 1, reason: "no memory".into() }.renumbered(outside);
        assert_eq!(failed.to_string(), "rank 2 could not be set up: no memory");
        let missing = BootstrapError::NotSetUp { missing: vec![0, 1], size: 2, limit }.renumbered(outside).to_string();
        assert!(missing.starts_with("ranks 5, 2 of 2 came"), "{missing}");
    }

    #[test]
    fn missing_ranks_are_named() {
        let limit = Duration::from_secs(60);
        let absent = |missing| BootstrapError::Absent { missing, size: 20, limit, turned_away: None }.to_string();
        assert!(absent(vec![3]).starts_with("rank 3 of 20 did not arrive within 60s"));
        assert!(absent((1..12).collect()).starts_with("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more of 20"));
    }
}
