//! Slots by which bytes of a GPU come and go where a device does not reach its memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::allocation::Allocation;
use super::buffer::GpuBuffer;
use super::copies::Copies;
use super::device::Gpu;
use super::driver::Address;
use super::lane;
use super::path::Flush;
use super::place::Place;
use super::region::GpuRegion;
use crate::calc::Calc;
use crate::error::{GpuError, MemoryError};
use crate::memory::{ExposedRegion, Here, RegionSlice, RemoteSlice, Whole};
use crate::pd::ProtectionDomain;
use crate::types::Access;

/// Slots of memory that a device reaches, by which bytes of a GPU come and go where the device does not reach the GPU's: filled
/// from it and drained into it, or combined with what is there, by a stream of their own, while others of them are sent.
///
/// They are pinned memory of the processor, or, by [`through`](GpuStage::through), memory of another GPU that the device does
/// reach and the first one has links to: then nothing goes by the processor's memory (NCCL calls that PXN). The two may be the
/// same. Once it is made, and has been [made ready to combine](GpuStage::prepare_to_combine) where it is to, nothing is allocated.
/// Memory that is copied stays until that is over, even where it was dropped.
///
/// Copies of a stage go one after the other, in the order in which they were started.
///
/// ```no_run
/// # use qpair_verbs::{Context, Gpu, GpuStage};
/// # fn send(_: qpair_verbs::RegionSlice) {}
/// let (pd, gpu) = (Context::open("mlx5_0")?.alloc_pd()?, Gpu::open(0)?);
/// let tensor = gpu.alloc(1 << 20)?;
/// let mut stage = GpuStage::new(&pd, gpu, 8, 256 << 10)?;
/// stage.fill(0, &tensor, 0..256 << 10)?;
/// while !stage.is_done(0)? {}
/// send(stage.local(0, 256 << 10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GpuStage {
    /// Before the memory, which copies may be under way of.
    copies: Copies,
    memory: Slots,
    slot_len: usize,
    /// Slots that nobody has taken.
    free: Vec<usize>,
    /// By slot: what it is copied from or to, until that is over.
    held: Vec<Option<Arc<Allocation>>>,
    /// Memory of the GPU for what is combined there, once something is: a place for each slot.
    beside: Option<GpuBuffer>,
}

/// The memory of all slots.
enum Slots {
    Host(ExposedRegion),
    Gpu(GpuRegion),
}

impl GpuStage {
    /// `count` slots of `slot_len` bytes each, of pinned memory of the processor.
    ///
    /// # Errors
    /// As [`ProtectionDomain::alloc_pinned`], and [`MemoryError::NoKeys`].
    pub fn new(domain: &ProtectionDomain, gpu: Gpu, count: usize, slot_len: usize) -> Result<Self, MemoryError> {
        let len = count.saturating_mul(slot_len);
        let memory = domain.alloc_pinned(len, gpu)?.expose(Access::REMOTE_READ).map_err(|failed| failed.error)?;
        Self::of(gpu, Slots::Host(memory), count, slot_len)
    }

    /// The same of memory of `neighbour`, which is another GPU, or the same.
    ///
    /// # Errors
    /// [`MemoryError::Gpu`] if it has no such memory, [`MemoryError::GpuUnreachable`] if the device does not reach it either,
    /// [`MemoryError::NotSupported`] if the two GPUs do not [reach](Gpu::reaches) each other's memory, so that pinned slots are
    /// faster, or what the device writes there would have to be read back before the GPU sees it;
    /// [`MemoryError::NoKeys`].
    pub fn through(
        domain: &ProtectionDomain,
        gpu: Gpu,
        neighbour: Gpu,
        count: usize,
        slot_len: usize,
    ) -> Result<Self, MemoryError> {
        let refused = |why: &str| {
            let (device, what) = (domain.device_name().to_owned(), "slots of GPU memory");
            MemoryError::NotSupported { device, what, why: Some(why.to_owned()) }
        };
        if !gpu.reaches(&neighbour) {
            return Err(refused("the GPUs do not reach each other's memory; take pinned slots"));
        }
        let memory = neighbour.alloc(count.saturating_mul(slot_len))?;
        let region = domain.register_gpu(memory, Access::REMOTE_READ).map_err(|failed| failed.error)?;
        if region.flush_to(gpu != neighbour)? == Flush::ReadBack {
            return Err(refused("what it writes there, a GPU sees only once it was read back; take pinned slots"));
        }
        Self::of(gpu, Slots::Gpu(region), count, slot_len)
    }

