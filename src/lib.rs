//! RDMA transport middleware: safe verbs, zero-copy messages and collectives.
//!
//! This crate is its layers under one name; each builds on those below it and can be used alone.
//!
//! | Layer | What it gives | Begin with |
//! |---|---|---|
//! | [`verbs`] | devices, memory regions, queue pairs, completion queues | [`Context`], [`QueuePair`] |
//! | [`transport`] | connections, tagged messages, rendezvous, credits, dead peers | [`Worker`], [`Event`] |
//! | [`collectives`] | ten collectives as verified plans, from all-reduce to barrier | [`Communicator`] |
//! | [`topology`] | what hangs where in a machine, and which NIC serves which GPU | [`topology::Machine`] |
//!
//! RDMA NICs are driven through libibverbs, which is loaded when the program runs. The device `soft0` needs no hardware: its
//! queue pairs move data through shared memory within a host, and by RoCEv2 over UDP between hosts, with the semantics of a
//! NIC. Linux only, on x86-64 and aarch64.
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
//! At the root stands what programs name most; everything else, with the errors, stands in its layer. README.md shows three
//! whole programs, which are tested with this crate.
#![forbid(unsafe_code)]

pub use qpair_collectives as collectives;
pub use qpair_topology as topology;
pub use qpair_transport as transport;
pub use qpair_verbs as verbs;

pub use bytes::Bytes;
pub use qpair_collectives::{CommBuffer, Communicator, DataType, ReduceOp};
pub use qpair_transport::{Config, EndpointId, Event, Flow, Tag, Worker};
pub use qpair_verbs::{Access, Buffer, CompletionQueue, Context, ExposedRegion, ProtectionDomain, QueuePair};

/// The programs of the README, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeDoctests;
