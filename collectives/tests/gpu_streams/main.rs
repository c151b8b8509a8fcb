//! Streams of GPUs that go on once an operation has ended. On a CUDA driver in memory.

mod buckets;
mod ending;
mod ground;
#[path = "../meeting/mod.rs"]
mod meeting;
mod memory;
#[path = "../communicator/port.rs"]
mod port;
mod processes;
