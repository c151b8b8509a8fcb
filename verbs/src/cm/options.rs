//! How a connection is asked for.

use std::time::Duration;

/// How a connection is asked for.
///
/// ```
/// use std::time::Duration;
///
/// use qpair_verbs::ConnectOptions;
///
/// let patient = ConnectOptions::new().private(b"rank 3").answer_within(Duration::from_secs(4));
/// assert_eq!(patient, patient.clone());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    pub(crate) private: Vec<u8>,
    pub(crate) answer_within: Duration,
    pub(crate) attempts: u8,
}

impl ConnectOptions {
    /// Without private data, and with up to 16 attempts of 1.07 s each.
    pub fn new() -> Self {
        ConnectOptions { private: Vec::new(), answer_within: ANSWER_WITHIN, attempts: ATTEMPTS }
    }

    /// What the peer's application is told with the request: 56 bytes at most, which arrive with zeros behind.
    #[must_use]
    pub fn private(mut self, private: &[u8]) -> Self {
        self.private = private.to_vec();
        self
    }

    /// How long each message of either side waits for its answer before it is sent again, the time that the peer's
    /// application takes included. Rounded up to 4.096 us x 2^n, from 1 ms to 69 s. Of the software device; on others Linux has
    /// times of its own, 16 attempts of 4.3 s, and this does nothing.
    #[must_use]
    pub fn answer_within(mut self, time: Duration) -> Self {
        self.answer_within = time;
        self
    }

    /// How often each message of either side is sent at most, 1 to 16. Of the software device, as before.
    #[must_use]
    pub fn attempts(mut self, attempts: u8) -> Self {
        self.attempts = attempts.clamp(1, ATTEMPTS);
        self
    }
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions::new()
    }
}

/// A quarter of what Linux' rdma_cm has: a lost message is made good within about a second, and an application that listens
/// still has 17 s to answer.
const ANSWER_WITHIN: Duration = Duration::from_nanos(4096 << 18);
/// As Linux' rdma_cm: 15 retries.
const ATTEMPTS: u8 = 16;
