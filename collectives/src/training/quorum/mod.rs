//! A parameter server that does not wait for all: a step closes when enough contributions have come. Those that come later go
//! into a later step; none is lost.

mod server;
mod worker;

use std::time::Duration;

pub use server::{Contribution, Served, serve};
pub use worker::Worker;

// What a worker says it does next.
/// Nothing yet. It connects the two before the worker computes for long, as the server would serve nobody meanwhile.
const JOIN: u64 = 1;
const GIVE: u64 = 2;
/// No more. It waits for the answer, the same word, which comes once nobody gives any more.
const END: u64 = 3;
/// No more, and it does not wait.
const LEAVE: u64 = 4;

/// Yields at first, since an answer may come at once, and then sleeps: workers compute for long.
fn pause(idle: &mut u32) {
    *idle = idle.saturating_add(1);
    if *idle < 1000 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}