    fn of(gpu: Gpu, memory: Slots, count: usize, slot_len: usize) -> Result<Self, MemoryError> {
        let (copies, free) = (Copies::new(gpu, count)?, (0..count).rev().collect());
        Ok(GpuStage { copies, memory, slot_len, free, held: vec![None; count], beside: None })
    }

    /// Takes the memory of the GPU now by which [`drain`](GpuStage::drain) combines, as much as the slots are, which it else takes
    /// when it first does.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Driver`].
    pub fn prepare_to_combine(&mut self) -> Result<(), GpuError> {
        self.beside_all().map(|_| ())
    }

    fn beside_all(&mut self) -> Result<&GpuBuffer, GpuError> {
        let (gpu, len) = (self.gpu(), self.count() * self.stride());
        Ok(match &mut self.beside {
            Some(beside) => beside,
            none => none.insert(gpu.alloc(len)?),
        })
    }

    /// Bytes from one slot's place beside to the next: any element is at its place there.
    fn stride(&self) -> usize {
        self.slot_len.next_multiple_of(ALIGNED)
    }

    /// The GPU whose memory comes and goes.
    pub fn gpu(&self) -> Gpu {
        self.copies.gpu()
    }

    /// The GPU whose memory the slots are, if it is not the processor's.
    pub fn neighbour(&self) -> Option<Gpu> {
        match &self.memory {
            Slots::Host(_) => None,
            Slots::Gpu(region) => region.gpu(),
        }
    }

    /// A slot that nobody has taken, if there is one. Whoever does not name slots by numbers of their own takes them, and
    /// [gives](GpuStage::give) them back.
    pub fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Nobody uses a slot any more that was [taken](GpuStage::take). A copy of it may be under way.
    ///
    /// # Panics
    /// If there is no such slot, or it was given back already.
    pub fn give(&mut self, slot: usize) {
        assert!(slot < self.count() && !self.free.contains(&slot), "no slot that was taken");
        self.free.push(slot);
    }

    /// How many slots nobody has [taken](GpuStage::take).
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How many slots there are.
    pub fn count(&self) -> usize {
        self.copies.count()
    }

    /// Bytes of a slot.
    pub fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// The memory of all slots, one behind the other.
    pub fn region(&self) -> &ExposedRegion {
        match &self.memory {
            Slots::Host(region) => region,
            Slots::Gpu(region) => region.whole(Here(())),
        }
    }

    /// Where a slot's first `len` bytes are in the [`region`](GpuStage::region).
    ///
    /// # Panics
    /// If there is no such slot, or it has not as many bytes.
    pub fn range(&self, slot: usize, len: usize) -> Range<usize> {
        assert!(slot < self.count() && len <= self.slot_len, "outside of a slot");
        slot * self.slot_len..slot * self.slot_len + len
    }

    /// A slot's first `len` bytes as the local side of work requests.
    ///
    /// # Panics
    /// As [`range`](GpuStage::range).
    pub fn local(&self, slot: usize, len: usize) -> RegionSlice {
        self.region().local(self.range(slot, len))
    }

    /// A slot's first `len` bytes as peers name them, which may read them.
    ///
    /// # Panics
    /// As [`range`](GpuStage::range).
    pub fn remote(&self, slot: usize, len: usize) -> RemoteSlice {
        self.region().remote(self.range(slot, len))
    }

    /// Starts to fill a slot from a part of a GPU's memory, which may change again once the slot is [done](GpuStage::is_done).
    ///
    /// # Errors
    /// [`GpuError::OtherGpu`], [`GpuError::Range`], [`GpuError::Driver`]; nothing is under way then.
    ///
    /// # Panics
    /// If there is no such slot, it has not as many bytes, or a copy of it is under way.
    pub fn fill(&mut self, slot: usize, from: &GpuBuffer, part: Range<usize>) -> Result<(), GpuError> {
        let (from_at, to) = (self.at(from, &part)?, self.slot(slot, part.len()));
        self.hold(slot, from);
        let place = from.allocation().place();
        // SAFETY: both span as many bytes; `from` is held, and the slots outlive the copies.
        let started = unsafe {
            self.copies.start(slot, |device, stream| lane::start_copy(device, to, (from_at, place), part.len(), stream))
        };
        self.started(slot, started)
    }

