//! What the targets do with their input. It is in `topology/tests`, where `cargo test` puts committed inputs through it.

#[path = "../../tests/fuzz/mod.rs"]
mod fuzz;

pub use fuzz::{any, hwloc, json, manifest, nccl};
