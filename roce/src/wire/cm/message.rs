//! All messages, and the header that they have in common.

use thiserror::Error;

use super::bits::{Reader, Writer};
use super::ids::{Pair, Refused};
use super::reject::Reject;
use super::reply::Reply;
use super::request::Request;
use crate::types::Qpn;

/// A message, and the number by which an answer is told to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Number of the exchange: a message that is sent again has the same.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// A message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "each fills a datagram of 256 bytes; there is nothing smaller")]
pub enum Message {
    /// Asks for a connection.
    Request(Request),
    /// Asks for time to answer (MRA). IBA 12.6.6.
    Wait {
        /// Numbers of the connection.
        ids: Pair,
        /// The message that will be answered.
        message: Refused,
        /// How long that may take, 4.096 us x 2^n, 5 bits.
        timeout: u8,
        /// What the application says.
        private: [u8; 222],
    },
    /// Refuses.
    Reject(Reject),
    /// Accepts.
    Reply(Reply),
    /// Says that the acceptance arrived (RTU). IBA 12.6.9.
    ReadyToUse {
        /// Numbers of the connection.
        ids: Pair,
        /// What the application says.
        private: [u8; 224],
    },
    /// Ends a connection (DREQ). IBA 12.6.10.
    Disconnect {
        /// Numbers of the connection.
        ids: Pair,
        /// Queue pair of the receiver.
        qpn: Qpn,
        /// What the application says.
        private: [u8; 220],
    },
    /// Says that it has ended (DREP). IBA 12.6.11.
    Disconnected {
        /// Numbers of the connection.
        ids: Pair,
        /// What the application says.
        private: [u8; 224],
    },
}

/// Why bytes are no message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmError {
    /// They are not 256.
    #[error("{len} bytes, and not {LEN}")]
    Length {
        /// How many they are.
        len: usize,
    },
    /// Another version, class or method of management.
    #[error(
        "version {version}, class {class} of version {class_version}, method {method:#04x}: none of the connection manager"
    )]
    Class {
        /// Version of the header.
        version: u8,
        /// Class of management.
        class: u8,
        /// Its version.
        class_version: u8,
        /// Method.
        method: u8,
    },
    /// A message that is not known.
    #[error("attribute {attribute:#06x} is not known")]
    Attribute {
        /// Its code.
        attribute: u16,
    },
}

impl Packet {
    /// Reads a message. Reserved fields are ignored.
    ///
    /// # Errors
    /// [`CmError`]: it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, CmError> {
        if bytes.len() != LEN {
            return Err(CmError::Length { len: bytes.len() });
        }
        let mut from = Reader::new(bytes);
        let [version, class, class_version, method] = from.array();
        if [version, class, class_version, method] != HEADER {
            return Err(CmError::Class { version, class, class_version, method });
        }
        from.skip(32);
        let (transaction, attribute) = (from.take(64), from.take(16) as u16);
        from.skip(48);
        let from = &mut from;
        let message = match attribute {
            REQUEST => Message::Request(Request::read(from)),
            WAIT => {
                let (ids, message) = (Pair::read(from), Refused::from_code(from.take(2) as u8));
                from.skip(6);
                let timeout = from.take(5) as u8;
                from.skip(3);
                Message::Wait { ids, message, timeout, private: from.array() }
            }
            REJECT => Message::Reject(Reject::read(from)),
            REPLY => Message::Reply(Reply::read(from)),
            READY_TO_USE => Message::ReadyToUse { ids: Pair::read(from), private: from.array() },
            DISCONNECT => {
                let (ids, qpn) = (Pair::read(from), Qpn(from.take(24) as u32));
                from.skip(8);
                Message::Disconnect { ids, qpn, private: from.array() }
            }
            DISCONNECTED => Message::Disconnected { ids: Pair::read(from), private: from.array() },
            attribute => return Err(CmError::Attribute { attribute }),
        };
        Ok(Packet { transaction, message })
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let to = &mut Writer::new(&mut bytes);
        to.array(&HEADER).skip(32).put(64, self.transaction).put(16, self.message.attribute()).skip(48);
        match &self.message {
            Message::Request(request) => request.write(to),
            Message::Wait { ids, message, timeout, private } => {
                ids.write(to);
                to.put(2, message.code()).skip(6).put(5, *timeout).skip(3).array(private);
            }
            Message::Reject(reject) => reject.write(to),
            Message::Reply(reply) => reply.write(to),
            Message::ReadyToUse { ids, private } | Message::Disconnected { ids, private } => {
                ids.write(to);
                to.array(private);
            }
            Message::Disconnect { ids, qpn, private } => {
                ids.write(to);
                to.put(24, qpn.0).skip(8).array(private);
            }
        }
        bytes
    }
}

impl Message {
    const fn attribute(&self) -> u16 {
        match self {
            Message::Request(_) => REQUEST,
            Message::Wait { .. } => WAIT,
            Message::Reject(_) => REJECT,
            Message::Reply(_) => REPLY,
            Message::ReadyToUse { .. } => READY_TO_USE,
            Message::Disconnect { .. } => DISCONNECT,
            Message::Disconnected { .. } => DISCONNECTED,
        }
    }
}

impl Pair {
    pub(super) fn read(from: &mut Reader<'_>) -> Self {
        Pair { local: from.take(32) as u32, remote: from.take(32) as u32 }
    }

    pub(super) fn write(self, to: &mut Writer<'_>) {
        to.put(32, self.local).put(32, self.remote);
    }
}

impl Refused {
    pub(super) const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Refused::Request,
            1 => Refused::Reply,
            2 => Refused::Other,
            _ => Refused::Reserved,
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            Refused::Request => 0,
            Refused::Reply => 1,
            Refused::Other => 2,
            Refused::Reserved => 3,
        }
    }
}

/// Bytes of each message.
pub const LEN: usize = 256;
/// Version 1 of management datagrams; the class of communication management, of version 2; the method Send.
const HEADER: [u8; 4] = [1, 7, 2, 3];
const REQUEST: u16 = 0x10;
const WAIT: u16 = 0x11;
const REJECT: u16 = 0x12;
const REPLY: u16 = 0x13;
const READY_TO_USE: u16 = 0x14;
const DISCONNECT: u16 = 0x15;
const DISCONNECTED: u16 = 0x16;
