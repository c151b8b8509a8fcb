//! How long choosing takes: machines that people have, 16 GPUs with 16 NICs each, and the oddest of random machines.
//!
//! ```text
//! cargo bench -p qpair-topology --bench select
//! ```
//!
//! No machine is given in advance: of the first `MACHINES` random ones of 8 GPUs and 8 NICs, and of 16 and 16, the one that
//! takes longest is looked for and named by its seed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use qpair_topology::{Machine, Selection, Sysfs};

#[path = "../tests/support/machines.rs"]
#[allow(dead_code, reason = "tests use the others")]
mod machines;
#[path = "../tests/support/random.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod random;

use random::Random;

/// Random machines that are tried.
const MACHINES: u64 = 2000;

fn choose(machine: &Machine) {
    // Nothing is asked for that could not be.
    let _ = black_box(Selection::of(black_box(machine)).choose());
}

/// Of random machines with so many GPUs and NICs the one that takes longest; with all times, in order.
fn slowest(size: usize) -> (u64, Machine, Vec<Duration>) {
    let mut times = Vec::new();
    let mut worst: Option<(Duration, u64, Machine)> = None;
    for seed in 0..MACHINES {
        let machine = random::machine(&mut Random(seed), size, size);
        let begin = Instant::now();
        choose(&machine);
        let took = begin.elapsed();
        times.push(took);
        if worst.as_ref().is_none_or(|(worst, _, _)| took > *worst) {
            worst = Some((took, seed, machine));
        }
    }
    times.sort_unstable();
    let (_, seed, machine) = worst.expect("some were tried");
    (seed, machine, times)
}

fn select(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("choose");
    for machine in [machines::dgx_h100(), machines::p5(), machines::mi300x(), machines::pairs(16)] {
        let name = machine.name().unwrap_or("machine").to_owned();
        let (gpus, nics) = (machine.gpus().len(), machine.nics().len());
        group.bench_function(format!("{name}, {gpus} GPUs and {nics} NICs"), |bencher| {
            bencher.iter(|| choose(&machine))
        });
    }
    for size in [8, 16] {
        let (seed, machine, times) = slowest(size);
        let at = |part: usize| times[(times.len() - 1) * part / 1000];
        println!(
            "{MACHINES} random machines of up to {size} GPUs and {size} NICs: median {:.2?}, 99 of 100 within {:.2?}, longest {:.2?}",
            at(500),
            at(990),
            at(1000)
        );
        group.sample_size(20);
        group.bench_function(format!("the slowest of up to {size} and {size}, seed {seed}"), |bencher| {
            bencher.iter(|| choose(&machine));
        });
    }
    group.finish();
}

fn discover(criterion: &mut Criterion) {
    let captured = Sysfs::this_machine().capture();
    criterion.bench_function("discover this machine from a capture", |bencher| {
        bencher.iter(|| Sysfs::from_manifest(black_box(&captured)).map(|sysfs| Machine::discover(&sysfs)));
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    select(&mut criterion);
    discover(&mut criterion);
    criterion.final_summary();
}
