//! What is said over one stream, without the stream: bytes in, messages out, and the other way round. First a preface from
//! each side in the clear, then keys if there is a cluster key, then messages in records, each when it is due.

mod guarded;
mod keys;
mod talk;
#[cfg(test)]
mod tests;

use core::fmt;
use core::time::Duration;

use zeroize::Zeroizing;

use super::error::HandshakeError;
use super::hello::Features;
use super::key::ClusterKey;
use super::message::{Kind, MESSAGE_LIMIT, Message};
use super::preface::{PREFACE_BYTES, Preface};
pub use guarded::Guarded;
use keys::{Cipher, EXCHANGE_BYTES, Exchange, TAG_BYTES};
use talk::Talk;

/// One end of a stream.
///
/// A record is a length in two bytes, little-endian, and so many bytes: a message, or what it was encrypted to.
#[derive(Debug)]
pub(crate) struct Channel {
    side: Side,
    stage: Stage,
    /// What messages go through, once keys are exchanged; without a cluster key nothing.
    cipher: Option<Cipher>,
    /// What both sides have, of those that have said so.
    features: Features,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// This side called.
    Caller,
    /// This side was called.
    Listener,
}

/// What keeps strangers out: the key of the cluster, and bytes that nobody knows and no other stream is given.
pub(crate) struct Secret {
    pub(crate) key: ClusterKey,
    pub(crate) entropy: Zeroizing<[u8; 32]>,
}

/// Something that the peer has said.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// It speaks this protocol, and has the same key or needs none. Of a caller's stream: its hello is due.
    Agreed,
    /// It has no room now; this side may come back after that time.
    Busy(Duration),
    /// A message that was due.
    Message(Message),
}

/// How far a stream is.
#[derive(Debug)]
enum Stage {
    /// The peer's preface is awaited.
    Preface(Option<Secret>),
    /// The peer's part of the exchange of keys is awaited.
    Keys(Box<Exchange>),
    /// Messages are exchanged.
    Talk(Talk),
    /// Something went wrong. Nothing more is heard or said.
    Over,
}

impl Channel {
    /// A stream that was just connected. What both sides say first stands in [`output`](Channel::output), or will, once
    /// the caller was heard.
    pub(crate) fn new(side: Side, secret: Option<Secret>) -> Self {
        let output = match side {
            Side::Caller => Preface::ours(secret.is_some()).encode().to_vec(),
            Side::Listener => Vec::new(),
        };
        let (stage, features) = (Stage::Preface(secret), Features::ALL);
        Channel { side, stage, cipher: None, features, input: Vec::new(), output }
    }

    /// Bytes that came.
    pub(crate) fn take_in(&mut self, bytes: &[u8]) {
        if !matches!(self.stage, Stage::Over) {
            self.input.extend_from_slice(bytes);
        }
    }

    /// What is to be written; what was is taken out by the caller.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// The next of what the peer has said, or `None` if no more of it is there. After an error there is nothing more, but
    /// perhaps something to write, which tells the peer.
    pub(crate) fn hear(&mut self) -> Result<Option<Heard>, HandshakeError> {
        let heard = self.hear_one();
        if heard.is_err() {
            self.stage = Stage::Over;
            self.input = Vec::new();
        }
        heard
    }

    /// Says a message. False if it is not due, and nothing was said.
    pub(crate) fn say(&mut self, message: &Message) -> bool {
        let Stage::Talk(talk) = &mut self.stage else { return false };
        let Some(next) = talk.said(message.kind()) else { return false };
        let needed = match message.kind() {
            Kind::Farewell => Features::FAREWELL,
            Kind::Renew => Features::RECOVERY,
            Kind::Rail => Features::RAILS,
            _ => Features::default(),
        };
        if !self.features.has(needed) {
            return false;
        }
        *talk = next;
        let record = match &mut self.cipher {
            Some(cipher) => cipher.seal(&message.encode()),
            None => Some(message.encode()),
        };
        if let Some(record) = &record {
            put_record(&mut self.output, record);
        }
        record.is_some()
    }

    /// Gives back memory that an idle stream does not need.
    pub(crate) fn shrink(&mut self) {
        self.input.shrink_to_fit();
        self.output.shrink_to_fit();
    }

    fn hear_one(&mut self) -> Result<Option<Heard>, HandshakeError> {
        loop {
            match &mut self.stage {
                Stage::Preface(secret) => {
                    let Some(theirs) = Preface::decode(&self.input)? else { return Ok(None) };
                    let secret = secret.take();
                    let bytes: Vec<_> = self.input.drain(..PREFACE_BYTES).collect();
                    if let Some(heard) = self.greeted(&theirs, &bytes, secret)? {
                        return Ok(Some(heard));
                    }
                }
                Stage::Keys(_) => {
                    let Some(record) = take_record(&mut self.input, EXCHANGE_BYTES)? else { return Ok(None) };
                    self.exchange(&record)?;
                    return Ok(Some(Heard::Agreed));
                }
                Stage::Talk(talk) => {
                    let limit = MESSAGE_LIMIT + if self.cipher.is_some() { TAG_BYTES } else { 0 };
                    let Some(mut record) = take_record(&mut self.input, limit)? else { return Ok(None) };
                    if let Some(cipher) = &mut self.cipher {
                        record = cipher.open(&record)?;
                    }
                    let kind = Kind::of(&record)?;
                    *talk = talk.heard(kind).ok_or(HandshakeError::Unexpected(kind as u8))?;
                    let message = Message::decode(&record)?;
                    if let Message::Hello(hello) | Message::Accept(hello) = &message {
                        self.features = self.features & hello.features;
                    }
                    return Ok(Some(Heard::Message(message)));
                }
                Stage::Over => return Ok(None),
            }
        }
    }

    /// The peer's preface is there.
    fn greeted(
        &mut self,
        theirs: &Preface,
        bytes: &[u8],
        secret: Option<Secret>,
    ) -> Result<Option<Heard>, HandshakeError> {
        if let (Side::Caller, Some(wait)) = (self.side, theirs.busy) {
            self.stage = Stage::Over;
            return Ok(Some(Heard::Busy(wait)));
        }
        let exchange = Exchange::begin(self.side, &[], secret, (theirs, bytes), &mut self.output)?;
        Ok(match exchange {
            Some(exchange) => {
                self.stage = Stage::Keys(Box::new(exchange));
                None
            }
            None => {
                self.stage = Stage::Talk(Talk::first(self.side));
                Some(Heard::Agreed)
            }
        })
    }

    /// The peer's part of the exchange of keys is there.
    fn exchange(&mut self, part: &[u8]) -> Result<(), HandshakeError> {
        let Stage::Keys(exchange) = std::mem::replace(&mut self.stage, Stage::Over) else { return Ok(()) };
        self.cipher = Some(exchange.end(part, &mut self.output)?);
        self.stage = Stage::Talk(Talk::first(self.side));
        Ok(())
    }
}

/// Nothing of it is printed.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn put_record(output: &mut Vec<u8>, record: &[u8]) {
    output.extend_from_slice(&(record.len() as u16).to_le_bytes());
    output.extend_from_slice(record);
}

/// Takes the record at the start of `input`, or `None` if it is not all there.
fn take_record(input: &mut Vec<u8>, limit: usize) -> Result<Option<Vec<u8>>, HandshakeError> {
    let Some((&len, rest)) = input.split_first_chunk() else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes(len));
    if len > limit {
        return Err(HandshakeError::TooLong { len, limit });
    }
    let Some(record) = rest.get(..len) else { return Ok(None) };
    let record = record.to_vec();
    input.drain(..2 + len);
    Ok(Some(record))
}
