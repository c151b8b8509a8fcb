//! Memory over a link: arenas that a peer has of ours, and those of its own as they are reached here.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::link::Link;
use super::message::Message;
use super::peer_arenas::{Mapped, Reach};
use super::socket::Packet;
use crate::error::GpuError;
use crate::gpu::{Allocation, Export, Imported, Place};
use crate::memory::Arena;
use crate::soft::home::Initiators;
use crate::sync::lock;

impl Link {
    /// Where `len` bytes at `offset` of the peer's arena lie here. On a local link the address is the peer's own.
    #[inline(always)]
    pub(crate) fn reach(&self, arena: u32, offset: u64, len: u64, addr: u64) -> Reach {
        let Some(remote) = self.remote_end() else {
            let place = Place::of_arena(arena);
            return NonNull::new(addr as *mut u8).map_or(Reach::Unmapped, |at| Reach::Mapped(at, place));
        };
        if arena == 0 {
            return Reach::Unmapped;
        }
        match remote.arenas.find(arena, offset, len) {
            Some(reach) => reach,
            None => remote.arenas.ask(arena, || self.send(&Message::MapArena { arena })),
        }
    }

    /// Notes that `len` bytes of an arena of the processor's memory are to be copied from or to memory at `other`: with a
    /// GPU's, the arena is pinned, so that the next such copies are fast. The caller is inside its hazard.
    #[inline(always)]
    pub(crate) fn note_copy(&self, arena: u32, len: u64, other: Place) {
        if !other.is_host() && len >= PIN_FROM {
            self.pin(arena, other);
        }
    }

    #[cold]
    fn pin(&self, arena: u32, other: Place) {
        if let (Some(remote), Some(gpu)) = (self.remote_end(), other.opened())
            && remote.may_pin
        {
            remote.arenas.pin(arena, gpu);
        }
    }

    /// Maps an arena that the peer sent.
    pub(super) fn install_arena(&self, arena: u32, len: u64, packet: &mut Packet) {
        if let Some(remote) = self.remote_end() {
            remote.arenas.install(arena, len, packet.fds.pop());
        }
    }

    /// Maps memory of a GPU that the peer sent, as `open` does it, of so many bytes.
    pub(super) fn install_gpu_arena(
        &self,
        arena: u32,
        len: u64,
        open: impl FnOnce(usize) -> Option<Result<Imported, GpuError>>,
    ) {
        let Some(remote) = self.remote_end() else { return };
        remote.arenas.install_with(arena, || match open(usize::try_from(len).ok()?)? {
            Ok(imported) => Some(Mapped::of_gpu(arena, imported)),
            Err(error) => {
                // What can be helped is told where it is seen, once for all memory and all peers.
                if matches!(error, GpuError::Unseen { .. }) && !IS_TOLD.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, peer = %self.peer(), "memory of a peer's GPU is not mapped; it goes slowly");
                } else {
                    tracing::info!(%error, peer = %self.peer(), "a peer's GPU memory is not mapped; its process copies");
                }
                None
            }
        });
    }

    /// An arena of the peer is gone: it is unmapped once those have left who `sight` finds inside an access.
    pub(super) fn forget_arena(&self, arena: u32, sight: impl FnOnce() -> Initiators) {
        if let Some(remote) = self.remote_end()
            && let Some(forgotten) = remote.arenas.forget(arena)
        {
            remote.departures.arena(forgotten, sight());
        }
    }

    /// Sends the peer an arena of ours. For the control thread.
    pub(super) fn lend(&self, arena: &Arena) {
        let Some(remote) = self.remote_end() else { return };
        let (id, len) = (arena.id(), arena.len() as u64);
        if self.send_with(&Message::Arena { arena: id, len }, Some(arena.segment().shared_fd())) {
            lock(&remote.lent).insert(id);
        }
    }

    /// Sends the peer memory of a GPU of ours; false if it can not be mapped. For the control thread.
    pub(super) fn lend_gpu(&self, arena: u32, allocation: &Allocation) -> bool {
        let Some(remote) = self.remote_end() else { return false };
        // Each export is a descriptor of its own, and nobody needs a second.
        if lock(&remote.lent).contains(&arena) {
            return true;
        }
        let Some(export) = allocation.export(arena) else { return false };
        let gpu = allocation.uuid();
        let is_sent = match export {
            Export::Descriptor(fd, len) => {
                self.send_with(&Message::GpuArena { arena, len: len as u64, gpu }, Some(&Arc::new(fd)))
            }
            Export::Handle(handle, offset) => {
                let (halves, _) = handle.as_chunks();
                let handle = [halves[0], halves[1]];
                self.send(&Message::GpuHandle { arena, len: allocation.len() as u64, gpu, handle, offset })
            }
        };
        if is_sent {
            lock(&remote.lent).insert(arena);
        }
        true
    }

    /// True if the peer was sent that arena of ours, and not told yet that it is gone.
    pub(crate) fn has_arena(&self, arena: u32) -> bool {
        self.remote_end().is_some_and(|remote| lock(&remote.lent).contains(&arena))
    }

    /// An arena of ours is gone: the peer unmaps it, if it was sent it. For the control thread.
    pub(super) fn take_back(&self, arena: u32) {
        let Some(remote) = self.remote_end() else { return };
        if lock(&remote.lent).remove(&arena) {
            self.send(&Message::ArenaGone { arena });
        }
    }
}

/// Whether it was said that this process does not see a peer's GPU.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Bytes of a copy between memory of a peer's processor and a GPU from which on the former is pinned. CUDA's driver takes
/// shorter ones from memory that is not pinned before its call returns; longer ones it copies twice.
/// <https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html>
const PIN_FROM: u64 = 64 << 10;
