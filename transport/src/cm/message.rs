//! What is said on a stream after its preface: limited in length, each message in a record of the channel's.

use super::error::HandshakeError;
use super::hello::{Hello, RailWord, Renewal};

/// One message of the handshake, or the one at the end.
///
/// In a record: its kind in a byte, then the body, of a hello, an answer, a renewal or what is new on a rail in JSON, of a
/// refusal in words.
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
    /// The queue pair failed, and here is another. Its answer is one too; [`Ready`](Message::Ready) follows from both sides.
    Renew(Box<Renewal>),
    /// Something is new on a rail.
    Rail(RailWord),
    /// This side has all that the other sent, and knows that the other has all of its own: the connection is over.
    Farewell,
}

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Accept = 2,
    Ready = 3,
    Reject = 4,
    Farewell = 5,
    Renew = 6,
    Rail = 7,
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] =
        [Kind::Hello, Kind::Accept, Kind::Ready, Kind::Reject, Kind::Farewell, Kind::Renew, Kind::Rail];

    /// The kind of the message in a record.
    pub(crate) fn of(record: &[u8]) -> Result<Kind, HandshakeError> {
        let code = record.first().copied().unwrap_or(0);
        Kind::ALL.into_iter().find(|kind| *kind as u8 == code).ok_or(HandshakeError::Unexpected(code))
    }
}

impl Message {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Message::Hello(_) => Kind::Hello,
            Message::Accept(_) => Kind::Accept,
            Message::Ready => Kind::Ready,
            Message::Reject(_) => Kind::Reject,
            Message::Farewell => Kind::Farewell,
            Message::Renew(_) => Kind::Renew,
            Message::Rail(_) => Kind::Rail,
        }
    }

    /// The message as the contents of a record, no longer than [`MESSAGE_LIMIT`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = match self {
            Message::Hello(hello) | Message::Accept(hello) => serde_json::to_vec(hello).unwrap_or_default(),
            Message::Renew(renewal) => serde_json::to_vec(renewal).unwrap_or_default(),
            Message::Rail(word) => serde_json::to_vec(word).unwrap_or_default(),
            Message::Ready | Message::Farewell => Vec::new(),
            Message::Reject(reason) => {
                let mut end = reason.len().min(MESSAGE_LIMIT - 1);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                reason.as_bytes()[..end].to_vec()
            }
        };
        let mut bytes = Vec::with_capacity(1 + body.len());
        bytes.push(self.kind() as u8);
        bytes.extend_from_slice(&body);
        bytes
    }

    /// The message in a record.
    pub(crate) fn decode(record: &[u8]) -> Result<Message, HandshakeError> {
        let kind = Kind::of(record)?;
        let body = &record[1..];
        match kind {
            Kind::Hello => Hello::decode(body).map(Message::Hello),
            Kind::Accept => Hello::decode(body).map(Message::Accept),
            Kind::Renew => Renewal::decode(body).map(|renewal| Message::Renew(Box::new(renewal))),
            Kind::Rail => RailWord::decode(body).map(Message::Rail),
            Kind::Reject => Ok(Message::Reject(String::from_utf8_lossy(body).into_owned())),
            Kind::Ready | Kind::Farewell if !body.is_empty() => Err(HandshakeError::Unexpected(kind as u8)),
            Kind::Ready => Ok(Message::Ready),
            Kind::Farewell => Ok(Message::Farewell),
        }
    }
}

/// Longest message in bytes: a hello takes some 400, with all rails 3000, and a later release may say more.
pub(crate) const MESSAGE_LIMIT: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hello::tests::hello;
    use super::super::hello::{RAILS_LIMIT, RailNews};
    use super::*;

    #[test]
    fn messages_round_trip() {
        let messages = [
            Message::Hello(hello()),
            Message::Accept(hello()),
            Message::Ready,
            Message::Reject("full".into()),
            Message::Farewell,
            Message::Renew(Box::new(Renewal { hello: hello(), received: u32::MAX, sent: 7, rail: 1 })),
            Message::Rail(RailWord { rail: 7, news: RailNews::Made(hello().address) }),
            Message::Rail(RailWord { rail: 0, news: RailNews::Down }),
            Message::Rail(RailWord { rail: 1, news: RailNews::Ready }),
            Message::Hello(Hello { rails: vec![None, Some(hello().address)], ..hello() }),
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        let address = hello().address;
        let wide = Message::Hello(Hello { rails: vec![Some(address); RAILS_LIMIT], ..hello() }).encode();
        assert!(wide.len() <= MESSAGE_LIMIT * 3 / 4, "{} bytes", wide.len());
        let long = Message::Reject("ä".repeat(MESSAGE_LIMIT)).encode();
        assert!(long.len() <= MESSAGE_LIMIT && Message::decode(&long).is_ok());
    }

    #[test]
    fn what_is_not_valid_is_named() {
        assert_eq!(Message::decode(b""), Err(HandshakeError::Unexpected(0)));
        assert_eq!(Message::decode(b"\x08"), Err(HandshakeError::Unexpected(8)));
        assert!(matches!(Message::decode(b"\x06{}"), Err(HandshakeError::Body(_))));
        assert_eq!(Message::decode(b"\x03more"), Err(HandshakeError::Unexpected(3)));
        assert!(matches!(Message::decode(b"\x01{}"), Err(HandshakeError::Body(_))));
    }

    proptest! {
        #[test]
        fn any_record_is_decoded_or_refused(record in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&record);
        }
    }
}
