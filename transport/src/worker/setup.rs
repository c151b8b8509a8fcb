//! What a connection is made of, before it is one: a queue pair with receives, a link, and what is told of them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use qpair_verbs::{Prepared, QpAddress};

use super::Worker;
use super::endpoint::{Carried, Endpoint, Stage};
use super::error::ResourceError;
use super::ids::EndpointId;
use super::ops::StreamCounts;
use super::recovery::Repeats;
use super::seen::{History, Traffic};
use crate::cm::{Fabric, Features, Hello, SocketId};
use crate::engine::{Link, LinkConfig, PeerTerms, RESERVED_SLOTS, Threshold};

impl Worker {
    /// A queue pair for an endpoint on that rail, with receives for all that its peer may send.
    pub(super) fn prepare(&mut self, ep: EndpointId, rail: usize) -> Result<Prepared, ResourceError> {
        let slots = self.shares.own() + RESERVED_SLOTS;
        let own = self.rails.device_of(rail) > 0;
        // Another device knows neither the worker's completion queue nor its shared receives.
        let (pd, cq) = if own { self.rails.for_messages_on(rail)? } else { (&self.pd, &self.cq) };
        let builder = self.config.class.of(pd.rc(cq)).send_depth(self.config.send_depth);
        let mut builder = match self.slabs.queue().filter(|_| !own) {
            // Slots that it does not have for good count too: a peer may use all before this side polls.
            Some(shared) => builder.srq(shared).recv_depth(self.shares.most() + RESERVED_SLOTS),
            None => builder.recv_depth(slots),
        };
        if let Some(place) = self.rails.place(rail) {
            builder = place.of(builder);
        }
        // Credits see to it that there is a receive for every message: without one, something is wrong.
        let mut prepared = builder.rnr_retry(RNR_RETRIES).build()?;
        // One limit for all endpoints, so that sending need not ask each.
        self.max_inline = self.max_inline.min(prepared.max_inline());
        self.slabs.reserve(slots, &mut prepared, ep, own)?;
        if self.config.slab_bytes() > self.max_inline
            && let Err(error) = self.pool.keep_one(self.config.slab_bytes())
        {
            // There may be some when it is sent.
            tracing::warn!(%error, "no memory is kept for a message to go out of");
        }
        Ok(prepared)
    }

    pub(super) fn unprepare(&mut self) {
        let slots = self.shares.own() + RESERVED_SLOTS;
        self.slabs.release(slots, slots, false);
    }

    /// The protocol of a connection whose peer has so many slots at first.
    pub(super) fn link<P>(&self, epoch: u32, window: u32) -> Link<P> {
        Link::new(&LinkConfig {
            window,
            depth: self.config.send_depth,
            epoch,
            offers: OFFERS,
            keepalive: self.config.keepalive,
            detection: self.config.detection,
        })
    }

    /// From which length on payloads are offered, as far as this side knows.
    pub(super) fn threshold(&self) -> Threshold {
        Threshold::new(self.config.eager_limit, self.config.eager_threshold, self.copy_rate)
    }

    /// What the peer is told of the queue pair at `address` and its connection.
    pub(super) fn hello(&self, address: QpAddress, epoch: u32, window: u32) -> Hello {
        Hello {
            address,
            epoch,
            credits: window,
            eager_limit: self.config.eager_limit as u32,
            longest: self.pool.longest(),
            features: if self.config.recovery.is_zero() {
                Features::ALL.without(Features::RECOVERY)
            } else {
                Features::ALL
            },
            fabric: self.fabric,
            path_mtu: None,
            rails: Vec::new(),
            message_rails: self.rails.for_messages(),
            home_rails: self.rails.home(),
            datagram: None,
        }
    }
}

impl Worker {
    /// What the peer is told of another queue pair, on that rail.
    pub(super) fn hello_on(&self, rail: usize, address: QpAddress, epoch: u32) -> Hello {
        let hello = self.hello(address, epoch, self.shares.own());
        Hello { fabric: self.rails.fabric(rail).unwrap_or(hello.fabric), ..hello }
    }
}

/// A session's number, unpredictable.
pub(super) fn epoch() -> io::Result<u32> {
    Ok(getrandom::u32()?)
}

pub(super) fn terms(hello: &Hello) -> PeerTerms {
    PeerTerms { epoch: hello.epoch, credits: hello.credits }
}

impl Endpoint {
    pub(super) fn new(
        id: EndpointId,
        link: Link<Carried>,
        threshold: Threshold,
        peer: SocketAddr,
        socket: SocketId,
        stage: Stage,
    ) -> Endpoint {
        Endpoint {
            link,
            qp: None,
            threshold,
            id,
            up: false,
            stage,
            reads: VecDeque::new(),
            lanes: None,
            line: None,
            rail: 0,
            device: 0,
            peer_home: 1,
            sent: Traffic::default(),
            received: Traffic::default(),
            copied: 0,
            socket: Some(socket),
            peer,
            closed_here: false,
            parted: false,
            arrivals: None,
            longest: u64::MAX,
            probed: Duration::ZERO,
            measuring: PROBES,
            timed: None,
            streams: StreamCounts::default(),
            asked: Duration::ZERO,
            timer: None,
            closing: None,
            kept: 0,
            broken: None,
            listener: None,
            reserved: false,
            flushed: 0,
            is_starved: false,
            trial: None,
            repeats: Repeats::default(),
            renewal: None,
            cut: Vec::new(),
            history: History::default(),
            span: tracing::info_span!("connection", endpoint = %id, %peer),
        }
    }
}

/// From which length on `Bytes` are registered where they lie.
pub(super) fn in_place_from(fabric: Fabric) -> usize {
    if fabric == Fabric::Soft { 2 << 20 } else { 64 << 10 }
}

/// How fast this core copies, in bytes a microsecond: the best of some copies of a few pages, which take some microseconds.
pub(super) fn copy_rate() -> u64 {
    let (from, mut into) = (vec![1u8; COPIED], vec![0u8; COPIED]);
    let best = (0..COPIES).map(|_| {
        let start = Instant::now();
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&into);
        start.elapsed()
    });
    let nanos = best.min().unwrap_or_default().as_nanos().max(1) as u64;
    (COPIED as u64 * 1000 / nanos).max(1)
}

const COPIED: usize = 32 << 10;
const COPIES: usize = 8;
/// Probes that measure a new path.
const PROBES: u8 = 3;
/// Offers of a peer that may wait, besides those that take its window: some 100 KiB, and more than an application is
/// likely to leave unanswered.
const OFFERS: usize = 1024;
/// Attempts when the peer has no receive posted; finite, since that is a bug.
const RNR_RETRIES: u8 = 6;
