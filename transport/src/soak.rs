//! The random cases of the engine's simulated pair, for as long as one likes.

use std::env;
use std::time::{Duration, Instant};

use crate::engine::random::{CASES, run_seed};

/// The seed QPAIR_SEED, or one that is drawn; printed.
pub(crate) fn seed() -> u64 {
    let seed = number("QPAIR_SEED").unwrap_or_else(|| getrandom::u64().expect("random numbers") >> 16);
    println!("QPAIR_SEED={seed}");
    seed
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// For as many seconds as QPAIR_SOAK_SECONDS says, from the seed QPAIR_SEED on, or one that it draws and prints.
#[test]
fn every_operation_completes_exactly_once() {
    let first = seed();
    let limit = Duration::from_secs(number("QPAIR_SOAK_SECONDS").unwrap_or(0));
    let (begin, mut seed) = (Instant::now(), first);
    loop {
        run_seed(seed);
        seed += 1;
        if begin.elapsed() >= limit {
            break;
        }
    }
    println!("{} cases in {:.1} s", (seed - first) * u64::from(CASES), begin.elapsed().as_secs_f64());
}
