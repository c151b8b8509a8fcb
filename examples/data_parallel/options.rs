//! The command line.

use std::path::PathBuf;

use clap::Parser;
use qpair::collectives::Environment;

use crate::train::Settings;

/// Train a small classifier of handwritten digits, data-parallel, with all-reduce between the ranks.
#[derive(Debug, Parser)]
#[command(about)]
pub struct Options {
    /// Passes over the training images
    #[arg(long, default_value_t = Settings::default().epochs)]
    pub epochs: usize,
    /// Images in one batch, over all ranks; a multiple of the number of ranks
    #[arg(long, default_value_t = Settings::default().batch)]
    pub batch: usize,
    /// Neurons of the hidden layer
    #[arg(long, default_value_t = Settings::default().hidden)]
    pub hidden: usize,
    /// Learning rate of the first epoch; it falls in a straight line
    #[arg(long, default_value_t = Settings::default().learning_rate)]
    pub lr: f32,
    /// Bytes of gradient that are all-reduced at once
    #[arg(long, default_value_t = Settings::default().bucket_bytes)]
    pub bucket_bytes: usize,
    /// Seed of the first parameters and of the order of images
    #[arg(long, default_value_t = Settings::default().seed)]
    pub seed: u64,
    /// Write the loss curve to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Ranks, each a thread of this process; not with a launcher [default: 4]
    #[arg(long, value_name = "N", conflicts_with = "compare")]
    pub ranks: Option<usize>,
    /// Train with 1, 2 and 4 ranks one after another, and compare; not with a launcher
    #[arg(long)]
    pub compare: bool,
}

/// Who the ranks are.
#[derive(Debug, PartialEq, Eq)]
pub enum Mode {
    /// This process is one rank of a launcher's.
    Launched,
    /// So many threads of this process.
    Threads(usize),
    /// Threads of this process, several groups one after another.
    Compare,
}

/// A launcher's variables are set, and so is an option that is for runs without one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--ranks and --compare start their own ranks, but a launcher started this one: drop the option, or the launcher"
)]
pub struct LauncherConflict;

impl Options {
    /// The part that the training needs.
    pub fn settings(&self) -> Settings {
        Settings {
            epochs: self.epochs,
            batch: self.batch,
            hidden: self.hidden,
            learning_rate: self.lr,
            bucket_bytes: self.bucket_bytes,
            seed: self.seed,
        }
    }

    /// Who the ranks are, by the options and by the environment.
    pub fn mode(&self) -> Result<Mode, LauncherConflict> {
        self.mode_given(Environment::launcher().is_some())
    }

    fn mode_given(&self, launched: bool) -> Result<Mode, LauncherConflict> {
        match (launched, self.compare, self.ranks) {
            (true, false, None) => Ok(Mode::Launched),
            (true, ..) => Err(LauncherConflict),
            (false, true, _) => Ok(Mode::Compare),
            (false, false, ranks) => Ok(Mode::Threads(ranks.unwrap_or(4))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(arguments: &[&str], launched: bool) -> Result<Mode, LauncherConflict> {
        let all = ["data_parallel"].iter().chain(arguments);
        Options::try_parse_from(all).unwrap().mode_given(launched)
    }

    #[test]
    fn launcher_or_threads() {
        assert_eq!(mode(&[], true), Ok(Mode::Launched));
        assert_eq!(mode(&[], false), Ok(Mode::Threads(4)));
        assert_eq!(mode(&["--ranks", "2"], false), Ok(Mode::Threads(2)));
        assert_eq!(mode(&["--compare"], false), Ok(Mode::Compare));
        assert_eq!(mode(&["--ranks", "2"], true), Err(LauncherConflict));
        assert_eq!(mode(&["--compare"], true), Err(LauncherConflict));
    }

    #[test]
    fn settings_follow_options() {
        let options = Options::try_parse_from(["data_parallel", "--lr", "0.5", "--seed", "9"]).unwrap();
        let expected = Settings { learning_rate: 0.5, seed: 9, ..Settings::default() };
        assert_eq!(options.settings(), expected);
    }
}
