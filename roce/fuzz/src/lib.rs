//! What the targets do with their input. It is in `roce/tests`, where `cargo test` puts committed inputs through it.

#[path = "../../tests/roce/fuzz/mod.rs"]
mod fuzz;

pub use fuzz::{engine, wire};
