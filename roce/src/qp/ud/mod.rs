//! Unreliable datagrams: messages of one packet, each to whom it names. IBA 9.8.3.

mod config;
mod grh;

pub use config::DatagramConfig;
pub use grh::Grh;

use std::collections::VecDeque;

use super::incoming::received;
use super::outgoing::Outgoing;
use super::state::State;
use crate::counters::Counters;
use crate::host::{AccessError, Cause, Host};
use crate::types::Psn;
use crate::wire::{Bth, Deth, Extension, Headers, Opcode, Packet};
use crate::work::{Completion, Datagram, Extra, Incoming, Outcome, PostError};

/// A queue pair for datagrams. `L` is local memory, and `P` how a datagram gets to its receiver's host: the engine passes
/// that on to who sends the packet.
///
/// ```
/// use qpair_roce::{DatagramConfig, Datagrams, Qpn, State};
///
/// let ud = Datagrams::<usize, std::net::IpAddr>::new(DatagramConfig::new(Qpn(0x11), 0x1111_1111));
/// assert_eq!(ud.state(), State::Ready);
/// ```
#[derive(Debug)]
pub struct Datagrams<L, P> {
    config: DatagramConfig,
    state: State,
    requests: VecDeque<Datagram<L, P>>,
    psn: Psn,
}

