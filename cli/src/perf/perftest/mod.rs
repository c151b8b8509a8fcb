//! Measuring as perftest does, over any device, with perftest itself or another qpair on the other side.
//! `engine` is the exchange without I/O and `link` drives it; `flow` and `pingpong` move messages; `run` ties it together.

mod bench;
mod engine;
mod error;
mod flow;
mod link;
mod options;
mod peak;
mod pingpong;
mod port;
mod run;
mod settings;
mod span;
mod stats;
mod table;
mod terms;
mod watch;
mod wire;

pub use engine::Role;
pub use error::ExchangeError;
pub use link::reach;
pub use options::PerftestOptions;
pub use port::{SOFT, default_device};
pub use run::Ready;

use super::args::PerfArgs;
use super::error::PerfError;

/// That the options fit together.
///
/// # Errors
/// [`PerfError::Options`] and [`PerfError::Size`].
pub fn check(args: &PerfArgs) -> Result<(), PerfError> {
    settings::Settings::new(args).map(drop)
}
