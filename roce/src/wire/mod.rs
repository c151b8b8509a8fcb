//! What is on the wire after the UDP header: transport headers, payload, invariant CRC.
//!
//! ```
//! use qpair_roce::wire::{Addresses, Bth, Extension, Flow, Headers, Opcode, Packet, Part};
//! use qpair_roce::{Psn, Qpn};
//!
//! let flow = Flow {
//!     addresses: Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
//!     source_port: 50_000,
//!     destination_port: qpair_roce::wire::PORT,
//! };
//! let bth = Bth { ack_request: true, ..Bth::new(Opcode::RC_SEND_ONLY, Qpn(0x11), Psn::new(7)) };
//! let mut bytes = Vec::new();
//! Headers { bth, extension: Extension::None }.emit_packet(b"hello", &mut bytes)?;
//! flow.seal(Part::WHOLE, &mut bytes);
//!
//! let packet = Packet::parse(&bytes)?;
//! assert!(flow.verifies(Part::WHOLE, &packet));
//! assert_eq!((packet.headers.bth.opcode, packet.payload), (Opcode::RC_SEND_ONLY, &b"hello"[..]));
//! # Ok::<(), qpair_roce::wire::WireError>(())
//! ```

mod aeth;
mod bth;
mod bytes;
pub mod cm;
mod error;
mod extension;
mod icrc;
mod opcode;
mod packet;

pub use aeth::{Aeth, Credits, Nak, RnrTimer, Syndrome};
pub use bth::{Bth, DEFAULT_PKEY};
pub use error::WireError;
pub use extension::{AtomicEth, Deth, Extension, Reth};
pub use icrc::{Addresses, Flow, Identifier, Part};
pub use opcode::{Action, Meaning, Opcode, Position, Service, With};
pub use packet::{HeaderBytes, Headers, ICRC_LEN, Packet, padding};

/// The UDP port of RoCEv2.
pub const PORT: u16 = 4791;
