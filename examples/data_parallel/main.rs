//! Data-parallel training: each rank holds the whole model and a part of each batch, and the gradients are summed
//! over all ranks by all-reduce, bucket by bucket, each started as soon as the backward pass has filled it and waited
//! for at the end of the pass.
//!
//! The model is a small classifier of handwritten digits (see `examples/data/README.md`), so that a run takes a
//! second. Each rank starts from the parameters of rank 0 and adds the same sums, so all ranks must end with the
//! same bits; the example checks that they do.
//!
//! # Run
//!
//! ```text
//! cargo run --release --example data_parallel                                  # 4 ranks, threads of one process
//! cargo run --release --example data_parallel -- --ranks 2 --svg curve.svg     # and the curve as a picture
//! cargo run --release --example data_parallel -- --compare --svg compare.svg   # 1, 2 and 4 ranks, one after another
//! qpair launch -n 4 -- target/release/examples/data_parallel                   # 4 ranks, a process each
//! ```
//!
//! # Expected output
//!
//! ```text
//! 4 ranks, batches of 64, 9610 parameters in 5 buckets of at most 8192 bytes
//!  epoch  training loss  held-out accuracy
//!      1         0.9912            91.64 %
//!      2         0.2410            94.99 %
//!    ...
//!     20         0.0104            98.05 %
//! parameters are bit-identical on 4 ranks (hash b54e6fc4469f1177)
//! held-out accuracy 98.05 % (352 of 359) after 0.2 s
//! ```
//!
//! The hash depends on the processor and on the number of ranks, since sums of floats depend on their order.
//!
//! # Troubleshooting
//!
//! - `a batch of 64 can not be split over 3 ranks`: choose `--batch` as a multiple of the number of ranks.
//! - `parameters differ between ranks`: ranks run different programs or different options; start all of them by
//!   one launcher, with one command line.
//! - The run hangs at its start under a launcher: a rank is missing, or `MASTER_ADDR` names another machine.
//! - It takes minutes: it was built without `--release`.

mod data;
mod model;
mod options;
mod plot;
mod report;
mod rng;
mod train;

use std::error::Error;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;

use clap::Parser;
use qpair::Communicator;

use data::Digits;
use options::{Mode, Options};
use report::Report;
use train::Settings;

/// What can go wrong: a communicator, a file, or one of the example's own typed errors.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// `--compare` trains with each of these rank counts.
const COMPARED_RANKS: [usize; 3] = [1, 2, 4];

/// `--compare` accepts this difference of held-out accuracy, in percentage points.
const ACCURACY_TOLERANCE: f64 = 1.0;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let digits = Digits::load()?;
    let settings = options.settings();
    let reports = match options.mode()? {
        Mode::Launched => vec![train::train(&Communicator::from_env()?, &digits, &settings)?],
        Mode::Threads(ranks) => vec![train_on_threads(ranks, &digits, &settings)?],
        Mode::Compare => {
            COMPARED_RANKS.iter().map(|&ranks| train_on_threads(ranks, &digits, &settings)).collect::<Result<_>>()?
        }
    };
    if reports[0].rank != 0 {
        return Ok(()); // rank 0 speaks for all
    }
    reports.iter().for_each(Report::print);
    if options.compare {
        compare(&reports)?;
    }
    if let Some(path) = &options.svg {
        plot::draw(path, &reports)?;
        println!("curve written to {}", path.display());
    }
    Ok(())
}

/// Trains with `ranks` ranks that are threads of this process; the report is that of rank 0.
fn train_on_threads(ranks: usize, digits: &Digits, settings: &Settings) -> Result<Report> {
    let group = Communicator::group(ranks)?;
    let outcomes: Vec<Result<Report>> = std::thread::scope(|scope| {
        let spawn = |comm| scope.spawn(move || train::train(&comm, digits, settings));
        let threads: Vec<_> = group.into_iter().map(spawn).collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        joined.map(|outcome| outcome.unwrap_or_else(|_| Err("a rank panicked".into()))).collect()
    });
    let reports: Vec<Report> = outcomes.into_iter().collect::<Result<_>>()?;
    reports.into_iter().next().ok_or_else(|| "a group needs at least one rank".into())
}

/// Says whether the rank count changed the accuracy, and fails if it did.
fn compare(reports: &[Report]) -> Result<()> {
    let percent = || reports.iter().map(Report::accuracy_percent);
    let (low, high) = (percent().fold(f64::MAX, f64::min), percent().fold(f64::MIN, f64::max));
    let spread = high - low;
    if spread > ACCURACY_TOLERANCE {
        return Err(format!("held-out accuracy depends on the rank count: {low:.2} % to {high:.2} %").into());
    }
    println!(
        "held-out accuracy agrees over {COMPARED_RANKS:?} ranks: {low:.2} % to {high:.2} %, {spread:.2} points apart"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { epochs: 8, hidden: 64, ..Settings::default() }
    }

    #[test]
    fn four_ranks_reach_95_percent() {
        let report = train_on_threads(4, &Digits::load().unwrap(), &settings()).unwrap();
        assert!(report.accuracy_percent() >= 95.0, "{:.2} %", report.accuracy_percent());
    }

    #[test]
    fn rank_counts_agree() {
        let digits = Digits::load().unwrap();
        let settings = Settings { epochs: 3, ..settings() };
        let [one, four] = [1, 4].map(|ranks| train_on_threads(ranks, &digits, &settings).unwrap());
        for (a, b) in one.epochs.iter().zip(&four.epochs) {
            assert!((a.loss - b.loss).abs() < 1e-3 * a.loss, "loss {} with 1 rank, {} with 4", a.loss, b.loss);
        }
        compare(&[one, four]).unwrap();
    }

    #[test]
    fn divergence_is_reported() {
        let settings = Settings { learning_rate: 1e30, ..settings() };
        let error = train_on_threads(2, &Digits::load().unwrap(), &settings).unwrap_err();
        assert!(error.to_string().contains("smaller --lr"), "{error}");
    }

    #[test]
    fn batch_must_divide() {
        let error = train_on_threads(3, &Digits::load().unwrap(), &settings()).unwrap_err();
        assert!(error.to_string().contains("can not be split over 3 ranks"), "{error}");
    }
}
