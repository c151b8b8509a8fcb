//! The random cases of the engine's simulated pair, for as long as one likes.

use std::env;
use std::time::{Duration, Instant};

use crate::engine::random::{CASES, run_seed};

/// For as many seconds as QPAIR_SOAK_SECONDS says, from the seed QPAIR_SEED on, or one that it draws and prints.
#[test]
fn every_operation_completes_exactly_once() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = number("QPAIR_SEED").unwrap_or_else(|| getrandom::u64().expect("random numbers") >> 16);
    println!("QPAIR_SEED={first}");
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
