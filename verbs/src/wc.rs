//! Work completions: what the device says of a finished work request.

use crate::error::NoMemory;
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
}

/// Unsignaled requests that a completion retires, of one of the providers.
#[derive(Debug)]
pub(crate) enum Unsignaled {
    Soft(soft::Retired),
    Ibv(ibv::Retired),
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
        self.retire();
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

    /// The memory that was posted with the work request, whatever its form.
    #[inline]
    pub fn into_memory(self) -> Local {
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

impl Drop for Completion<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.at.clear();
    }
}
