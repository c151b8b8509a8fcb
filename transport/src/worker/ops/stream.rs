//! Streams: any number of ordered ways in each direction of a connection, each with a beginning and an end.

use crate::engine::{Class, Envelope, Key, Part, Peer, Pending, Violation};
use crate::worker::Worker;
use crate::worker::endpoint::Carried;
use crate::worker::error::{CloseReason, SendError, SendFailure};
use crate::worker::event::Event;
use crate::worker::ids::{EndpointId, OpId};
use crate::worker::memory::{Message, Payload};

/// A stream of a connection, both ways. Never given twice on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    ep: EndpointId,
    /// As this side numbers it: the lowest bit says that the peer opened it, the next that only who opened it sends.
    number: u64,
}

/// The streams of a connection that are open, by who opened them.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct StreamCounts {
    ours: usize,
    peers: usize,
    /// The number of the last that this side opened, without the lowest bits.
    last: u64,
}

/// How the peer's half of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamEnd {
    /// All of it came.
    Finished,
    /// The peer gave it up, for a reason in the application's own numbering.
    Reset(u16),
    /// A part is missing: the peer took it back, or the connection ended before it was read. All before it came.
    Broken,
}

/// A stream in the table of a worker's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) struct StreamKey {
    peer: Peer,
    number: u64,
}

/// Which halves of a stream are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::worker) struct Halves {
    sent: Half,
    received: Half,
}

/// How far one half of a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Half {
    #[default]
    Open,
    /// A part is missing. What follows is not sent; of the received half, it is dropped.
    Broken,
    /// Its last part was sent, or came.
    Over,
}

impl StreamId {
    /// The connection.
    pub fn endpoint(self) -> EndpointId {
        self.ep
    }

    /// True if the peer opened it.
    pub fn is_peers(self) -> bool {
        self.number & PEERS != 0
    }

    /// True if only the side that opened it sends.
    pub fn is_one_way(self) -> bool {
        self.number & ONE_WAY != 0
    }

    fn key(self) -> StreamKey {
        StreamKey { peer: self.ep.peer(), number: self.number }
    }

    /// As the peer is told of it: numbers are the sender's.
    fn envelope(self, port: u16) -> Envelope {
        Envelope { class: Class::Stream, port, tag: self.number }
    }
}

impl StreamCounts {
    fn of(&mut self, stream: StreamId) -> &mut usize {
        if stream.is_peers() { &mut self.peers } else { &mut self.ours }
    }
}

impl Key for StreamKey {
    fn words(self) -> [u64; 2] {
        [self.peer.0, self.number]
    }
}

impl Worker {
    /// Opens a stream, on which both sides may send. The peer learns of it with the first part. It is open until both sides
    /// have sent their last: at most 65,536 of each side are, for each connection.
    ///
    /// # Errors
    /// [`SendFailure`] if the connection is closed or closing, or too many streams are open.
    ///
    /// ```
    /// use qpair_transport::{Config, Event, Flow, StreamEnd, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let ep = worker.connect(server.local_addr())?;
    /// let stream = worker.open_stream(ep)?;
    /// worker.stream_send(stream, &b"all of "[..])?;
    /// worker.stream_finish(stream, &b"it"[..])?;
    /// let mut text = Vec::new();
    /// worker.run(|event, _worker| match event {
    ///     Event::StreamData { message, .. } => {
    ///         text.extend_from_slice(&message);
    ///         Flow::Continue
    ///     }
    ///     Event::StreamEnded { end, .. } => {
    ///         assert_eq!(end, StreamEnd::Finished);
    ///         Flow::Stop
    ///     }
    ///     _ => Flow::Continue,
    /// })?;
    /// assert_eq!(text, b"all of it");
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_stream(&mut self, ep: EndpointId) -> Result<StreamId, SendFailure> {
        self.open(ep, 0)
    }

    /// Opens a stream on which this side alone sends. It is over with its last part, without a word from the peer.
    ///
    /// # Errors
    /// As [`open_stream`](Worker::open_stream).
    pub fn open_one_way_stream(&mut self, ep: EndpointId) -> Result<StreamId, SendFailure> {
        self.open(ep, ONE_WAY)
    }

