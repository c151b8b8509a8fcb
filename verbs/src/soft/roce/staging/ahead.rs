//! Reads GPU memory that is sent, some packets ahead.

use qpair_roce::Qpn;

use super::{PerGpu, SLOTS, log};
use crate::error::GpuError;
use crate::gpu::{HostSlots, Place};

/// Bytes that are read ahead, of all GPUs.
pub(in crate::soft::roce) struct ReadAhead(PerGpu<Ahead>);

/// What bytes are read for. Those of one are read in order, from the first or from any again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::soft::roce) enum Source {
    /// A queue pair's request, by its running number. It holds its memory until it is [forgotten](ReadAhead::forget).
    Request(Qpn, u32),
    /// The answer to a peer's READ. Its memory is granted until accesses are [over](ReadAhead::end_accesses).
    Answer(Qpn),
}

/// Bytes of one GPU.
struct Ahead {
    stage: HostSlots,
    chunks: [Chunk; SLOTS],
    /// Counts uses.
    now: u64,
}

/// What is in a slot.
#[derive(Clone, Copy)]
struct Chunk {
    /// `None` of a slot that is free: no copy of it is under way.
    source: Option<Source>,
    start: u64,
    len: usize,
    used: u64,
}

impl ReadAhead {
    pub(in crate::soft::roce) const fn new() -> Self {
        ReadAhead(PerGpu::new())
    }

    /// Gives the bytes at `from`, and begins to read of the `rest` from there on, which `to` has a part of. `None` if it has no
    /// slots.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    ///
    /// # Safety
    /// `rest` bytes from `from` on are memory of the GPU at `place`, as long as [`Source`] says.
    pub(in crate::soft::roce) unsafe fn take(
        &mut self,
        source: Source,
        (from, place): (*mut u8, Place),
        rest: usize,
        to: &mut [u8],
    ) -> Option<Result<(), GpuError>> {
        let ahead = self.0.get(place, Ahead::new)?;
        // SAFETY: passed on to the caller.
        let taken = unsafe { ahead.take(source, from as u64, rest, to) };
        if taken.is_err() {
            ahead.forget(|of| of == source);
        }
        Some(taken)
    }

    /// Has done with a source: nothing is read of its memory any more.
    pub(in crate::soft::roce) fn forget(&mut self, source: Source) {
        self.0.all().for_each(|ahead| ahead.forget(|of| of == source));
    }

    /// The same with all of a queue pair.
    pub(in crate::soft::roce) fn forget_all(&mut self, qpn: Qpn) {
        self.0.all().for_each(|ahead| {
            ahead.forget(|of| matches!(of, Source::Request(of, _) | Source::Answer(of) if of == qpn))
        });
    }

    /// Waits for what is being read of memory that peers were granted, which may be taken from them next.
    pub(in crate::soft::roce) fn end_accesses(&mut self) {
        self.0.all().for_each(Ahead::end_accesses);
    }
}

impl Ahead {
    fn new(stage: HostSlots) -> Self {
        Ahead { stage, chunks: [Chunk { source: None, start: 0, len: 0, used: 0 }; SLOTS], now: 0 }
    }

    /// # Safety
    /// As [`ReadAhead::take`].
    unsafe fn take(&mut self, source: Source, from: u64, rest: usize, mut to: &mut [u8]) -> Result<(), GpuError> {
        let (mut at, end) = (from, from + rest as u64);
        while !to.is_empty() {
            let slot = match self.find(source, at) {
                Some(slot) => slot,
                None => {
                    let slot = self.room();
                    // SAFETY: within the memory, by the caller's word.
                    unsafe { self.load(slot, source, at, end) }?;
                    slot
                }
            };
            self.now += 1;
            self.chunks[slot].used = self.now;
            let Chunk { start, len, .. } = self.chunks[slot];
            let next = start + len as u64;
            // The next one comes meanwhile, where that takes no other's place.
            if next < end
                && self.find(source, next).is_none()
                && let Some(free) = self.free()
            {
                // What it says is no word about the bytes at hand: those that are read ahead are read again, by who finds it then.
                // SAFETY: as above.
                let _ = unsafe { self.load(free, source, next, end) };
            }
            self.stage.wait(slot)?;
            let inside = (at - start) as usize;
            let (part, others) = to.split_at_mut((len - inside).min(to.len()));
            self.stage.take(slot, inside, part);
            at += part.len() as u64;
            to = others;
            if at == next {
                // What is sent again is read again.
                self.chunks[slot].source = None;
            }
        }
        Ok(())
    }

