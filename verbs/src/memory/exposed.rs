//! Memory that a peer may read or write: no slice of it exists in safe code until it is revoked.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::calc::{Calc, DataType, Scale};
use crate::error::{ExposeFailed, MemoryError, PostError, RevokeBlocked, RevokeFailed};
use crate::gpu::Allocation;
use crate::memory::{Atomic, Backing, Buffer, Grant, RemoteSlice, Sge, Spot};
use crate::pd::ProtectionDomain;
use crate::types::{Access, Rkey};

/// A region that peers may access with its rkey.
///
/// It never yields `&[u8]`: a peer may be writing. Bytes are copied in and out, or accessed atomically. It becomes an
/// ordinary [`Buffer`] again by [`revoke`](ExposedRegion::revoke), after which no access of a peer can happen any more.
///
/// ```compile_fail,E0608
/// # fn f(region: qpair_verbs::ExposedRegion) {
/// let first = region[0]; // a peer may be writing it
/// # }
/// ```
///
/// ```compile_fail,E0382
/// # fn f(region: qpair_verbs::ExposedRegion) {
/// let buffer = region.revoke();
/// let name = region.remote(0..1); // there is no such region any more
/// # }
/// ```
pub struct ExposedRegion {
    shared: Option<Arc<RegionShared>>,
}

/// What an exposed region and the work requests that name it hold in common.
pub(crate) struct RegionShared {
    buffer: Option<Buffer>,
    access: Access,
    rkey: Rkey,
    grant: Grant,
}

/// Part of an exposed region, as local memory of a work request.
#[derive(Clone)]
pub struct RegionSlice {
    region: Arc<RegionShared>,
    start: usize,
    len: usize,
}

impl ExposedRegion {
    pub(crate) fn new(mut buffer: Buffer, access: Access) -> Result<Self, ExposeFailed> {
        let mut spare = buffer.spare();
        let place = spare.as_mut().and_then(Arc::get_mut);
        match Grant::new(buffer.backing(), access, place.map(|shared| &mut shared.grant)) {
            Ok(grant) => Ok(ExposedRegion { shared: Some(RegionShared::new(buffer, access, grant, spare)) }),
            Err(failed) => {
                let (error, buffer) = failed.leaving(buffer);
                Err(ExposeFailed { error, buffer })
            }
        }
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.shared().buffer().backing().len()
    }

    /// The rights that peers have.
    pub fn access(&self) -> Access {
        self.shared().access
    }

    /// The key that peers present.
    pub fn rkey(&self) -> Rkey {
        self.shared().rkey
    }

    /// The key that peers present to the device of that domain, if the region is of that domain, or of one that
    /// [spans](ProtectionDomain::spanning) it.
    pub fn rkey_in(&self, domain: &ProtectionDomain) -> Option<Rkey> {
        let shared = self.shared();
        if shared.buffer().backing().domain() == domain.id() {
            Some(shared.rkey)
        } else {
            shared.grant.rkey_in(domain.id())
        }
    }

    /// The name of `range` for peers: plain data to send to them.
    ///
    /// # Panics
    /// If the range lies outside the region, as slices do.
    pub fn remote(&self, range: Range<usize>) -> RemoteSlice {
        let shared = self.shared();
        let base = shared.buffer().backing().base().as_ptr() as u64;
        let whole = RemoteSlice { addr: base, len: self.len() as u64, rkey: shared.rkey };
        whole.slice(range.start as u64..range.end as u64)
    }

    /// `range` as the local side of work requests.
    ///
    /// # Panics
    /// If the range lies outside the region, as slices do.
    pub fn local(&self, range: Range<usize>) -> RegionSlice {
        assert!(range.start <= range.end && range.end <= self.len(), "range outside the region");
        RegionSlice { region: self.shared().clone(), start: range.start, len: range.end - range.start }
    }

