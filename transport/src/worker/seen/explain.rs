//! What carries a connection, and why.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::{History, Traffic};
use crate::engine::{Inbox, Origin};
use crate::worker::delivery::Body;
use crate::worker::endpoint::{Endpoint, Stage};
use crate::worker::memory::Target;

/// What carries a connection, and how it stands; printed for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The peer's TCP address.
    pub peer: SocketAddr,
    /// How far the connection is.
    pub stage: &'static str,
    /// Which wire carries it, and why; empty before it is up.
    pub wire: String,
    /// The rails over which long messages are read; none if all goes over one.
    pub rails: Vec<RailState>,
    /// The rail that messages go over, from 0.
    pub rail: usize,
    /// If it goes over datagrams: how its packets fare.
    pub datagrams: Option<DatagramState>,
    /// Longest message that may be copied, in bytes: the smaller limit of both sides.
    pub eager_limit: usize,
    /// Longest message that is copied, in bytes; longer ones are read by the receiver.
    pub eager_threshold: usize,
    /// Where that came from.
    pub threshold_origin: Origin,
    /// How fast this side copies, in bytes a microsecond.
    pub copy_rate: u64,
    /// Slots that this side gives to the peer.
    pub window: u32,
    /// Messages that may be sent now.
    pub credits: u32,
    /// Messages that wait for credits.
    pub queued: usize,
    /// Payloads that the peer has still to read.
    pub offered: usize,
    /// Posted receives without a message.
    pub posted: usize,
    /// Messages that wait for a receive, for memory, or for one of their tag that came before.
    pub waiting: usize,
    /// What the application sent.
    pub sent: Traffic,
    /// What came for the application.
    pub received: Traffic,
    /// What happened last.
    pub history: History,
}

/// How a rail of a connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailState {
    /// Whether it is used.
    pub stage: &'static str,
    /// Which wire carries it, and why; empty if it has no queue pair now.
    pub wire: String,
    /// What it carried of late, in bytes a second; `None` before it carried anything.
    pub rate: Option<u64>,
    /// How long its last probe took.
    pub round_trip: Duration,
    /// Bytes that this side read over it.
    pub bytes: u64,
}

/// How the packets of a connection over datagrams fare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramState {
    /// Packets that may be under way.
    pub window: u32,
    /// After how long one that is not acknowledged is sent again.
    pub timeout: Duration,
    /// Packets that were sent again.
    pub repeated: u64,
    /// Packets that came more than once, or too early to be kept.
    pub duplicates: u64,
}

impl Explanation {
    pub(in crate::worker) fn of(endpoint: &Endpoint, inbox: &Inbox<Target, Body>) -> Self {
        let (credits, offered) = endpoint.link.counts();
        let (posted, waiting) = inbox.counts(endpoint.id.peer());
        Explanation {
            peer: endpoint.peer,
            stage: match endpoint.stage {
                Stage::Dialing { .. } => "TCP connects",
                Stage::Greeting(_) => "handshake",
                Stage::HalfOpen => "handshake, this side is ready",
                Stage::Up if endpoint.closed_here => "closing",
                Stage::Up => "up",
                Stage::Recovering(_) => "recovering",
                Stage::Ending { .. } => "ending",
            },
            wire: endpoint.qp.as_ref().map(|qp| qp.explain()).unwrap_or_default(),
            rails: endpoint.lanes.as_ref().map(|lanes| lanes.states()).unwrap_or_default(),
            rail: endpoint.rail,
            datagrams: endpoint.line.as_ref().map(|line| line.state()),
            eager_limit: endpoint.threshold.limit(),
            eager_threshold: endpoint.threshold.bytes(),
            threshold_origin: endpoint.threshold.origin(),
            copy_rate: endpoint.threshold.copy_rate(),
            window: endpoint.link.window(),
            credits,
            queued: endpoint.link.queued(),
            offered,
            posted,
            waiting,
            sent: endpoint.sent,
            received: endpoint.received,
            history: endpoint.history.clone(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "peer {}: {}", self.peer, self.stage)?;
        if !self.wire.is_empty() {
            writeln!(f, "wire: {}", self.wire)?;
        }
        for (number, rail) in self.rails.iter().enumerate() {
            let messages = if number == self.rail { " (and messages)" } else { "" };
            write!(f, "rail {number}{messages}: {}", rail.stage)?;
            if let Some(rate) = rail.rate {
                write!(f, ", carried {:.3} GB/s of late, {} bytes in all", rate as f64 / 1e9, rail.bytes)?;
            }
            writeln!(f, ", round trip {:?}", rail.round_trip)?;
            if !rail.wire.is_empty() {
                writeln!(f, "  wire: {}", rail.wire)?;
            }
        }
        if let Some(DatagramState { window, timeout, repeated, duplicates }) = self.datagrams {
            writeln!(
                f,
                "datagrams of up to {} bytes: {window} under way at most, sent again after {timeout:?}; {repeated} were, {duplicates} came \
                 more than once",
                self.eager_limit
            )?;
            return self.traffic(f);
        }
        write!(f, "up to {} bytes copied, longer ones read by the receiver: ", self.eager_threshold)?;
        let rate = self.copy_rate;
        match self.threshold_origin {
            Origin::Limit => writeln!(f, "the smaller eager limit of both sides, nothing is measured yet")?,
            Origin::Chosen => writeln!(f, "as the application chose, within a limit of {}", self.eager_limit)?,
            Origin::Probed { round_trip } => writeln!(
                f,
                "measured by probes, whose round trip is {round_trip:?}, at {rate} bytes copied a us, within a limit of {}",
                self.eager_limit
            )?,
            Origin::Used { fixed } => writeln!(
                f,
                "measured in use, where an offer takes {fixed:?} beside its bytes, at {rate} bytes copied a us, within a \
                 limit of {}",
                self.eager_limit
            )?,
        }
        self.traffic(f)
    }
}

impl Explanation {
    fn traffic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "window {}, credits {}, queued {}, offered {}, posted {}, waiting {}",
            self.window, self.credits, self.queued, self.offered, self.posted, self.waiting
        )?;
        let [sent, received] = [self.sent, self.received].map(|way| format!("{} ({} bytes)", way.messages, way.bytes));
        write!(f, "messages sent {sent}, received {received}")?;
        if !self.history.is_empty() {
            write!(f, "\n{}", self.history)?;
        }
        Ok(())
    }
}
