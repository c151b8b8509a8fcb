//! RDMA transport middleware: safe verbs, zero-copy messages and collectives.
//!
//! This crate is the three layers under one name; each builds on those below it and can be used alone.
//!
//! | Layer | What it gives | Begin with |
//! |---|---|---|
//! | [`verbs`] | devices, memory regions, queue pairs, completion queues | [`Context`], [`QueuePair`] |
//! | [`transport`] | connections, tagged messages, rendezvous, credits, dead peers | [`Worker`], [`Event`] |
//! | [`collectives`] | verified plans, all-reduce, broadcast, barrier | [`Communicator`] |
//!
//! The device `soft0` needs no hardware: its queue pairs move data between processes of one host through shared memory,
//! with the semantics of a NIC. Linux only, on x86-64 and aarch64.
//!
//! ```
//! use qpair::{Communicator, ReduceOp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let comm = Communicator::group(1)?.remove(0); // one rank, in this process
//! let mut vector = comm.buffer::<f32>(4)?;
//! vector.fill(2.5);
//! comm.all_reduce(&mut vector, ReduceOp::Sum)?;
//! assert_eq!(vector[..], [2.5; 4]);
//! # Ok(())
//! # }
//! ```
//!
//! Three whole programs stand in the [README](https://docs.rs/crate/qpair/latest/source/README.md); each is tested with
//! this crate.
#![forbid(unsafe_code)]

pub use qpair_collectives as collectives;
pub use qpair_transport as transport;
pub use qpair_verbs as verbs;

pub use qpair_collectives::{CommBuffer, Communicator};
pub use qpair_transport::{Config, Event, Flow, Tag, Worker};
pub use qpair_verbs::calc::ReduceOp;
pub use qpair_verbs::{Access, CompletionQueue, Context, ProtectionDomain, QueuePair};

/// The programs of the README, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeDoctests;
