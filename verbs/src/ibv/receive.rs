//! Posting receives, to a queue pair's own queue or a shared one.

use std::ffi::c_int;
use std::ptr::null_mut;

use qpair_verbs_sys as sys;

use super::handle::{outcome, refused};
use super::numbers::{QueueId, Tag};
use super::pieces::{gather, single};
use super::recv_slots::RecvSlots;
use crate::error::{PostError, Rejected};
use crate::memory::Local;

/// The memory that a queue takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takes {
    pub(super) domain: u64,
    /// Most pieces.
    pub(super) max_sge: usize,
}

impl RecvSlots {
    /// Posts a receive of the queue `queue`, which takes such memory, by `post`, the device's function for it.
    ///
    /// # Errors
    /// [`Rejected`] with the memory.
    ///
    /// # Safety
    /// The caller is the only poster, and `post` hands the request to the queue that these slots are of.
    #[inline]
    pub(super) unsafe fn post(
        &self,
        queue: QueueId,
        takes: Takes,
        memory: Local,
        wr_id: u64,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
    ) -> Result<(), Rejected> {
        if let Some(mut piece) = single(&memory, takes.domain) {
            // SAFETY: passed on to the caller; the piece is of the memory.
            return unsafe { self.post_pieces(queue, (memory, wr_id), (&raw mut piece, 1), post) };
        }
        let gathered = memory.check(takes.domain, None, takes.max_sge).and_then(|()| gather(&memory, 0..memory.len()));
        match gathered {
            // SAFETY: as above.
            Ok(mut list) => unsafe {
                self.post_pieces(queue, (memory, wr_id), (list.pieces.as_mut_ptr(), list.count), post)
            },
            Err(error) => Err(Rejected { error, memory }),
        }
    }

    /// # Safety
    /// As [`post`](RecvSlots::post), and the pieces are so many, and of that memory.
    #[inline(always)]
    unsafe fn post_pieces(
        &self,
        queue: QueueId,
        (memory, wr_id): (Local, u64),
        (sg_list, num_sge): (*mut sys::ibv_sge, i32),
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
    ) -> Result<(), Rejected> {
        let post = |own| {
            let mut wr = sys::ibv_recv_wr {
                wr_id: Tag { queue, receive: true, own }.encode(),
                next: null_mut(),
                // Of memory that the slot keeps until the receive is done.
                sg_list,
                num_sge,
            };
            let mut bad = null_mut();
            outcome(post(&raw mut wr, &raw mut bad)).map_err(refused)
        };
        // SAFETY: the only poster, by the caller.
        unsafe { self.hand_over(memory, wr_id, post) }.map_err(|(error, memory)| {
            let error = error.unwrap_or(PostError::ReceiveQueueFull { depth: self.depth() });
            Rejected { error, memory }
        })
    }
}
