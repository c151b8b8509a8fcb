//! What goes into a link and what comes out: its settings, and the requests that it wants posted.

use std::time::Duration;

use super::inbox::EntryKey;
use super::rail_keys::RemoteMemory;
use super::slots::Work;
use super::wire::{Envelope, Header, Offer};

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    /// Receive slots given to the peer.
    pub(crate) window: u32,
    /// Send slots of the queue pair.
    pub(crate) depth: u32,
    /// Session epoch of this side.
    pub(crate) epoch: u32,
    /// Offers that may wait before the peer is not given their slots back.
    pub(crate) offers: usize,
    /// Silence before a probe.
    pub(crate) keepalive: Duration,
    /// How long a probe may take.
    pub(crate) detection: Duration,
}

/// What the peer said while connecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerTerms {
    /// Session epoch of the peer.
    pub(crate) epoch: u32,
    /// Receive slots that it gives.
    pub(crate) credits: u32,
}

/// A header to send, and the request to send it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) work: Work,
}

/// A message that waits for a credit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pending<P> {
    pub(crate) op: u64,
    pub(crate) envelope: Envelope,
    pub(crate) len: u64,
    /// Where it can be read, if it is to be offered.
    pub(crate) readable: Option<Readable>,
    pub(crate) payload: P,
}

/// How a payload that is offered can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readable {
    /// There.
    At(RemoteMemory),
    /// In parts, which are offered once it is wanted: so many bytes in all.
    InParts(u64),
}

impl Readable {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Readable::At(remote) => remote.len(),
            Readable::InParts(len) => *len,
        }
    }
}

impl From<RemoteMemory> for Readable {
    fn from(remote: RemoteMemory) -> Self {
        Readable::At(remote)
    }
}

/// Something to post.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<P> {
    /// A header alone.
    Control(Frame),
    /// A queued eager message.
    Eager { frame: Frame, op: u64, payload: P },
    /// A queued ready-to-send.
    Offer { frame: Frame, offer: Offer },
    /// A payload to read, on a slot from [`Link::take_slot`], if it is still to be read.
    Pull(EntryKey),
}

/// Why a message can not go out at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// Not connected yet, no credit or slot, or others wait: it may be queued.
    Later,
    /// The connection takes no more messages.
    Closed,
}

/// What became of the wish to take back a send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cancelled<P> {
    /// It did not go out.
    Taken(Envelope, P),
    /// The peer is asked to let go of it.
    Asked,
    /// There is none that could be taken back.
    Unknown,
}