    /// Starts to copy a slot's first bytes to a part of a GPU's memory, or to combine them with it: `to = to op slot`. It is there
    /// once the slot is [done](GpuStage::is_done).
    ///
    /// # Errors
    /// As [`fill`](GpuStage::fill), and [`GpuError::Elements`], [`GpuError::NotCalculated`] of a program's own operation;
    /// unless it was [prepared](GpuStage::prepare_to_combine), [`GpuError::OutOfMemory`].
    ///
    /// # Panics
    /// As [`fill`](GpuStage::fill).
    pub fn drain(
        &mut self,
        slot: usize,
        to: &mut GpuBuffer,
        part: Range<usize>,
        calc: Option<Calc>,
    ) -> Result<(), GpuError> {
        let (to_at, from, len) = (self.at(to, &part)?, self.slot(slot, part.len()), part.len());
        if let Slots::Gpu(region) = &self.memory {
            region.flush_to(self.neighbour() != Some(self.gpu()))?;
        }
        let Some(calc) = calc else {
            self.hold(slot, to);
            let place = to.allocation().place();
            // SAFETY: as in `fill`.
            let started = unsafe {
                self.copies.start(slot, |device, stream| lane::start_copy(device, (to_at, place), from, len, stream))
            };
            return self.started(slot, started);
        };
        let size = calc.data_type().size();
        if !len.is_multiple_of(size) || !to_at.is_multiple_of(size as u64) {
            return Err(GpuError::Elements { len, address: to_at, size });
        }
        let (beside, here) = self.beside(slot)?;
        self.hold(slot, to);
        // SAFETY: as in `fill`; what lies beside is this slot's, and the stream keeps the order.
        let started = unsafe {
            self.copies.start(slot, |device, stream| {
                let kernel = device.kernels.combine(device, calc)?;
                lane::start_copy(device, (beside, here), from, len, stream)?;
                lane::launch_combine(device, kernel, (to_at, beside), len, calc, stream)
            })
        };
        self.started(slot, started)
    }

    /// Whether nothing is under way of a slot: it was filled, or drained.
    ///
    /// # Errors
    /// [`GpuError::Driver`]: that has failed, and is over.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn is_done(&mut self, slot: usize) -> Result<bool, GpuError> {
        let done = self.copies.is_done(slot);
        if !matches!(done, Ok(false)) {
            self.held[slot] = None;
        }
        done
    }

    /// Waits until nothing is under way of a slot.
    ///
    /// # Errors
    /// As [`is_done`](GpuStage::is_done).
    ///
    /// # Panics
    /// As [`is_done`](GpuStage::is_done).
    pub fn wait(&mut self, slot: usize) -> Result<(), GpuError> {
        let waited = self.copies.wait(slot);
        self.held[slot] = None;
        waited
    }

    /// Where `part` of a buffer is.
    fn at(&self, buffer: &GpuBuffer, part: &Range<usize>) -> Result<Address, GpuError> {
        let (address, len) = (buffer.address(), buffer.len());
        let (ordinal, found) = (self.gpu().ordinal(), buffer.gpu().ordinal());
        if found != ordinal {
            return Err(GpuError::OtherGpu { address, ordinal, found });
        }
        if part.start > part.end || part.end > len {
            return Err(GpuError::Range { start: part.start, end: part.end, len });
        }
        Ok(address + part.start as u64)
    }

    /// Where a slot is, of which nothing is under way, and whose memory that is.
    fn slot(&self, slot: usize, len: usize) -> (Address, Place) {
        assert!(!self.copies.is_under_way(slot), "a copy of the slot is under way");
        let sge = self.local(slot, len).sge();
        (sge.ptr.addr() as Address, sge.place)
    }

    /// What lies beside a slot on the GPU.
    fn beside(&mut self, slot: usize) -> Result<(Address, Place), GpuError> {
        let at = (slot * self.stride()) as u64;
        let beside = self.beside_all()?.allocation();
        Ok((beside.address() + at, beside.place()))
    }

    /// Keeps memory until what is to be started is over.
    fn hold(&mut self, slot: usize, buffer: &GpuBuffer) {
        self.held[slot] = Some(buffer.allocation().clone());
    }

    fn started(&mut self, slot: usize, started: Result<(), GpuError>) -> Result<(), GpuError> {
        if started.is_err() {
            self.held[slot] = None;
        }
        started
    }
}

/// What elements of any type are aligned to.
const ALIGNED: usize = 256;

impl fmt::Debug for GpuStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.neighbour() {
            Some(gpu) => format!("GPU {}", gpu.ordinal()),
            None => "the processor".to_owned(),
        };
        write!(f, "GpuStage({} slots of {} bytes of {whose}, {:?})", self.count(), self.slot_len, self.gpu())
    }
}
