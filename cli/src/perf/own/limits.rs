//! How much of this machine a client may have a server take: strangers connect to it.

use super::exchange::Round;
use crate::perf::args::{MAX_DEPTH, PerfArgs};
use crate::perf::error::PerfError;
use crate::perf::test::Parameters;
use crate::size::Size;

/// What a server gives to whoever connects.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest message in bytes. Each side has memory for two.
    longest: u64,
}

impl Limits {
    /// As much as the server was told to measure itself, or what strangers get.
    pub fn new(args: &PerfArgs) -> Self {
        Limits { longest: args.size.iter().map(|size| size.0).max().unwrap_or(0).max(STRANGERS_LONGEST) }
    }

    /// That a client asks for no more.
    ///
    /// # Errors
    /// [`PerfError::TooLong`]; [`PerfError::Garbled`] for what no client of this release asks for.
    pub fn check(self, parameters: &Parameters) -> Result<(), PerfError> {
        let Parameters { max_size, depth, signal_every, .. } = *parameters;
        if max_size > self.longest {
            return Err(PerfError::TooLong { asked: Size(max_size), limit: Size(self.longest) });
        }
        if !(1..=MAX_DEPTH).contains(&depth) || !(1..=depth).contains(&signal_every) {
            let why = format!("{depth} requests at once, of which each {signal_every}th is signaled");
            return Err(PerfError::Garbled { why });
        }
        Ok(())
    }
}

/// That a round keeps to what was prepared for.
///
/// # Errors
/// [`PerfError::Garbled`].
pub fn check_round(round: Round, parameters: &Parameters) -> Result<(), PerfError> {
    if round.size as u64 > parameters.max_size {
        let why = format!("a round of {} bytes, and no more than {} were announced", round.size, parameters.max_size);
        return Err(PerfError::Garbled { why });
    }
    Ok(())
}

/// Half of what the other way of measuring gives.
const STRANGERS_LONGEST: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::perf::test::Test;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PerfArgs,
    }

    fn limits(line: &str) -> Limits {
        let line = std::iter::once("perf").chain(line.split(' '));
        Limits::new(&Line::try_parse_from(line).expect("valid").args)
    }

    fn asks(max_size: u64, depth: u32, signal_every: u32) -> Parameters {
        Parameters { test: Test::TagBw, max_size, depth, signal_every, gpu: false }
    }

    #[test]
    fn a_client_gets_what_the_server_was_told_and_strangers_something() {
        for (line, longest) in [("write-bw", 512 << 20), ("write-bw -s 8,1G,2", 1 << 30), ("tag-lat -a", 512 << 20)] {
            let limits = limits(line);
            limits.check(&asks(longest, 4096, 4096)).expect("no more than that");
            let error = limits.check(&asks(longest + 1, 1, 1)).expect_err("more");
            assert!(matches!(error, PerfError::TooLong { .. }) && error.to_string().contains("--size"), "{error}");
        }
    }

    #[test]
    fn nobody_asks_for_queues_that_no_client_has() {
        for (depth, signal_every) in [(0, 0), (1, 0), (4097, 1), (u32::MAX, 1), (8, 9)] {
            let checked = limits("tag-bw").check(&asks(8, depth, signal_every));
            assert!(matches!(checked, Err(PerfError::Garbled { .. })), "{depth} {signal_every}");
        }
        check_round(Round { size: 8, count: u64::MAX }, &asks(8, 1, 1)).expect("as announced");
        let longer = check_round(Round { size: 9, count: 1 }, &asks(8, 1, 1));
        assert!(matches!(longer, Err(PerfError::Garbled { .. })));
    }
}
