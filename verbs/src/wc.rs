//! Work completions: what the device says of a finished work request.

use std::fmt;
use std::marker::PhantomData;

use crate::error::NoMemory;
use crate::memory::{Buffer, Local, Slab};
use crate::soft;
use crate::types::{Qpn, Rkey};

/// Status of a completion: a code of `enum ibv_wc_status`. Unknown codes are kept and printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

/// Operation of a completion: a code of `enum ibv_wc_opcode`. Unknown codes are kept and printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcOpcode(pub u32);

macro_rules! codes {
    ($type:ident { $($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)* }) => {
        impl $type {
            $($(#[$doc])* pub const $name: $type = $type($code);)*

            /// The field's name of the code, or `None` for one that this crate does not know.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "code {}", self.0),
                }
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self)
            }
        }
    };
}

codes!(WcStatus {
    /// Done.
    SUCCESS = 0, "success";
    /// The message does not fit the receive, or exceeds the device's limit.
    LOC_LEN_ERR = 1, "local length error";
    /// The queue pair can not do what was asked.
    LOC_QP_OP_ERR = 2, "local QP operation error";
    /// A local buffer does not belong to the queue pair's protection domain.
    LOC_PROT_ERR = 4, "local protection error";
    /// The queue pair was in the error state; the work was not done.
    WR_FLUSH_ERR = 5, "work request flushed";
    /// A memory window could not be bound.
    MW_BIND_ERR = 6, "memory window bind error";
    /// The peer answered what no responder may.
    BAD_RESP_ERR = 7, "bad response error";
    /// A receive's memory could not be reached.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The peer refused the request: too long, or not of its kind.
    REM_INV_REQ_ERR = 9, "remote invalid request error";
    /// The rkey, range or right was wrong.
    REM_ACCESS_ERR = 10, "remote access error";
    /// The peer could not finish the operation.
    REM_OP_ERR = 11, "remote operation error";
    /// The peer did not answer within timeout and retries, or is gone.
    RETRY_EXC_ERR = 12, "transport retries exceeded";
    /// The peer had no receive posted, for as long as RNR retries allow.
    RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retries exceeded";
    /// The device failed.
    FATAL_ERR = 19, "fatal error";
    /// The answer came too late.
    RESP_TIMEOUT_ERR = 20, "response timeout";
    /// Something else.
    GENERAL_ERR = 21, "general error";
});

codes!(WcOpcode {
    /// SEND, with or without immediate or invalidate.
    SEND = 0, "SEND";
    /// RDMA WRITE, with or without immediate.
    RDMA_WRITE = 1, "RDMA_WRITE";
    /// RDMA READ.
    RDMA_READ = 2, "RDMA_READ";
    /// Compare and swap.
    COMP_SWAP = 3, "COMP_SWAP";
    /// Fetch and add.
    FETCH_ADD = 4, "FETCH_ADD";
    /// A memory window was bound.
    BIND_MW = 5, "BIND_MW";
    /// A local key was invalidated.
    LOCAL_INV = 6, "LOCAL_INV";
    /// RDMA READ combined into the local buffer; the software device's own.
    READ_REDUCE = 64, "READ_REDUCE";
    /// A message was received.
    RECV = 128, "RECV";
    /// An RDMA WRITE with immediate took a receive.
    RECV_RDMA_WITH_IMM = 129, "RECV_RDMA_WITH_IMM";
});

impl WcStatus {
    /// True for [`WcStatus::SUCCESS`].
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }
}

impl WcOpcode {
    /// True for completions of receives.
    #[inline]
    pub const fn is_receive(self) -> bool {
        self.0 & 128 != 0
    }
}

/// The plain values of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The number that the poster gave, 0 if none.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// Operation; valid also on errors on the software device.
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
    wc: WorkCompletion,
    memory: Local,
    unsignaled: Option<soft::Retired>,
    cursor: PhantomData<&'cq mut ()>,
}

impl Completion<'_> {
    #[inline(always)]
    pub(crate) fn new(wc: WorkCompletion, memory: Local, unsignaled: Option<soft::Retired>) -> Self {
        Completion { wc, memory, unsignaled, cursor: PhantomData }
    }

    /// The plain values, which may be kept.
    #[inline]
    pub fn values(&self) -> WorkCompletion {
        self.wc
    }

    /// The number that the poster gave.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// Outcome.
    #[inline]
    pub fn status(&self) -> WcStatus {
        self.wc.status
    }

    /// Operation.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        self.wc.opcode
    }

    /// Queue pair that the work was posted on.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.wc.qpn
    }

    /// Bytes received, read, or written to the local buffer.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.wc.byte_len as usize
    }

    /// Immediate data.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.wc.imm
    }

    /// An error for any status but success.
    ///
    /// # Errors
    /// [`CompletionError`](crate::CompletionError) with queue pair, status and provider detail.
    #[inline]
    pub fn ok(&self) -> Result<(), crate::CompletionError> {
        if self.wc.status.is_success() {
            return Ok(());
        }
        Err(crate::CompletionError {
            qpn: self.wc.qpn,
            opcode: self.wc.opcode,
            status: self.wc.status,
            vendor_err: self.wc.vendor_err,
        })
    }

    /// The memory that was posted with the work request, whatever its form.
    #[inline]
    pub fn into_memory(mut self) -> Local {
        std::mem::replace(&mut self.memory, Local::None)
    }

    /// The buffer that was posted with the work request.
    ///
    /// # Errors
    /// [`NoMemory`] if the request carried none (inline data), or memory of another form.
    #[inline]
    pub fn into_buffer(self) -> Result<Buffer, NoMemory> {
        match self.into_memory() {
            Local::Buffer(buffer) => Ok(buffer),
            other => Err(NoMemory { wanted: "a buffer", found: other.form() }),
        }
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
        self.unsignaled.as_mut()?.next_memory()
    }
}
