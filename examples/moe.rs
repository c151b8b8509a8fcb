//! Mixture of experts: each token goes to the expert that its gate names, on whatever rank that is, and comes back.
//!
//! Two experts live on each rank. Ranks exchange how many rows each gives, then the rows, by all-to-all; after the experts
//! have worked, the rows go back the same way and are weighted by the gate. An expert takes a bounded number of rows per
//! step; tokens above it are told, and go on unchanged. Each rank checks all that comes back against the experts' formula.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example moe                            # 4 ranks, threads of one process
//! qpair launch -n 4 -- target/release/examples/moe             # 4 ranks, a process each
//! ```
//!
//! # Expected output
//!
//! ```text
//! 8 experts on 4 ranks, 1000 tokens of 64 elements on each, capacity 600 rows per expert
//! step 1: rows per expert 499 to 501, 0 tokens dropped, 1.93 ms
//! ...
//! step 5: rows per expert 370 to 600, 772 tokens dropped, 0.77 ms
//! 20000 tokens went to their experts and back: all as they should be
//! ```
//!
//! Times depend on the machine. From step to step the gate prefers expert 0 more, until that has reached its capacity.
//!
//! # Troubleshooting
//!
//! - `token ... came back wrong`: ranks run different programs; start all of them by one launcher.
//! - `... announces ... rows for an expert`: the same, with another number of experts.

use std::process::ExitCode;
use std::time::Instant;

use qpair::collectives::training::Dispatch;
use qpair::{Communicator, ReduceOp};
use ranks::Result;

#[path = "ranks/mod.rs"]
mod ranks;

const EXPERTS_PER_RANK: usize = 2;
const TOKENS: usize = 1000;
const WIDTH: usize = 64;
/// 1.2 times an even part.
const CAPACITY: usize = 12 * TOKENS / EXPERTS_PER_RANK / 10;
const STEPS: usize = 5;

fn main() -> ExitCode {
    ranks::run(|| Ok(Communicator::group(4)?), rank)
}

fn rank(comm: &Communicator) -> Result<()> {
    let experts = EXPERTS_PER_RANK * comm.size();
    if comm.rank() == 0 {
        let ranks = comm.size();
        println!(
            "{experts} experts on {ranks} ranks, {TOKENS} tokens of {WIDTH} elements on each, capacity {CAPACITY} rows per expert"
        );
    }
    let mut dispatch = Dispatch::<f32>::new(comm, experts, WIDTH)?.with_capacity(CAPACITY);
    for step in 0..STEPS {
        layer(comm, &mut dispatch, experts, step)?;
    }
    if comm.rank() == 0 {
        println!("{} tokens went to their experts and back: all as they should be", STEPS * TOKENS * comm.size());
    }
    Ok(())
}

/// A layer of experts, forward.
fn layer(comm: &Communicator, dispatch: &mut Dispatch<'_, f32>, experts: usize, step: usize) -> Result<()> {
    let tokens: Vec<f32> = (0..TOKENS * WIDTH).map(|at| ((at + comm.rank()) % 101) as f32).collect();
    let gate: Vec<usize> = (0..TOKENS).map(|token| gate(comm.rank(), step, token, experts)).collect();
    let start = Instant::now();
    let mut routed = dispatch.route(&tokens, &gate)?;
    let (mut least, mut most) = (i64::MAX, 0);
    for (expert, rows) in routed.experts_mut() {
        rows.iter_mut().for_each(|value| *value = apply(expert, *value));
        let count = (rows.len() / WIDTH) as i64;
        (least, most) = (least.min(count), most.max(count));
    }
    let dropped = routed.dropped().len() as i64;
    let mut output = tokens.clone(); // what is dropped goes on unchanged
    let mut came = 0;
    routed.combine(|token, row| {
        came += 1;
        let places = output[token * WIDTH..][..WIDTH].iter_mut().zip(row);
        places.for_each(|(place, value)| *place = WEIGHT * value);
    })?;
    let time = start.elapsed();
    if came + dropped as usize != TOKENS {
        return Err(format!("{came} tokens came back and {dropped} were dropped, of {TOKENS}").into());
    }
    for (token, (given, got)) in tokens.chunks(WIDTH).zip(output.chunks(WIDTH)).enumerate() {
        let is_right = given.iter().zip(got).all(|(given, got)| *got == WEIGHT * apply(gate[token], *given));
        let unchanged = dropped > 0 && given == got;
        if !is_right && !unchanged {
            return Err(format!("token {token} came back wrong in step {}", step + 1).into());
        }
    }
    let mut figures = comm.buffer::<i64>(2)?;
    figures.copy_from_slice(&[-least, most]);
    comm.all_reduce(&mut figures, ReduceOp::Max)?;
    let mut total = comm.buffer::<i64>(1)?;
    total[0] = dropped;
    comm.all_reduce(&mut total, ReduceOp::Sum)?;
    if most > CAPACITY as i64 {
        return Err(format!("an expert got {most} rows, above its capacity of {CAPACITY}").into());
    }
    if comm.rank() == 0 {
        let (least, most, dropped, ms) = (-figures[0], figures[1], total[0], time.as_secs_f64() * 1e3);
        println!("step {}: rows per expert {least} to {most}, {dropped} tokens dropped, {ms:.2} ms", step + 1);
    }
    Ok(())
}

/// The expert of a token: any, and in later steps more and more often expert 0.
fn gate(rank: usize, step: usize, token: usize, experts: usize) -> usize {
    let mixed = ((rank * TOKENS + token + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    if mixed as usize % 16 < step { 0 } else { (mixed >> 8) as usize % experts }
}

/// What an expert does.
fn apply(expert: usize, value: f32) -> f32 {
    value * (expert + 2) as f32 + 1.0
}

/// The gate's weight.
const WEIGHT: f32 = 0.5;
