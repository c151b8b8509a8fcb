//! What a worker or a connection is made of, and was not to be had.

use std::io;

use qpair_verbs::{CqError, CreateError, MemoryError, OpenError, PostError};
use thiserror::Error;

use super::NoKey;
use crate::cm::ClusterKeyError;
use crate::worker::endpoint::Unposted;
use crate::worker::near::NearError;
use crate::worker::rails::Rail;

impl From<Unposted> for ResourceError {
    fn from(refused: Unposted) -> Self {
        match refused {
            Unposted::Post(error) => ResourceError::Post(error),
            Unposted::NoKey(error) => ResourceError::NoKey(error),
        }
    }
}

/// A worker could not be made, or can not go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A queue could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The completion queue failed.
    #[error(transparent)]
    CompletionQueue(#[from] CqError),
    /// A setting is out of range.
    #[error("{what} of {asked} is not possible; choose {least} to {most}")]
    Config {
        /// The setting.
        what: &'static str,
        /// The value asked for.
        asked: u64,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
    /// The device does not have a rail of the settings.
    #[error("rail {number}: device {device} has no {rail}; it has {has}")]
    NoRail {
        /// Its number, from 0.
        number: usize,
        /// The rail.
        rail: Rail,
        /// The device.
        device: String,
        /// What the device has instead.
        has: String,
    },
    /// The first rail, which messages go over, is on another device than the worker.
    #[error(
        "rail 0 is {rail}, and the worker is on {device}; name that device in Config::device, or in the first rail"
    )]
    FirstRail {
        /// The rail.
        rail: Rail,
        /// The worker's device.
        device: String,
    },
    /// The device that topology named can not be used.
    #[error(
        "{source}; {device} is what qpair takes by itself here ({reason}): QPAIR_DEVICE names another, such as soft0"
    )]
    Chosen {
        /// The device.
        device: String,
        /// Why it was named.
        reason: String,
        /// What is the matter with it.
        source: Box<WorkerError>,
    },
    /// Topology could not name the rails.
    #[error(transparent)]
    Near(Box<NearError>),
    /// There is no cluster key where there should be one.
    #[error(transparent)]
    ClusterKey(#[from] ClusterKeyError),
    /// The settings ask for more than the device has.
    #[error("{needed} {what} are needed, the device has {limit}; lower Config::endpoints, window or send_depth")]
    Device {
        /// Of what.
        what: &'static str,
        /// How many the settings need.
        needed: u64,
        /// How many the device has.
        limit: u32,
    },
    /// The system refused.
    #[error("could not {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl From<NearError> for WorkerError {
    fn from(error: NearError) -> Self {
        WorkerError::Near(Box::new(error))
    }
}

/// A queue pair, or memory for its messages, was not to be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// No queue pair.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The connection goes on over another device of the peer's, and something that others count on is in memory which has no
    /// key for it.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The device of the rail that the connection was to go on over gives no completions any more.
    #[error("device {name} is gone; `qpair doctor` looks at what there is")]
    Device {
        /// Its name.
        name: String,
    },
    /// No endpoint left.
    #[error("all {limit} endpoints of this worker are in use; close some, or raise Config::endpoints")]
    TooManyEndpoints {
        /// The limit.
        limit: usize,
    },
    /// No endpoint over datagrams left.
    #[error(
        "all {limit} datagram endpoints of this worker are in use; close some, or raise Config::datagram_endpoints"
    )]
    TooManyDatagramEndpoints {
        /// The limit.
        limit: usize,
    },
    /// The queue pair for datagrams could not be brought up.
    #[error("no queue pair for datagrams: {0}")]
    Datagrams(Box<qpair_verbs::ConnectError>),
    /// The system refused a random number.
    #[error("can not draw a random number: {0}")]
    System(io::Error),
}
