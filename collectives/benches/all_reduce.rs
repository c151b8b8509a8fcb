//! Times all-reduce, or broadcast, of f32 between processes of this machine, as one table. This is where the defaults of
//! `Tuning` come from.
//!
//! ```text
//! cargo bench -p qpair-collectives --bench all_reduce -- -n 2 -b 1K -e 16M
//! cargo bench -p qpair-collectives --bench all_reduce -- -n 4 --algorithm ring --segment 64K
//! ```
//!
//! With no more ranks than cores each is pinned to one, by `taskset`. A time is the median of rounds, of a round's mean.

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use qpair_collectives::Algorithm;
use qpair_collectives::tune::Tuning;
use qpair_collectives::{CommBuffer, Communicator, ReduceOp};

#[path = "../tests/communicator/port.rs"]
mod port;

use port::Port;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let done = if std::env::var_os("RANK").is_some() { measure(&options) } else { spawn(&options) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What to measure.
struct Options {
    ranks: usize,
    begin: usize,
    end: usize,
    factor: usize,
    rounds: usize,
    broadcast: bool,
    check: bool,
    algorithm: Algorithm,
    tuning: Tuning,
    budget: Duration,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Options {
            ranks: 2,
            begin: 8,
            end: 64 << 20,
            factor: 4,
            rounds: 5,
            broadcast: false,
            check: true,
            algorithm: Algorithm::Auto,
            tuning: Tuning::default(),
            budget: Duration::from_millis(60),
        };
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--bench" => {}
                "-n" => options.ranks = value()?.parse()?,
                "-b" => options.begin = size(&value()?)?,
                "-e" => options.end = size(&value()?)?,
                "-f" => options.factor = value()?.parse()?,
                "--rounds" => options.rounds = value()?.parse()?,
                "--broadcast" => options.broadcast = true,
                "--no-check" => options.check = false,
                "--ms" => options.budget = Duration::from_millis(value()?.parse()?),
                "--algorithm" => options.algorithm = value()?.parse()?,
                "--segment" => options.tuning.segment = size(&value()?)? as u64,
                "--eager" => options.tuning.eager = Some(size(&value()?)? as u64),
                _ => return Err(format!("unknown argument {name}").into()),
            }
        }
        Ok(options)
    }
}

fn size(text: &str) -> Result<usize, Box<dyn Error>> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    Ok(digits.parse::<usize>()? << shift)
}

fn spawn(options: &Options) -> Result<(), Box<dyn Error>> {
    let port = Port::keep();
    let cores = std::thread::available_parallelism()?.get();
    let program = std::env::current_exe()?;
    let mut children = Vec::new();
    for rank in 0..options.ranks {
        let mut command = if options.ranks <= cores {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(rank.to_string()).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        command.args(std::env::args().skip(1));
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", options.ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.number.to_string());
        children.push(command.spawn()?);
    }
    for (rank, mut child) in children.into_iter().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("rank {rank}: {status}").into());
        }
    }
    Ok(())
}

fn measure(options: &Options) -> Result<(), Box<dyn Error>> {
    let comm = Communicator::from_env()?;
    comm.set_algorithm(options.algorithm);
    comm.set_tuning(options.tuning);
    if comm.rank() == 0 {
        println!("{:>12} {:>12} {:>12} {:>12} {:>9}", "bytes", "median us", "least us", "most us", "GB/s");
    }
    let mut bytes = options.begin.max(4);
    while bytes <= options.end {
        let mut vector = comm.buffer::<f32>(bytes / 4)?;
        if options.check {
            check(&comm, &mut vector, options)?;
        }
        vector.fill(0.0);
        let mut times = rounds(&comm, &mut vector, options)?;
        times.sort_by(f64::total_cmp);
        if comm.rank() == 0 {
            let median = times[times.len() / 2];
            let rate = bytes as f64 / median / 1e3;
            println!("{bytes:>12} {median:>12.2} {:>12.2} {:>12.2} {rate:>9.2}", times[0], times[times.len() - 1]);
        }
        bytes *= options.factor;
    }
    Ok(())
}

/// The mean time of an operation in each round, in microseconds: the slowest rank's.
fn rounds(comm: &Communicator, vector: &mut CommBuffer<f32>, options: &Options) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut iterations = 1;
    loop {
        let time = timed(comm, vector, iterations, options)?;
        if time >= options.budget.as_secs_f64() / 4.0 || iterations >= 1 << 22 {
            let fitting = iterations as f64 * options.budget.as_secs_f64() / time.max(1e-9);
            iterations = (fitting as usize).max(1);
            break;
        }
        iterations *= 4;
    }
    let round = |_| Ok(timed(comm, vector, iterations, options)? * 1e6 / iterations as f64);
    (0..options.rounds).map(round).collect()
}

fn timed(
    comm: &Communicator,
    vector: &mut CommBuffer<f32>,
    iterations: usize,
    options: &Options,
) -> Result<f64, Box<dyn Error>> {
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..iterations {
        operate(comm, vector, options)?;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let mut time = comm.buffer::<f64>(1)?;
    time[0] = elapsed;
    comm.all_reduce(&mut time, ReduceOp::Max)?;
    Ok(time[0])
}

fn operate(comm: &Communicator, vector: &mut CommBuffer<f32>, options: &Options) -> Result<(), Box<dyn Error>> {
    if options.broadcast {
        comm.broadcast(vector, 0)?;
    } else {
        comm.all_reduce(vector, ReduceOp::Sum)?;
    }
    Ok(())
}

fn check(comm: &Communicator, vector: &mut CommBuffer<f32>, options: &Options) -> Result<(), Box<dyn Error>> {
    let value = |rank: usize, at: usize| (rank * 7 + at % 1009) as f32;
    let rank = comm.rank();
    vector.iter_mut().enumerate().for_each(|(at, element)| *element = value(rank, at));
    operate(comm, vector, options)?;
    let expected = |at| {
        let ranks = if options.broadcast { 1 } else { comm.size() };
        (0..ranks).map(|rank| value(rank, at)).sum::<f32>()
    };
    match vector.iter().enumerate().find(|(at, element)| **element != expected(*at)) {
        Some((at, element)) => Err(format!("element {at} of {} is {element}", vector.len()).into()),
        None => Ok(()),
    }
}
