//! A parameter server against a ring: the same gradients, summed in the two ways, and what each takes.
//!
//! With a parameter server all ranks send their gradient to one, which sums them and sends the sum back: its link carries
//! all. In a ring each rank sends and receives 2 (n - 1) / n of the gradient, however many ranks there are. Both are plans that
//! the communicator verifies before they run; the results must be the same, and are checked on each rank.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example parameter_server                            # 4 ranks, threads of one process
//! qpair launch -n 4 -- target/release/examples/parameter_server             # 4 ranks, a process each
//! ```
//!
//! # Expected output
//!
//! ```text
//! all-reduce of f32 on 4 ranks, medians of 11
//!      bytes  parameter server        ring  ratio
//!       4096            0.01 ms     0.02 ms   0.63
//!     262144            0.21 ms     0.16 ms   1.31
//!    4194304            4.05 ms     2.86 ms   1.41
//! the results are the same on 4 ranks
//! ```
//!
//! Times depend on the machine: on one host the server's core is the link that carries all. A short gradient goes faster by the
//! server, since it takes two steps where the ring takes 2 (n - 1).
//!
//! # Troubleshooting
//!
//! - `element ... is ...`: ranks run different programs; start all of them by one launcher.
//! - Times that vary from run to run: there are more ranks than cores.

use std::process::ExitCode;
use std::time::Instant;

use qpair::collectives::Algorithm;
use qpair::{CommBuffer, Communicator, ReduceOp};
use ranks::Result;

#[path = "ranks/mod.rs"]
mod ranks;

const ROUNDS: usize = 11;

fn main() -> ExitCode {
    ranks::run(|| Ok(Communicator::group(4)?), rank)
}

fn rank(comm: &Communicator) -> Result<()> {
    let is_first = comm.rank() == 0;
    if is_first {
        println!("all-reduce of f32 on {} ranks, medians of {ROUNDS}", comm.size());
        println!("{:>10}  {:>16}  {:>10}  ratio", "bytes", "parameter server", "ring");
    }
    for len in [1 << 10, 1 << 16, 1 << 20] {
        let mut gradient = comm.buffer::<f32>(len)?;
        let server = median(comm, Algorithm::ParameterServer, &mut gradient)?;
        let ring = median(comm, Algorithm::Ring, &mut gradient)?;
        if is_first {
            println!("{:>10}  {server:>13.2} ms  {ring:>7.2} ms  {:>5.2}", len * size_of::<f32>(), server / ring);
        }
    }
    if is_first {
        println!("the results are the same on {} ranks", comm.size());
    }
    Ok(())
}

/// Sums gradients by that algorithm several times, and checks each sum. Gives the median time in milliseconds.
fn median(comm: &Communicator, algorithm: Algorithm, gradient: &mut CommBuffer<f32>) -> Result<f64> {
    comm.set_algorithm(algorithm);
    let mut times = Vec::with_capacity(ROUNDS);
    for _round in 0..ROUNDS {
        gradient.iter_mut().enumerate().for_each(|(at, place)| *place = part(comm.rank(), at));
        comm.barrier()?;
        let start = Instant::now();
        comm.all_reduce(gradient, ReduceOp::Sum)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let sum = |at| (0..comm.size()).map(|rank| part(rank, at)).sum::<f32>();
        if let Some((at, wrong)) = gradient.iter().enumerate().find(|&(at, &got)| got != sum(at)) {
            return Err(format!("element {at} is {wrong} by {algorithm}, and should be {}", sum(at)).into());
        }
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// Whole numbers, whose sums are exact in any order.
fn part(rank: usize, at: usize) -> f32 {
    ((at * 7 + rank * 13) % 1024) as f32
}
