//! Shared mappings: memfd-backed memory of ours, and what peers pass to us.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{
    MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create, seek,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::available;
use crate::error::GpuError;
use crate::gpu::{Gpu, Pinned, give_back};
use crate::memory::HugePages;
use crate::sync::lock;

/// A mapping of a memfd, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
    len: usize,
    /// Messages that lend the memory to peers share it.
    fd: Arc<OwnedFd>,
    /// Ended before it is unmapped.
    pinning: Mutex<Pinning>,
    /// True once it was to be pinned aside.
    is_tried: AtomicBool,
}

/// Whether a mapping is pinned for GPUs.
#[derive(Debug)]
enum Pinning {
    No,
    UnderWay,
    Yes(Pinned),
}

// SAFETY: a segment is an address range; what is shared in it is atomic or guarded by the types laid over it.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Who but the owner may write a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// The owner alone; peers map it read-only and the kernel enforces it.
    Owner,
    /// Peers too.
    Peers,
}

impl Segment {
    /// A new zeroed segment. It can not be resized by anybody, so that no access to it is behind its end, which would fault. Pages
    /// come at first use, also where somebody has freed them.
    pub(crate) fn create(name: &str, len: usize, writers: Writers) -> io::Result<Self> {
        Self::sealed(name, len, writers, PLAIN)
    }

    /// The same with all its memory present, on huge pages where asked. What the machine does not have is refused: memory
    /// that is promised and not there ends the process at its first use. So does a huge page that was freed, while the machine
    /// has no other: whoever is passed the segment must be trusted not to free pages of it (fallocate(2) can), which nothing
    /// that lets peers write keeps them from. No peer is that is not of the own user, who could end the process anyway.
    pub(crate) fn create_present(name: &str, len: usize, writers: Writers, huge: HugePages) -> io::Result<Self> {
        let tried = match huge {
            HugePages::No => None,
            HugePages::Try | HugePages::Require => Some(Self::sealed(name, len, writers, PLAIN | MemfdFlags::HUGETLB)),
        };
        let segment = match (tried, huge) {
            (Some(Ok(segment)), _) => segment,
            (Some(Err(error)), HugePages::Require) => return Err(error),
            _ => {
                available::check(len)?;
                Self::sealed(name, len, writers, PLAIN)?
            }
        };
        match segment.populate(len) {
            // Kernels before 5.14 do not know the advice: the pages come at first use.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
            _ => Ok(segment),
        }
    }

