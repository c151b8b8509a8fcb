//! What is measured, and how much of it: what client and server agree on.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// RDMA WRITE ping-pong, each side polling its memory
    WriteLat,
    /// RDMA WRITE bandwidth
    WriteBw,
    /// RDMA READ, whole operation
    ReadLat,
    /// RDMA READ bandwidth
    ReadBw,
    /// SEND ping-pong
    SendLat,
    /// SEND bandwidth
    SendBw,
    /// FETCH_ADD, whole operation
    AtomicLat,
    /// FETCH_ADD rate
    AtomicBw,
    /// Tagged message ping-pong, over the transport
    TagLat,
    /// Tagged message bandwidth, over the transport
    TagBw,
}

/// What a measurement consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RDMA WRITEs.
    Write,
    /// RDMA READs.
    Read,
    /// SENDs.
    Send,
    /// FETCH_ADDs.
    Atomic,
    /// Tagged messages.
    Tagged,
}

/// What the client asks of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// The measurement.
    pub test: Test,
    /// The longest message in bytes.
    pub max_size: u64,
    /// Requests outstanding at once.
    pub depth: u32,
    /// One request in so many is signaled.
    pub signal_every: u32,
    /// Data lies in memory of a GPU.
    pub gpu: bool,
}

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// So many operations.
    Operations(u64),
    /// As many as fit this time.
    Time(Duration),
}

impl Test {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Test::WriteLat => "write-lat",
            Test::WriteBw => "write-bw",
            Test::ReadLat => "read-lat",
            Test::ReadBw => "read-bw",
            Test::SendLat => "send-lat",
            Test::SendBw => "send-bw",
            Test::AtomicLat => "atomic-lat",
            Test::AtomicBw => "atomic-bw",
            Test::TagLat => "tag-lat",
            Test::TagBw => "tag-bw",
        }
    }

    /// True if it measures bandwidth, false if latency.
    pub fn is_bandwidth(self) -> bool {
        matches!(self, Test::WriteBw | Test::ReadBw | Test::SendBw | Test::AtomicBw | Test::TagBw)
    }

    /// True if the server has no part in its rounds.
    pub fn is_one_sided(self) -> bool {
        matches!(self, Test::WriteBw | Test::ReadBw | Test::ReadLat | Test::AtomicLat | Test::AtomicBw)
    }

    /// True if it goes through the transport.
    pub fn is_tagged(self) -> bool {
        self.kind() == Kind::Tagged
    }

    /// True if nobody but the device has to touch its data.
    pub fn can_be_on_gpu(self) -> bool {
        matches!(self, Test::WriteBw | Test::ReadBw | Test::ReadLat | Test::SendBw | Test::SendLat)
    }

    /// What it consists of.
    pub fn kind(self) -> Kind {
        match self {
            Test::WriteLat | Test::WriteBw => Kind::Write,
            Test::ReadLat | Test::ReadBw => Kind::Read,
            Test::SendLat | Test::SendBw => Kind::Send,
            Test::AtomicLat | Test::AtomicBw => Kind::Atomic,
            Test::TagLat | Test::TagBw => Kind::Tagged,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
