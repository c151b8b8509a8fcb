//! What can go wrong between two sides that speak perftest's exchange.

use std::fmt;

use qpair::verbs::QpType;
use thiserror::Error;

use super::names::{OLDEST, service_name};

/// The exchange with the other side did not come about.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExchangeError {
    /// The other side is no perftest.
    #[error(
        "the other side is neither perftest nor qpair perf: it began with \"{got}\" instead of a version; see what listens at that port"
    )]
    NotPerftest {
        /// What it sent.
        got: String,
    },
    /// The other side speaks a version before [`OLDEST`].
    #[error(
        "the other side speaks version {theirs} of perftest's exchange; install perftest 4.4 or later there ({OLDEST:.2} at least)"
    )]
    Version {
        /// Its version.
        theirs: String,
    },
    /// A message that is none.
    #[error("the other side sent what is no {what}: \"{got}\"; is it perftest 4.5 or qpair {}, with the same test and options?", env!("CARGO_PKG_VERSION"))]
    Garbled {
        /// What was expected.
        what: &'static str,
        /// What came.
        got: String,
    },
    /// One side uses GIDs, the other does not.
    #[error("{} side names its port by a GID, {} does not; give -x INDEX on both sides, or on neither",
        if *.theirs { "the other" } else { "this" }, if *.theirs { "this" } else { "the other" })]
    GidForm {
        /// True if it is the other side that uses a GID.
        theirs: bool,
    },
    /// One side's GID is IPv4, the other's IPv6.
    #[error(
        "this side's GID {ours} and the other side's {theirs} are of different kinds (IPv4 and IPv6); choose others with -x"
    )]
    GidFamily {
        /// This side's.
        ours: String,
        /// The other side's.
        theirs: String,
    },
    /// More came than any step has.
    #[error("the other side sent {0} bytes out of turn and was cut off; is it perftest?")]
    Flood(usize),
    /// A size that no machine has.
    #[error("the other side asks for pages of {0} bytes; no machine has them")]
    PageSize(u32),
    /// The other side is gone.
    #[error("the other side closed the connection, when {step} was next; its own output tells why")]
    Closed {
        /// What was expected of it.
        step: Step,
    },
    /// The other side does not go on.
    #[error(
        "the other side was silent for {seconds} s, when {step} was next; is it another test there, or other options?"
    )]
    Silent {
        /// What was expected of it.
        step: Step,
        /// How long it was waited for.
        seconds: u64,
    },
    /// As [`Silent`](ExchangeError::Silent), over a service that loses messages.
    #[error(
        "nothing came for {seconds} s: a message may have been lost, which {service} does not repeat; give -c RC, fewer -n, or a greater -r where it has receives"
    )]
    Lost {
        /// The service's name.
        service: &'static str,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The other side is done, and this one is not.
    #[error(
        "the other side is done after {received} of {expected} messages; give both sides the same test, -n, -s, -D, -q, -a and -b"
    )]
    Ahead {
        /// Messages that came.
        received: u64,
        /// Messages that were to come.
        expected: String,
    },
    /// The two sides were told different things.
    #[error("the other side runs {theirs}, this side {ours}; give both the same")]
    Differs {
        /// The other side.
        theirs: String,
        /// This side.
        ours: String,
    },
    /// The other side wants more than this side gives to strangers.
    #[error(
        "the other side asks for {asked} bytes of memory here, and gets {limit} at most; give this side the same -s, -a, -q and -n"
    )]
    TooMuch {
        /// Bytes asked for.
        asked: u64,
        /// Bytes to be had.
        limit: u64,
    },
    /// The other side wants deeper queues than this side gives to strangers.
    #[error(
        "the other side asks for {asked} requests outstanding here, and gets {limit} at most; give this side the same -t, -r, -q and -n"
    )]
    TooDeep {
        /// Requests asked for.
        asked: u64,
        /// Requests to be had.
        limit: u64,
    },
}

impl ExchangeError {
    /// What this means in a run over `service`.
    pub fn over(self, service: QpType) -> Self {
        match self {
            ExchangeError::Silent { step: Step::Run, seconds } if service != QpType::Rc => {
                ExchangeError::Lost { service: service_name(service), seconds }
            }
            error => error,
        }
    }
}

/// What is expected of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its version.
    Version,
    /// What it wants to run (between two qpairs).
    Terms,
    /// Its page size.
    CycleBuffer,
    /// Its cache line size.
    CacheLine,
    /// Its MTU.
    Mtu,
    /// The address of its queue pair of this number.
    Address(usize),
    /// That its queue pairs are connected.
    Connected,
    /// The address again.
    Confirmation(usize),
    /// That it is ready for a run, or done with one.
    Sync,
    /// A number of its report.
    Report(usize),
    /// That it ends.
    Farewell,
    /// Its part of a run.
    Run,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Version => f.write_str("its version"),
            Step::Terms => f.write_str("what it runs"),
            Step::CycleBuffer => f.write_str("its page size"),
            Step::CacheLine => f.write_str("its cache line size"),
            Step::Mtu => f.write_str("its MTU"),
            Step::Address(qp) => write!(f, "the address of its queue pair {qp}"),
            Step::Connected => f.write_str("its word that it is connected"),
            Step::Confirmation(qp) => write!(f, "the address of its queue pair {qp} again"),
            Step::Sync => f.write_str("its word that it is ready for a run, or done with one"),
            Step::Report(number) => write!(f, "number {number} of its report"),
            Step::Farewell => f.write_str("its farewell"),
            Step::Run => f.write_str("its part of the run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_in_a_run_over_a_service_that_loses_messages_is_a_loss() {
        let silent = |step| ExchangeError::Silent { step, seconds: 60 };
        assert_eq!(silent(Step::Run).over(QpType::Rc), silent(Step::Run));
        assert_eq!(silent(Step::Sync).over(QpType::Uc), silent(Step::Sync));
        let lost = silent(Step::Run).over(QpType::Uc);
        assert_eq!(lost, ExchangeError::Lost { service: "UC", seconds: 60 });
        assert!(lost.to_string().contains("-r") && lost.to_string().contains("-c RC"), "{lost}");
    }
}
