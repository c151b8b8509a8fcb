//! Who the ranks of an example are: the processes that a launcher started, or threads of this process.

use std::error::Error;
use std::process::ExitCode;

use qpair::Communicator;
use qpair::collectives::Environment;

/// What can go wrong: a communicator, or the example's own check of its result.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Runs `rank` on the ranks of a launcher, or on threads, those of `group`. Fails if one of them does.
pub fn run(group: impl FnOnce() -> Result<Vec<Communicator>>, rank: fn(&Communicator) -> Result<()>) -> ExitCode {
    let outcome = match Environment::launcher() {
        Some(_) => Communicator::from_env().map_err(Into::into).and_then(|comm| to_the_end(&comm, rank)),
        None => group().and_then(|group| on_threads(group, rank)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn on_threads(group: Vec<Communicator>, rank: fn(&Communicator) -> Result<()>) -> Result<()> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = group.into_iter().map(|comm| scope.spawn(move || to_the_end(&comm, rank))).collect();
        let ends: Vec<_> =
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("it panicked".into()))).collect();
        ends.into_iter().collect()
    })
}

/// A rank that is done stays until the others are.
fn to_the_end(comm: &Communicator, rank: fn(&Communicator) -> Result<()>) -> Result<()> {
    rank(comm).map_err(|error| format!("rank {}: {error}", comm.rank()))?;
    Ok(comm.barrier()?)
}
