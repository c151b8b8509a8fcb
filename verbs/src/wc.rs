//! Work completions: what the device says of a finished work request.

use std::fmt;

use crate::error::{NoMemory, PostError, Rejected};
use crate::memory::{Buffer, Local, Slab};
use crate::status::{WcOpcode, WcStatus};
use crate::types::{Qpn, Rkey};
use crate::{ibv, soft};

/// The plain values of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The number that the poster gave, 0 if none.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// Operation; known also on errors, from the request.
    pub opcode: WcOpcode,
    /// Queue pair that the work was posted on.
    pub qpn: Qpn,
    /// Bytes received, read, or written to the local buffer; 0 on errors.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The rkey that the message invalidated.
    pub invalidated: Option<Rkey>,
    /// Sender (UD); `None` elsewhere.
    pub src_qpn: Option<Qpn>,
    /// Provider's own error detail, 0 if none.
    pub vendor_err: u32,
}

/// A completed work request, and the memory that was posted with it.
///
/// It borrows its completion queue and so can not outlive the next poll:
///
/// ```compile_fail,E0499
/// # fn f(cq: &mut qpair_verbs::CompletionQueue) {
/// let first = cq.poll().unwrap();
/// let second = cq.poll().unwrap(); // the first still borrows the queue
/// drop((first, second));
/// # }
/// ```
#[derive(Debug)]
pub struct Completion<'cq> {
    at: &'cq mut Current,
}

/// The place in a completion queue where the completion at its cursor stands: it is filled in place and lent out.
#[derive(Debug, Default)]
pub(crate) struct Current {
    pub(crate) wc: WorkCompletion,
    pub(crate) memory: Local,
    pub(crate) unsignaled: Option<Unsignaled>,
    /// When the device completed it, where its queue tells.
    pub(crate) timestamp: Option<u64>,
    pub(crate) short: Short,
}

/// A short message that has come out of the ring of the software device. It is put into the memory of its receive once that
/// is asked for.
pub(crate) struct Short {
    /// Bytes of the longest that stays here. Longer ones than of two lines do for who reads them here alone: to go on from here
    /// to the memory takes longer than to go there at once.
    pub(crate) most: u32,
    /// Its bytes; what lies beyond its length means nothing.
    pub(crate) bytes: [u8; soft::RING_INLINE],
    /// Whose receive it took; `None` if there is no such message, or it is in the memory.
    pub(crate) origin: Option<Origin>,
}

/// A receive of the software device that a short message took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// What the queue pair calls itself.
    pub(crate) of: usize,
    /// Running number of the receive.
    pub(crate) receive: u32,
    /// Bytes of its memory.
    pub(crate) len: usize,
}

/// Unsignaled requests that a completion retires, of one of the providers.
#[derive(Debug)]
pub(crate) enum Unsignaled {
    Soft(soft::Retired),
    Ibv(ibv::Retired),
}

impl Default for Short {
    fn default() -> Self {
        Short { most: soft::SHORT as u32, bytes: [0; soft::RING_INLINE], origin: None }
    }
}

impl fmt::Debug for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Short").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Current {
    /// True if there is nothing in it that would have to be dropped.
    #[inline(always)]
    pub(crate) fn is_clear(&self) -> bool {
        matches!(self.memory, Local::None) && self.unsignaled.is_none()
    }

    /// Drops what was not taken, and retires what the completion retires.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        if !matches!(self.memory, Local::None) {
            self.memory = Local::None;
        }
        self.short.origin = None;
        self.retire();
    }

    /// Puts a short message that is not in the memory yet there.
    #[inline(always)]
    fn place(&mut self) {
        if self.short.origin.is_some() {
            self.short.origin = None;
            let message = &self.short.bytes[..self.wc.byte_len as usize];
            match &mut self.memory {
                Local::Buffer(buffer) => put(buffer, message),
                Local::Slab(slab) => put(slab.get_mut().unwrap_or_default(), message),
                _ => {}
            }
        }
    }

    /// Retires what the completion retires.
    #[inline(always)]
    fn retire(&mut self) {
        if self.unsignaled.is_some() {
            self.unsignaled = None;
        }
    }
}

impl<'cq> Completion<'cq> {
    #[inline(always)]
    pub(crate) fn new(at: &'cq mut Current) -> Self {
        Completion { at }
    }
}

