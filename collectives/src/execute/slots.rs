//! Slots of memory that the device reaches, by which messages of GPUs go whose memory it does not reach: some that are filled
//! from a GPU and read by peers, others that are read into and drained into the GPU.

use std::fmt;

use qpair_topology::PciAddress;
use qpair_verbs::{Gpu, GpuStage, MemoryError, ProtectionDomain};

use crate::bootstrap::Staging;
use crate::cost::{SLOT, SLOTS};

/// The slots of a communicator's rank, by GPU.
#[derive(Debug)]
pub(super) struct Slots {
    memory: Of,
    /// Why this rank has them; others may be the reason.
    reason: Option<Staging>,
    gpus: Vec<OfGpu>,
}

/// Whose memory they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The processor's, pinned.
    Processor,
    /// That of the GPU at that address, where the device reaches that, and others by it.
    Neighbour(PciAddress),
    /// That of the GPU itself, which the device reaches; but a peer's does not reach its own.
    Gpu,
}

#[derive(Debug)]
struct OfGpu {
    gpu: Gpu,
    out: GpuStage,
    into: GpuStage,
}

/// Which way bytes go: out of a GPU or into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    Into,
}

impl Slots {
    /// Those of a rank whose device is the one of that GPU, if it is another's.
    pub(super) fn new(asked: bool, through: Option<PciAddress>, domain: &ProtectionDomain) -> Self {
        let (memory, reason) = match through {
            _ if asked => (Of::Processor, Some(Staging::Asked)),
            Some(neighbour) => (Of::Neighbour(neighbour), Some(Staging::Neighbour)),
            None if domain.reaches_gpus() => (Of::Gpu, None),
            None => (Of::Processor, Some(Staging::Unreached)),
        };
        Slots { memory, reason, gpus: Vec::new() }
    }

    /// A process of its host does not see a GPU of another. None were made yet.
    pub(super) fn stage_unseen(&mut self) {
        if self.reason.is_none() {
            (self.memory, self.reason) = (Of::Processor, Some(Staging::Unseen));
        }
    }

    /// Why this rank has them, if not for others.
    pub(super) fn reason(&self) -> Option<Staging> {
        self.reason
    }

    /// Makes those of a GPU, unless they are there.
    ///
    /// # Errors
    /// [`MemoryError`] if there is no memory for them.
    pub(super) fn make(&mut self, gpu: Gpu, domain: &ProtectionDomain) -> Result<(), MemoryError> {
        if self.gpus.iter().any(|of| of.gpu == gpu) {
            return Ok(());
        }
        if self.reason == Some(Staging::Unseen) {
            tracing::warn!("messages of GPUs go by pinned memory: {}", Staging::UNSEEN);
        }
        let through = match self.memory {
            Of::Processor => None,
            Of::Gpu => Some(gpu),
            Of::Neighbour(address) => neighbour(address),
        };
        let (out, mut into) = (stage(gpu, through, domain)?, stage(gpu, through, domain)?);
        into.prepare_to_combine()?;
        self.gpus.push(OfGpu { gpu, out, into });
        Ok(())
    }

    /// Those of a GPU.
    pub(super) fn of(&mut self, gpu: Gpu, direction: Direction) -> Option<&mut GpuStage> {
        let of = self.gpus.iter_mut().find(|of| of.gpu == gpu)?;
        Some(match direction {
            Direction::Out => &mut of.out,
            Direction::Into => &mut of.into,
        })
    }

    /// Waits until no copy is under way: what fails is over too.
    pub(super) fn settle(&mut self) {
        for stage in self.gpus.iter_mut().flat_map(|of| [&mut of.out, &mut of.into]) {
            for slot in 0..SLOTS {
                if let Err(error) = stage.wait(slot) {
                    tracing::debug!(%error, "a copy of an operation that has ended failed");
                }
            }
        }
    }
}

/// Whose memory they are: of those that were made, what came of it.
impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.gpus.first().map(|of| (of.out.neighbour(), of.gpu));
        match (made, self.memory) {
            (Some((Some(memory), gpu)), _) if memory == gpu => f.write_str("slots of the GPU's memory"),
            (Some((Some(memory), _)), _) => write!(f, "slots of memory of GPU {}", memory.attributes().pci_address),
            (Some((None, _)), _) | (None, Of::Processor) => f.write_str("slots of pinned memory"),
            (None, Of::Gpu) => f.write_str("slots of the GPU's memory"),
            (None, Of::Neighbour(address)) => write!(f, "slots of memory of GPU {address}"),
        }
    }
}

/// The GPU at an address, if this process sees it.
fn neighbour(address: PciAddress) -> Option<Gpu> {
    match Gpu::at(&address.to_string()) {
        Ok(Some(gpu)) => return Some(gpu),
        Ok(None) => {
            tracing::warn!(%address, "messages go by pinned memory, as this process does not see the GPU of its NIC")
        }
        Err(error) => {
            tracing::warn!(%address, %error, "messages go by pinned memory instead of that of the GPU of its NIC")
        }
    }
    None
}

/// Slots of one direction.
fn stage(gpu: Gpu, through: Option<Gpu>, domain: &ProtectionDomain) -> Result<GpuStage, MemoryError> {
    match through.map(|through| GpuStage::through(domain, gpu, through, SLOTS, SLOT)) {
        Some(Ok(stage)) => return Ok(stage),
        Some(Err(error)) => {
            tracing::warn!(%error, "messages of GPUs go by pinned memory instead of a GPU's");
        }
        None => {}
    }
    GpuStage::new(domain, gpu, SLOTS, SLOT)
}