    /// Copies bytes from `offset` on into `into`. Bytes that a peer writes meanwhile may be old or new. On the software device
    /// this takes in what came by the network, as polling does.
    ///
    /// # Errors
    /// [`MemoryError::Range`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        self.shared().grant.progress();
        let at = self.at(offset, into.len())?;
        // SAFETY: `at` spans `into.len()` bytes of the region; the copy bears concurrent writers.
        Ok(unsafe { Spot::host(into.as_mut_ptr()).copy_from(self.shared().spot(at), into.len()) }?)
    }

    /// Copies `from` to `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::Range`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let at = self.at(offset, from.len())?;
        // SAFETY: `at` spans `from.len()` bytes of the region; the copy bears concurrent readers and writers.
        Ok(unsafe { self.shared().spot(at).copy_from(Spot::host(from.as_ptr().cast_mut()), from.len()) }?)
    }

    /// Reads the 8 bytes at `offset` atomically (acquire), in the machine's byte order. Whoever waits so for a peer drives the
    /// software device's network, as polling does.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::Misaligned`]; [`MemoryError::Gpu`] of slots in memory of a GPU
    /// ([`GpuStage::region`](crate::GpuStage::region)), where a kernel reads them.
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, MemoryError> {
        self.shared().grant.progress();
        match self.word(offset)? {
            Some(word) => Ok(word.load(Ordering::Acquire)),
            None => self.change(offset, Atomic::FetchAdd(0)),
        }
    }

    /// Writes the 8 bytes at `offset` atomically (release).
    ///
    /// # Errors
    /// As [`load`](ExposedRegion::load).
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), MemoryError> {
        match self.word(offset)? {
            Some(word) => word.store(value, Ordering::Release),
            None => self.write(offset, &value.to_ne_bytes())?,
        }
        Ok(())
    }

    /// Adds to the 8 bytes at `offset`; gives the value before. Atomic towards whoever's memory it is, this host's processors or
    /// a GPU's kernels, and towards peers'
    /// atomics where the device says so ([`AtomicAbility::Everywhere`](crate::AtomicAbility)): most NICs are atomic among
    /// themselves only.
    ///
    /// # Errors
    /// As [`load`](ExposedRegion::load).
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemoryError> {
        self.change(offset, Atomic::FetchAdd(add))
    }

    /// Does an atomic operation on the 8 bytes at `offset`; gives the value before.
    ///
    /// # Errors
    /// As [`fetch_add`](ExposedRegion::fetch_add), and [`MemoryError::Gpu`].
    pub(crate) fn change(&self, offset: usize, operation: Atomic) -> Result<u64, MemoryError> {
        let at = self.word_at(offset)?;
        // SAFETY: 8 aligned bytes of the region; all access to exposed memory is atomic or by `device_copy`.
        Ok(unsafe { self.shared().spot(at).atomic(operation) }?)
    }

    /// Withdraws the key, waits until no peer is in the middle of an access, and gives the memory back.
    ///
    /// # Errors
    /// [`RevokeFailed`] with the region, while posted work or windows name it, a stopped peer sits in an access, which is
    /// waited for up to three seconds, or the device refuses.
    pub fn revoke(self) -> Result<Buffer, RevokeFailed> {
        self.take_back(true)
    }

    /// As [`revoke`](ExposedRegion::revoke), without waiting for peers: for programs that have other things to do. The key
    /// is withdrawn by the first attempt; later ones look whether the peers seen then have left.
    ///
    /// # Errors
    /// As [`revoke`](ExposedRegion::revoke).
    pub fn try_revoke(self) -> Result<Buffer, RevokeFailed> {
        self.take_back(false)
    }

    fn take_back(mut self, wait: bool) -> Result<Buffer, RevokeFailed> {
        let Some(mut shared) = self.shared.take() else { unreachable!("{TAKEN}") };
        let failed = |why, shared| Err(RevokeFailed { why, region: ExposedRegion { shared: Some(shared) } });
        if shared.grant.has_windows() {
            return failed(RevokeBlocked::BoundWindows, shared);
        }
        if let Err(why) = shared.grant.withdraw(wait) {
            return failed(why, shared);
        }
        let Some(only) = Arc::get_mut(&mut shared) else { return failed(RevokeBlocked::PostedWork, shared) };
        // A bind that was posted before may have been carried out meanwhile; none is left now.
        if only.grant.has_windows() {
            return failed(RevokeBlocked::BoundWindows, shared);
        }
        if let Err(why) = only.grant.withdraw_windows(wait) {
            return failed(why, shared);
        }
        let Some(mut buffer) = only.buffer.take() else { unreachable!("{TAKEN}") };
        buffer.keep(shared);
        Ok(buffer)
    }

    /// The GPU's memory that it stands on, if it is some.
    pub(crate) fn gpu(&self) -> Option<&Allocation> {
        self.shared().buffer().backing().gpu().map(|allocation| &**allocation)
    }

    pub(crate) fn shared(&self) -> &Arc<RegionShared> {
        match &self.shared {
            Some(shared) => shared,
            None => unreachable!("{TAKEN}"),
        }
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, MemoryError> {
        let whole = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= whole => Ok(self.shared().buffer().backing().base().as_ptr().wrapping_add(offset)),
            _ => Err(MemoryError::Range { start: offset, end: offset.saturating_add(len), len: whole }),
        }
    }

    #[inline]
    fn word_at(&self, offset: usize) -> Result<*mut u8, MemoryError> {
        let at = self.at(offset, 8)?;
        if (at as usize).is_multiple_of(8) { Ok(at) } else { Err(MemoryError::Misaligned { offset }) }
    }

    /// `None` in memory of a GPU.
    #[inline]
    fn word(&self, offset: usize) -> Result<Option<&std::sync::atomic::AtomicU64>, MemoryError> {
        let at = self.word_at(offset)?;
        let Some(at) = self.shared().spot(at).on_host() else { return Ok(None) };
        // SAFETY: 8 aligned bytes of the region, which lives as long as `self`; all access to exposed memory is atomic
        // or by `device_copy`.
        Ok(Some(unsafe { std::sync::atomic::AtomicU64::from_ptr(at.cast()) }))
    }
}

