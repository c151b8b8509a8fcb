//! Operations on vectors in memory of GPUs that the device does not reach: their messages go by slots.
//!
//! They run on a CUDA driver in memory, whose device memory faults where a processor reaches it; each test in a process of its own,
//! on the software device as the environment says so, or on a libibverbs in memory.

mod fake;
mod forced;
mod support;

#[path = "../communicator/port.rs"]
mod port;
