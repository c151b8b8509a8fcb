//! A parameter server that does not wait for all: a step closes when enough contributions have come. Those that come later go
//! into a later step; none is lost.

mod server;
mod worker;

pub use server::{Contribution, Served, serve};
pub use worker::Worker;

// What a worker says it does next.
/// Nothing yet. It connects the two before the worker computes for long, as the server would serve nobody meanwhile.
const JOIN: u64 = 1;
const GIVE: u64 = 2;
const END: u64 = 3;