impl fmt::Debug for ExposedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExposedRegion")
            .field("len", &self.len())
            .field("access", &self.access())
            .field("rkey", &self.rkey())
            .finish()
    }
}

impl fmt::Debug for RegionShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionShared({})", self.rkey)
    }
}

impl RegionShared {
    fn new(buffer: Buffer, access: Access, grant: Grant, spare: Option<Arc<Self>>) -> Arc<Self> {
        let shared = RegionShared { buffer: Some(buffer), access, rkey: grant.rkey(), grant };
        let Some(mut spare) = spare else { return Arc::new(shared) };
        match Arc::get_mut(&mut spare) {
            Some(place) => *place = shared,
            None => return Arc::new(shared),
        }
        spare
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        match &self.buffer {
            Some(buffer) => buffer,
            None => unreachable!("{TAKEN}"),
        }
    }

    /// An address of the region, with whose memory it is.
    fn spot(&self, at: *mut u8) -> Spot {
        Spot::new(at, self.buffer().backing().place())
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }
}

impl Drop for RegionShared {
    fn drop(&mut self) {
        // After `revoke` the buffer is gone and so is the right to it.
        let Some(buffer) = self.buffer.take() else { return };
        // Leaked unless nobody reaches it any more, also where this ends by a panic of what logs for the program.
        let buffer = ManuallyDrop::new(buffer);
        if self.grant.end() {
            drop(ManuallyDrop::into_inner(buffer));
        } else {
            tracing::error!(rkey = %self.rkey, "peers reach a region still that is gone; its memory is leaked");
        }
    }
}