    fn open(&mut self, ep: EndpointId, ways: u64) -> Result<StreamId, SendFailure> {
        let endpoint = self.endpoints.get_mut(ep).ok_or(SendFailure::Unknown(ep))?;
        if !endpoint.link.takes_messages() {
            return Err(SendFailure::Closing(ep));
        }
        if endpoint.streams.ours >= STREAMS {
            return Err(SendFailure::TooManyStreams { limit: STREAMS });
        }
        endpoint.streams.ours += 1;
        endpoint.streams.last += NEXT;
        let stream = StreamId { ep, number: endpoint.streams.last | ways };
        self.streams.insert(stream.key(), Halves::of(stream));
        Ok(stream)
    }

    /// Sends the next part of a stream, as by [`send`](Worker::send): [`Event::Sent`] follows. The peer gets it by
    /// [`Event::StreamData`], all parts of a stream in order; where the cuts are, is kept.
    ///
    /// A part that is cancelled, or whose time is over, breaks the stream unless the peer has read it by then: what follows
    /// is refused with [`SendFailure::StreamBroken`], or [`SendFailure::StreamOver`] where the peer sends nothing on it, and the
    /// peer gets what came before and [`StreamEnd::Broken`].
    ///
    /// # Errors
    /// As [`send`](Worker::send), and if this side of the stream is over.
    pub fn stream_send(&mut self, stream: StreamId, payload: impl Into<Payload>) -> Result<OpId, SendError> {
        self.stream_submit(stream, Part::Data, payload.into())
    }

    /// Sends the last part of a stream, which may be empty. The peer gets [`Event::StreamEnded`] after it.
    ///
    /// # Errors
    /// As [`stream_send`](Worker::stream_send).
    pub fn stream_finish(&mut self, stream: StreamId, payload: impl Into<Payload>) -> Result<OpId, SendError> {
        self.stream_submit(stream, Part::Finish, payload.into())
    }

    /// Gives up this side's half of a stream, for a reason in the application's own numbering below 2^14. What was sent
    /// before still arrives.
    ///
    /// # Errors
    /// As [`stream_send`](Worker::stream_send), and [`SendFailure::Reason`].
    pub fn stream_reset(&mut self, stream: StreamId, reason: u16) -> Result<OpId, SendError> {
        let payload = bytes::Bytes::new().into();
        if reason >= Part::REASONS {
            return Err(SendError { error: SendFailure::Reason { reason, limit: Part::REASONS }, payload });
        }
        self.stream_submit(stream, Part::Reset(reason), payload)
    }

    fn stream_submit(&mut self, stream: StreamId, part: Part, payload: Payload) -> Result<OpId, SendError> {
        let halves = match self.streams.get(stream.key()) {
            Some(halves) if halves.sent == Half::Open => halves,
            Some(Halves { sent: Half::Broken, .. }) => {
                return Err(SendError { error: SendFailure::StreamBroken, payload });
            }
            _ => return Err(SendError { error: SendFailure::StreamOver, payload }),
        };
        let number = self.op();
        let op = self.submit(number, stream.ep, stream.envelope(part.port()), payload)?;
        if part.is_last() {
            self.set_halves(stream, Halves { sent: Half::Over, ..halves });
        }
        Ok(op)
    }

    /// Part of a stream came; `None`: it never will.
    pub(in crate::worker) fn stream_part(&mut self, ep: EndpointId, envelope: Envelope, message: Option<Message>) {
        // The peer's own streams are those that this side did not open, and the other way round.
        let stream = StreamId { ep, number: envelope.tag ^ PEERS };
        let known = self.streams.get(stream.key());
        let halves = match known {
            Some(halves) if halves.received != Half::Over => halves,
            None if stream.is_peers() && self.peer_opens(ep) => {
                self.ready.push_back(Event::StreamOpened { stream });
                Halves::of(stream)
            }
            _ => {
                let violation = Violation::Stream { number: envelope.tag };
                return self.break_off(ep.index as usize, CloseReason::Protocol(violation));
            }
        };
        let part = Part::of(envelope);
        let broken = message.is_none() || matches!(part, Part::Missing { .. });
        if halves.received == Half::Open {
            self.hand_out_part(stream, part, message, broken);
        }
        let received = match part.is_last() {
            true => Half::Over,
            false if broken => Half::Broken,
            false => halves.received,
        };
        self.set_halves(stream, Halves { received, ..halves });
    }

