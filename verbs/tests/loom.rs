//! The lock-free parts of the software device under loom, which tries every order of their memory accesses.
//!
//! The models stand at the end of each file. Only these files are compiled with loom's atomics; the rest of the crate
//! keeps the standard ones, since it runs on memory that is shared between processes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p qpair-verbs --release --test loom`
#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part of each file")]

#[path = "../src/soft/arming.rs"]
mod arming;
#[path = "../src/soft/claims.rs"]
mod claims;
#[path = "../src/soft/hazard.rs"]
mod hazard;
#[path = "../src/soft/ring.rs"]
mod ring;
#[path = "../src/sync.rs"]
mod sync;
