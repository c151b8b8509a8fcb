//! How every stream begins, in the clear and in both directions: who speaks, which versions, and whether it has a key. Of
//! this form for ever, so that any two releases can tell each other that they do not go together.

use core::time::Duration;

use super::error::{HandshakeError, Versions};
use crate::engine::PROTOCOL_VERSION;

/// What a side says first.
///
/// On the wire: `QPTR`, lowest and highest version, flags in two bytes, milliseconds in four, little-endian. Flags that this
/// side does not know are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preface {
    pub(crate) versions: Versions,
    /// It has a cluster key, and asks for one.
    pub(crate) has_key: bool,
    /// It has no room for a caller now, who may come back after that time.
    pub(crate) busy: Option<Duration>,
}

impl Preface {
    /// This side's.
    pub(crate) fn ours(has_key: bool) -> Self {
        Preface { versions: VERSIONS, has_key, busy: None }
    }

    /// What a listener says that has no room.
    pub(crate) fn busy(has_key: bool, wait: Duration) -> Self {
        Preface { busy: Some(wait), ..Preface::ours(has_key) }
    }

    pub(crate) fn encode(&self) -> [u8; PREFACE_BYTES] {
        let mut bytes = [0; PREFACE_BYTES];
        let flags = (u16::from(self.has_key) * HAS_KEY) | (u16::from(self.busy.is_some()) * BUSY);
        let wait = self.busy.map_or(0, |wait| u32::try_from(wait.as_millis()).unwrap_or(u32::MAX));
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&[self.versions.lowest, self.versions.highest]);
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..].copy_from_slice(&wait.to_le_bytes());
        bytes
    }

    /// The preface at the start of `bytes`, or `None` if there is not enough of it yet.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, HandshakeError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(HandshakeError::Magic);
        }
        let Some(&[_, _, _, _, lowest, highest, a, b, rest @ ..]) = bytes.first_chunk::<PREFACE_BYTES>() else {
            return Ok(None);
        };
        let flags = u16::from_le_bytes([a, b]);
        let wait = Duration::from_millis(u32::from_le_bytes(rest).into());
        Ok(Some(Preface {
            versions: Versions { lowest, highest },
            has_key: flags & HAS_KEY != 0,
            busy: (flags & BUSY != 0).then_some(wait),
        }))
    }

    /// Whether both sides can go on; the highest version that both speak.
    pub(crate) fn agree(&self, theirs: &Preface) -> Result<u8, HandshakeError> {
        let (ours, other) = (self.versions, theirs.versions);
        let version = ours.highest.min(other.highest);
        if version < ours.lowest.max(other.lowest) {
            return Err(HandshakeError::NoCommonVersion { ours, theirs: other });
        }
        match (self.has_key, theirs.has_key) {
            (true, false) => Err(HandshakeError::PeerHasNoKey),
            (false, true) => Err(HandshakeError::PeerWantsKey),
            _ => Ok(version),
        }
    }
}

/// Bytes of a preface.
pub(crate) const PREFACE_BYTES: usize = 12;
/// What this release speaks: one version of the messages, and the hello before them. Version 1 had no preface, and began with `QPTR` and
/// its number.
pub(crate) const VERSIONS: Versions = Versions { lowest: PROTOCOL_VERSION, highest: PROTOCOL_VERSION };
const MAGIC: &[u8; 4] = b"QPTR";
const HAS_KEY: u16 = 1;
const BUSY: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks(lowest: u8, highest: u8) -> Preface {
        Preface { versions: Versions { lowest, highest }, has_key: false, busy: None }
    }

    #[test]
    fn prefaces_round_trip_however_they_are_cut() {
        let wait = Duration::from_millis(123);
        for preface in [Preface::ours(false), Preface::ours(true), Preface::busy(true, wait), speaks(0, 255)] {
            let bytes = preface.encode();
            for end in 0..bytes.len() {
                assert_eq!(Preface::decode(&bytes[..end]), Ok(None), "{end}");
            }
            assert_eq!(Preface::decode(&bytes), Ok(Some(preface)));
            assert_eq!(Preface::decode(&[&bytes[..], b"more"].concat()), Ok(Some(preface)));
        }
        let mut flags = Preface::ours(true).encode();
        (flags[6], flags[7]) = (0b1111_1101, 0xff);
        assert_eq!(Preface::decode(&flags), Ok(Some(Preface::ours(true))), "others are ignored");
        assert_eq!(Preface::decode(b"GET / HTTP/1.1"), Err(HandshakeError::Magic));
        assert_eq!(Preface::decode(b"X"), Err(HandshakeError::Magic));
        assert_eq!(Preface::busy(false, Duration::MAX).encode()[8..], [0xff; 4]);
    }

    #[test]
    fn the_highest_version_of_both_is_taken_and_none_in_common_is_named() {
        let cases = [
            ((2, 2), (2, 2), Some(2)),
            ((2, 5), (3, 9), Some(5)),
            ((3, 9), (2, 5), Some(5)),
            ((2, 3), (3, 4), Some(3)),
            ((2, 2), (1, 1), None),
            ((2, 2), (3, 9), None),
            ((5, 4), (4, 5), None),
        ];
        for (ours, theirs, expected) in cases {
            let (ours, theirs) = (speaks(ours.0, ours.1), speaks(theirs.0, theirs.1));
            let none = HandshakeError::NoCommonVersion { ours: ours.versions, theirs: theirs.versions };
            assert_eq!(ours.agree(&theirs), expected.ok_or(none));
        }
        let words = speaks(2, 2).agree(&speaks(3, 9)).unwrap_err().to_string();
        assert!(words.contains("versions 3 to 9") && words.contains("this side version 2"), "{words}");
    }

    /// They would find out by the first message, after both had said that they are connected.
    #[test]
    fn who_does_not_understand_the_messages_is_told_at_once() {
        for other in (0..=u8::MAX).filter(|&other| other != PROTOCOL_VERSION) {
            let agreed = Preface::ours(false).agree(&speaks(other, other));
            assert!(matches!(agreed, Err(HandshakeError::NoCommonVersion { .. })), "{agreed:?}");
        }
    }

    #[test]
    fn a_key_on_one_side_only_is_named_on_each() {
        let (with, without) = (Preface::ours(true), Preface::ours(false));
        assert_eq!(with.agree(&without), Err(HandshakeError::PeerHasNoKey));
        assert_eq!(without.agree(&with), Err(HandshakeError::PeerWantsKey));
        assert!(with.agree(&with).is_ok() && without.agree(&without).is_ok());
    }
}
