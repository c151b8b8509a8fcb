//! Codes in completions: status and operation. Codes that this crate does not know are kept.

use std::fmt;

/// Status of a completion: a code of `enum ibv_wc_status`. Unknown codes are kept and printed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

/// Operation of a completion: a code of `enum ibv_wc_opcode`. Unknown codes are kept and printed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
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
    /// The queue pair can not do what was asked, or its memory did not.
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
