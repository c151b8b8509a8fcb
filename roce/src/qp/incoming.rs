//! A message that comes in, packet by packet. IBA 9.7.4, and 9.8.2.2 for unreliable connections.

use crate::host::{AccessError, Host, Right};
use crate::types::{Mtu, Qpn};
use crate::wire::{Action, Extension, Meaning};
use crate::work::{Completion, Extra, Incoming, MAX_MESSAGE, Outcome, Receive, Remote};

/// The message that is coming in, if one is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assembly<L> {
    open: Open<L>,
    /// A receive that was taken and not used: the next message that needs one gets it.
    kept: Option<Receive<L>>,
}

/// What has come of the message.
#[derive(Clone, Copy, Debug)]
enum Open<L> {
    /// None: the next packet begins one.
    Idle,
    /// A SEND, of which so many bytes came.
    Send(Receive<L>, u32),
    /// A WRITE: where the next bytes go, how many are left, and how many there are.
    Write(Remote, u32, u32),
}

/// A packet of a message: what its headers say beside its meaning, and what it carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) extension: Extension,
    pub(super) payload: &'a [u8],
    pub(super) solicited: bool,
}

/// Why a packet is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no receive. Nothing has changed.
    NoReceive,
    /// It is none that may come here, or too long or too short.
    Invalid,
    /// The key, the range or the right was wrong.
    Access,
    /// The memory of the receive was gone, and the receive has ended so; or that which a key grants does not do what is asked for.
    Memory,
}

impl From<AccessError> for Refusal {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::QueuePair => Refusal::Invalid,
            AccessError::Key => Refusal::Access,
            AccessError::Operation => Refusal::Memory,
        }
    }
}

impl<L: Copy> Assembly<L> {
    pub(super) const fn new() -> Self {
        Assembly { open: Open::Idle, kept: None }
    }

    /// Takes a packet of a SEND or WRITE; true if a message ends with it.
    pub(super) fn take<H: Host<Local = L>>(
        &mut self,
        meaning: Meaning,
        piece: Piece<'_>,
        (qpn, mtu): (Qpn, Mtu),
        host: &mut H,
    ) -> Result<bool, Refusal> {
        let (is_first, is_last) = (meaning.position.is_first(), meaning.position.is_last());
        let (len, mtu) = (piece.payload.len(), mtu.bytes() as usize);
        // All but the last are full, and the last of several is not empty.
        let is_long_enough = if is_last { is_first || len > 0 } else { len == mtu };
        if !is_long_enough || len > mtu || is_first == self.is_open() {
            return Err(Refusal::Invalid);
        }
        match meaning.action {
            Action::Send => self.take_send(is_last, piece, qpn, host)?,
            _ => self.take_write(is_last, piece, qpn, host)?,
        }
        Ok(is_last)
    }

    fn take_send<H: Host<Local = L>>(
        &mut self,
        is_last: bool,
        piece: Piece<'_>,
        qpn: Qpn,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let (len, extra) = (piece.payload.len() as u32, piece.extra());
        let (receive, at) = match self.open {
            Open::Idle => (self.receive(qpn, host)?, 0),
            Open::Send(receive, at) => (receive, at),
            Open::Write(..) => return Err(Refusal::Invalid),
        };
        self.open = Open::Send(receive, at.saturating_add(len));
        if len > receive.len.min(MAX_MESSAGE) - at {
            return Err(Refusal::Invalid);
        }
        if len > 0
            && let Err(error) = host.scatter(receive.local, at, piece.payload)
        {
            self.open = Open::Idle;
            received(qpn, receive, error.outcome(), Incoming::default(), host);
            return Err(Refusal::Memory);
        }
        if is_last {
            if let Extra::Invalidate(rkey) = extra {
                host.invalidate(qpn, rkey)?;
            }
            self.open = Open::Idle;
            let message = Incoming { len: at + len, extra, solicited: piece.solicited, ..Incoming::default() };
            received(qpn, receive, Outcome::Success, message, host);
        }
        Ok(())
    }

    fn take_write<H: Host<Local = L>>(
        &mut self,
        is_last: bool,
        piece: Piece<'_>,
        qpn: Qpn,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let (len, extra) = (piece.payload.len() as u32, piece.extra());
        let (to, left, whole) = match (self.open, piece.extension) {
            (Open::Idle, Extension::Remote(reth) | Extension::RemoteImmediate(reth, _)) => {
                let to = Remote { va: reth.va, rkey: reth.rkey };
                if reth.len > MAX_MESSAGE {
                    return Err(Refusal::Invalid);
                }
                host.check(qpn, to, reth.len, Right::Write)?;
                (to, reth.len, reth.len)
            }
            (Open::Write(to, left, whole), _) => (to, left, whole),
            _ => return Err(Refusal::Invalid),
        };
        if if is_last { len != left } else { len >= left } {
            return Err(Refusal::Invalid);
        }
        let receive = match extra {
            Extra::Immediate(_) => Some(self.receive(qpn, host)?),
            _ => None,
        };
        let written = if len > 0 { host.write(qpn, to, piece.payload) } else { Ok(()) };
        if let Err(error) = written {
            // Only a message with immediate data took one; another may be kept from before.
            self.kept = receive.or(self.kept.take());
            return Err(error.into());
        }
        self.open = if is_last { Open::Idle } else { Open::Write(to.advance(len.into()), left - len, whole) };
        if let Some(receive) = receive {
            let solicited = piece.solicited;
            let message = Incoming { len: whole, extra, is_write: true, solicited, ..Incoming::default() };
            received(qpn, receive, Outcome::Success, message, host);
        }
        Ok(())
    }

    fn receive<H: Host<Local = L>>(&mut self, qpn: Qpn, host: &mut H) -> Result<Receive<L>, Refusal> {
        // How long the message is, its first packet does not say.
        self.kept.take().or_else(|| host.take_receive(qpn, 0)).ok_or(Refusal::NoReceive)
    }

    /// True if a message has begun and not ended.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.open, Open::Idle)
    }

    /// Gives up the message. A receive that it had is that of the next one.
    pub(super) fn abandon(&mut self) {
        if let Open::Send(receive, _) = std::mem::replace(&mut self.open, Open::Idle) {
            self.kept = Some(receive);
        }
    }

    /// Gives up the message for good: a receive that was taken ends so.
    pub(super) fn fail<H: Host<Local = L>>(&mut self, outcome: Outcome, qpn: Qpn, host: &mut H) {
        self.abandon();
        if let Some(receive) = self.kept.take() {
            received(qpn, receive, outcome, Incoming::default(), host);
        }
    }

    /// True if more came than the receive holds.
    pub(super) fn is_too_long(&self) -> bool {
        matches!(self.open, Open::Send(receive, at) if at > receive.len)
    }
}

impl Piece<'_> {
    fn extra(&self) -> Extra {
        match self.extension {
            Extension::Immediate(immediate) | Extension::RemoteImmediate(_, immediate) => Extra::Immediate(immediate),
            Extension::Invalidate(rkey) => Extra::Invalidate(rkey),
            _ => Extra::Nothing,
        }
    }
}

/// A receive is over.
pub(super) fn received<H: Host>(
    qpn: Qpn,
    receive: Receive<H::Local>,
    outcome: Outcome,
    message: Incoming,
    host: &mut H,
) {
    host.complete(qpn, Completion::Received { id: receive.id, outcome, local: receive.local, message });
}
