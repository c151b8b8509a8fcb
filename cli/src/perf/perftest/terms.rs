//! What two qpairs tell each other before all else: what to run. The client's word counts for both.

use qpair::verbs::{QpType, SoftAddress};
use serde::{Deserialize, Serialize};

use super::error::ExchangeError;
use super::names::service_name;
use super::options::AtomicOperation;
use super::wire::printable;
use crate::perf::test::Test;

/// What one side was told to run, and where its software device is if it has one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// The release of this qpair.
    pub release: String,
    /// The measurement.
    pub test: Test,
    /// The service of its queue pairs.
    pub service: QpType,
    /// Bytes of a message, if asked for.
    pub size: Option<u64>,
    /// Whether all powers of two are measured.
    pub all: bool,
    /// How long.
    pub goal: Goal,
    /// Queue pairs of each side.
    pub qps: u32,
    /// Whether both sides send.
    pub duplex: bool,
    /// Requests outstanding at once on a queue pair.
    pub depth: u32,
    /// Receives posted at once on a queue pair, if asked for.
    pub rx_depth: Option<u32>,
    /// One request in so many is signaled, if asked for.
    pub cq_mod: Option<u32>,
    /// Whether the peak is not looked for.
    pub no_peak: bool,
    /// What atomics do.
    pub atomic: AtomicOperation,
    /// Whether bandwidth is told in Gb/s.
    pub gbits: bool,
    /// Where the software device is, which has no network address.
    pub soft: Option<SoftAddress>,
}

/// How much to measure per size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// So many messages on each queue pair.
    Iterations(u64),
    /// So many seconds, without the first and last `margin`.
    Seconds {
        /// From the first message to the last.
        duration: f64,
        /// Not measured, at both ends.
        margin: f64,
    },
}

impl Terms {
    /// The message: its length in 4 bytes in network order, and an object.
    pub fn emit(&self) -> Vec<u8> {
        // Plain data: this does not fail, and an empty object would be refused.
        let text = serde_json::to_vec(self).unwrap_or_default();
        let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        [&len.to_be_bytes()[..], &text].concat()
    }

    /// The terms at the beginning of `bytes`, and how many bytes they take; none if there are not enough bytes yet.
    ///
    /// # Errors
    /// [`ExchangeError::Garbled`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ExchangeError> {
        let wrong = |got: &[u8]| ExchangeError::Garbled { what: "terms of a run", got: printable(got) };
        let Some((len, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_be_bytes(*len) as usize;
        if len > MAX_TERMS {
            return Err(wrong(bytes));
        }
        let Some(text) = rest.get(..len) else { return Ok(None) };
        let terms: Terms = serde_json::from_slice(text).map_err(|_| wrong(text))?;
        Ok(Some((terms, 4 + len)))
    }

    /// That both sides run the same test over the same service.
    ///
    /// # Errors
    /// [`ExchangeError::Differs`] if not.
    pub fn check_same_test(&self, theirs: &Terms) -> Result<(), ExchangeError> {
        if (self.test, self.service) == (theirs.test, theirs.service) {
            return Ok(());
        }
        let name = |terms: &Terms| format!("{} over {}", terms.test, service_name(terms.service));
        Err(ExchangeError::Differs { theirs: name(theirs), ours: name(self) })
    }
}

/// Far above what terms take; a stranger may claim any length.
const MAX_TERMS: usize = 4096;

#[cfg(test)]
impl Terms {
    /// Terms of `test`, for tests.
    pub fn example(test: Test) -> Self {
        Terms {
            release: "1".to_owned(),
            test,
            service: QpType::Rc,
            size: Some(65536),
            all: false,
            goal: Goal::Iterations(100),
            qps: 1,
            duplex: false,
            depth: 128,
            rx_depth: Some(512),
            cq_mod: None,
            no_peak: false,
            atomic: AtomicOperation::FetchAndAdd,
            gbits: false,
            soft: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms { goal: Goal::Seconds { duration: 2.5, margin: 0.0 }, ..Terms::example(Test::WriteBw) }
    }

    #[test]
    fn terms_are_read_when_all_of_them_is_there() {
        let bytes = terms().emit();
        for len in 0..bytes.len() {
            assert_eq!(Terms::parse(&bytes[..len]), Ok(None), "{len}");
        }
        let more = [&bytes[..], b"more"].concat();
        assert_eq!(Terms::parse(&more), Ok(Some((terms(), bytes.len()))));
    }

    #[test]
    fn garbage_is_refused_before_it_is_waited_for() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x00\x00\x00\x02[]", b"0000:0001:"] {
            assert!(matches!(Terms::parse(bytes), Err(ExchangeError::Garbled { .. })), "{bytes:?}");
        }
    }

    #[test]
    fn another_test_or_service_differs_and_other_sizes_do_not() {
        let ours = terms();
        ours.check_same_test(&Terms { size: Some(1), qps: 7, ..terms() }).expect("the client's count");
        let error = ours.check_same_test(&Terms { test: Test::SendLat, ..terms() }).expect_err("another test");
        assert_eq!(
            error.to_string(),
            "the other side runs send-lat over RC, this side write-bw over RC; give both the same"
        );
        ours.check_same_test(&Terms { service: QpType::Uc, ..terms() }).expect_err("another service");
    }
}
