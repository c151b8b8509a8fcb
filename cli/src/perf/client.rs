//! The client's side: measures in the way that goes with device and options.

use super::args::PerfArgs;
use super::error::PerfError;
use super::own;
use super::perftest::{Ready, Role};
use super::reach::reach;

/// Measures against the server at `host`. The header tells the `place`: what client and server run on.
///
/// # Errors
/// [`PerfError`] if there is no server, or either side fails.
pub fn run(args: &PerfArgs, device: &str, host: &str, port: u16, place: &str) -> Result<(), PerfError> {
    if !args.is_perftest(device) {
        return own::measure(args, device, host, port, place);
    }
    // What can fail here alone does so before anybody is bothered.
    let ready = Ready::new(args, device)?;
    ready.run(reach(args, device, host, port)?, Role::Client, own::PATIENCE)
}
