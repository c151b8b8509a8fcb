//! A CUDA driver in memory, for tests.
//!
//! The shared library that this crate builds has the functions of `libcuda.so` that this project calls, and some around
//! them: of events, host memory that is pinned, handles of `cuMemAlloc`'s memory. It is named so: a process that has
//! loaded it by its path, as [`control::load`] does, finds it again as `libcuda.so`.
//!
//! Its devices really work. Their memory is the host's, behind files, and mapped without any right to it where device
//! pointers point: code that reads or writes through one faults at once. Copies, memory handles and kernels reach it
//! through the files. Processes share it by `cuMemExportToShareableHandle` and by `cuIpcGetMemHandle`; what
//! `cuMemGetHandleForAddressRange` gives can be mapped as a DMA-BUF can, its position being where the range begins. One
//! address space holds what is the host's and the devices'.
//!
//! A stream does nothing until it is waited for, or queried for the second time, or as the setting `queries` says; what
//! its work reads and writes is looked up then. Code that does not wait reads old bytes, and code that frees too early
//! is found out. As the driver has it, copies from host memory that is not pinned take the bytes when they are asked for,
//! and copies to such memory are done when the call returns; the setting `pageable_waits` has the latter wait too. A stream
//! that waits for a word, by `cuStreamWaitValue32`, holds up what is behind that until the word is as it is to be.
//!
//! Modules are PTX, of which only version, target and names of entries are read. Kernels of a known name, such as
//! `qpair_sum_f32`, do what `qpair_verbs::calc` does.
//!
//! Tests steer it through [`control`]: a device of its own for each, so that they can run in parallel; which call fails,
//! what the device claims to be; what was called, done that no caller may do, and left.
//!
//! In the environment:
//!
//! | Variable | |
//! |---|---|
//! | `FAKE_CUDA_DEVICES` | how many devices a process begins with, 1 |
//! | `FAKE_CUDA_DRIVER_VERSION` | `cuDriverGetVersion`, 12040 |
//!
//! What it does not do: managed memory, memory pools, contexts other than primary ones, graphs, memory of arrays; streams
//! run one piece of work at a time. Destroying a primary context destroys nothing else: what was left in it is listed.

pub mod abi;
pub mod code;
pub mod control;

mod backing;
mod device;
mod exports;
mod interface;
mod kernel;
mod script;
mod settings;
mod space;
mod stream;
mod vmm;
mod world;
