//! Measuring as perftest does, over any device, with perftest itself or another qpair on the other side.
//! `engine` is the exchange without I/O and `link` drives it; `flow` and `pingpong` move messages; `run` ties it together.

mod bench;
mod engine;
pub(super) mod error;
mod flow;
mod limits;
mod link;
mod names;
pub(super) mod options;
mod peak;
mod pingpong;
mod port;
mod progress;
mod run;
mod settings;
mod span;
mod stats;
mod table;
mod terms;
mod units;
mod watch;
mod wire;

pub use engine::Role;
pub use run::Ready;

use super::args::PerfArgs;
use super::error::PerfError;

/// Arguments for a serving process on this machine, beside the test and the device: what its client does not tell it, and
/// what else it would not give to a stranger.
pub fn server_options(args: &PerfArgs, device: &str) -> Vec<String> {
    let mut line = args.perftest.for_server();
    line.extend(args.size.iter().flat_map(|size| ["--size".to_owned(), size.0.to_string()]));
    line.extend(args.all.then(|| "--all".to_owned()));
    if args.is_perftest(device) {
        line.extend(["--depth".to_owned(), args.depth.to_string()]);
        line.extend(args.iters.iter().flat_map(|count| ["--iters".to_owned(), count.to_string()]));
    }
    line
}

/// That the options fit together.
///
/// # Errors
/// [`PerfError::Options`] and [`PerfError::Size`].
pub fn check(args: &PerfArgs) -> Result<(), PerfError> {
    settings::Settings::new(args).map(drop)
}
