//! Slots of pinned memory by which bytes of a GPU come and go, with copies that are waited for only where they are needed.

use std::fmt;
use std::ptr::NonNull;

use super::copies::Copies;
use super::device::Gpu;
use super::driver::Address;
use crate::error::{GpuError, MemoryError};
use crate::memory::{HugePages, Segment, Writers};

/// Slots of memory of the processor, and a stream of a GPU on which they are copied from and to its memory, in order. Nothing
/// is allocated once it is made. The memory is not write-combined: the processor reads it at full speed.
pub(crate) struct HostSlots {
    /// Before the memory, which copies may be under way of.
    copies: Copies,
    slot_len: usize,
    memory: Segment,
}

impl HostSlots {
    /// `count` slots of `slot_len` bytes. Where the driver does not pin them they are used as they are, and that is logged.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`], [`MemoryError::Gpu`].
    pub(crate) fn new(gpu: Gpu, count: usize, slot_len: usize) -> Result<Self, MemoryError> {
        let len = count * slot_len;
        let memory = Segment::create_present("qpair-stage", len, Writers::Owner, HugePages::No);
        let memory = memory.map_err(|source| MemoryError::NoMemory { len, source })?;
        if let Err(error) = memory.pin(gpu) {
            tracing::warn!(%error, "slots for GPU memory are not pinned; it is slow on this wire");
        }
        Ok(HostSlots { copies: Copies::new(gpu, count)?, slot_len, memory })
    }

    /// Bytes of a slot.
    pub(crate) fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// Copies out of a slot, from `start` of it on.
    ///
    /// # Panics
    /// If it has not as many bytes, or a copy of it is under way.
    pub(crate) fn take(&self, slot: usize, start: usize, to: &mut [u8]) {
        let from = self.at(slot, start, to.len());
        // SAFETY: as many bytes of the slot, which no copy of the driver is at, as `at` has checked; `to` is other memory.
        unsafe { from.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies into a slot, from `start` of it on.
    ///
    /// # Panics
    /// As [`take`](HostSlots::take).
    pub(crate) fn put(&mut self, slot: usize, start: usize, from: &[u8]) {
        let to = self.at(slot, start, from.len());
        // SAFETY: as in `take`; it is this value's memory alone.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// `len` bytes of a slot from `start` on, which no copy is under way of.
    ///
    /// # Panics
    /// As [`take`](HostSlots::take).
    pub(crate) fn at(&self, slot: usize, start: usize, len: usize) -> NonNull<u8> {
        assert!(!self.copies.is_under_way(slot), "a copy of the slot is under way");
        assert!(start <= self.slot_len && len <= self.slot_len - start, "outside of a slot");
        // SAFETY: the slot lies within the segment: there are as many as it has room for.
        unsafe { self.memory.base().add(slot * self.slot_len + start) }
    }

    /// Starts to fill a slot with `len` bytes at `from`.
    ///
    /// # Errors
    /// [`GpuError::Driver`]; nothing is under way then.
    ///
    /// # Safety
    /// They are memory of the GPU until the slot was [waited for](HostSlots::wait), or was found [done](HostSlots::is_done).
    ///
    /// # Panics
    /// As [`take`](HostSlots::take).
    pub(crate) unsafe fn fill(&mut self, slot: usize, from: *const u8, len: usize) -> Result<(), GpuError> {
        let to = self.at(slot, 0, len).as_ptr() as Address;
        // SAFETY: passed on to the caller.
        unsafe { self.start(slot, to, from as Address, len) }
    }

    /// Starts to copy the first `len` bytes of a slot to `to`.
    ///
    /// # Errors
    /// As [`fill`](HostSlots::fill).
    ///
    /// # Safety
    /// As [`fill`](HostSlots::fill).
    ///
    /// # Panics
    /// As [`take`](HostSlots::take).
    pub(crate) unsafe fn drain(&mut self, slot: usize, to: *mut u8, len: usize) -> Result<(), GpuError> {
        let from = self.at(slot, 0, len).as_ptr() as Address;
        // SAFETY: passed on to the caller.
        unsafe { self.start(slot, to as Address, from, len) }
    }

    /// # Safety
    /// Both are memory for `len` bytes until the slot was waited for; one side is the slot's.
    unsafe fn start(&mut self, slot: usize, to: Address, from: Address, len: usize) -> Result<(), GpuError> {
        // SAFETY: by the caller's word.
        unsafe { self.copies.start(slot, |device, stream| device.driver.copy(to, from, len, stream)) }
    }

    /// Whether no copy of a slot is under way.
    ///
    /// # Errors
    /// [`GpuError::Driver`]: its copy has failed, and is over.
    pub(crate) fn is_done(&mut self, slot: usize) -> Result<bool, GpuError> {
        self.copies.is_done(slot)
    }

    /// Waits until no copy of a slot is under way.
    ///
    /// # Errors
    /// As [`is_done`](HostSlots::is_done).
    pub(crate) fn wait(&mut self, slot: usize) -> Result<(), GpuError> {
        self.copies.wait(slot)
    }
}

impl fmt::Debug for HostSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostSlots({} slots of {} bytes, {:?})", self.copies.count(), self.slot_len, self.copies.gpu())
    }
}
