//! What the fuzz targets of `roce/fuzz` do with their input. They share these files; a plain `cargo test` puts what they found
//! through them again.

mod engine;
mod wire;

pub use engine::engine;
pub use wire::wire;