impl RegionSlice {
    /// The part `range` of it.
    ///
    /// # Panics
    /// If the range lies outside, as slices do.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> RegionSlice {
        assert!(range.start <= range.end && range.end <= self.len, "range outside the slice");
        RegionSlice { region: self.region.clone(), start: self.start + range.start, len: range.len() }
    }

    /// Copies bytes from `offset` of the slice on into `into`, as [`ExposedRegion::read`].
    ///
    /// # Errors
    /// [`MemoryError::Range`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        self.region.grant.progress();
        let at = self.at(offset, into.len())?;
        // SAFETY: `at` spans `into.len()` bytes of the region; the copy bears concurrent writers.
        Ok(unsafe { Spot::host(into.as_mut_ptr()).copy_from(self.region.spot(at), into.len()) }?)
    }

    /// Copies `from` to `offset` of the slice on, as [`ExposedRegion::write`].
    ///
    /// # Errors
    /// [`MemoryError::Range`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let at = self.at(offset, from.len())?;
        // SAFETY: `at` spans `from.len()` bytes of the region; the copy bears concurrent readers and writers.
        Ok(unsafe { self.region.spot(at).copy_from(Spot::host(from.as_ptr().cast_mut()), from.len()) }?)
    }

    /// Combines `from` into the bytes from `offset` of the slice on: `slice = slice op from`, element by element.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::Elements`].
    pub fn combine(&self, offset: usize, calc: Calc, from: &[u8]) -> Result<(), MemoryError> {
        if !from.len().is_multiple_of(calc.data_type().size()) {
            return Err(MemoryError::Elements { len: from.len(), size: calc.data_type().size() });
        }
        let at = self.at(offset, from.len())?;
        // SAFETY: `at` spans `from.len()` bytes, a whole number of elements; `from` is ordinary memory and so elsewhere.
        // Bytes that a peer writes meanwhile may be old or new, as with a NIC; none is read twice.
        Ok(unsafe { self.region.spot(at).combine_from(Spot::host(from.as_ptr().cast_mut()), from.len(), calc) }?)
    }

    /// Copies another slice of as many bytes here, wherever the two are: memory of a GPU does not take the way through the
    /// processor's.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if the lengths differ, [`MemoryError::Overlap`], [`MemoryError::Gpu`].
    pub fn copy_from(&self, from: &RegionSlice) -> Result<(), MemoryError> {
        let (to, from) = self.both(from)?;
        // SAFETY: both span as many bytes of their regions and lie apart; the copy bears concurrent readers and writers.
        Ok(unsafe { to.copy_from(from, self.len) }?)
    }

    /// Combines another slice of as many bytes into this one, wherever the two are: `self = self op from`, element by element.
    ///
    /// # Errors
    /// As [`copy_from`](RegionSlice::copy_from), and [`MemoryError::Elements`].
    pub fn combine_from(&self, from: &RegionSlice, calc: Calc) -> Result<(), MemoryError> {
        let size = calc.data_type().size();
        if !self.len.is_multiple_of(size) {
            return Err(MemoryError::Elements { len: self.len, size });
        }
        let (to, from) = self.both(from)?;
        // SAFETY: as in `copy_from`.
        Ok(unsafe { to.combine_from(from, self.len, calc) }?)
    }

    /// Scales the slice, as [`calc::scale`](crate::calc::scale()) does.
    ///
    /// # Errors
    /// [`MemoryError::Elements`], [`MemoryError::Gpu`], also of a division by zero or a factor that the type does not hold.
    pub fn scale(&self, data_type: DataType, by: Scale) -> Result<(), MemoryError> {
        let size = data_type.size();
        if !self.len.is_multiple_of(size) {
            return Err(MemoryError::Elements { len: self.len, size });
        }
        // SAFETY: the spot spans as many bytes of the region; bytes that a peer writes meanwhile may be old or new.
        Ok(unsafe { self.region.spot(self.at(0, self.len)?).scale(self.len, data_type, by) }?)
    }

    /// Where this slice lies and another of the same length, apart from it.
    fn both(&self, from: &RegionSlice) -> Result<(Spot, Spot), MemoryError> {
        let (to_at, from_at) = (self.at(0, from.len)?, from.at(0, self.len)?);
        if (to_at as usize).abs_diff(from_at as usize) < self.len {
            return Err(MemoryError::Overlap { len: self.len });
        }
        Ok((self.region.spot(to_at), from.region.spot(from_at)))
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, MemoryError> {
        let end = offset.checked_add(len).filter(|&end| end <= self.len);
        let outside = MemoryError::Range { start: offset, end: offset.saturating_add(len), len: self.len };
        end.ok_or(outside)?;
        Ok(self.sge().ptr.wrapping_add(offset))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn sge(&self) -> Sge {
        let backing = self.region.buffer().backing();
        // Within the region, checked when the slice was made; of a GPU it is a number that nothing here follows.
        let ptr = backing.base().as_ptr().wrapping_add(self.start);
        Sge {
            ptr,
            len: self.len,
            lkey: backing.lkey(),
            place: backing.place(),
            arena: backing.arena().map(|(id, offset)| (id, offset + self.start)),
        }
    }

    pub(crate) fn backing(&self) -> &Backing {
        self.region.buffer().backing()
    }

    pub(crate) fn check_domain(&self, domain: u64) -> Result<(), PostError> {
        self.region.buffer().check_domain(domain)
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionSlice({}, {}..{})", self.region.rkey, self.start, self.start + self.len)
    }
}

/// Why a region always has its buffer.
const TAKEN: &str = "only `revoke` takes the buffer, and consumes the region that nobody shares";
