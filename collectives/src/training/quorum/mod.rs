//! A parameter server that does not wait for all: a step closes when enough contributions have come. Those that come later go
//! into a later step; none is lost.

mod server;
mod worker;

use std::time::Duration;

pub use server::{Contribution, Served, serve};
pub use worker::Worker;

// What a worker says it does next; that it hears the same word shows that the server answers.
/// Nothing yet. It connects the two before the worker computes for long, as the server would serve nobody meanwhile.
const JOIN: u64 = 1;
/// A contribution, which follows. So do the parameters behind the answer.
const GIVE: u64 = 2;
/// No more. It waits for the answer, the same word, which comes once nobody gives any more.
const END: u64 = 3;
/// No more, and it does not wait.
const LEAVE: u64 = 4;
/// The server's, to one that waits: it is there, and has no answer yet.
const WAIT: u64 = 5;

/// A word that is answered late, by one that gives up where it hears nothing for so long.
fn with_limit(word: u64, limit: Duration) -> u64 {
    let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    word | micros.min(u64::MAX >> WORD_BITS) << WORD_BITS
}

/// The word, and how long the one waits who says it.
fn parts(word: u64) -> (u64, Duration) {
    (word & ((1 << WORD_BITS) - 1), Duration::from_micros(word >> WORD_BITS))
}

const WORD_BITS: u32 = 8;

/// Yields at first, since an answer may come at once, and then sleeps: workers compute for long.
fn pause(idle: &mut u32) {
    *idle = idle.saturating_add(1);
    if *idle < 1000 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}
