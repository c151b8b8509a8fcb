//! Why bytes are no packet.

use thiserror::Error;

use super::opcode::Opcode;

/// Why bytes are no packet. Such are dropped, and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// It ends before its headers do.
    #[error("{len} bytes, where {needed} were needed at least")]
    Truncated {
        /// Bytes that its headers, padding and CRC need.
        needed: usize,
        /// Bytes that there are.
        len: usize,
    },
    /// A transport header of another version than 0.
    #[error("version {version} of the transport header; only 0 is known")]
    Version {
        /// That version.
        version: u8,
    },
    /// An operation that is not known, so that its headers are not either.
    #[error("{opcode} is not known")]
    Opcode {
        /// That code.
        opcode: Opcode,
    },
    /// Its length is no multiple of 4.
    #[error("{len} bytes are no multiple of 4")]
    Unaligned {
        /// That length.
        len: usize,
    },
    /// Headers that do not go with the operation.
    #[error("the headers are not those of {opcode}")]
    Mismatch {
        /// That operation.
        opcode: Opcode,
    },
}
