//! A libibverbs in memory, for tests.
//!
//! The shared library that this crate builds has the functions of `libibverbs.so.1`. Its devices are loopbacks that
//! really work, within one process: RC, UC and UD queue pairs, every operation, keys and rights checked, windows, shared
//! receive queues, completion channels, asynchronous events. What is posted is done before posting returns, unless it
//! has to wait for a receive.
//!
//! A test makes a device of its own by name, so tests in parallel threads do not meet, and tells it through [`control`]
//! what to do wrong: which call fails, what the next completion says, which event comes, what the device claims to be.
//! It counts and records what was done to it, and what was done that no caller may do ([`control::Device::violations`]).
//!
//! A device whose name begins with `null` moves nothing: posting stores the number of a work request, polling gives it
//! back. It is for counting the instructions of the code above it.
//!
//! It has the functions of `librdmacm.so.1` too, as many as connections take: ids of one process connect to each other, each
//! at the addresses of the devices' GID tables. Channels, ids and events that are left count as the devices' objects.
//!
//! A program finds the library by `QPAIR_LIBIBVERBS` and `QPAIR_LIBRDMACM`, or, if it is linked with libibverbs, by `LD_PRELOAD`:
//!
//! ```text
//! LD_PRELOAD=target/debug/deps/libqpair_fake_ibverbs.so ibv_devinfo
//! ```
//!
//! `FAKE_IBVERBS_DEVICES` in the environment lists the devices that exist from the start, separated by commas; without
//! it there is one, `fake0`. `FAKE_IBVERBS_ATTRIBUTES` names a folder that stands for /sys/class/infiniband, as
//! [`process::in_process`] makes one.

pub mod control;
pub mod process;

mod cm;
mod cq;
mod device;
mod exec;
mod exports;
mod interface;
mod memory;
mod null;
mod qp;
mod script;
mod settings;
mod transitions;
mod world;
