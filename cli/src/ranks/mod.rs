//! Ranks: a job of processes, here or on several hosts, that live and end together, with their output relayed.
//! `launch` runs any command so, `bench` runs this program itself; `perf` uses the single tied child.

mod child;
mod descriptors;
mod enter;
mod error;
mod hosts;
mod job;
mod rank;
mod relay;
mod remote;
mod signals;
mod stream;
mod supervise;
mod watch;

pub use child::{TiedChild, this_program, tied};
pub use enter::{EnterArgs, EnterError, enter};
pub use error::{JobError, RankEnd};
pub use hosts::{Hosts, Seat, is_here, own_name};
pub use job::{Job, Output};
pub use remote::{Remote, SSH, is_name};
pub use watch::watch;
