//! An unreliable connection: messages arrive whole and in order, or not at all, and nobody is told. IBA 9.8.2.

mod config;
mod requester;
mod responder;

pub use config::UnreliableConfig;

use self::requester::Requester;
use self::responder::Responder;
use super::state::State;
use crate::counters::Counters;
use crate::host::{Cause, Host};
use crate::wire::{Packet, Service};
use crate::work::{PostError, Send};

/// One end of an unreliable connection. It takes SENDs and WRITEs, with and without immediate data, and answers nothing.
///
/// ```
/// use qpair_roce::{UnreliableConfig, UnreliableConnection, Psn, Qpn, State};
///
/// let config = UnreliableConfig::new(Qpn(0x11), Qpn(0x12), Psn::new(0), Psn::new(0));
/// let uc = UnreliableConnection::<usize>::new(config);
/// assert_eq!(uc.state(), State::Ready);
/// ```
#[derive(Debug)]
pub struct UnreliableConnection<L> {
    config: UnreliableConfig,
    state: State,
    requester: Requester<L>,
    responder: Responder<L>,
}

impl<L: Copy> UnreliableConnection<L> {
    /// A connection that is ready.
    pub fn new(config: UnreliableConfig) -> Self {
        UnreliableConnection {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            state: State::Ready,
            config,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &UnreliableConfig {
        &self.config
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// True once the peer has sent something: it is ready.
    pub fn has_heard(&self) -> bool {
        self.responder.has_heard(&self.config)
    }

    /// Takes a request to send; its fence orders nothing. On a connection that was closed it completes as flushed at once.
    ///
    /// # Errors
    /// [`PostError::SendQueueFull`], [`PostError::TooLong`]; [`PostError::Unsupported`] for READs, atomics, and SENDs that
    /// invalidate. The request is copied; what it names is the caller's still.
    pub fn post<H: Host<Local = L>>(&mut self, work: Send<L>, host: &mut H) -> Result<(), PostError> {
        self.requester.post(work, &self.config)?;
        if self.state == State::Failed {
            self.requester.flush(self.config.qpn, host);
        }
        Ok(())
    }

    /// Handles a packet of the peer. It came from the connection's route, its CRC is right, and the partition too.
    pub fn handle<H: Host<Local = L>>(&mut self, packet: &Packet<'_>, host: &mut H, counters: &mut Counters) {
        if self.state == State::Failed {
            return;
        }
        match packet.headers.bth.opcode.meaning() {
            // The service has SENDs and WRITEs alone.
            Some(meaning) if meaning.service == Service::Uc => {
                counters.rcvd_pkts += 1;
                if self.responder.handle(packet, meaning, &self.config, host, counters).is_err() {
                    self.fail(Cause::Memory, host);
                }
            }
            _ => counters.unsupported_opcode += 1,
        }
    }

    /// Makes the next packet in `to`, but for its CRC; its length, `None` if there is nothing to send. The request completes
    /// with its last packet. If its memory is gone it fails, and the connection with it.
    ///
    /// # Panics
    /// If `to` is shorter than [`longest_packet`](UnreliableConfig::longest_packet).
    pub fn transmit<H: Host<Local = L>>(
        &mut self,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        assert!(to.len() >= self.config.longest_packet(), "{} bytes are too few for a packet", to.len());
        let made = self.requester.transmit(to, &self.config, host, counters);
        made.unwrap_or_else(|_| {
            self.fail(Cause::Request, host);
            None
        })
    }

    /// Closes the connection: what is posted to the send queue is flushed, and so is a receive that was taken.
    pub fn close<H: Host<Local = L>>(&mut self, host: &mut H) {
        self.fail(Cause::Closed, host);
    }

    /// Fails the connection since what its peer has sent is lost after it was taken: [`Cause::Memory`].
    pub fn lose<H: Host<Local = L>>(&mut self, host: &mut H) {
        self.fail(Cause::Memory, host);
    }

    fn fail<H: Host<Local = L>>(&mut self, cause: Cause, host: &mut H) {
        if self.state == State::Failed {
            return;
        }
        self.state = State::Failed;
        self.requester.flush(self.config.qpn, host);
        self.responder.flush(self.config.qpn, host);
        host.failed(self.config.qpn, cause);
    }
}
