//! Random operations of all kinds on many queue pairs of two ports, over a network that does what it likes. Every call of an
//! engine is held to a model, as it is made, and at the end nothing may be left.
//!
//! `cargo test` runs a share. `QPAIR_SOAK_OPS=10000000 cargo test --release -p qpair-roce soak` runs as many operations, in a
//! minute; `QPAIR_SEED=7 cargo test -p qpair-roce soak` the scenario of one seed, as a failure names it.

mod device;
mod links;
mod noise;
mod oracle;
mod scenario;
mod track;
mod traffic;
mod world;

use std::time::Instant;

use self::world::{Tally, World};

#[test]
fn soak() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("QPAIR_SEED") {
        println!("{:?}", run(seed));
        return;
    }
    let (wanted, begin) = (number("QPAIR_SOAK_OPS").unwrap_or(SHARE), Instant::now());
    let (mut tally, mut seed) = (Tally::default(), 0);
    while tally.operations < wanted {
        tally += run(seed);
        seed += 1;
    }
    println!("{seed} seeds in {:.1} s: {tally:?}", begin.elapsed().as_secs_f64());
    assert!(tally.has_all() || wanted < SHARE, "a kind of event never happened: {tally:?}");
}

/// Runs the scenario of a seed.
fn run(seed: u64) -> Tally {
    let _told = Told(seed);
    let mut world = World::new(seed);
    while !world.is_over() {
        world.step();
    }
    world.finish()
}

/// Tells the seed of a run that fails.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: QPAIR_SEED={} cargo test -p qpair-roce soak", self.0);
        }
    }
}

/// Operations of an ordinary run: a few seconds without optimization.
const SHARE: u64 = 200_000;