    /// A peer opens a stream. False if it may not.
    fn peer_opens(&mut self, ep: EndpointId) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(ep).filter(|endpoint| endpoint.streams.peers < STREAMS) else {
            return false;
        };
        endpoint.streams.peers += 1;
        true
    }

    /// The next part of a stream for the application; `is_broken`: it is missing, and the message, if there is one, says so.
    fn hand_out_part(&mut self, stream: StreamId, part: Part, mut message: Option<Message>, is_broken: bool) {
        if is_broken {
            return self.end_stream(stream, StreamEnd::Broken, message);
        }
        let end = match part {
            Part::Data | Part::Missing { .. } => None,
            Part::Finish => Some(StreamEnd::Finished),
            Part::Reset(reason) => Some(StreamEnd::Reset(reason)),
        };
        if let Some(data) = message.take_if(|data| part == Part::Data || (part == Part::Finish && !data.is_empty())) {
            self.ready.push_back(Event::StreamData { stream, message: data });
        }
        if let Some(end) = end {
            self.end_stream(stream, end, message);
        }
    }

    /// Tells the end of a stream, which a message of its own may have told.
    fn end_stream(&mut self, stream: StreamId, end: StreamEnd, message: Option<Message>) {
        self.ready.push_back(Event::StreamEnded { stream, end });
        if let Some(notices) = &mut self.notices {
            notices.push_back(message);
        }
    }

    /// A queued message was taken back. If it was part of a stream, the peer is told in its place that it is missing.
    pub(in crate::worker) fn leave_gap(&mut self, number: u64, ep: EndpointId, envelope: Envelope) {
        if envelope.class != Class::Stream {
            return;
        }
        self.stand_in(number, ep, envelope.stand_in());
        self.break_stream(ep, envelope);
    }

    /// A message will not come to the peer. If it was part of a stream, nothing more of that is sent but its end.
    pub(in crate::worker) fn break_stream(&mut self, ep: EndpointId, envelope: Envelope) {
        if envelope.class != Class::Stream {
            return;
        }
        let stream = StreamId { ep, number: envelope.tag };
        let Some(halves) = self.streams.get(stream.key()).filter(|halves| halves.sent == Half::Open) else { return };
        self.set_halves(stream, Halves { sent: Half::Broken, ..halves });
        let number = self.op();
        self.stand_in(number, ep, stream.envelope(Part::Missing { last: true }.port()));
    }

    /// Queues a message that stands for a part of a stream.
    fn stand_in(&mut self, number: u64, ep: EndpointId, envelope: Envelope) {
        let payload = Carried::Bytes(bytes::Bytes::new());
        if let Some(endpoint) = self.endpoints.get_mut(ep) {
            endpoint.link.stand_in(Pending { op: number, envelope, len: 0, readable: None, payload });
        }
    }

    /// The streams of a connection end with it.
    pub(in crate::worker) fn drop_streams(&mut self, ep: EndpointId) {
        self.streams.retain(|key, _| key.peer != ep.peer());
    }

    fn set_halves(&mut self, stream: StreamId, halves: Halves) {
        if halves.sent != Half::Open && halves.received == Half::Over {
            self.streams.remove(stream.key());
            if let Some(endpoint) = self.endpoints.get_mut(stream.ep) {
                *endpoint.streams.of(stream) -= 1;
            }
        } else {
            self.streams.insert(stream.key(), halves);
        }
    }
}

impl Halves {
    /// Those of a stream that begins.
    fn of(stream: StreamId) -> Self {
        match (stream.is_one_way(), stream.is_peers()) {
            (false, _) => Halves::default(),
            (true, false) => Halves { received: Half::Over, ..Halves::default() },
            (true, true) => Halves { sent: Half::Over, ..Halves::default() },
        }
    }
}

/// Bits of a stream's number; the others count.
const PEERS: u64 = 1;
const ONE_WAY: u64 = 2;
const NEXT: u64 = 4;
/// Streams of a connection that are open, for each of its sides.
const STREAMS: usize = 1 << 16;
