//! Local ranks: a job of N processes that live and end together, with their output relayed.
//! `launch` runs any command so, `bench` runs this program itself; `perf` uses the single tied child.

mod child;
mod enter;
mod error;
mod job;
mod relay;
mod supervise;

pub use child::{TiedChild, this_program, tied};
pub use enter::{EnterArgs, EnterError, enter};
pub use error::{JobError, RankEnd};
pub use job::{Job, Output};
