//! Devices of libibverbs as they must not be: with a libibverbs in memory that fails, lies, and keeps a record of what is
//! done to it. Each test is named for what it shows.

mod abilities;
mod connecting;
mod connections;
mod destroys;
mod errors;
#[cfg(feature = "cuda")]
mod gpu;
mod ground;
mod holes;
mod inquiry;
mod last_receive;
#[path = "../support/log.rs"]
mod log;
mod losses;
mod memlock;
mod nonsense;
mod panics;
mod posting;
mod random;
mod received;
mod requests;
mod spanning;
