//! Memory of a peer, named by address and rkey: plain data.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::types::Rkey;

/// A range of a peer's exposed memory. Plain data: send it to whoever shall access that memory.
///
/// The peer's device checks range, right and key at each access; a wrong one fails the work request with
/// [`REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteSlice {
    /// Address of the first byte, in the peer's numbering.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Key.
    pub rkey: Rkey,
}

impl RemoteSlice {
    /// The part `range` of this slice.
    ///
    /// # Panics
    /// If the range lies outside, as slices do.
    #[must_use]
    pub fn slice(self, range: Range<u64>) -> RemoteSlice {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes {}..{} lie outside a remote slice of {} bytes",
            range.start,
            range.end,
            self.len
        );
        RemoteSlice { addr: self.addr + range.start, len: range.end - range.start, rkey: self.rkey }
    }
}
