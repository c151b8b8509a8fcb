//! What ranks and the store say to each other: one line of JSON each.

use std::net::SocketAddr;
use std::time::Duration;

use qpair_topology::{CpuSet, PciAddress};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// A rank to the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToStore {
    /// The first message.
    Join { protocol: u32, size: u32, rank: u32, whereabouts: Whereabouts },
    /// The second: its worker is set up.
    Listening(Listening),
    /// Something ended the communicator.
    Report(Fault),
    /// The communicator is dropped: the end of the connection that follows is no fault.
    Leave,
}

/// The store to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromStore {
    /// The rank can not join.
    Refused { reason: String },
    /// All ranks have joined: where they run.
    Roster { token: u64, members: Vec<Whereabouts> },
    /// All ranks can be reached: where, by rank.
    Listening(Vec<Listening>),
    /// Not all ranks have come so far in time.
    Absent { missing: Vec<u32>, limit: Duration },
    /// What ended the communicator.
    Verdict(Fault),
    /// A rank dropped its communicator.
    Left { rank: u32 },
}

/// How a rank is reached. It chooses its device by where all ranks run, and so says this after that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// Where its worker listens.
    pub(crate) address: SocketAddr,
    /// The device that its worker is on, for people.
    pub(crate) device: String,
    /// Whether that is on InfiniBand, which reaches nothing else.
    pub(crate) is_on_infiniband: bool,
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whereabouts {
    /// The name of its host, for people.
    pub(crate) host: String,
    /// What is the same for all processes of a machine, and of no other.
    pub(crate) machine: String,
    /// The cores that it may run on.
    pub(crate) cores: CpuSet,
    /// The GPU that it uses, as far as can be told.
    #[serde(default)]
    pub(crate) gpu: Option<PciAddress>,
}

/// What all ranks know of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Where it runs.
    pub(crate) whereabouts: Whereabouts,
    /// The device that its worker is on.
    pub(crate) device: String,
}

/// A message as a line.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    // Only a type that refuses to be serialised could fail, and these do not.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The version of these messages.
pub(super) const PROTOCOL: u32 = 2;

/// The longest line that a rank sends.
pub(super) const LINE_LIMIT: usize = 64 << 10;

/// The longest line that the store sends: a roster of as many ranks as there can be.
pub(super) const ROSTER_LIMIT: usize = 64 << 20;
