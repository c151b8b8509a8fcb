//! A stream for what is no connection of queue pairs: the same preface and the same exchange of keys, then bytes.

use zeroize::Zeroizing;

use super::keys::{Cipher, EXCHANGE_BYTES, Exchange, TAG_BYTES};
use super::{Secret, Side, put_record, take_record};
use crate::cm::error::HandshakeError;
use crate::cm::key::ClusterKey;
use crate::cm::preface::{PREFACE_BYTES, Preface};

/// One end of a stream between two that have the same [`ClusterKey`], or none both: bytes that came in, bytes to be sent out, and
/// no I/O. It is for what a program has to say beside its connections, as ranks do when they meet.
///
/// Each side first says whether it has a key. With one, both prove that they have it, as workers do, and what follows is
/// encrypted; without, it goes as it is. A stranger can make it keep 64 KiB at most before
/// [`hear`](Guarded::hear) is called, which the caller decides by how much it takes in at once.
///
/// ```
/// use qpair_transport::{ClusterKey, Guarded};
///
/// let key = ClusterKey::generate()?;
/// // The last argument is random, and other for each stream.
/// let mut caller = Guarded::caller(b"greetings", Some((key.clone(), [1; 32])));
/// let mut listener = Guarded::listener(b"greetings", Some((key, [2; 32])));
/// caller.say(b"hello");
/// let heard = loop {
///     listener.take_in(&std::mem::take(caller.output()));
///     if let Some(heard) = listener.hear()? {
///         break heard;
///     }
///     caller.take_in(&std::mem::take(listener.output()));
///     assert_eq!(caller.hear()?, None);
/// };
/// assert_eq!(heard, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Guarded {
    side: Side,
    /// What the stream is for. With a key, both sides must mean the same.
    purpose: &'static [u8],
    stage: Stage,
    input: Vec<u8>,
    output: Vec<u8>,
    /// What was said before it could be sent.
    early: Zeroizing<Vec<u8>>,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// The peer's preface is awaited.
    Preface(Option<Secret>),
    /// The peer's part of the exchange of keys is awaited.
    Keys(Box<Exchange>),
    /// Both have the same key.
    Sealed(Box<Cipher>),
    /// Both have none.
    Open,
    /// Something went wrong. Nothing more is heard or said.
    Over,
}

impl Guarded {
    /// The end of the side that connected. `key` is that of the cluster, and 32 random bytes for this stream alone.
    pub fn caller(purpose: &'static [u8], key: Option<(ClusterKey, [u8; 32])>) -> Self {
        Self::new(Side::Caller, purpose, key)
    }

    /// The end of the side that was connected to.
    pub fn listener(purpose: &'static [u8], key: Option<(ClusterKey, [u8; 32])>) -> Self {
        Self::new(Side::Listener, purpose, key)
    }

    fn new(side: Side, purpose: &'static [u8], key: Option<(ClusterKey, [u8; 32])>) -> Self {
        let secret = key.map(|(key, entropy)| Secret { key, entropy: Zeroizing::new(entropy) });
        let output = match side {
            Side::Caller => Preface::ours(secret.is_some()).encode().to_vec(),
            Side::Listener => Vec::new(),
        };
        let early = Zeroizing::new(Vec::new());
        Guarded { side, purpose, stage: Stage::Preface(secret), input: Vec::new(), output, early }
    }

    /// Bytes that came.
    pub fn take_in(&mut self, bytes: &[u8]) {
        if !matches!(self.stage, Stage::Over) {
            self.input.extend_from_slice(bytes);
        }
    }

    /// What is to be sent; the caller takes out what was.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Says something, once the peer is known to have the key.
    pub fn say(&mut self, bytes: &[u8]) {
        match &mut self.stage {
            Stage::Preface(_) | Stage::Keys(_) => self.early.extend_from_slice(bytes),
            Stage::Sealed(cipher) => {
                for part in bytes.chunks(PART) {
                    match cipher.seal(part) {
                        Some(record) => put_record(&mut self.output, &record),
                        None => {
                            self.stage = Stage::Over;
                            return;
                        }
                    }
                }
            }
            Stage::Open => self.output.extend_from_slice(bytes),
            Stage::Over => {}
        }
    }

    /// What the peer has said, as far as it is there: some of its bytes, which may be cut anywhere. It is not empty.
    ///
    /// # Errors
    /// [`HandshakeError`] if the peer speaks something else, has another key or none, or was tampered with. Then there may still
    /// be something to send, which tells the peer.
    pub fn hear(&mut self) -> Result<Option<Vec<u8>>, HandshakeError> {
        let heard = self.hear_one();
        if heard.is_err() {
            self.stage = Stage::Over;
            self.input = Vec::new();
        }
        heard
    }

    fn hear_one(&mut self) -> Result<Option<Vec<u8>>, HandshakeError> {
        loop {
            match &mut self.stage {
                Stage::Preface(secret) => {
                    let Some(theirs) = Preface::decode(&self.input)? else { return Ok(None) };
                    let secret = secret.take();
                    let bytes: Vec<_> = self.input.drain(..PREFACE_BYTES).collect();
                    self.greeted(&theirs, &bytes, secret)?;
                }
                Stage::Keys(_) => {
                    let Some(record) = take_record(&mut self.input, EXCHANGE_BYTES)? else { return Ok(None) };
                    self.exchange(&record)?;
                }
                Stage::Sealed(cipher) => {
                    let Some(record) = take_record(&mut self.input, PART + TAG_BYTES)? else { return Ok(None) };
                    let heard = cipher.open(&record)?;
                    if !heard.is_empty() {
                        return Ok(Some(heard));
                    }
                }
                Stage::Open => return Ok(Some(std::mem::take(&mut self.input)).filter(|heard| !heard.is_empty())),
                Stage::Over => return Ok(None),
            }
        }
    }

