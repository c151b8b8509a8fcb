//! The local memory of a request, as the device is told of it.

use std::ops::Range;

use qpair_verbs_sys as sys;

use crate::error::PostError;
use crate::memory::{Local, MAX_SGE, sge};

/// The pieces of local memory, as the device is told of them.
pub(super) struct Pieces {
    pub(super) pieces: [sys::ibv_sge; MAX_SGE],
    pub(super) count: i32,
}

/// Memory that is one piece, as most is: a buffer, or a part of an exposed region, of this domain and not empty. `None` for
/// all other.
#[inline(always)]
pub(super) fn single(memory: &Local, domain: u64) -> Option<sys::ibv_sge> {
    let piece = match memory {
        Local::Buffer(buffer) if buffer.backing().domain() == domain => sge(buffer),
        Local::Region(slice) if slice.backing().domain() == domain => slice.sge(),
        _ => return None,
    };
    // An empty piece is none: to some devices its length means 2 GiB.
    let length = u32::try_from(piece.len).ok().filter(|&length| length > 0)?;
    Some(sys::ibv_sge { addr: piece.ptr.expose_provenance() as u64, length, lkey: piece.lkey })
}

/// The pieces of `range` of local memory, for a queue pair of that domain.
#[inline(always)]
pub(super) fn gather(memory: &Local, range: Range<usize>, domain: u64) -> Result<Pieces, PostError> {
    let mut list = Pieces { pieces: [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SGE], count: 0 };
    let (mut skip, mut left) = (range.start, range.end - range.start);
    for index in 0..memory.pieces() {
        let Some(piece) = memory.piece_in(index, domain) else { break };
        let start = skip.min(piece.len);
        skip -= start;
        let len = (piece.len - start).min(left);
        left -= len;
        if len == 0 {
            continue;
        }
        // A piece of 4 GiB and more is longer than any message.
        let too_long = PostError::TooLong { len, limit: u32::MAX as usize, what: "a piece of memory" };
        let length = u32::try_from(len).map_err(|_| too_long)?;
        let Some(place) = list.pieces.get_mut(list.count as usize) else { break };
        *place = sys::ibv_sge { addr: (piece.ptr.expose_provenance() + start) as u64, length, lkey: piece.lkey };
        list.count += 1;
    }
    Ok(list)
}
