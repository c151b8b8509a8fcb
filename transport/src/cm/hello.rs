//! What is said over TCP before two queue pairs are connected, and once they have parted: framed, versioned, limited in
//! length. No I/O here.

use qpair_verbs::QpAddress;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::engine::PROTOCOL_VERSION;

/// One message of the handshake, or the one at the end.
///
/// On the wire: `QPTR`, version, kind, length of the body in two bytes, little-endian; then the body in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The connecting side, about itself.
    Hello(Hello),
    /// The listening side, about itself; its queue pair is connected.
    Accept(Hello),
    /// The connecting side's queue pair is connected too.
    Ready,
    /// The listening side does not want to.
    Reject(String),
    /// This side has all that the other sent, and knows that the other has all of its own: the connection is over.
    Farewell,
}

/// One side of a connection to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) address: QpAddress,
    /// Session epoch, which all its messages will carry.
    pub(crate) epoch: u32,
    /// Receive slots that it gives to the other side.
    pub(crate) credits: u32,
    /// Longest eager payload that it takes, in bytes.
    pub(crate) eager_limit: u32,
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Another protocol.
    #[error("it does not speak this protocol; is it another kind of server or client?")]
    Magic,
    /// Another version.
    #[error("it speaks version {0}, this side {PROTOCOL_VERSION}; use the same release on both sides")]
    Version(u8),
    /// An unknown or unexpected message.
    #[error("it sent handshake message {0} where another was due")]
    Unexpected(u8),
    /// Too long.
    #[error("its handshake message of {len} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Length that it announced.
        len: usize,
        /// Limit.
        limit: usize,
    },
    /// The body makes no sense.
    #[error("its handshake message can not be read: {0}")]
    Body(Box<str>),
    /// Values out of range.
    #[error("it offers {what} of {value}, which is not possible")]
    Value {
        /// The value's name.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// It hung up too early.
    #[error("it hung up before the handshake was over")]
    HungUp,
    /// It took too long.
    #[error("it did not finish the handshake in time")]
    TimedOut,
    /// This side could not go on.
    #[error("this side has no room for it: {0}")]
    Resources(Box<str>),
}

impl Message {
    /// The message as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = match self {
            Message::Hello(hello) | Message::Accept(hello) => serde_json::to_vec(hello).unwrap_or_default(),
            Message::Ready | Message::Farewell => Vec::new(),
            Message::Reject(reason) => {
                let mut end = reason.len().min(BODY_LIMIT);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                reason.as_bytes()[..end].to_vec()
            }
        };
        let mut bytes = Vec::with_capacity(PREFIX + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[PROTOCOL_VERSION, self.code()]);
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// The message at the start of `bytes` and its length, or `None` if there is not enough of it yet.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, HandshakeError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(HandshakeError::Magic);
        }
        let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        if prefix[4] != PROTOCOL_VERSION {
            return Err(HandshakeError::Version(prefix[4]));
        }
        let len = usize::from(u16::from_le_bytes([prefix[6], prefix[7]]));
        if len > BODY_LIMIT {
            return Err(HandshakeError::TooLong { len, limit: BODY_LIMIT });
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let message = match prefix[5] {
            HELLO => Message::Hello(Hello::decode(body)?),
            ACCEPT => Message::Accept(Hello::decode(body)?),
            READY if len == 0 => Message::Ready,
            FAREWELL if len == 0 => Message::Farewell,
            REJECT => Message::Reject(String::from_utf8_lossy(body).into_owned()),
            other => return Err(HandshakeError::Unexpected(other)),
        };
        Ok(Some((message, PREFIX + len)))
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Message::Hello(_) => HELLO,
            Message::Accept(_) => ACCEPT,
            Message::Ready => READY,
            Message::Reject(_) => REJECT,
            Message::Farewell => FAREWELL,
        }
    }
}

impl Hello {
    fn decode(body: &[u8]) -> Result<Hello, HandshakeError> {
        let hello: Hello =
            serde_json::from_slice(body).map_err(|error| HandshakeError::Body(error.to_string().into()))?;
        if hello.credits == 0 || hello.credits > CREDITS_LIMIT {
            return Err(HandshakeError::Value { what: "a window", value: hello.credits.into() });
        }
        Ok(hello)
    }
}

const MAGIC: &[u8; 4] = b"QPTR";
const PREFIX: usize = 8;
/// A hello takes some 400 bytes.
const BODY_LIMIT: usize = 2048;
const CREDITS_LIMIT: u32 = 1 << 16;
const HELLO: u8 = 1;
const ACCEPT: u8 = 2;
const READY: u8 = 3;
const REJECT: u8 = 4;
const FAREWELL: u8 = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qpair_verbs::{Gid, Mtu, Psn, QpType, Qpn};

    use super::*;

    fn hello() -> Hello {
        let address = QpAddress {
            qp_type: QpType::Rc,
            qpn: Qpn(17),
            psn: Psn::new(5),
            gid: Gid([1; 16]),
            lid: 0,
            mtu: Mtu::B4096,
            qkey: 0,
            max_rd_atomic: 16,
            ece: None,
            soft: None,
        };
        Hello { address, epoch: 9, credits: 64, eager_limit: 8192 }
    }

    #[test]
    fn messages_round_trip_however_they_are_cut() {
        let (full, hello) = ("full".into(), hello());
        let messages = [
            Message::Hello(hello.clone()),
            Message::Accept(hello),
            Message::Ready,
            Message::Reject(full),
            Message::Farewell,
        ];
        for message in messages {
            let bytes = message.encode();
            for end in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..end]), Ok(None), "{message:?}");
            }
            let mut more = bytes.clone();
            more.push(1);
            assert_eq!(Message::decode(&more), Ok(Some((message, bytes.len()))));
        }
    }

    #[test]
    fn what_is_not_valid_is_named() {
        assert_eq!(Message::decode(b"GET / HTTP/1.1\r\n"), Err(HandshakeError::Magic));
        assert_eq!(Message::decode(b"X"), Err(HandshakeError::Magic));
        assert_eq!(Message::decode(b"QPTR\x09\x01\0\0"), Err(HandshakeError::Version(9)));
        assert_eq!(Message::decode(b"QPTR\x02\x07\0\0"), Err(HandshakeError::Unexpected(7)));
        let long = Message::decode(b"QPTR\x02\x01\xff\xff");
        assert_eq!(long, Err(HandshakeError::TooLong { len: 65535, limit: BODY_LIMIT }));
        assert!(matches!(Message::decode(b"QPTR\x02\x01\x02\0{}"), Err(HandshakeError::Body(_))));
        let greedy = Message::Hello(Hello { credits: 0, ..hello() }).encode();
        assert_eq!(Message::decode(&greedy), Err(HandshakeError::Value { what: "a window", value: 0 }));
        let reason = "ä".repeat(2000);
        assert!(Message::decode(&Message::Reject(reason).encode()).unwrap().is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), magic: bool) {
            if magic {
                bytes.splice(0..0, *b"QPTR\x02");
            }
            if let Ok(Some((_, used))) = Message::decode(&bytes) {
                prop_assert!(used <= bytes.len());
            }
        }
    }
}