    fn sealed(name: &str, len: usize, writers: Writers, flags: MemfdFlags) -> io::Result<Self> {
        // Systems with vm.memfd_noexec=2 refuse memory that could be executed; kernels before 6.3 do not know the flag.
        let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(name, flags)?,
            created => created?,
        };
        ftruncate(&fd, len as u64)?;
        let base = map(fd.as_fd(), len, true)?;
        let segment = Segment::mapped(base, len, fd);
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if writers == Writers::Owner {
            seals |= SealFlags::FUTURE_WRITE;
        }
        fcntl_add_seals(&segment.fd, seals | SealFlags::SEAL)?;
        Ok(segment)
    }

    /// Maps what a peer passed. Refuses memory that the peer could shrink under us, or free pages of that do not come back.
    pub(crate) fn map_peer(fd: OwnedFd, len: usize, writable: bool) -> io::Result<Self> {
        if is_on_huge_pages(&fd)? {
            return Err(io::Error::other("the peer's memory is on huge pages"));
        }
        Self::map_peer_arena(fd, len, writable)
    }

    /// The same for memory that may be on huge pages, as in [`create_present`](Segment::create_present).
    pub(crate) fn map_peer_arena(fd: OwnedFd, len: usize, writable: bool) -> io::Result<Self> {
        let seals = fcntl_get_seals(&fd)?;
        let size = fstat(&fd)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size).unwrap_or(0) < len as u64 || len == 0 {
            return Err(io::Error::other("the peer's memory is not sealed against shrinking, or too short"));
        }
        let base = map(fd.as_fd(), len, writable)?;
        Ok(Segment::mapped(base, len, fd))
    }

    fn mapped(base: NonNull<u8>, len: usize, fd: OwnedFd) -> Self {
        Segment { base, len, fd: Arc::new(fd), pinning: Mutex::new(Pinning::No), is_tried: AtomicBool::new(false) }
    }

    /// Makes the first `len` bytes present, so that the data path does not fault.
    fn populate(&self, len: usize) -> io::Result<()> {
        // SAFETY: the range is within this mapping; populating changes no contents.
        Ok(unsafe { madvise(self.base.as_ptr().cast(), len.min(self.len), Advice::LinuxPopulateWrite) }?)
    }

    /// The same for a mapping of a peer's memory, whose pages the peer has made present: up to the first hole, so that none are
    /// made for it, and no more than `limit`. Best effort; for how many bytes it was tried.
    pub(crate) fn populate_present(&self, limit: usize) -> usize {
        let blocks = fstat(&self.fd).map_or(0, |stat| stat.st_blocks);
        let present = usize::try_from(blocks).unwrap_or(0).saturating_mul(BLOCK);
        // Where the system knows no holes it tells the end, or, of huge pages, nothing.
        let hole =
            seek(&self.fd, SeekFrom::Hole(0)).map_or(usize::MAX, |hole| usize::try_from(hole).unwrap_or(usize::MAX));
        let len = self.len.min(limit).min(present).min(hole);
        if len > 0
            && let Err(error) = self.populate(len)
        {
            tracing::debug!(%error, len, "pages are not populated ahead");
        }
        len
    }

    /// Pins all of it, unless it is pinned. It stays so until it is unmapped.
    ///
    /// # Errors
    /// [`GpuError::NotPinned`], [`GpuError::Driver`].
    pub(crate) fn pin(&self, gpu: Gpu) -> Result<(), GpuError> {
        match &mut *lock(&self.pinning) {
            Pinning::Yes(_) | Pinning::UnderWay => return Ok(()),
            pinning => *pinning = Pinning::UnderWay,
        }
        // SAFETY: mapped as long as this value, whose drop ends the pinning first and leaves the mapping where that fails. No
        // part of it is pinned: only this function pins any, and only one call at a time gets here.
        let pinned = unsafe { Pinned::new(gpu, self.base, self.len) };
        let (pinning, result) = match pinned {
            Ok(pinned) => (Pinning::Yes(pinned), Ok(())),
            Err(error) => (Pinning::No, Err(error)),
        };
        *lock(&self.pinning) = pinning;
        result
    }

    /// The same on a thread of its own, since it takes as long as there are pages; once, and what is refused stays as it is.
    #[cold]
    pub(crate) fn pin_aside(self: &Arc<Self>, gpu: Gpu) {
        // Copies ask again and again.
        if self.is_tried.load(Ordering::Relaxed) || self.is_tried.swap(true, Ordering::Relaxed) {
            return;
        }
        let segment = self.clone();
        let pin = move || {
            if let Err(error) = segment.pin(gpu) {
                tracing::warn!(%error, "a peer's memory is not pinned; copies between it and GPUs are slow");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("qpair-pin".to_owned()).spawn(pin) {
            tracing::warn!(%error, "a peer's memory is not pinned; copies between it and GPUs are slow");
        }
    }

    /// True once it is pinned.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(*lock(&self.pinning), Pinning::Yes(_))
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// A `T` at `offset`, if it lies within the segment and is aligned for `T`.
    ///
    /// # Safety
    /// `T` is valid for any bit pattern, and all access to these bytes, by whichever process, is by `T`'s atomics.
    pub(crate) unsafe fn at<T>(&self, offset: usize) -> Option<NonNull<T>> {
        // SAFETY: passed on to the caller.
        unsafe { self.array(offset, 1) }
    }

    /// The first of `count` values of `T` at `offset`, if they lie within the segment and are aligned for `T`.
    ///
    /// # Safety
    /// As [`Segment::at`], for each of the values.
    pub(crate) unsafe fn array<T>(&self, offset: usize, count: usize) -> Option<NonNull<T>> {
        let bytes = size_of::<T>().checked_mul(count)?;
        let end = offset.checked_add(bytes)?;
        if end > self.len || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: `offset` lies within the mapping.
        Some(unsafe { self.base.add(offset) }.cast())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let mapping = Mapping { base: self.base, len: self.len };
        let pinning = self.pinning.get_mut().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(pinning, Pinning::No) {
            Pinning::Yes(pinned) => give_back(PinnedMapping(Some((pinned, mapping)))),
            Pinning::No | Pinning::UnderWay => drop(mapping),
        }
    }
}

/// What a segment leaves: unmapped on drop.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range, which nobody uses any more.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was a segment's own; whoever keeps pointers into it keeps the segment.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::error!(%error, "could not unmap a segment");
        }
    }
}

/// The same of memory that is pinned, which the driver may wait to unpin for what GPUs do.
struct PinnedMapping(Option<(Pinned, Mapping)>);

impl Drop for PinnedMapping {
    fn drop(&mut self) {
        let Some((pinned, mapping)) = self.0.take() else { return };
        // Leaked while it is pinned, also where this ends by a panic of what logs for the program: what is mapped there
        // next would be taken for this memory.
        let mapping = ManuallyDrop::new(mapping);
        match pinned.end() {
            Ok(()) => drop(ManuallyDrop::into_inner(mapping)),
            Err(error) => tracing::error!(%error, len = mapping.len, "memory stays pinned; it is leaked"),
        }
    }
}

