//! Packets that arrive once and in order over a queue pair that promises neither: numbers, acknowledgments of what came also
//! out of order, retransmission by RFC 6298's clock or when later packets came (RFC 6675's rule), a window that grows and
//! shrinks as RFC 5681 says. One [`Flow`] is one side of one connection.

mod arrivals;
mod sending;
#[cfg(test)]
mod tests;
mod timing;
mod wire;

use std::time::Duration;

use arrivals::Arrivals;
use sending::Sending;
use wire::FlowKind;
pub(crate) use wire::{FLOW_BYTES, FlowHeader};

/// One side of a connection whose packets may get lost. `O`: the contents of a packet on its way out; `I`: of one that came.
#[derive(Debug)]
pub(crate) struct Flow<O, I> {
    sending: Sending<O>,
    arrivals: Arrivals<I>,
    /// Packets that came and are not acknowledged, and by when that is to be done.
    owed: u32,
    ack_due: Option<Duration>,
    ack_delay: Duration,
    counts: FlowCounts,
}

/// What a flow is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSettings {
    /// How long an acknowledgment may wait for something to go along with.
    pub(crate) ack_delay: Duration,
    /// The least time before a packet is sent again.
    pub(crate) least_timeout: Duration,
    /// How long a packet is sent again and again without an answer, and how often at least.
    pub(crate) patience: Duration,
    pub(crate) tries: u32,
}

/// What a flow did beside carrying packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCounts {
    /// Packets that were sent again.
    pub(crate) repeated: u64,
    /// Packets that came again, or too early to be kept.
    pub(crate) duplicates: u64,
}

/// What is to be sent now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due<'a, O> {
    /// That packet, for the first time or again.
    Packet(FlowHeader, &'a mut O),
    /// An acknowledgment alone.
    Ack(FlowHeader),
    /// Nothing any more: a packet was sent again and again, and nothing answers.
    Lost,
}

/// The peer acknowledges what was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotSent {
    pub(crate) said: u32,
    pub(crate) sent: u32,
}

impl<O, I> Flow<O, I> {
    pub(crate) fn new(settings: &FlowSettings) -> Self {
        Flow {
            sending: Sending::new(settings),
            arrivals: Arrivals::new(),
            owed: 0,
            ack_due: None,
            ack_delay: settings.ack_delay,
            counts: FlowCounts::default(),
        }
    }

    /// True if all that was sent was acknowledged.
    pub(crate) fn is_settled(&self) -> bool {
        self.sending.is_empty()
    }

    pub(crate) fn counts(&self) -> FlowCounts {
        FlowCounts { repeated: self.sending.repeated(), ..self.counts }
    }

    /// Packets that may be under way, and the time after which the oldest is sent again.
    pub(crate) fn pace(&self) -> (u32, Duration) {
        self.sending.pace()
    }

    /// A packet is to go out: [`poll`](Flow::poll) says when. It is kept until it is acknowledged.
    pub(crate) fn send(&mut self, packet: O) {
        self.sending.push(packet);
    }

    /// The oldest packet that was acknowledged, and was not asked for yet.
    pub(crate) fn released(&mut self) -> Option<O> {
        self.sending.released()
    }

    /// The connection is over: nothing is due any more. Gives all packets that are kept of this side, and of the peer.
    pub(crate) fn end(&mut self) -> (impl Iterator<Item = O> + '_, impl Iterator<Item = I> + '_) {
        self.ack_due = None;
        (self.sending.drain(), self.arrivals.drain())
    }

    /// True for a packet whose contents are wanted: it came neither before nor too early.
    pub(crate) fn wants(&self, header: &FlowHeader) -> bool {
        header.has_contents() && self.arrivals.wants(header.sequence)
    }

    /// A packet came: takes note of what it acknowledges. Its contents are for [`arrive`](Flow::arrive).
    ///
    /// # Errors
    /// It acknowledges what was not sent.
    pub(crate) fn heed(&mut self, header: &FlowHeader, now: Duration) -> Result<(), NotSent> {
        self.sending.acknowledged(header.acknowledged, header.beyond, now)
    }

