//! A message that comes in, packet by packet. IBA 9.7.4.

use crate::host::{AccessError, Host, Remote, Right};
use crate::types::{Mtu, Qpn};
use crate::wire::{Action, Extension, Meaning};
use crate::work::{Completion, Extra, Incoming, MAX_MESSAGE, Outcome, Receive};

/// The message that is coming in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Assembly<L> {
    /// None: the next packet begins one.
    Idle,
    /// A SEND, of which so many bytes came.
    Send(Receive<L>, u32),
    /// A WRITE: where the next bytes go, how many are left, and how many there are.
    Write(Remote, u32, u32),
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
    /// The memory of the receive was gone.
    Memory,
}

impl From<AccessError> for Refusal {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::QueuePair => Refusal::Invalid,
            AccessError::Key => Refusal::Access,
        }
    }
}

impl<L: Copy> Assembly<L> {
    /// Takes a packet of a SEND or WRITE; true if a message ends with it.
    pub(super) fn take<H: Host<Local = L>>(
        &mut self,
        meaning: Meaning,
        (extension, payload, solicited): (Extension, &[u8], bool),
        (qpn, mtu): (Qpn, Mtu),
        host: &mut H,
    ) -> Result<bool, Refusal> {
        let (is_first, is_last) = (meaning.position.is_first(), meaning.position.is_last());
        let (len, mtu) = (payload.len(), mtu.bytes() as usize);
        // All but the last are full, and the last of several is not empty.
        let is_long_enough = if is_last { is_first || len > 0 } else { len == mtu };
        if !is_long_enough || len > mtu || is_first != matches!(self, Assembly::Idle) {
            return Err(Refusal::Invalid);
        }
        let len = len as u32;
        let extra = match extension {
            Extension::Immediate(immediate) | Extension::RemoteImmediate(_, immediate) => Extra::Immediate(immediate),
            Extension::Invalidate(rkey) => Extra::Invalidate(rkey),
            _ => Extra::Nothing,
        };
        match meaning.action {
            Action::Send => {
                let (receive, at) = match *self {
                    Assembly::Idle => (host.take_receive(qpn).ok_or(Refusal::NoReceive)?, 0),
                    Assembly::Send(receive, at) => (receive, at),
                    Assembly::Write(..) => return Err(Refusal::Invalid),
                };
                *self = Assembly::Send(receive, at.saturating_add(len));
                if len > receive.len.min(MAX_MESSAGE) - at {
                    return Err(Refusal::Invalid);
                }
                if len > 0 && host.scatter(receive.local, at, payload).is_err() {
                    *self = Assembly::Idle;
                    received(qpn, receive, Outcome::LocalProtection, Incoming::default(), host);
                    return Err(Refusal::Memory);
                }
                if !is_last {
                    return Ok(false);
                }
                if let Extra::Invalidate(rkey) = extra {
                    host.invalidate(qpn, rkey)?;
                }
                *self = Assembly::Idle;
                let message = Incoming { len: at + len, extra, solicited, ..Incoming::default() };
                received(qpn, receive, Outcome::Success, message, host);
            }
            _ => {
                let (to, left, whole) = match (*self, extension) {
                    (Assembly::Idle, Extension::Remote(reth) | Extension::RemoteImmediate(reth, _)) => {
                        let to = Remote { va: reth.va, rkey: reth.rkey };
                        if reth.len > MAX_MESSAGE {
                            return Err(Refusal::Invalid);
                        }
                        host.check(qpn, to, reth.len, Right::Write)?;
                        (to, reth.len, reth.len)
                    }
                    (Assembly::Write(to, left, whole), _) => (to, left, whole),
                    _ => return Err(Refusal::Invalid),
                };
                if if is_last { len != left } else { len >= left } {
                    return Err(Refusal::Invalid);
                }
                let receive = match extra {
                    Extra::Immediate(_) => Some(host.take_receive(qpn).ok_or(Refusal::NoReceive)?),
                    _ => None,
                };
                let written = if len > 0 { host.write(qpn, to, payload) } else { Ok(()) };
                if let Err(error) = written {
                    if let Some(receive) = receive {
                        received(qpn, receive, Outcome::Flushed, Incoming::default(), host);
                    }
                    return Err(error.into());
                }
                if !is_last {
                    *self = Assembly::Write(to.advance(len.into()), left - len, whole);
                    return Ok(false);
                }
                *self = Assembly::Idle;
                if let Some(receive) = receive {
                    let message = Incoming { len: whole, extra, is_write: true, solicited, ..Incoming::default() };
                    received(qpn, receive, Outcome::Success, message, host);
                }
            }
        }
        Ok(true)
    }

    /// True if a message has begun and not ended.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, Assembly::Idle)
    }

    /// Gives up the message; a receive that it had ends so.
    pub(super) fn fail<H: Host<Local = L>>(&mut self, outcome: Outcome, qpn: Qpn, host: &mut H) {
        if let Assembly::Send(receive, _) = std::mem::replace(self, Assembly::Idle) {
            received(qpn, receive, outcome, Incoming::default(), host);
        }
    }

    /// True if more came than the receive holds.
    pub(super) fn is_too_long(&self) -> bool {
        matches!(self, Assembly::Send(receive, at) if *at > receive.len)
    }
}

fn received<H: Host>(qpn: Qpn, receive: Receive<H::Local>, outcome: Outcome, message: Incoming, host: &mut H) {
    host.complete(qpn, Completion::Received { id: receive.id, outcome, local: receive.local, message });
}