impl Completion<'_> {
    /// The plain values, which may be kept.
    #[inline]
    pub fn values(&self) -> WorkCompletion {
        self.at.wc
    }

    /// The number that the poster gave.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.at.wc.wr_id
    }

    /// Outcome.
    #[inline]
    pub fn status(&self) -> WcStatus {
        self.at.wc.status
    }

    /// Operation.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        self.at.wc.opcode
    }

    /// Queue pair that the work was posted on.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.at.wc.qpn
    }

    /// Bytes received, read, or written to the local buffer.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.at.wc.byte_len as usize
    }

    /// Immediate data.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.at.wc.imm
    }

    /// When the device completed it, in ticks of its own clock ([`core_clock_khz`](crate::DeviceAttributes::core_clock_khz));
    /// `None` unless the queue was made [with timestamps](crate::Context::create_cq_with_timestamps).
    #[inline]
    pub fn timestamp(&self) -> Option<u64> {
        self.at.timestamp
    }

    /// An error for any status but success.
    ///
    /// # Errors
    /// [`CompletionError`](crate::CompletionError) with queue pair, status and provider detail.
    #[inline]
    pub fn ok(&self) -> Result<(), crate::CompletionError> {
        if self.at.wc.status.is_success() {
            return Ok(());
        }
        Err(crate::CompletionError {
            qpn: self.at.wc.qpn,
            opcode: self.at.wc.opcode,
            status: self.at.wc.status,
            vendor_err: self.at.wc.vendor_err,
        })
    }

    /// The message that a receive took into a buffer or slab, in place; of a datagram, with the room for the route header in
    /// front. `None` for all other completions.
    ///
    /// To read a short message here and to [post the receive again](crate::QueuePair::repost) costs less than to take the
    /// memory out and post it: on the software device the message then does not go through that memory at all.
    #[inline(always)]
    pub fn message(&self) -> Option<&[u8]> {
        let len = self.byte_len();
        if self.at.short.origin.is_some() {
            return self.at.short.bytes.get(..len);
        }
        if self.at.wc.opcode != WcOpcode::RECV || !self.at.wc.status.is_success() {
            return None;
        }
        match &self.at.memory {
            Local::Buffer(buffer) => buffer.get(..len),
            Local::Slab(slab) => slab.get(..len),
            _ => None,
        }
    }

    /// The memory that was posted with the work request, whatever its form.
    #[inline]
    pub fn into_memory(self) -> Local {
        self.at.place();
        std::mem::take(&mut self.at.memory)
    }

    /// The buffer that was posted with the work request.
    ///
    /// # Errors
    /// [`NoMemory`] if the request carried none (inline data), or memory of another form.
    #[inline(always)]
    pub fn into_buffer(self) -> Result<Buffer, NoMemory> {
        if !matches!(self.at.memory, Local::Buffer(_)) {
            return Err(NoMemory { wanted: "a buffer", found: self.at.memory.form() });
        }
        self.at.place();
        let buffer = match std::mem::take(&mut self.at.memory) {
            Local::Buffer(buffer) => Ok(buffer),
            other => Err(NoMemory { wanted: "a buffer", found: other.form() }),
        };
        // All that dropping the rest does.
        self.at.retire();
        std::mem::forget(self);
        buffer
    }

    /// The slab that was posted with the work request.
    ///
    /// # Errors
    /// [`NoMemory`] if the request carried none, or memory of another form.
    #[inline]
    pub fn into_slab(self) -> Result<Slab, NoMemory> {
        match self.into_memory() {
            Local::Slab(slab) => Ok(slab),
            other => Err(NoMemory { wanted: "a slab", found: other.form() }),
        }
    }

    /// The memory of the next unsignaled request that this completion retires, oldest first.
    ///
    /// What is not taken is dropped with the completion.
    pub fn next_retired(&mut self) -> Option<Local> {
        match self.at.unsignaled.as_mut()? {
            Unsignaled::Soft(retired) => retired.next_memory(),
            Unsignaled::Ibv(retired) => retired.next_memory(),
        }
    }
}

impl Completion<'_> {
    #[inline(always)]
    pub(crate) fn current(&mut self) -> &mut Current {
        self.at
    }

    /// The memory and number of a receive, for posting it again.
    ///
    /// # Errors
    /// [`Rejected`] with the memory, if it is no receive that completed.
    #[inline]
    pub(crate) fn into_receive(self) -> Result<(Local, u64), Rejected> {
        let (opcode, wr_id) = (self.at.wc.opcode, self.at.wc.wr_id);
        let memory = self.into_memory();
        match opcode {
            WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM => Ok((memory, wr_id)),
            _ => Err(Rejected { error: PostError::NotAReceive, memory }),
        }
    }
}

/// Puts a message in front of the memory of its receive, which has room for it.
#[inline(always)]
fn put(memory: &mut [u8], message: &[u8]) {
    if let Some(room) = memory.get_mut(..message.len()) {
        room.copy_from_slice(message);
    }
}

impl Drop for Completion<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.at.clear();
    }
}
