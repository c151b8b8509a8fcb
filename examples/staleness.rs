//! Bounded staleness and quorums: training where one rank is slow now and then.
//!
//! First all ranks sum a vector in each step by all-reduce, where each rank in turn is slow in one step of four: with a bound of
//! 0 all wait for the slow one each time; with a bound of 3 they run ahead, and wait for nobody in most steps. Then rank 0 is a
//! parameter server that closes a step when half of the workers have given, while the last worker is always slow. Whatever
//! the bound and the quorum, what is applied must be what was given.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example staleness                            # 4 ranks, threads of one process
//! qpair launch -n 4 -- target/release/examples/staleness             # 4 ranks, a process each
//! ```
//!
//! # Expected output
//!
//! ```text
//! 4 ranks, 24 steps, each rank slow by 4 ms in one step of 4
//! bound 0: 101 ms, at most 0 steps without a result
//! bound 3:  33 ms, at most 3 steps without a result; slowest now rank 2, 2.6 ms a step where the mean is 1.2 ms
//! quorum 3 of 3 workers: 12 steps, last worker slow: 60 ms, at most 0 steps behind
//! quorum 2 of 3 workers: 23 steps, last worker slow: 58 ms, at most 3 steps behind
//! what was applied is what was given on 4 ranks
//! ```
//!
//! Times depend on the machine.
//!
//! # Troubleshooting
//!
//! - `... was applied where ... was given`: ranks run different programs; start all of them by one launcher.
//! - All bounds take the same time: the machine is busy with something else.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use qpair::collectives::training::Staleness;
use qpair::collectives::training::quorum::{Worker, serve};
use qpair::{Communicator, ReduceOp};
use ranks::Result;

#[path = "ranks/mod.rs"]
mod ranks;

const LEN: usize = 1000;
const STEPS: usize = 24;
const GIVEN: usize = 12;
const SLOW: Duration = Duration::from_millis(4);

fn main() -> ExitCode {
    ranks::run(|| Ok(Communicator::group(4)?), rank)
}

fn rank(comm: &Communicator) -> Result<()> {
    if comm.rank() == 0 {
        println!("{} ranks, {STEPS} steps, each rank slow by 4 ms in one step of {}", comm.size(), comm.size());
    }
    for bound in [0, 3] {
        bounded(comm, bound)?;
    }
    let workers = comm.size() - 1;
    for quorum in [workers, workers.div_ceil(2)] {
        with_quorum(comm, quorum)?;
    }
    if comm.rank() == 0 {
        println!("what was applied is what was given on {} ranks", comm.size());
    }
    Ok(())
}

/// Sums a vector in each step, and each rank is slow in turn.
fn bounded(comm: &Communicator, bound: usize) -> Result<()> {
    let (me, size) = (comm.rank(), comm.size());
    let mut steps = Staleness::<f64>::new(comm, LEN, bound, ReduceOp::Sum)?;
    let mut applied = 0.0;
    let mut most = 0;
    comm.barrier()?;
    let start = Instant::now();
    for step in 0..STEPS {
        if step % size == me {
            sleep(SLOW); // what slow computing would take
        }
        steps.step(&[given(me, step); LEN], |_, sum| applied += sum[LEN - 1])?;
        most = most.max(steps.under_way());
    }
    steps.finish(|_, sum| applied += sum[LEN - 1])?;
    let time = start.elapsed().as_millis();
    let expected = (0..STEPS).flat_map(|step| (0..size).map(move |rank| given(rank, step))).sum();
    check(applied, expected)?;
    if me == 0 {
        print!("bound {bound}: {time:>3} ms, at most {most} steps without a result");
        match steps.slowest().filter(|_| bound > 0) {
            Some(slowest) => {
                let [time, mean] = [slowest.time, slowest.mean].map(|time| time.as_secs_f64() * 1e3);
                println!("; slowest now rank {}, {time:.1} ms a step where the mean is {mean:.1} ms", slowest.rank);
            }
            None => println!(),
        }
    }
    Ok(())
}

/// Rank 0 serves the others, of which the last is slow.
fn with_quorum(comm: &Communicator, quorum: usize) -> Result<()> {
    let (me, size) = (comm.rank(), comm.size());
    let mut parameters = [0.0; LEN];
    comm.barrier()?;
    let start = Instant::now();
    if me > 0 {
        let mut worker = Worker::new(comm, 0, LEN)?;
        for step in 0..GIVEN {
            if me + 1 == size {
                sleep(SLOW); // what slow computing would take
            }
            worker.give(&[given(me, step); LEN], &mut parameters)?;
        }
        return Ok(worker.end()?);
    }
    let served = serve(comm, &mut parameters, quorum, |parameters, given| {
        parameters.iter_mut().zip(given.vector).for_each(|(parameter, given)| *parameter += given);
    })?;
    let expected = (0..GIVEN).flat_map(|step| (1..size).map(move |rank| given(rank, step))).sum();
    check(parameters[0], expected)?;
    let time = start.elapsed().as_millis();
    println!(
        "quorum {quorum} of {} workers: {} steps, last worker slow: {time} ms, at most {} steps behind",
        size - 1,
        served.steps,
        served.behind
    );
    Ok(())
}

fn given(rank: usize, step: usize) -> f64 {
    (rank * 1000 + step) as f64
}

fn check(applied: f64, given: f64) -> Result<()> {
    if applied == given { Ok(()) } else { Err(format!("{applied} was applied where {given} was given").into()) }
}