/// Whether a file takes its memory from the machine's pool of huge pages, where accesses fault once that is empty.
fn is_on_huge_pages(fd: &OwnedFd) -> io::Result<bool> {
    // The type differs between systems, the number fits each.
    Ok(fstatfs(fd)?.f_type as u32 == HUGETLBFS_MAGIC)
}

/// <https://man7.org/linux/man-pages/man2/statfs.2.html>
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// Of `st_blocks`, in bytes.
const BLOCK: usize = 512;

const PLAIN: MemfdFlags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);

fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<NonNull<u8>> {
    let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }?;
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_segments_can_not_be_mapped_writable_by_others() {
        let segment = Segment::create("t", 4096, Writers::Owner).unwrap();
        let copy = segment.fd().try_clone_to_owned().unwrap();
        assert!(Segment::map_peer(copy, 4096, true).is_err());
        let copy = segment.fd().try_clone_to_owned().unwrap();
        let view = Segment::map_peer(copy, 4096, false).unwrap();
        // SAFETY: both mappings are 4096 bytes; bytes have no invalid pattern.
        unsafe {
            segment.base().as_ptr().write_volatile(7);
            assert_eq!(view.base().as_ptr().read_volatile(), 7);
        }
    }

    #[test]
    fn memory_can_not_be_executed_where_the_system_can_see_to_it() {
        if matches!(memfd_create("t", PLAIN | MemfdFlags::NOEXEC_SEAL), Err(Errno::INVAL)) {
            return;
        }
        let segment = Segment::create("t", 4096, Writers::Peers).unwrap();
        assert_eq!(fstat(segment.fd()).unwrap().st_mode & 0o111, 0);
    }

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let fd = memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(Segment::map_peer(fd, 4096, true).is_err());
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn many_who_want_it_pinned_pin_it_once() {
        let fake = qpair_fake_cuda::control::add_device().unwrap();
        let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
        for count in 1..=20 {
            let segment = Arc::new(Segment::create("t", 4096, Writers::Peers).unwrap());
            std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(|| segment.pin_aside(gpu))));
            while !segment.is_pinned() || Arc::strong_count(&segment) > 1 {
                std::thread::yield_now();
            }
            drop(segment);
            assert_eq!(fake.count("cuMemHostRegister").unwrap(), count);
            assert!(!fake.live().contains("registration"), "{}", fake.live());
        }
        assert_eq!(fake.violations(), "");
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn what_stays_pinned_stays_mapped_whatever_the_log_does() {
        let fake = qpair_fake_cuda::control::add_device().unwrap();
        let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
        let segment = Segment::create("t", 4096, Writers::Peers).unwrap();
        segment.pin(gpu).unwrap();
        let mapped = format!("{:x}-", segment.base().addr());
        fake.fail("cuMemHostUnregister", 1, qpair_fake_cuda::code::ECC_UNCORRECTABLE).unwrap();
        assert!(crate::bomb::where_errors_panic(|| drop(segment)).is_err());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.lines().any(|line| line.starts_with(&mapped)));
    }

    #[test]
    fn only_arenas_of_peers_may_be_on_huge_pages() {
        const LEN: usize = 2 << 20;
        let sealed = |flags| {
            let fd = memfd_create("t", PLAIN | flags)?;
            ftruncate(&fd, LEN as u64)?;
            fcntl_add_seals(&fd, SealFlags::SHRINK)?;
            Ok::<_, Errno>(fd)
        };
        Segment::map_peer(sealed(MemfdFlags::empty()).unwrap(), 4096, true).unwrap();
        let Ok(huge) = sealed(MemfdFlags::HUGETLB) else { return println!("skipped: no huge pages in this system") };
        let refused = Segment::map_peer(huge.try_clone().unwrap(), LEN, true).unwrap_err();
        assert!(refused.to_string().contains("huge pages"), "{refused}");
        // Unless the machine has none.
        if let Err(error) = Segment::map_peer_arena(huge, LEN, true) {
            assert_eq!(error.raw_os_error(), Some(Errno::NOMEM.raw_os_error()), "{error}");
        }
    }

    #[test]
    fn typed_views_are_bounded_and_aligned() {
        let segment = Segment::create("t", 4096, Writers::Peers).unwrap();
        // SAFETY: u64 has no invalid pattern, and nothing is accessed.
        unsafe {
            assert!(segment.at::<u64>(4088).is_some());
            assert!(segment.at::<u64>(4090).is_none());
            assert!(segment.at::<u64>(4096).is_none());
            assert!(segment.array::<u64>(0, 513).is_none());
            assert!(segment.array::<u64>(0, usize::MAX).is_none());
        }
    }
}
