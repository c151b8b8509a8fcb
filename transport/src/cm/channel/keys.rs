//! Keys for one stream, from the key of the cluster: Noise with a pre-shared key, NNpsk0. Both sides prove that they have the
//! cluster's key, and no recording of a stream can be played back, or read by who learns that key later.

use core::fmt;

use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher as CipherType, Dh, Hash, Random};
use snow::{Builder, HandshakeState, TransportState};
use zeroize::Zeroizing;

use super::{Secret, Side, put_record};
use crate::cm::error::HandshakeError;
use crate::cm::preface::Preface;

/// An exchange of keys under way. Each side writes one part and reads one, the caller first.
pub(super) struct Exchange {
    side: Side,
    state: HandshakeState,
}

/// What messages go through afterwards.
pub(super) struct Cipher(TransportState);

impl Exchange {
    /// Begins, now that the peer's preface is there, and puts into `output` what that makes due. `None` if neither side has a
    /// key. Both must have seen each other's preface as it was sent, bit by bit, and mean the stream for the same `purpose`.
    pub(super) fn begin(
        side: Side,
        purpose: &[u8],
        secret: Option<Secret>,
        (theirs, bytes): (&Preface, &[u8]),
        output: &mut Vec<u8>,
    ) -> Result<Option<Self>, HandshakeError> {
        let ours = Preface::ours(secret.is_some());
        let prologue = match side {
            Side::Caller => [purpose, &ours.encode(), bytes].concat(),
            // It answers also who does not go with it, so that both can say why.
            Side::Listener => {
                output.extend_from_slice(&ours.encode());
                [purpose, bytes, &ours.encode()].concat()
            }
        };
        ours.agree(theirs)?;
        let Some(secret) = secret else { return Ok(None) };
        let mut exchange = Exchange::new(side, &secret, &prologue)?;
        if side == Side::Caller {
            put_record(output, &exchange.write()?);
        }
        Ok(Some(exchange))
    }

    /// Ends, now that the peer's part is there, and puts into `output` what that makes due.
    pub(super) fn end(mut self, part: &[u8], output: &mut Vec<u8>) -> Result<Cipher, HandshakeError> {
        let read = self.read(part);
        if self.side == Side::Listener {
            // Nothing instead of this side's part: the caller hears that it is the key.
            let part = if read.is_ok() { self.write()? } else { Vec::new() };
            put_record(output, &part);
        }
        read?;
        self.state.into_transport_mode().map(Cipher).map_err(broken)
    }

    /// The `prologue` is what both sides must have seen alike.
    fn new(side: Side, secret: &Secret, prologue: &[u8]) -> Result<Self, HandshakeError> {
        let build = || {
            let params: NoiseParams = PATTERN.parse()?;
            let resolver = Resolver { entropy: secret.entropy.clone() };
            let builder = Builder::with_resolver(params, Box::new(resolver)).prologue(prologue)?;
            let builder = builder.psk(0, secret.key.bytes())?;
            match side {
                Side::Caller => builder.build_initiator(),
                Side::Listener => builder.build_responder(),
            }
        };
        build().map(|state| Exchange { side, state }).map_err(broken)
    }

    /// This side's part.
    fn write(&mut self) -> Result<Vec<u8>, HandshakeError> {
        let mut part = vec![0; EXCHANGE_BYTES];
        let len = self.state.write_message(&[], &mut part).map_err(broken)?;
        part.truncate(len);
        Ok(part)
    }

    /// The peer's part. It can not be read if the peer has another key, or saw other prefaces.
    fn read(&mut self, part: &[u8]) -> Result<(), HandshakeError> {
        let read = self.state.read_message(part, &mut [0; EXCHANGE_BYTES]);
        read.map(|_| ()).map_err(|_| HandshakeError::WrongKey)
    }
}

impl Cipher {
    /// Encrypts a message. `None` after 2^64 - 1 of them.
    pub(super) fn seal(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let mut record = vec![0; message.len() + TAG_BYTES];
        let len = self.0.write_message(message, &mut record).ok()?;
        record.truncate(len);
        Some(record)
    }

    /// Decrypts a message, which must be the peer's next.
    pub(super) fn open(&mut self, record: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        let mut message = vec![0; record.len()];
        let len = self.0.read_message(record, &mut message).map_err(|_| HandshakeError::Tampered)?;
        message.truncate(len);
        Ok(message)
    }
}

/// Nothing of a key is printed.
impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

/// This side's mistake, or that of the library: a peer can bring none of it about.
fn broken(error: snow::Error) -> HandshakeError {
    HandshakeError::Resources(format!("keys could not be exchanged: {error}").into())
}

/// The library's own cryptography, with entropy that is given.
struct Resolver {
    entropy: Zeroizing<[u8; 32]>,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.entropy.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn CipherType>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Random bytes for the one key that a side makes for itself; asked again, there are none.
struct Once(Option<Zeroizing<[u8; 32]>>);

impl Random for Once {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        let entropy = self.0.take().ok_or(snow::Error::Rng)?;
        let taken = entropy.get(..dest.len()).ok_or(snow::Error::Rng)?;
        dest.copy_from_slice(taken);
        Ok(())
    }
}

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Each side's part: a public key, and the tag of an empty payload.
pub(super) const EXCHANGE_BYTES: usize = 48;
/// By how much encrypting makes a message longer.
pub(super) const TAG_BYTES: usize = 16;
