//! Where a peer's memory is.

use qpair_verbs::{RemoteSlice, Rkey};

use super::steps::Span;
use crate::plan::Buffer;

/// A peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) input: Option<RemoteSlice>,
    pub(super) data: Option<RemoteSlice>,
    pub(super) scratch: Option<RemoteSlice>,
}

impl Reach {
    /// A part of it, if it lies within.
    #[inline]
    pub(super) fn part(&self, span: Span) -> Option<RemoteSlice> {
        let whole = match span.buffer {
            Buffer::Input => self.input?,
            Buffer::Data => self.data?,
            Buffer::Scratch => self.scratch?,
        };
        let (start, end) = (span.start as u64, span.start as u64 + span.len as u64);
        (end <= whole.len).then(|| whole.slice(start..end))
    }

    /// In the bytes of a message: which buffers there are, one bit each, and where each is.
    pub(super) fn encode(self, into: &mut [u8; REACH]) -> &[u8] {
        let slices = [self.input, self.data, self.scratch];
        let (mask, parts) = into.split_at_mut(1);
        let (parts, _) = parts.as_chunks_mut::<SLICE>();
        let mut len = 1;
        for (bit, slice) in slices.into_iter().enumerate().filter_map(|(bit, slice)| Some((bit, slice?))) {
            let part = &mut parts[(len - 1) / SLICE];
            part[..8].copy_from_slice(&slice.addr.to_le_bytes());
            part[8..16].copy_from_slice(&slice.len.to_le_bytes());
            part[16..].copy_from_slice(&slice.rkey.0.to_le_bytes());
            mask[0] |= 1 << bit;
            len += SLICE;
        }
        &into[..len]
    }

    /// From a peer's message; `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Reach> {
        let (&mask, parts) = bytes.split_first()?;
        let (parts, []) = parts.as_chunks::<SLICE>() else { return None };
        if mask > 7 || mask.count_ones() as usize != parts.len() {
            return None;
        }
        let mut parts = parts.iter();
        let mut slice = |bit: u8| {
            if mask >> bit & 1 == 0 {
                return Some(None);
            }
            let (words, rkey) = parts.next()?.as_chunks::<8>();
            let rkey = Rkey(u32::from_le_bytes(rkey.try_into().ok()?));
            let (addr, len) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
            addr.checked_add(len).map(|_| Some(RemoteSlice { addr, len, rkey }))
        };
        Some(Reach { input: slice(0)?, data: slice(1)?, scratch: slice(2)? })
    }
}

/// Bytes of a remote slice, and of those of all buffers.
const SLICE: usize = 20;
pub(super) const REACH: usize = 1 + 3 * SLICE;

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(addr: u64, len: u64) -> Option<RemoteSlice> {
        Some(RemoteSlice { addr, len, rkey: Rkey(0xdead_beef) })
    }

    #[test]
    fn memory_is_named_and_found_again() {
        for mask in 0..8 {
            let has = |bit: u32, slice| if mask >> bit & 1 == 1 { slice } else { None };
            let (input, data, scratch) =
                (has(0, slice(7, 8)), has(1, slice(0x1234_5678_9abc, 100)), has(2, slice(9, 0)));
            let reach = Reach { input, data, scratch };
            let mut bytes = [0; REACH];
            assert_eq!(Reach::decode(reach.encode(&mut bytes)), Some(reach));
        }
        for (mask, len) in [(0, 1), (0, 20), (1, 0), (3, 20), (1, 19), (8, 20), (255, 60), (7, 80)] {
            let mut bytes = vec![0; 1 + len];
            bytes[0] = mask;
            assert_eq!(Reach::decode(&bytes), None, "{mask} {len}");
        }
        assert_eq!(Reach::decode(&[]), None);
    }

    #[test]
    fn memory_that_ends_beyond_all_addresses_is_refused() {
        let beyond = slice(u64::MAX - 10, 100);
        let mut bytes = [0; REACH];
        for reach in
            [Reach { data: beyond, ..Reach::default() }, Reach { data: slice(64, 100), scratch: beyond, input: None }]
        {
            assert_eq!(Reach::decode(reach.encode(&mut bytes)), None);
        }
    }

    #[test]
    fn a_part_outside_is_refused() {
        let reach = Reach { data: slice(64, 100), ..Reach::default() };
        let part = |buffer, start, len| reach.part(Span { buffer, start, len }).map(|slice| (slice.addr, slice.len));
        assert_eq!(part(Buffer::Data, 60, 40), Some((124, 40)));
        assert_eq!(part(Buffer::Data, 61, 40), None);
        assert_eq!(part(Buffer::Scratch, 0, 1), None);
    }
}
