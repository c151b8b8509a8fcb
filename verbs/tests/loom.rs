//! The lock-free parts of the devices under loom, which tries every order of their memory accesses.
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
#[path = "../src/ibv/recv_slots.rs"]
mod recv_slots;
#[path = "../src/soft/ring.rs"]
mod ring;
#[path = "../src/sync.rs"]
mod sync;

/// What the rest of the crate is to these files.
mod memory {
    /// Memory of a receive: what it is does not matter to the model.
    #[derive(Debug, Default)]
    pub enum Local {
        #[default]
        None,
    }
}