    /// True for a packet whose turn it is.
    pub(crate) fn is_next(&self, header: &FlowHeader) -> bool {
        self.arrivals.is_next(header.sequence)
    }

    /// The contents of a packet that was [heeded](Flow::heed), if they are [wanted](Flow::wants). Those whose turn it is come out
    /// of [`next`](Flow::next). True if they are kept until then.
    pub(crate) fn arrive(&mut self, header: &FlowHeader, packet: Option<I>, now: Duration) -> bool {
        if !header.has_contents() {
            return false;
        }
        let in_order = self.arrivals.is_next(header.sequence);
        let is_new = packet.is_some_and(|packet| self.arrivals.take(header.sequence, packet));
        self.counts.duplicates += u64::from(!is_new);
        self.owed += 1;
        // What is missing, and what came again since an acknowledgment was lost, the peer should know of at once.
        let at_once = self.owed >= 2 || !in_order || self.arrivals.has_gap();
        let due = if at_once { now } else { now + self.ack_delay };
        self.ack_due = Some(self.ack_due.map_or(due, |before| before.min(due)));
        is_new
    }

    /// The next packet in order.
    pub(crate) fn next(&mut self) -> Option<I> {
        self.arrivals.next()
    }

    /// What came is acknowledged by the next [`poll`](Flow::poll): there may be no other.
    pub(crate) fn acknowledge_now(&mut self) {
        self.ack_due = self.ack_due.map(|_| Duration::ZERO);
    }

    /// The next thing to do by now, if there is any.
    pub(crate) fn poll(&mut self, now: Duration) -> Option<Due<'_, O>> {
        self.poll_at(now, true)
    }

    /// As [`poll`](Flow::poll), while not all that came was looked at: no packet is held to be lost for its time, since its
    /// acknowledgment may be there.
    pub(crate) fn poll_early(&mut self, now: Duration) -> Option<Due<'_, O>> {
        self.poll_at(now, false)
    }

    fn poll_at(&mut self, now: Duration, times_out: bool) -> Option<Due<'_, O>> {
        let sequence = match self.sending.due_packet(now, times_out) {
            Err(()) => return Some(Due::Lost),
            Ok(sequence) => sequence,
        };
        if let Some(sequence) = sequence {
            let header = self.header(FlowKind::Data, sequence);
            return self.sending.packet(sequence).map(|packet| Due::Packet(header, packet));
        }
        self.ack_due.take_if(|due| now >= *due)?;
        let next = self.sending.next_sequence();
        Some(Due::Ack(self.header(FlowKind::Ack, next)))
    }

    /// When [`poll`](Flow::poll) has something to do.
    pub(crate) fn due(&self) -> Option<Duration> {
        [self.sending.due(), self.ack_due].into_iter().flatten().min()
    }

    /// Both at once.
    #[cfg(test)]
    pub(crate) fn receive(&mut self, header: &FlowHeader, packet: Option<I>, now: Duration) -> Result<(), NotSent> {
        self.heed(header, now)?;
        self.arrive(header, packet, now);
        Ok(())
    }

    /// The header of the next packet with contents, as it would be now.
    #[cfg(test)]
    pub(crate) fn next_header(&self) -> FlowHeader {
        let (acknowledged, beyond) = self.arrivals.state();
        FlowHeader { kind: FlowKind::Data, sequence: self.sending.next_sequence(), acknowledged, beyond }
    }

    fn header(&mut self, kind: FlowKind, sequence: u32) -> FlowHeader {
        (self.owed, self.ack_due) = (0, None);
        let (acknowledged, beyond) = self.arrivals.state();
        FlowHeader { kind, sequence, acknowledged, beyond }
    }
}

/// Packets behind a missing one that are kept: as many as an acknowledgment can name.
const REORDER: usize = 32;