    /// The slot with the byte at `at` of a source.
    fn find(&self, source: Source, at: u64) -> Option<usize> {
        self.chunks
            .iter()
            .position(|chunk| chunk.source == Some(source) && chunk.start <= at && at - chunk.start < chunk.len as u64)
    }

    fn free(&self) -> Option<usize> {
        self.chunks.iter().position(|chunk| chunk.source.is_none())
    }

    /// A slot that is free, or is made so: that which was not used for longest.
    fn room(&mut self) -> usize {
        self.free().unwrap_or_else(|| {
            let oldest = (0..SLOTS).min_by_key(|slot| self.chunks[*slot].used).unwrap_or(0);
            self.release(oldest);
            oldest
        })
    }

    /// Begins to read into a free slot from `at` on.
    ///
    /// # Safety
    /// The bytes up to `end` are memory of the GPU, as long as [`Source`] says.
    unsafe fn load(&mut self, slot: usize, source: Source, at: u64, end: u64) -> Result<(), GpuError> {
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.stage.slot_len());
        // SAFETY: by the caller's word; what is under way is waited for before the slot is free, and before the memory is
        // another's (`forget`, `end_accesses`).
        unsafe { self.stage.fill(slot, std::ptr::without_provenance(at as usize), len) }?;
        self.chunks[slot] = Chunk { source: Some(source), start: at, len, used: self.now };
        Ok(())
    }

    /// Makes a slot free, whatever its copy says: nobody wants it.
    fn release(&mut self, slot: usize) {
        if let Err(error) = self.stage.wait(slot) {
            log(&error);
        }
        self.chunks[slot].source = None;
    }

    fn forget(&mut self, is_over: impl Fn(Source) -> bool) {
        for slot in 0..SLOTS {
            if self.chunks[slot].source.is_some_and(&is_over) {
                self.release(slot);
            }
        }
    }

    fn end_accesses(&mut self) {
        for slot in 0..SLOTS {
            if matches!(self.chunks[slot].source, Some(Source::Answer(_))) && self.stage.wait(slot).is_err() {
                // It is read again, by who finds the error then.
                self.chunks[slot].source = None;
            }
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::soft::roce::staging::SLOT;

    #[test]
    fn bytes_at_hand_are_given_whatever_becomes_of_those_behind_them() {
        let fake = qpair_fake_cuda::control::add_device().unwrap();
        let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
        let mut memory = gpu.alloc(2 * SLOT).unwrap();
        memory.write(0, &[7; 2 * SLOT]).unwrap();
        let mut ahead = Ahead::new(HostSlots::new(gpu, SLOTS, SLOT).unwrap());
        let source = Source::Answer(Qpn(1));
        let mut take = |start: usize, to: &mut [u8]| {
            // SAFETY: the memory has as many bytes, and lives longer than what reads it.
            unsafe { ahead.take(source, memory.address() + start as u64, 2 * SLOT - start, to) }
        };
        fake.fail("cuMemcpyAsync", 2, qpair_fake_cuda::code::ECC_UNCORRECTABLE).unwrap();
        let mut bytes = [0; 1000];
        take(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 1000]);
        // It is tried again with the next packet, and found where it is wanted.
        fake.fail_times("cuMemcpyAsync", 1, 0, qpair_fake_cuda::code::ECC_UNCORRECTABLE).unwrap();
        take(1000, &mut bytes).unwrap();
        let mut rest = vec![0; SLOT - 2000];
        take(2000, &mut rest).unwrap();
        take(SLOT, &mut bytes).unwrap_err();
        drop(ahead);
        assert_eq!(fake.violations(), "");
    }
}
