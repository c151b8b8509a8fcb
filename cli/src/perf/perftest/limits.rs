//! What a run takes of this machine, and how much of it the other side may cause: strangers connect to a server.

use qpair::verbs::{GRH_BYTES, Mtu, QpType};

use super::error::ExchangeError;
use super::settings::{DEFAULT_DEPTH, DEFAULT_RX_DEPTH, MAX_QPS, Settings};

/// What a run takes of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Bytes: what is registered, and what is noted of each message.
    pub memory: u64,
    /// Requests that the queues of all queue pairs have room for.
    pub requests: u64,
}

impl Needs {
    /// What a run by `settings` takes, where the other side may reach `cycle_buffer` bytes from the start of the memory
    /// of each queue pair. `sends` tells whether this side does.
    pub fn new(settings: &Settings, cycle_buffer: u32, sends: bool) -> Self {
        let qps = u64::from(settings.qps);
        // What a datagram may have is not known before the path is; no MTU is greater.
        let stride = stride(settings.service, settings.longest(Mtu::B4096), cycle_buffer).unwrap_or(u64::MAX);
        let timed = if sends && settings.peak() { settings.iterations().unwrap_or(0) } else { 0 };
        let each = REGIONS.saturating_mul(stride).saturating_add(timed.saturating_mul(STAMPS_BYTES));
        let requests = u64::from(settings.tx_depth()) + u64::from(settings.rx_depth());
        Needs { memory: each.saturating_mul(qps), requests: requests.saturating_mul(qps) }
    }

    /// That this is not more than the other side may cause, where this side was told to take `own` itself.
    ///
    /// # Errors
    /// [`ExchangeError::TooMuch`], [`ExchangeError::TooDeep`].
    pub fn check(self, own: Needs) -> Result<(), ExchangeError> {
        let memory = own.memory.max(STRANGERS_MEMORY);
        if self.memory > memory {
            return Err(ExchangeError::TooMuch { asked: self.memory, limit: memory });
        }
        let requests = own.requests.max(STRANGERS_REQUESTS);
        if self.requests > requests {
            return Err(ExchangeError::TooDeep { asked: self.requests, limit: requests });
        }
        Ok(())
    }
}

/// Bytes from the memory of one queue pair to that of the next; none if there are too many.
pub fn stride(service: QpType, longest: u64, cycle_buffer: u32) -> Option<u64> {
    let header = if service == QpType::Ud { GRH_BYTES as u64 } else { 0 };
    longest.max(cycle_buffer.into()).checked_add(header)?.checked_next_multiple_of(LINE)
}

/// What is sent from, and what the other side reaches.
const REGIONS: u64 = 2;
/// A cache line: queue pairs do not share one.
const LINE: u64 = 64;
/// When a message was posted, and when it was seen to be done.
const STAMPS_BYTES: u64 = 24;
/// What the other side may make this one take, unless this side was told to take more.
const STRANGERS_MEMORY: u64 = 1 << 30;
/// As many as the most queue pairs have unless asked for otherwise.
const STRANGERS_REQUESTS: u64 = (DEFAULT_DEPTH as u64 + DEFAULT_RX_DEPTH as u64) * MAX_QPS as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::error::PerfError;
    use crate::perf::perftest::settings::tests::{settings, valid};

    const PAGE: u32 = 4096;

    fn needs(line: &str, cycle_buffer: u32) -> Needs {
        Needs::new(&valid(line), cycle_buffer, false)
    }

    #[test]
    fn both_regions_of_all_queue_pairs_count() {
        assert_eq!(needs("write-bw -s 1M -q 3", PAGE).memory, 6 << 20);
        assert_eq!(needs("write-bw -s 2 -q 1024", PAGE).memory, 8 << 20);
        assert_eq!(needs("send-bw -c UD -s 2", PAGE).memory, 2 * (4096 + 64));
        assert_eq!(needs("write-bw -a", PAGE).memory, 16 << 20);
        assert_eq!(needs("send-bw -t 8 -r 7 -q 2", PAGE).requests, 30);
        let timed = Needs::new(&valid("write-bw -s 2 -n 20000 -q 1024"), PAGE, true);
        assert_eq!(timed.memory, (8 << 20) + 24 * 20_000 * 1024);
    }

    #[test]
    fn a_page_counts_where_it_is_greater_than_a_message() {
        let own = needs("write-bw", PAGE);
        needs("write-bw -s 2 -q 1024", 64 << 10).check(own).expect("pages that machines have");
        let error = needs("write-bw -s 2 -q 1024", 4 << 20).check(own).expect_err("8 GiB");
        assert_eq!(error, ExchangeError::TooMuch { asked: 8 << 30, limit: 1 << 30 });
        assert!(error.to_string().contains("-q"), "{error}");
    }

    #[test]
    fn a_side_that_was_told_to_take_much_does() {
        let greedy = needs("write-bw -s 600M", PAGE);
        assert!(matches!(greedy.check(needs("write-bw", PAGE)), Err(ExchangeError::TooMuch { .. })));
        greedy.check(needs("write-bw -s 600M", PAGE)).expect("told so");
        let deep = needs("send-bw -r 16384 -n 20000 -q 64", PAGE);
        let error = deep.check(needs("send-bw", PAGE)).expect_err("deep");
        assert!(matches!(error, ExchangeError::TooDeep { asked: 1_056_768, limit: 655_360 }), "{error:?}");
        assert!(error.to_string().contains("-r"), "{error}");
        deep.check(deep).expect("told so");
        needs("send-bw -q 1024", PAGE).check(needs("send-bw", PAGE)).expect("the defaults");
    }

    #[test]
    fn no_size_overflows() {
        let most = Needs::new(&valid("write-bw -s 2147483647 -q 1024"), u32::MAX, true);
        assert!(matches!(most.check(most), Ok(())) && most.memory > 1 << 42, "{most:?}");
        assert_eq!(stride(QpType::Ud, u64::MAX, 0), None);
        assert!(matches!(settings("write-bw -s 2G"), Err(PerfError::Size { .. })));
    }
}
