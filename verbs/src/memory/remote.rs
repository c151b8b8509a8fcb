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
    /// The part `range` of this slice. Addresses wrap: no device grants access to a range that goes round the end.
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
        RemoteSlice { addr: self.addr.wrapping_add(range.start), len: range.end - range.start, rkey: self.rkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_peers_choice_does_no_harm() {
        let slice = RemoteSlice { addr: u64::MAX - 1, len: 100, rkey: Rkey(7) };
        assert_eq!(slice.slice(10..20), RemoteSlice { addr: 8, len: 10, rkey: Rkey(7) });
    }
}
