//! Posting receives, to a queue pair's own queue or a shared one.

use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;

use qpair_verbs_sys as sys;

use super::handle::{outcome, refused};
use super::pieces::{gather, single};
use super::recv_slots::{Receive, RecvSlots};
use crate::error::{PostError, Rejected};
use crate::memory::Local;
use crate::qp::GRH_BYTES;

/// The memory that a queue takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takes {
    pub(super) domain: u64,
    /// Most pieces.
    pub(super) max_sge: usize,
    /// Bytes of the longest message, and of what comes in front of it. What memory has beyond is not handed over: nothing comes there, and a length of 2 GiB and
    /// more has another meaning to libmlx5.
    pub(super) max_message: u32,
    /// The processor's alone: the device's library may have it write there.
    pub(super) copied: bool,
}

/// So many bytes of a message, with a datagram's route header in front.
pub(super) fn with_route(max_message: u32) -> u32 {
    max_message.saturating_add(GRH_BYTES as u32)
}

impl Takes {
    /// Whether all who write what is received can write there.
    #[inline(always)]
    fn is_reached(self, memory: &Local) -> bool {
        !self.copied || memory.is_of_processor()
    }

    fn check(self, memory: &Local) -> Result<(), PostError> {
        memory.check(self.domain, None, self.max_sge)?;
        if self.is_reached(memory) || memory.is_empty() {
            return Ok(());
        }
        let form = if memory.is_on_gpu() { "memory of a GPU" } else { memory.form() };
        Err(PostError::CopiedByProcessor { form })
    }
}

impl RecvSlots {
    /// Posts a receive to the queue that takes such memory, by `post`, the device's function for it. Its tag is `tags` with
    /// the slot in it.
    ///
    /// # Errors
    /// [`Rejected`] with the memory.
    ///
    /// # Safety
    /// The caller is the only poster, and `post` hands the request to the queue that these slots and tags are of.
    #[inline(always)]
    pub(super) unsafe fn post(
        &self,
        tags: u64,
        takes: Takes,
        memory: Local,
        wr_id: u64,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
    ) -> Result<(), Rejected> {
        if let Some(mut piece) = single(&memory, takes.domain)
            && piece.length <= takes.max_message
            && takes.is_reached(&memory)
        {
            let receive = Receive { local: memory, wr_id, len: piece.length };
            // SAFETY: passed on to the caller; the piece is of the memory.
            return unsafe { self.post_pieces(tags, receive, (&raw mut piece, 1), post) };
        }
        // SAFETY: passed on to the caller.
        unsafe { self.post_any(tags, takes, (memory, wr_id), post) }
    }

    /// As [`post`](RecvSlots::post), of memory in any form.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn post_any(
        &self,
        tags: u64,
        takes: Takes,
        (memory, wr_id): (Local, u64),
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
    ) -> Result<(), Rejected> {
        let range = 0..memory.len().min(takes.max_message as usize);
        let gathered = takes.check(&memory).and_then(|()| gather(&memory, range, takes.domain));
        match gathered {
            Ok(mut list) => {
                // No message is longer than 4 GiB.
                let receive = Receive { len: u32::try_from(memory.len()).unwrap_or(u32::MAX), local: memory, wr_id };
                // SAFETY: passed on to the caller; the pieces are of the memory.
                unsafe { self.post_pieces(tags, receive, (list.pieces.as_mut_ptr(), list.count), post) }
            }
            Err(error) => Err(Rejected { error, memory }),
        }
    }

    /// # Safety
    /// As [`post`](RecvSlots::post), and the pieces are so many, and of that memory.
    #[inline(always)]
    unsafe fn post_pieces(
        &self,
        tags: u64,
        receive: Receive,
        (sg_list, num_sge): (*mut sys::ibv_sge, i32),
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
    ) -> Result<(), Rejected> {
        // SAFETY: the only poster, by the caller.
        let own = match unsafe { self.begin(receive) } {
            Ok(own) => own,
            Err(Receive { local: memory, .. }) => {
                return Err(Rejected { error: PostError::ReceiveQueueFull { depth: self.depth() }, memory });
            }
        };
        let mut wr = sys::ibv_recv_wr {
            wr_id: tags | u64::from(own),
            next: null_mut(),
            // Of memory that the slot keeps until the receive is done.
            sg_list,
            num_sge,
        };
        let mut bad = null_mut();
        match outcome(post(&raw mut wr, &raw mut bad)) {
            Ok(()) => Ok(()),
            // SAFETY: as above.
            Err(error) => unsafe { self.not_taken(own, error) },
        }
    }

    /// Takes back the last receive, which the device refused. If it has completed nevertheless, it counts as
    /// posted.
    ///
    /// # Safety
    /// The caller is the only poster, and began it just now.
    #[cold]
    unsafe fn not_taken(&self, own: u32, error: io::Error) -> Result<(), Rejected> {
        // SAFETY: passed on to the caller.
        unsafe { self.back(own) }.map_or(Ok(()), |memory| Err(Rejected { error: refused(error), memory }))
    }
}
