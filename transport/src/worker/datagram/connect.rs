//! How a connection over datagrams comes up: by the handshake of others, with terms of its own.

use std::io;
use std::net::SocketAddr;

use qpair_verbs::{Inquiry, PostError, QpState};

use super::line::{Line, To};
use super::queue::Datagrams;
use crate::cm::{DatagramTerms, Features, HandshakeError, Hello, ToPeer};
use crate::engine::{RESERVED_SLOTS, Threshold};
use crate::worker::Worker;
use crate::worker::config::MAX_ENDPOINTS;
use crate::worker::error::{ConnectError, ConnectFailure, ResourceError};
use crate::worker::ids::EndpointId;

impl Worker {
    /// Begins to connect as [`connect`](Worker::connect), over the one datagram queue pair (UD) that all such connections of
    /// a worker share: a peer costs little more than its protocol's state. For short messages to very many peers.
    ///
    /// Messages arrive once and in order; packets that get lost are sent again. A message is no longer than
    /// [`Explanation::eager_limit`](crate::Explanation::eager_limit), which is a packet, and longer ones are refused
    /// ([`SendFailure::Datagrams`](crate::SendFailure::Datagrams)), as are one-sided operations. The peer's program answers
    /// signs of life here, not its device: one that does not poll within [`Config::keepalive`](crate::Config::keepalive)'s
    /// detection counts as lost.
    ///
    /// The first one makes the queue pair in this call. If that is the first use of the software device's network by this
    /// process, those who share its port are asked, which takes seconds where they are stopped.
    ///
    /// ```
    /// use qpair_transport::{Config, Event, Flow, Tag, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let ep = worker.connect_datagram(server.local_addr())?;
    /// worker.send(ep, Tag(1), &b"hello"[..])?;
    /// worker.run(|event, _worker| match event {
    ///     Event::Received { message, .. } => {
    ///         assert_eq!(&message[..], b"hello");
    ///         Flow::Stop
    ///     }
    ///     _ => Flow::Continue,
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`] if it is no address, there is no endpoint left, or the device has no queue pair for datagrams.
    pub fn connect_datagram(&mut self, peer: impl ToPeer) -> Result<EndpointId, ConnectError> {
        let peer = peer.to_peer().map_err(ConnectError::Address)?;
        if !self.has_room_for_line() {
            return Err(ConnectError::TooManyDatagramEndpoints { limit: self.config.datagram_endpoints });
        }
        let resources = |error| ConnectError::Datagrams(Box::new(error));
        let (line, threshold) = self.line().map_err(resources)?;
        let ep = self.call(peer, threshold, self.config.window)?;
        self.lines += 1;
        if let Some(endpoint) = self.endpoints.get_mut(ep) {
            endpoint.line = Some(line);
        }
        Ok(ep)
    }

    pub(in crate::worker) fn has_room_for_line(&self) -> bool {
        self.lines < self.config.datagram_endpoints && (self.endpoints.len() as u64) < MAX_ENDPOINTS
    }

    /// What a connection over datagrams has beside others, and what may be sent over it.
    pub(in crate::worker) fn line(&mut self) -> Result<(Box<Line>, Threshold), ResourceError> {
        let secret = unpredictable().map_err(ResourceError::System)?;
        let (copy_rate, config) = (self.copy_rate, &self.config);
        let datagrams = match &mut self.datagrams {
            Some(datagrams) => datagrams,
            none => {
                let on = (&self.context, &self.pd, &self.channel);
                self.has_other_queues = true;
                none.insert(Box::new(Datagrams::new(on, (self.rails.place(0), config.class), self.start)?))
            }
        };
        let limit = datagrams.longest(usize::MAX).min(config.eager_limit);
        Ok((Box::new(Line::new(secret, config)), Threshold::new(limit, Some(limit), copy_rate)))
    }

    /// What the peer is told of a connection over datagrams.
    pub(in crate::worker) fn datagram_hello(&self, ep: EndpointId, line: &Line, epoch: u32) -> Option<Hello> {
        let address = self.datagrams.as_ref()?.address();
        let terms = DatagramTerms { connection: ep.index, secret: line.secret };
        let hello = self.hello(address, epoch, self.config.window);
        let features = hello.features.without(Features::RECOVERY);
        Some(Hello { features, message_rails: 1, datagram: Some(terms), ..hello })
    }

    /// Slots for what comes over a connection over datagrams. None of them is posted.
    pub(in crate::worker) fn expect_datagrams(&mut self) {
        self.slabs.expect(self.config.window + RESERVED_SLOTS);
    }

    /// The way of packets to a peer that said hello, and how long a message may be.
    pub(in crate::worker) fn way_of_line(
        &self,
        peer: SocketAddr,
        theirs: &Hello,
        inquiry: &Inquiry,
    ) -> Result<(To, usize), ConnectFailure> {
        let handshake = |error| ConnectFailure::Handshake { address: peer, error };
        let terms = theirs.datagram.ok_or(handshake(HandshakeError::NoDatagrams))?;
        let gone = || ConnectFailure::Resources(Box::new(PostError::State(QpState::Err).into()));
        let datagrams = self.datagrams.as_ref().ok_or_else(gone)?;
        let to = datagrams.to(&theirs.address, terms, inquiry);
        let to = to.map_err(|error| ConnectFailure::QueuePair(Box::new(error)))?;
        Ok((to, datagrams.longest(theirs.address.mtu.bytes() as usize).min(theirs.eager_limit as usize)))
    }

    /// The peer's hello is there: packets can go to it.
    pub(in crate::worker) fn connect_line(
        &mut self,
        index: usize,
        theirs: &Hello,
        inquiry: &Inquiry,
    ) -> Result<(), ConnectFailure> {
        let Some(peer) = self.endpoints.at(index).map(|endpoint| endpoint.peer) else { return Ok(()) };
        let (to, limit) = self.way_of_line(peer, theirs, inquiry)?;
        if let Some(endpoint) = self.endpoints.at(index)
            && let Some(line) = &mut endpoint.line
        {
            line.to = Some(to);
            endpoint.threshold.lower_limit(limit);
        }
        Ok(())
    }
}

/// A number that no stranger can guess.
pub(super) fn unpredictable() -> io::Result<u32> {
    Ok(getrandom::u32()?)
}
