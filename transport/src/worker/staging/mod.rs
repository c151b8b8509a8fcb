//! Messages out of memory of GPUs that is not registered, and into it: part by part through slots of pinned memory, which the GPU
//! fills or drains while others are on their way. `outgoing` offers parts once the peer wants them, `incoming` has parts read, of
//! such payloads and of others that are for a GPU, into what `destination` has; `patience` ends with peers that let others wait.
//!
//! A slot is taken only for what goes on by itself: to fill it once the peer has a place for the message, to read into it once
//! there is something to read. So no message waits for the slots of another that waits for it.

mod destination;
mod incoming;
mod outgoing;
mod patience;

use std::collections::VecDeque;

use qpair_verbs::{Gpu, GpuBuffer, GpuError, GpuStage, MemoryError, ProtectionDomain};
use slab::Slab;

pub(crate) use incoming::PieceKey;

use super::Worker;
use super::ids::EndpointId;
use incoming::{Incoming, Piece, Queues};
use outgoing::{Filling, Outgoing, Wanting};
use patience::Patience;

/// How far messages of GPUs' memory are.
#[derive(Debug, Default)]
pub(super) struct Staging {
    slots: Vec<OfGpu>,
    /// Peers that want payloads which have bytes left for a slot.
    wanting: Vec<Wanting>,
    /// Slots that are being filled, in the order in which they were taken.
    filling: Vec<Filling>,
    incoming: Slab<Incoming>,
    /// All keys of these are below.
    bound: usize,
    /// Which of them comes first.
    turn: usize,
    pieces: Slab<Piece>,
    patience: Patience,
    /// Of payloads that have ended, and of peers that want nothing.
    spare_queues: Vec<Queues>,
    spare_payloads: Vec<VecDeque<Outgoing>>,
    /// Something went on since that was last asked.
    moved: bool,
    /// What a short message is copied through.
    copy: Vec<u8>,
}

/// The slots of a GPU.
#[derive(Debug)]
struct OfGpu {
    gpu: Gpu,
    out: GpuStage,
    /// By slot: for whom it is filled, or who reads it.
    holders: [Option<EndpointId>; SLOTS],
    into: GpuStage,
    /// By slot: whose memory is being read into it.
    readers: [Option<EndpointId>; SLOTS],
    /// Slots that a device has not given back, and may write to: they are used no more.
    kept: usize,
}

impl Staging {
    /// Makes the slots of a GPU, unless they are there.
    pub(super) fn prepare(&mut self, gpu: Gpu, domain: &ProtectionDomain) -> Result<(), MemoryError> {
        if self.slots.iter().any(|of| of.gpu == gpu) {
            return Ok(());
        }
        let (out, into) = (GpuStage::new(domain, gpu, SLOTS, SLOT)?, slots_into(gpu, domain)?);
        let nobody = [None; SLOTS];
        self.slots.push(OfGpu { gpu, out, holders: nobody, into, readers: nobody, kept: 0 });
        self.filling.reserve(SLOTS);
        Ok(())
    }

    /// Takes other slots where a device has kept some, once nothing is in the rest. The memory of those stays with it.
    pub(super) fn replace_kept(&mut self, domain: &ProtectionDomain) {
        for of in self.slots.iter_mut().filter(|of| of.kept > 0 && of.kept + of.into.free() == SLOTS) {
            match slots_into(of.gpu, domain) {
                Ok(into) => (of.into, of.readers, of.kept) = (into, [None; SLOTS], 0),
                Err(error) => tracing::warn!(%error, "no other slots for those that a device has not given back"),
            }
        }
    }

    /// The bytes of a GPU's memory, for a message that is copied.
    pub(super) fn copy_of(&mut self, buffer: &GpuBuffer) -> Result<&[u8], GpuError> {
        let len = buffer.len();
        if self.copy.len() < len {
            self.copy.resize(len, 0);
        }
        buffer.read(0, &mut self.copy[..len])?;
        Ok(&self.copy[..len])
    }

    /// The same, of the memory that was read last, if it has so many.
    pub(super) fn copied(&self, len: usize) -> &[u8] {
        self.copy.get(..len).unwrap_or_default()
    }

    /// True if something is under way.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !self.incoming.is_empty() || !self.wanting.is_empty() || !self.filling.is_empty()
    }

    /// True if a GPU copies, of which no event tells.
    pub(super) fn is_copying(&self) -> bool {
        !self.filling.is_empty() || self.incoming.iter().any(|(_, incoming)| incoming.is_draining())
    }

    /// How many slots are being filled.
    #[cfg(all(test, feature = "cuda"))]
    pub(super) fn filling(&self) -> usize {
        self.filling.len()
    }

    fn of(&mut self, gpu: Gpu) -> Option<&mut OfGpu> {
        self.slots.iter_mut().find(|of| of.gpu == gpu)
    }

    /// A slot that was filled is free again.
    pub(super) fn give(&mut self, gpu: Gpu, slot: usize) {
        self.moved = true;
        if let Some(of) = self.of(gpu) {
            of.holders[slot] = None;
            of.out.give(slot);
        }
    }
}

impl Worker {
    /// Takes the memory now by which messages of a GPU's memory go that is not registered, which else is taken with the first of
    /// them: 8 MiB that are pinned, and 4 MiB of the GPU's, for each worker and GPU. From then on long messages allocate nothing once
    /// as many were under way before.
    ///
    /// # Errors
    /// [`MemoryError`] if there is none, or the device refuses it.
    ///
    /// ```no_run
    /// use qpair_transport::{Config, Tag, Worker};
    /// use qpair_verbs::Gpu;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Gpu::open(0)?;
    /// let mut worker = Worker::new(Config::default())?;
    /// worker.prepare_gpu(gpu)?;
    /// let ep = worker.connect("10.0.0.2:4791".parse::<std::net::SocketAddr>()?)?;
    /// worker.send(ep, Tag(1), gpu.alloc(64 << 20)?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare_gpu(&mut self, gpu: Gpu) -> Result<(), MemoryError> {
        self.has_other_queues = true;
        self.staging.copy.reserve(self.config.eager_limit);
        self.staging.prepare(gpu, &self.pd)
    }

    /// Moves on what goes by slots. True if something did.
    pub(super) fn stage(&mut self) -> bool {
        if !self.staging.is_busy() {
            return false;
        }
        self.offer_filled();
        self.fill_slots();
        self.take_in_more();
        std::mem::take(&mut self.staging.moved)
    }
}

/// Whether a peer that has so many slots may have one of those that are free. One that reads or answers late, or not at all, shall
/// leave room for others: where there are such, none has more than are free then; else some are left for those to come.
fn may_have_one(held: usize, free: usize, is_alone: bool) -> bool {
    held < free || is_alone && free > SPARE
}

/// Slots that are read into.
fn slots_into(gpu: Gpu, domain: &ProtectionDomain) -> Result<GpuStage, MemoryError> {
    let mut into = GpuStage::new(domain, gpu, SLOTS, SLOT)?;
    into.prepare_to_combine()?;
    Ok(into)
}

/// Bytes of a slot: enough that starting a copy and asking for a part are lost in it. No part is longer.
const SLOT: usize = 512 << 10;
/// Slots of a GPU for each direction: what is under way at once, by either end and on the way.
const SLOTS: usize = 8;
/// Slots that one peer leaves while there is no other: with two of them another goes on beside one that has stopped.
const SPARE: usize = 2;
