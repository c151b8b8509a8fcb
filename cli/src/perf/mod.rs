//! `qpair perf`: verbs and messages between two processes, as perftest measures them.
//! A TCP connection brings the sides together. On RDMA devices all goes as perftest has it (`perftest`), on the software
//! device in a way of its own (`own`).

mod args;
mod client;
mod counters;
mod device;
mod error;
mod idle;
mod local;
mod own;
mod perftest;
mod reach;
mod server;
mod test;

pub use args::PerfArgs;
pub use error::PerfError;

use crate::machine;

/// Serves, measures against a server, or does both.
///
/// # Errors
/// [`PerfError`] if options do not fit together, the sides do not meet, or either fails.
pub fn run(args: &PerfArgs) -> Result<(), PerfError> {
    let device = args.device();
    if args.gpu.is_some() && args.is_perftest(&device) {
        let why = "--gpu goes with soft0 within a host, and without perftest's options: give -d soft0, and --local or a host that is localhost";
        return Err(PerfError::Options(why.to_owned()));
    }
    if args.is_perftest(&device) {
        perftest::check(args)?;
    } else {
        args.parameters()?;
    }
    if args.local {
        return local::run(args, &device);
    }
    let mut place = machine::describe();
    match args.cpu.as_slice() {
        [] => {}
        [cpu] => {
            machine::pin_to(*cpu)?;
            place.push_str(&format!("; client on cpu {cpu}"));
        }
        _ => return Err(PerfError::Options("this is one process: give --cpu one CPU".to_owned())),
    }
    match &args.host {
        Some(host) => client::run(args, &device, host, args.port, &place),
        None => server::run(args, &device),
    }
}
