//! How near to the speed of memory two vectors are combined: bytes of each vector a second, by type, in turn with a plain
//! loop `a[i] += b[i]` over `f32` and with a copy of the same bytes, in one run on one core.
//!
//! ```text
//! cargo bench -p qpair-verbs --bench calc                  # sums of every type
//! cargo bench -p qpair-verbs --bench calc -- min bxor      # other operations
//! cargo bench -p qpair-verbs --bench calc -- scale         # averages: division by 8
//! ```
//!
//! The loop moves the same bytes as a sum, two reads and a write, and is compiled for every CPU of the target; in cache,
//! kernels for AVX2 may be faster. Expected out of cache: all of it, 0.75 for 16-bit floats, which calculate in `f32`, and
//! 0.45 for 8-bit floats, of which one core converts fewer than memory brings: some 70 operations for 32 bytes of each.

use std::env;
use std::hint::black_box;
use std::time::Instant;

use qpair_verbs::calc::{Calc, DataType, F8E4M3, F8E5M2, ReduceOp, Scale, bf16, combine, f16, scale};

fn main() {
    let names: Vec<String> = env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let rounds = if env::args().any(|argument| argument == "--test") { 1 } else { ROUNDS };
    let names = if names.is_empty() { vec!["sum".into()] } else { names };
    for name in &names {
        for (len, text) in [(256 << 10, "256 KiB, in cache"), (64 << 20, "64 MiB, out of cache")] {
            println!("\n{name}, {text}: medians of {rounds} rounds, with least and greatest");
            println!("{:<8} {:>8} {:>14} {:>8} {:>8} {:>8}", "", "GB/s", "spread", "of add", "of copy", "add GB/s");
            table(name, len, rounds);
        }
    }
}

/// One operation and size, type by type, each in turn with both bounds.
fn table(name: &str, len: usize, rounds: usize) {
    let op: Option<ReduceOp> = (name != "scale").then(|| name.parse().expect("an operation, or scale"));
    let (mut floats, addends) = (vec![1.0_f32; len / 4], vec![1.0_f32; len / 4]);
    let repeat = (64 << 20) / len;
    for data_type in DataType::ALL.into_iter().filter(|data_type| op.is_none_or(|op| op.supports(*data_type))) {
        let (mut into, from) = (ordinary(data_type, len), ordinary(data_type, len));
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            rates[0].push(rate(len * repeat, || {
                (0..repeat).for_each(|_| add(black_box(&mut floats), black_box(&addends)));
            }));
            rates[1].push(rate(len * repeat, || {
                (0..repeat).for_each(|_| black_box(&mut into[..]).copy_from_slice(black_box(&from)));
            }));
            rates[2].push(rate(len * repeat, || match op {
                Some(op) => {
                    let calc = Calc::new(data_type, op).expect("a supported operation");
                    (0..repeat)
                        .for_each(|_| combine(calc, black_box(&mut into), black_box(&from)).expect("equal lengths"));
                }
                None => (0..repeat)
                    .for_each(|_| scale(data_type, black_box(&mut into), Scale::Divide(8)).expect("whole elements")),
            }));
        }
        let [add, copy, ours] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            (rates[0], rates[rates.len() / 2], rates[rates.len() - 1])
        });
        let spread = format!("{:.2}-{:.2}", ours.0, ours.2);
        let (of_add, of_copy) = (ours.1 / add.1, ours.1 / copy.1);
        println!("{:<8} {:>8.2} {spread:>14} {of_add:>8.2} {of_copy:>8.2} {:>8.2}", data_type.name(), ours.1, add.1);
    }
}

/// The bound: what the compiler makes of it for every CPU of the target.
#[inline(never)]
fn add(a: &mut [f32], b: &[f32]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
}

/// A vector of small numbers: no NaN, infinity or subnormal number, and none comes of it soon.
fn ordinary(data_type: DataType, len: usize) -> Vec<u8> {
    let one: &[u8] = match data_type {
        DataType::F16 => &f16::ONE.to_ne_bytes(),
        DataType::Bf16 => &bf16::ONE.to_ne_bytes(),
        DataType::F32 => &1.0_f32.to_ne_bytes(),
        DataType::F64 => &1.0_f64.to_ne_bytes(),
        DataType::F8E4M3 => &[F8E4M3::from_f32(1.0).to_bits()],
        DataType::F8E5M2 => &[F8E5M2::from_f32(1.0).to_bits()],
        _ => &[1],
    };
    one.iter().copied().cycle().take(len).collect()
}

/// Gigabytes of one vector a second.
fn rate(bytes: usize, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    bytes as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Enough for medians that two runs give alike to 5 %.
const ROUNDS: usize = 15;
