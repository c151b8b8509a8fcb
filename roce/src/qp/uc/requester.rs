//! Sends messages, and hears no more of them. IBA 9.8.2.1.

use std::collections::VecDeque;

use super::UnreliableConfig;
use crate::counters::Counters;
use crate::host::{AccessError, Host};
use crate::qp::message;
use crate::qp::outgoing::Outgoing;
use crate::types::{Psn, Qpn};
use crate::wire::{Bth, Position, Service};
use crate::work::{Completion, MAX_MESSAGE, Op, Outcome, PostError, Send};

/// The sending half of a connection: requests, oldest first, and the next packet of the oldest.
#[derive(Debug)]
pub(super) struct Requester<L> {
    requests: VecDeque<Send<L>>,
    packet: u32,
    psn: Psn,
}

impl<L: Copy> Requester<L> {
    pub(super) fn new(config: &UnreliableConfig) -> Self {
        Requester { requests: VecDeque::with_capacity(config.send_depth as usize), packet: 0, psn: config.send_psn }
    }

    pub(super) fn post(&mut self, work: Send<L>, config: &UnreliableConfig) -> Result<(), PostError> {
        // A message whose last packet there is has all the others too.
        if message::headers(Service::Uc, work.op, work.len, Position::Only).is_none() {
            return Err(PostError::Unsupported);
        }
        if self.requests.len() >= config.send_depth as usize {
            return Err(PostError::SendQueueFull);
        }
        if work.len > MAX_MESSAGE {
            return Err(PostError::TooLong { len: work.len, limit: MAX_MESSAGE });
        }
        self.requests.push_back(work);
        Ok(())
    }

    /// Makes the next packet in `to`, but for its CRC; its length. The request is done with its last packet.
    ///
    /// # Errors
    /// The request's memory is gone; it has ended so.
    pub(super) fn transmit<H: Host<Local = L>>(
        &mut self,
        to: &mut [u8],
        config: &UnreliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<Option<usize>, AccessError> {
        let Some(&work) = self.requests.front() else { return Ok(None) };
        let is_last = self.packet + 1 == message::packets(work.len, config.mtu);
        let position = Position::new(self.packet == 0, is_last);
        let Some((opcode, extension)) = message::headers(Service::Uc, work.op, work.len, position) else {
            return Ok(None);
        };
        let (offset, len) = message::part(work.len, self.packet, config.mtu);
        let takes_receive = matches!(work.op, Op::Send(_) | Op::Write(_, Some(_)));
        let bth =
            Bth { solicited: is_last && work.solicited && takes_receive, ..Bth::new(opcode, config.peer, self.psn) };
        let packet = Outgoing { headers: config.headers(bth, extension), payload: (work.local, offset), len };
        let made = packet.emit(to, |local, offset, to| host.gather(local, offset, to));
        let made = made.inspect_err(|error| self.complete(error.outcome(), config.qpn, host))?;
        self.psn = self.psn.advance(1);
        counters.sent_pkts += 1;
        if is_last {
            self.packet = 0;
            self.complete(Outcome::Success, config.qpn, host);
        } else {
            self.packet += 1;
        }
        Ok(Some(made))
    }

    /// The oldest request is over.
    fn complete<H: Host<Local = L>>(&mut self, outcome: Outcome, qpn: Qpn, host: &mut H) {
        if let Some(Send { id, local, .. }) = self.requests.pop_front() {
            host.complete(qpn, Completion::Sent { id, outcome, local });
        }
    }

    /// Flushes all requests.
    pub(super) fn flush<H: Host<Local = L>>(&mut self, qpn: Qpn, host: &mut H) {
        while !self.requests.is_empty() {
            self.complete(Outcome::Flushed, qpn, host);
        }
    }
}