impl<L: Copy, P: Copy> Datagrams<L, P> {
    /// A queue pair that is ready.
    pub fn new(config: DatagramConfig) -> Self {
        Datagrams {
            state: State::Ready,
            requests: VecDeque::with_capacity(config.send_depth as usize),
            psn: config.send_psn,
            config,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &DatagramConfig {
        &self.config
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes a datagram to send. On a queue pair that was closed it completes as flushed at once.
    ///
    /// # Errors
    /// [`PostError::SendQueueFull`]; [`PostError::TooLong`]: it is longer than the MTU. (By C10-93.1.1 of IBA such
    /// a request vanishes without an error; Linux' rdma_rxe does so.)
    pub fn post<H: Host<Local = L>>(&mut self, work: Datagram<L, P>, host: &mut H) -> Result<(), PostError> {
        let limit = self.config.mtu.bytes();
        if work.len > limit {
            return Err(PostError::TooLong { len: work.len, limit });
        }
        if self.requests.len() >= self.config.send_depth as usize {
            return Err(PostError::SendQueueFull);
        }
        self.requests.push_back(work);
        if self.state == State::Failed {
            self.flush(host);
        }
        Ok(())
    }

    /// Handles a packet that came to the queue pair, under such an IP header. Its CRC is right, and the partition too.
    ///
    /// Dropped without a word, and counted, is what is no datagram, has another key, finds no receive, or one that is too
    /// short; that receive stays where it is, for the next, as in the kernel's rxe_resp.c (`RESPST_ERR_LENGTH` off a shared
    /// receive queue) and qib_ud.c. As there, a datagram may be longer than this end's MTU if it fits.
    pub fn handle<H: Host<Local = L>>(
        &mut self,
        packet: &Packet<'_>,
        grh: &Grh,
        host: &mut H,
        counters: &mut Counters,
    ) {
        if self.state == State::Failed {
            return;
        }
        let (deth, extra) = match packet.headers.extension {
            Extension::Datagram(deth) => (deth, Extra::Nothing),
            Extension::DatagramImmediate(deth, immediate) => (deth, Extra::Immediate(immediate)),
            _ => {
                counters.unsupported_opcode += 1;
                return;
            }
        };
        if deth.qkey != self.config.qkey {
            counters.qkey_viol_cntr += 1;
            return;
        }
        counters.rcvd_pkts += 1;
        let whole = (Grh::LEN + packet.payload.len()) as u32;
        let Some(receive) = host.take_receive(self.config.qpn, whole) else {
            counters.out_of_buffer += 1;
            return;
        };
        let mut there = host.scatter(receive.local, 0, grh.bytes());
        if !packet.payload.is_empty() {
            there = there.and_then(|()| host.scatter(receive.local, Grh::LEN as u32, packet.payload));
        }
        if let Err(error) = there {
            received(self.config.qpn, receive, error.outcome(), Incoming::default(), host);
            return self.fail(Cause::Memory, host);
        }
        let message = Incoming {
            len: whole,
            extra,
            is_write: false,
            solicited: packet.headers.bth.solicited,
            source: Some(deth.source),
        };
        received(self.config.qpn, receive, Outcome::Success, message, host);
    }

    /// The path that the next packet goes, if there is one.
    pub fn next_path(&self) -> Option<&P> {
        self.requests.front().map(|request| &request.target.path)
    }

    /// Makes the next packet in `to`, but for its CRC; its length, and the path that it goes; `None` if there is nothing to
    /// send. The request is done with that. If its memory is gone, or does not work, it fails, and the queue pair with it.
    ///
    /// # Panics
    /// If `to` is shorter than [`longest_packet`](DatagramConfig::longest_packet).
    pub fn transmit<H: Host<Local = L>>(
        &mut self,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<(usize, P)> {
        assert!(to.len() >= self.config.longest_packet(), "{} bytes are too few for a packet", to.len());
        let work = *self.requests.front()?;
        match self.make(&work, to, |local, offset, to| host.gather(local, offset, to), counters) {
            Ok(made) => {
                self.complete(Outcome::Success, host);
                Some((made, work.target.path))
            }
            Err(error) => {
                self.complete(error.outcome(), host);
                self.fail(Cause::Request, host);
                None
            }
        }
    }

    /// Makes the packet of a datagram in `to`, but for its CRC, with a payload by `fill`; its length. For whoever has the
    /// payload at hand: nothing is posted, and nothing completes.
    ///
    /// # Errors
    /// What `fill` says.
    ///
    /// # Panics
    /// If `to` is shorter than the packet.
    pub fn make<M: Copy>(
        &mut self,
        work: &Datagram<M, P>,
        to: &mut [u8],
        fill: impl FnOnce(M, u32, &mut [u8]) -> Result<(), AccessError>,
        counters: &mut Counters,
    ) -> Result<usize, AccessError> {
        let Datagram { local, len, target, .. } = *work;
        let qkey = if target.qkey & OWN_QKEY == 0 { target.qkey } else { self.config.qkey };
        let deth = Deth { qkey, source: self.config.qpn };
        let (opcode, extension) = match work.immediate {
            None => (Opcode::UD_SEND_ONLY, Extension::Datagram(deth)),
            Some(immediate) => (Opcode::UD_SEND_ONLY_IMM, Extension::DatagramImmediate(deth, immediate)),
        };
        let bth = Bth { pkey: self.config.pkey, solicited: work.solicited, ..Bth::new(opcode, target.qpn, self.psn) };
        let packet = Outgoing { headers: Headers { bth, extension }, payload: (local, 0), len };
        let made = packet.emit(to, fill)?;
        self.psn = self.psn.advance(1);
        counters.sent_pkts += 1;
        Ok(made)
    }

    /// Closes the queue pair: what is posted to the send queue is flushed.
    pub fn close<H: Host<Local = L>>(&mut self, host: &mut H) {
        self.fail(Cause::Closed, host);
    }

    fn fail<H: Host<Local = L>>(&mut self, cause: Cause, host: &mut H) {
        if self.state == State::Failed {
            return;
        }
        self.state = State::Failed;
        self.flush(host);
        host.failed(self.config.qpn, cause);
    }

    fn flush<H: Host<Local = L>>(&mut self, host: &mut H) {
        while !self.requests.is_empty() {
            self.complete(Outcome::Flushed, host);
        }
    }

    /// The oldest request is over.
    fn complete<H: Host<Local = L>>(&mut self, outcome: Outcome, host: &mut H) {
        if let Some(Datagram { id, local, .. }) = self.requests.pop_front() {
            host.complete(self.config.qpn, Completion::Sent { id, outcome, local });
        }
    }
}

/// A key of a request that has this bit stands for that of the queue pair itself. IBA 10.2.5.
const OWN_QKEY: u32 = 1 << 31;
