//! The keys of a payload that can be read over several rails, which may end at different devices.

use std::ops::Range;

use qpair_verbs::{RemoteSlice, Rkey};
use serde::{Deserialize, Serialize};

use super::wire::WireError;

/// By which key a payload is read over which rail.
///
/// After a ready-to-send's [`Offer`](super::Offer), where the sender's rails are on several devices: a mask of the rails over
/// which it can be read, bit 0 always, in 4 bytes, and then for each rail from 1 on whose bit is set its key, in 4 bytes.
/// Without, the offer's own key is that of all rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailKeys {
    keys: [u32; RAILS - 1],
    /// The rails from 1 on that have a key, as bits.
    rails: u8,
    /// Something is said of rails: the first has the payload's own key. A type with values to spare, in which what holds one of
    /// these keeps which of its variants it is.
    several: bool,
}

/// Rails of a connection at most.
pub(crate) const RAILS: usize = 8;
/// Bytes of all keys.
pub(super) const KEYS_BYTES: usize = 4 * RAILS;

impl RailKeys {
    /// The first rail's key is no other's.
    pub(crate) fn first_alone() -> Self {
        RailKeys { several: true, ..RailKeys::default() }
    }

    /// It is read by that key over that rail.
    #[must_use]
    pub(crate) fn with(mut self, rail: usize, key: Rkey) -> Self {
        if let Some(place) = rail.checked_sub(1).and_then(|place| self.keys.get_mut(place)) {
            *place = key.0;
            self.rails |= 1 << rail;
            self.several = true;
        }
        self
    }

    /// The key for a rail, of a payload whose own key is `first`. `None`: it can not be read over that rail.
    pub(crate) fn on(&self, rail: usize, first: Rkey) -> Option<Rkey> {
        match rail.checked_sub(1) {
            _ if self.is_one() => Some(first),
            None => Some(first),
            Some(place) if self.is_on(rail) => self.keys.get(place).map(|&key| Rkey(key)),
            Some(_) => None,
        }
    }

    /// True if nothing is said of rails.
    pub(crate) fn is_one(&self) -> bool {
        !self.several
    }

    /// True if there is a key for that rail.
    pub(crate) fn is_on(&self, rail: usize) -> bool {
        self.is_one() || rail < RAILS && self.mask() >> rail & 1 == 1
    }

    fn mask(&self) -> u8 {
        self.rails | u8::from(self.several)
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
        if self.is_one() {
            return 0;
        }
        let (words, _) = into.as_chunks_mut::<4>();
        let keys = (1..RAILS).filter(|&rail| self.is_on(rail)).map(|rail| self.keys[rail - 1]);
        let all = std::iter::once(u32::from(self.mask())).chain(keys);
        words.iter_mut().zip(all).map(|(place, word)| *place = word.to_le_bytes()).count() * 4
    }
}

/// A range of memory that a worker has exposed, as its peers name it: plain data, to be sent to them by any means.
///
/// [`Worker::remote`](crate::Worker::remote) makes it, with a key for each device that the worker's rails are on: what is done
/// to it goes on over another device when one fails. A [`RemoteSlice`] will do where there is one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    pub(crate) remote: RemoteSlice,
    #[serde(default)]
    pub(crate) rails: RailKeys,
}

impl RemoteMemory {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.remote.len
    }

    /// True if there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.remote.len == 0
    }

    /// A range of it, in bytes.
    ///
    /// # Panics
    /// As [`RemoteSlice::slice`], if the range does not lie in it.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> RemoteMemory {
        RemoteMemory { remote: self.remote.slice(range), rails: self.rails }
    }

    /// True if it has keys of rails.
    pub(crate) fn has_keys(&self) -> bool {
        !self.rails.is_one()
    }

    /// What a queue pair on that rail names it by. `ours`: the rails on which its own key counts where it has no others, as
    /// bits: those that are on one device with the first.
    #[inline]
    pub(crate) fn over(&self, rail: usize, ours: u8) -> Option<RemoteSlice> {
        if rail == 0 {
            return Some(self.remote);
        }
        let is_known = self.has_keys() || ours >> rail & 1 == 1;
        let rkey = self.rails.on(rail, self.remote.rkey).filter(|_| is_known)?;
        Some(RemoteSlice { rkey, ..self.remote })
    }
}

impl From<RemoteSlice> for RemoteMemory {
    /// By one key, which is that of the first rail's device.
    fn from(remote: RemoteSlice) -> Self {
        RemoteMemory { remote, rails: RailKeys::default() }
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
    fn memory_without_keys_of_rails_is_reached_over_the_first_ones_device() {
        let remote = RemoteSlice { addr: 64, len: 10, rkey: Rkey(7) };
        let one = RemoteMemory::from(remote);
        let keys = (0..3).map(|rail| one.over(rail, 0b011).map(|remote| remote.rkey));
        assert!(keys.eq([Some(Rkey(7)), Some(Rkey(7)), None]));
        let both = RemoteMemory { rails: RailKeys::first_alone().with(2, Rkey(9)), ..one };
        let keys = (0..3).map(|rail| both.slice(2..4).over(rail, 0b111).map(|remote| (remote.addr, remote.rkey)));
        assert!(keys.eq([Some((66, Rkey(7))), None, Some((66, Rkey(9)))]));
        for memory in [one, both] {
            let text = serde_json::to_string(&memory).unwrap();
            assert_eq!(serde_json::from_str::<RemoteMemory>(&text).unwrap(), memory);
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
