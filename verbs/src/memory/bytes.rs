//! Shared bytes that peers may read where they lie.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;

use bytes::Bytes;

use crate::error::{BytesRevokeFailed, MemoryError};
use crate::memory::{Backing, Grant, Reach, RemoteSlice};
use crate::pd::ProtectionDomain;
use crate::types::{Access, Rkey};

/// [`Bytes`] that peers may read with its rkey, without a copy of them having been made.
///
/// Nobody writes bytes behind `Bytes`, so that this program may read them as ever: it needs no other type of its own, unlike
/// memory that peers may write ([`ExposedRegion`](crate::ExposedRegion)). The region holds a part of the `Bytes`, and with
/// it their memory, until it is [revoked](BytesRegion::revoke) or dropped.
///
/// ```
/// use bytes::Bytes;
/// use qpair_verbs::Context;
///
/// let pd = Context::open("soft0")?.alloc_pd()?;
/// let bytes = Bytes::from(vec![7; 1 << 20]);
/// let region = pd.expose_bytes(bytes.clone())?;
/// let remote = region.remote(0..4096);                  // what a peer reads the first page with
/// assert_eq!(remote.len, 4096);
/// assert_eq!(bytes[0], 7, "still the program's to read");
/// assert_eq!(region.revoke()?, bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BytesRegion {
    /// `None` once it is revoked.
    held: Option<Box<Held>>,
}

/// What a region holds. Fields are dropped in order: the right to the memory first.
struct Held {
    grant: Grant,
    domain: u64,
    bytes: Bytes,
}

impl BytesRegion {
    pub(crate) fn new(domain: u64, reach: Reach, bytes: Bytes) -> Result<Self, MemoryError> {
        let backing = Backing::from_bytes(domain, reach, bytes.clone());
        let grant = match Grant::new(&backing, Access::REMOTE_READ, None) {
            Ok(grant) => grant,
            Err(failed) => return Err(failed.leaving(backing).0),
        };
        Ok(BytesRegion { held: Some(Box::new(Held { grant, domain, bytes })) })
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.held().bytes
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// The key that peers present.
    pub fn rkey(&self) -> Rkey {
        self.held().grant.rkey()
    }

    /// The key that peers present to the device of that domain, if the region is of that domain, or of one that
    /// [spans](ProtectionDomain::spanning) it.
    pub fn rkey_in(&self, domain: &ProtectionDomain) -> Option<Rkey> {
        let held = self.held();
        if held.domain == domain.id() { Some(held.grant.rkey()) } else { held.grant.rkey_in(domain.id()) }
    }

    /// The name of `range` for peers: plain data to send to them.
    ///
    /// # Panics
    /// If the range lies outside the region, as slices do.
    pub fn remote(&self, range: Range<usize>) -> RemoteSlice {
        let addr = self.bytes().as_ptr() as u64;
        let whole = RemoteSlice { addr, len: self.len() as u64, rkey: self.rkey() };
        whole.slice(range.start as u64..range.end as u64)
    }

    /// Withdraws the key, waits until no peer is in the middle of reading, and gives the bytes back.
    ///
    /// # Errors
    /// [`BytesRevokeFailed`] with the region, if a stopped peer sits in an access, which is waited for up to three seconds, or
    /// the device refuses.
    pub fn revoke(self) -> Result<Bytes, BytesRevokeFailed> {
        self.take_back(true)
    }

    /// As [`revoke`](BytesRegion::revoke), without waiting for peers. The key is withdrawn by the first attempt; later ones
    /// look whether the peers seen then have left.
    ///
    /// # Errors
    /// As [`revoke`](BytesRegion::revoke).
    pub fn try_revoke(self) -> Result<Bytes, BytesRevokeFailed> {
        self.take_back(false)
    }

    fn take_back(mut self, wait: bool) -> Result<Bytes, BytesRevokeFailed> {
        match (self.held().grant.withdraw(wait), self.held.take()) {
            (Ok(()), Some(held)) => Ok(held.bytes),
            (Err(why), held) => Err(BytesRevokeFailed { why, region: BytesRegion { held } }),
            (Ok(()), None) => unreachable!("{HELD}"),
        }
    }

    fn held(&self) -> &Held {
        match &self.held {
            Some(held) => held,
            None => unreachable!("{HELD}"),
        }
    }
}

impl Drop for BytesRegion {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // Leaked unless nobody reaches them any more, also where this ends by a panic of what logs for the program.
        let mut held = ManuallyDrop::new(held);
        if held.grant.end() {
            drop(ManuallyDrop::into_inner(held));
        } else {
            tracing::error!(rkey = %held.grant.rkey(), "peers reach bytes still that are let go of; their memory is leaked");
        }
    }
}

impl fmt::Debug for BytesRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytesRegion").field("len", &self.len()).field("rkey", &self.rkey()).finish()
    }
}

/// Why a region always holds its bytes.
const HELD: &str = "only `take_back` and `drop` take them, and consume the region";

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::Context;

    #[test]
    fn the_bytes_are_held_while_the_region_lives_and_no_longer() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let bytes = Bytes::from(vec![3; 100]);
        let region = pd.expose_bytes(bytes.slice(10..90)).unwrap();
        assert_eq!((region.len(), region.remote(1..3).len), (80, 2));
        assert_eq!(region.remote(0..1).addr, bytes.as_ptr() as u64 + 10);
        assert!(!bytes.is_unique());
        assert_eq!(region.try_revoke().unwrap(), bytes.slice(10..90));
        assert!(bytes.is_unique());
        drop(pd.expose_bytes(bytes.clone()).unwrap());
        assert!(bytes.is_unique(), "dropping revokes as well");
        assert!(pd.expose_bytes(Bytes::new()).is_err(), "there is nothing to read");
    }
}
