//! The keys of a payload that can be read over several rails, which may end at different devices.

use qpair_verbs::{RemoteSlice, Rkey};

use super::wire::WireError;

/// By which key a payload is read over which rail.
///
/// After a ready-to-send's [`Offer`](super::Offer), where the sender's rails are on several devices: a mask of the rails over
/// which it can be read, bit 0 always, in 4 bytes, and then for each rail from 1 on whose bit is set its key, in 4 bytes.
/// Without, the offer's own key is that of all rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailKeys {
    mask: u8,
    keys: [u32; RAILS - 1],
}

/// Rails of a connection at most.
pub(crate) const RAILS: usize = 8;
/// Bytes of all keys.
pub(super) const KEYS_BYTES: usize = 4 * RAILS;

impl RailKeys {
    /// The first rail's key is no other's.
    pub(crate) fn first_alone() -> Self {
        RailKeys { mask: 1, ..RailKeys::default() }
    }

    /// It is read by that key over that rail.
    #[must_use]
    pub(crate) fn with(mut self, rail: usize, key: Rkey) -> Self {
        if let Some(place) = rail.checked_sub(1).and_then(|place| self.keys.get_mut(place)) {
            *place = key.0;
            self.mask |= 1 << rail | 1;
        }
        self
    }

    /// The key for a rail, of a payload whose own key is `first`. `None`: it can not be read over that rail.
    pub(crate) fn on(&self, rail: usize, first: Rkey) -> Option<Rkey> {
        match rail.checked_sub(1) {
            _ if self.mask == 0 => Some(first),
            None => Some(first),
            Some(place) if self.is_on(rail) => self.keys.get(place).map(|&key| Rkey(key)),
            Some(_) => None,
        }
    }

    /// True if there is a key for that rail.
    pub(crate) fn is_on(&self, rail: usize) -> bool {
        self.mask == 0 || rail < RAILS && self.mask >> rail & 1 == 1
    }

    /// Reads what follows an offer; nothing, perhaps.
    ///
    /// # Errors
    /// [`WireError::Short`], or [`WireError::Rails`] for a mask that no sender has.
    pub(super) fn parse(bytes: &[u8]) -> Result<RailKeys, WireError> {
        let (words, rest) = bytes.as_chunks::<4>();
        let Some((mask, keys)) = words.split_first() else {
            return if rest.is_empty() { Ok(RailKeys::default()) } else { Err(short(bytes, 4)) };
        };
        let mask = u32::from_le_bytes(*mask);
        let count = mask.count_ones() as usize;
        if mask & 1 == 0 || mask >> RAILS != 0 {
            return Err(WireError::Rails(mask));
        }
        if keys.len() < count - 1 {
            return Err(short(bytes, 4 * count));
        }
        let rails = (1..RAILS).filter(|rail| mask >> rail & 1 == 1);
        let with = |all: RailKeys, (rail, key): (usize, &[u8; 4])| all.with(rail, Rkey(u32::from_le_bytes(*key)));
        Ok(rails.zip(keys).fold(RailKeys::first_alone(), with))
    }

    /// Writes what follows an offer. Gives how many bytes that takes.
    pub(super) fn emit(&self, into: &mut [u8; KEYS_BYTES]) -> usize {
        if self.mask == 0 {
            return 0;
        }
        let (words, _) = into.as_chunks_mut::<4>();
        let keys = (1..RAILS).filter(|&rail| self.is_on(rail)).map(|rail| self.keys[rail - 1]);
        let all = std::iter::once(u32::from(self.mask)).chain(keys);
        words.iter_mut().zip(all).map(|(place, word)| *place = word.to_le_bytes()).count() * 4
    }
}

/// Memory that a peer may read, over rails too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readable {
    pub(crate) remote: RemoteSlice,
    pub(crate) rails: RailKeys,
}

impl From<RemoteSlice> for Readable {
    /// By one key over all rails.
    fn from(remote: RemoteSlice) -> Self {
        Readable { remote, rails: RailKeys::default() }
    }
}

fn short(bytes: &[u8], needed: usize) -> WireError {
    WireError::Short { len: bytes.len(), needed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_round_trip(keys in proptest::collection::vec(proptest::option::of(any::<u32>()), 0..RAILS), first: u32) {
            let with = |all: RailKeys, (place, key): (usize, &Option<u32>)| match key {
                Some(key) => all.with(place + 1, Rkey(*key)),
                None => all,
            };
            let all = keys.iter().enumerate().fold(RailKeys::first_alone(), with);
            let mut bytes = [0; KEYS_BYTES];
            let len = all.emit(&mut bytes);
            prop_assert_eq!(RailKeys::parse(&bytes[..len]).unwrap(), all);
            prop_assert_eq!(all.on(0, Rkey(first)), Some(Rkey(first)));
            for rail in 1..RAILS + 2 {
                prop_assert_eq!(all.on(rail, Rkey(first)), keys.get(rail - 1).copied().flatten().map(Rkey));
            }
            for less in 1..len {
                prop_assert!(RailKeys::parse(&bytes[..less]).is_err(), "{} of {} bytes", less, len);
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(keys) = RailKeys::parse(&bytes) {
                prop_assert!(keys.on(0, Rkey(1)).is_some());
            }
        }
    }

    #[test]
    fn one_key_is_that_of_all_rails_where_nothing_else_is_said() {
        let keys = RailKeys::default();
        assert!((0..RAILS).all(|rail| keys.on(rail, Rkey(7)) == Some(Rkey(7))));
        assert_eq!(keys.emit(&mut [0; KEYS_BYTES]), 0);
        assert_eq!(RailKeys::parse(&[]), Ok(keys));
        for mask in [0, 2, 0x100, 0xffff_ffff_u32] {
            let bytes = [mask.to_le_bytes(), [0; 4], [0; 4]].concat();
            assert_eq!(RailKeys::parse(&bytes), Err(WireError::Rails(mask)));
        }
    }
}
