//! Where a peer's memory is.

use qpair_verbs::{RemoteSlice, Rkey};

use super::compile::Span;
use crate::plan::Buffer;

/// A peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) data: RemoteSlice,
    pub(super) scratch: Option<RemoteSlice>,
}

impl Reach {
    /// A part of it, if it lies within.
    #[inline]
    pub(super) fn part(&self, span: Span) -> Option<RemoteSlice> {
        let whole = match span.buffer {
            Buffer::Data => self.data,
            Buffer::Scratch => self.scratch?,
        };
        let (start, end) = (span.start as u64, span.start as u64 + span.len as u64);
        (end <= whole.len).then(|| whole.slice(start..end))
    }

    /// In the bytes of a message.
    pub(super) fn encode(self, into: &mut [u8; REACH]) -> &[u8] {
        let slices = [Some(self.data), self.scratch];
        let (parts, _) = into.as_chunks_mut::<SLICE>();
        for (part, slice) in parts.iter_mut().zip(slices.into_iter().flatten()) {
            part[..8].copy_from_slice(&slice.addr.to_le_bytes());
            part[8..16].copy_from_slice(&slice.len.to_le_bytes());
            part[16..].copy_from_slice(&slice.rkey.0.to_le_bytes());
        }
        if self.scratch.is_some() { into } else { &into[..SLICE] }
    }

    /// From a peer's message; `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Reach> {
        let (parts, []) = bytes.as_chunks::<SLICE>() else { return None };
        let slice = |part: &[u8; SLICE]| {
            let (words, rkey) = part.as_chunks::<8>();
            let rkey = Rkey(u32::from_le_bytes(rkey.try_into().ok()?));
            let (addr, len) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
            addr.checked_add(len).map(|_| RemoteSlice { addr, len, rkey })
        };
        match parts {
            [data] => Some(Reach { data: slice(data)?, scratch: None }),
            [data, scratch] => Some(Reach { data: slice(data)?, scratch: Some(slice(scratch)?) }),
            _ => None,
        }
    }
}

/// Bytes of a remote slice, and of those of data and scratch.
const SLICE: usize = 20;
pub(super) const REACH: usize = 2 * SLICE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_named_and_found_again() {
        let data = RemoteSlice { addr: 0x1234_5678_9abc, len: 100, rkey: Rkey(0xdead_beef) };
        for scratch in [None, Some(RemoteSlice { addr: 7, len: 8, rkey: Rkey(9) })] {
            let reach = Reach { data, scratch };
            let mut bytes = [0; REACH];
            assert_eq!(Reach::decode(reach.encode(&mut bytes)), Some(reach));
        }
        for len in [0, 1, 19, 21, 60] {
            assert_eq!(Reach::decode(&vec![0; len]), None);
        }
    }

    #[test]
    fn memory_that_ends_beyond_all_addresses_is_refused() {
        let whole = RemoteSlice { addr: 64, len: 100, rkey: Rkey(1) };
        let beyond = RemoteSlice { addr: u64::MAX - 10, len: 100, rkey: Rkey(1) };
        let mut bytes = [0; REACH];
        for reach in [Reach { data: beyond, scratch: None }, Reach { data: whole, scratch: Some(beyond) }] {
            assert_eq!(Reach::decode(reach.encode(&mut bytes)), None);
        }
    }

    #[test]
    fn a_part_outside_is_refused() {
        let reach = Reach { data: RemoteSlice { addr: 64, len: 100, rkey: Rkey(1) }, scratch: None };
        let part = |buffer, start, len| reach.part(Span { buffer, start, len }).map(|slice| (slice.addr, slice.len));
        assert_eq!(part(Buffer::Data, 60, 40), Some((124, 40)));
        assert_eq!(part(Buffer::Data, 61, 40), None);
        assert_eq!(part(Buffer::Scratch, 0, 1), None);
    }
}
