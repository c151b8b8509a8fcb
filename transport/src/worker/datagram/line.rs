//! One connection over datagrams: what it needs beside its protocol.

use std::time::Duration;

use qpair_verbs::{AddressHandle, Qpn, Slab};

use super::queue::Datagrams;
use crate::cm::DatagramTerms;
#[cfg(test)]
use crate::engine::FlowHeader;
use crate::engine::{FLOW_BYTES, Flow, FlowSettings, Frame, HEADER_BYTES};
use crate::worker::config::Config;
use crate::worker::endpoint::Endpoint;
use crate::worker::error::ResourceError;
use crate::worker::ops::Body;
use crate::worker::seen::DatagramState;
use crate::worker::work_id::Job;

/// The packets of one connection.
#[derive(Debug)]
pub(in crate::worker) struct Line {
    pub(super) flow: Flow<Packet, Arrived>,
    /// What the peer's packets say, so that nobody else's count.
    pub(super) secret: u32,
    /// Where this side's go, once that is known.
    pub(super) to: Option<To>,
    /// Its timer is to be set.
    pub(super) is_dirty: bool,
    /// A packet was sent again and again, and nothing answers.
    pub(super) is_lost: bool,
}

/// Where packets go.
#[derive(Debug)]
pub(in crate::worker) struct To {
    pub(super) handle: AddressHandle,
    /// The peer's queue pair: packets of others do not count.
    pub(super) qpn: Qpn,
    pub(super) terms: DatagramTerms,
}

/// A packet on its way out.
#[derive(Debug)]
pub(super) struct Packet {
    /// With room for the flow's header in front.
    pub(super) bytes: Vec<u8>,
    /// What is done when it is acknowledged: a request of that number.
    pub(super) done: Option<(Job, u32)>,
}

/// A packet that came: a message of that length, or nothing.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) slab: Option<Slab>,
    pub(super) len: usize,
}

impl Line {
    pub(super) fn new(secret: u32, config: &Config) -> Self {
        let settings = FlowSettings {
            ack_delay: ACK_DELAY,
            least_timeout: LEAST_TIMEOUT,
            patience: config.detection,
            tries: TRIES,
        };
        Line { flow: Flow::new(&settings), secret, to: None, is_dirty: false, is_lost: false }
    }

    /// With the way to the peer.
    pub(in crate::worker) fn to(mut self: Box<Self>, to: To) -> Box<Self> {
        self.to = Some(to);
        self
    }

    /// True once the peer's packets are taken.
    pub(in crate::worker) fn is_connected(&self) -> bool {
        self.to.is_some()
    }

    /// How it stands, for people.
    pub(in crate::worker) fn state(&self) -> DatagramState {
        let (window, timeout) = self.flow.pace();
        let counts = self.flow.counts();
        DatagramState { window, timeout, repeated: counts.repeated, duplicates: counts.duplicates }
    }
}

#[cfg(test)]
impl Line {
    pub(in crate::worker) fn secret(&self) -> u32 {
        self.secret
    }

    pub(in crate::worker) fn is_settled(&self) -> bool {
        self.flow.is_settled()
    }

    /// The header of the next packet with contents.
    pub(in crate::worker) fn next_header(&self) -> FlowHeader {
        self.flow.next_header()
    }
}

/// The line of an endpoint that has one, and what it goes over.
pub(in crate::worker) fn line_of<'a>(
    endpoint: &'a mut Endpoint,
    datagrams: &'a mut Option<Box<Datagrams>>,
) -> Option<(&'a mut Line, &'a mut Datagrams)> {
    endpoint.line.as_deref_mut().zip(datagrams.as_deref_mut())
}

impl Datagrams {
    /// Puts a message together and sends it, now or when the window has room.
    pub(in crate::worker) fn post(
        &mut self,
        line: &mut Line,
        index: u32,
        frame: &Frame,
        body: &(impl Body + ?Sized),
    ) -> Result<(), ResourceError> {
        let mut bytes = self.blank();
        bytes.resize(FLOW_BYTES + HEADER_BYTES + body.bytes(), 0);
        if let Some((header, rest)) = bytes[FLOW_BYTES..].split_first_chunk_mut::<HEADER_BYTES>() {
            frame.header.emit(header);
            body.put(rest);
        }
        let done = frame.work.signal.then_some((Job::Send, frame.work.number));
        self.send(line, index, Packet { bytes, done });
        Ok(())
    }

    /// Sends a packet without contents: when it is acknowledged, that request is done.
    pub(in crate::worker) fn post_nothing(&mut self, line: &mut Line, index: u32, job: Job, number: u32) {
        let mut bytes = self.blank();
        bytes.resize(FLOW_BYTES, 0);
        self.send(line, index, Packet { bytes, done: Some((job, number)) });
    }

    fn send(&mut self, line: &mut Line, index: u32, packet: Packet) {
        // The clock is read where it matters, for the first of several.
        if line.flow.is_settled() {
            self.forget_time();
        }
        line.flow.send(packet);
        self.transmit(line, false);
        self.mark(line, index);
    }
}

/// What goes back meanwhile takes the acknowledgment along.
const ACK_DELAY: Duration = Duration::from_micros(500);
/// A peer takes a while to come around to polling.
const LEAST_TIMEOUT: Duration = Duration::from_millis(10);
/// A packet is sent so often at least before its connection is given up.
const TRIES: u32 = 8;
