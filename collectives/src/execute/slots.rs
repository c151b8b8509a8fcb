//! Slots of memory that the device reaches, by which messages of GPUs go whose memory it does not reach: some that are filled
//! from a GPU and read by peers, others that are read into and drained into the GPU.

use qpair_topology::PciAddress;
use qpair_verbs::{Gpu, GpuStage, MemoryError, ProtectionDomain};

/// Bytes of a slot, and of each part of a message but the last: a multiple of every element's size. Enough for a copy over PCIe
/// to take longer than to start it.
pub(super) const SLOT: usize = 512 << 10;

/// Slots of a GPU for each direction: some are copied while others are on their way.
const SLOTS: usize = 8;

/// The slots of a communicator's rank, by GPU. They are made when they are first needed.
#[derive(Debug)]
pub(super) struct Slots {
    /// The GPU whose memory they are, where the device reaches that, and others by it; else they are pinned memory.
    through: Option<Gpu>,
    gpus: Vec<OfGpu>,
}

#[derive(Debug)]
struct OfGpu {
    gpu: Gpu,
    out: Half,
    into: Half,
}

/// Slots of one direction.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) stage: GpuStage,
    free: Vec<usize>,
}

/// Which way bytes go: out of a GPU or into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    Into,
}

impl Slots {
    /// Of memory of the GPU at that address, if this process sees it.
    pub(super) fn new(through: Option<PciAddress>) -> Self {
        let found = through.map(|address| Gpu::at(&address.to_string()));
        if let Some(Err(error)) = &found {
            tracing::warn!(%error, "the GPU is not used by whose NIC messages of GPUs would go");
        }
        Slots { through: found.and_then(Result::ok).flatten(), gpus: Vec::new() }
    }

    /// The GPU whose memory they are, if it is one's.
    pub(super) fn through(&self) -> Option<Gpu> {
        self.through
    }

    /// Those of a GPU.
    ///
    /// # Errors
    /// [`MemoryError`] if there is no memory for them.
    pub(super) fn of(
        &mut self,
        gpu: Gpu,
        direction: Direction,
        domain: &ProtectionDomain,
    ) -> Result<&mut Half, MemoryError> {
        let at = match self.gpus.iter().position(|of| of.gpu == gpu) {
            Some(at) => at,
            None => {
                let half = || Half::new(gpu, self.through, domain);
                let (out, into) = (half()?, half()?);
                self.gpus.push(OfGpu { gpu, out, into });
                self.gpus.len() - 1
            }
        };
        Ok(self.gpus[at].half(direction))
    }

    /// Those of a GPU that were made before.
    pub(super) fn there(&mut self, gpu: Gpu, direction: Direction) -> Option<&mut Half> {
        self.gpus.iter_mut().find(|of| of.gpu == gpu).map(|of| of.half(direction))
    }

    /// Waits until no copy is under way: what fails is over too.
    pub(super) fn settle(&mut self) {
        for half in self.gpus.iter_mut().flat_map(|of| [&mut of.out, &mut of.into]) {
            for slot in 0..SLOTS {
                if let Err(error) = half.stage.wait(slot) {
                    tracing::debug!(%error, "a copy of an operation that has ended failed");
                }
            }
        }
    }
}

impl OfGpu {
    fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Out => &mut self.out,
            Direction::Into => &mut self.into,
        }
    }
}

impl Half {
    fn new(gpu: Gpu, through: Option<Gpu>, domain: &ProtectionDomain) -> Result<Self, MemoryError> {
        let stage = match through.map(|neighbour| GpuStage::through(domain, gpu, neighbour, SLOTS, SLOT)) {
            Some(Ok(stage)) => stage,
            failed => {
                if let Some(Err(error)) = failed {
                    tracing::warn!(%error, "messages of GPUs go by pinned memory instead of another GPU's");
                }
                GpuStage::new(domain, gpu, SLOTS, SLOT)?
            }
        };
        Ok(Half { stage, free: (0..SLOTS).rev().collect() })
    }

    /// A slot that nobody uses.
    pub(super) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Nobody uses it any more.
    pub(super) fn give(&mut self, slot: usize) {
        self.free.push(slot);
    }
}