    /// The peer's preface is there.
    fn greeted(&mut self, theirs: &Preface, bytes: &[u8], secret: Option<Secret>) -> Result<(), HandshakeError> {
        match Exchange::begin(self.side, self.purpose, secret, (theirs, bytes), &mut self.output)? {
            Some(exchange) => self.stage = Stage::Keys(Box::new(exchange)),
            None => self.agreed(Stage::Open),
        }
        Ok(())
    }

    /// The peer's part of the exchange of keys is there.
    fn exchange(&mut self, part: &[u8]) -> Result<(), HandshakeError> {
        let Stage::Keys(exchange) = std::mem::replace(&mut self.stage, Stage::Over) else { return Ok(()) };
        let cipher = exchange.end(part, &mut self.output)?;
        self.agreed(Stage::Sealed(Box::new(cipher)));
        Ok(())
    }

    fn agreed(&mut self, stage: Stage) {
        self.stage = stage;
        let early = std::mem::take(&mut self.early);
        self.say(&early);
    }
}

/// Bytes of a record at most, before it is encrypted: a record's length has two bytes.
const PART: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8, entropy: u8) -> Option<(ClusterKey, [u8; 32])> {
        Some((ClusterKey::from_bytes([byte; 32]), [entropy; 32]))
    }

    /// Carries what both have to say until nothing more comes; what each heard, or why it heard no more.
    fn settle(ends: [&mut Guarded; 2]) -> [Result<Vec<u8>, HandshakeError>; 2] {
        let mut heard = [Ok(Vec::new()), Ok(Vec::new())];
        for _ in 0..4 {
            for to in [1, 0] {
                let bytes = std::mem::take(ends[1 - to].output());
                ends[to].take_in(&bytes);
                while let Ok(all) = &mut heard[to] {
                    match ends[to].hear() {
                        Ok(Some(more)) => all.extend(more),
                        Ok(None) => break,
                        Err(error) => heard[to] = Err(error),
                    }
                }
            }
        }
        heard
    }

    #[test]
    fn bytes_go_both_ways_with_a_key_and_without() {
        let long: Vec<u8> = (0..200_000_u32).map(|at| at as u8).collect();
        for has_key in [false, true] {
            let mut caller = Guarded::caller(b"test", key(7, 1).filter(|_| has_key));
            let mut listener = Guarded::listener(b"test", key(7, 2).filter(|_| has_key));
            caller.say(&long);
            listener.say(b"early");
            assert_eq!(settle([&mut caller, &mut listener]), [Ok(b"early".to_vec()), Ok(long.clone())]);
            listener.say(b"late");
            assert_eq!(listener.output().windows(4).any(|part| part == b"late"), !has_key);
            assert_eq!(settle([&mut caller, &mut listener]), [Ok(b"late".to_vec()), Ok(Vec::new())]);
        }
    }

    #[test]
    fn both_hear_what_is_wrong_with_their_keys_and_nothing_is_said_before() {
        let ends = |ours, theirs| {
            let (mut caller, mut listener) = (Guarded::caller(b"test", ours), Guarded::listener(b"test", theirs));
            caller.say(b"secret");
            listener.say(b"secret");
            settle([&mut caller, &mut listener])
        };
        let (without, asked) = (HandshakeError::PeerHasNoKey, HandshakeError::PeerWantsKey);
        assert_eq!(ends(None, key(7, 2)), [Err(asked.clone()), Err(without.clone())]);
        assert_eq!(ends(key(7, 1), None), [Err(without), Err(asked)]);
        assert_eq!(ends(key(7, 1), key(8, 2)), [Err(HandshakeError::WrongKey), Err(HandshakeError::WrongKey)]);
    }

    #[test]
    fn a_stream_for_something_else_is_not_taken() {
        let (mut caller, mut listener) = (Guarded::caller(b"one", key(7, 1)), Guarded::listener(b"other", key(7, 2)));
        assert_eq!(settle([&mut caller, &mut listener]), [(); 2].map(|()| Err(HandshakeError::WrongKey)));
        let mut listener = Guarded::listener(b"test", key(7, 2));
        listener.take_in(b"GET / HTTP/1.1\r\n");
        assert_eq!(listener.hear(), Err(HandshakeError::Magic));
        assert_eq!(listener.hear(), Ok(None));
    }

    #[test]
    fn what_was_changed_on_the_way_is_not_heard() {
        let (mut caller, mut listener) = (Guarded::caller(b"test", key(7, 1)), Guarded::listener(b"test", key(7, 2)));
        assert!(settle([&mut caller, &mut listener]).iter().all(Result::is_ok));
        caller.say(b"hello");
        *caller.output().last_mut().unwrap() ^= 1;
        listener.take_in(&std::mem::take(caller.output()));
        assert_eq!(listener.hear(), Err(HandshakeError::Tampered));
    }
}
