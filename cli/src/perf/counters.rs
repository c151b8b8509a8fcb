//! What a device counted during a run: `--counters`.

use std::collections::BTreeMap;

use qpair::verbs::{Context, Counter};
use serde::Serialize;

use super::args::PerfArgs;
use super::error::PerfError;
use super::test::Test;
use crate::output::{PrintError, print, print_object};
use crate::table::whole;

/// Whether the counters of a port are looked at, and how what changed is printed.
#[derive(Clone, Copy, Debug)]
pub struct Counting {
    wanted: bool,
    json: bool,
    test: Test,
    port: u8,
}

/// What changed, as an object.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    test: Test,
    device: &'a str,
    port: u8,
    counters: BTreeMap<&'a str, i64>,
}

impl Counting {
    /// As the options ask for it.
    pub fn new(args: &PerfArgs) -> Self {
        Counting {
            wanted: args.counters && !args.announce,
            json: args.json,
            test: args.test,
            port: args.perftest.port(),
        }
    }

    /// Runs what is measured, and prints what the device counted meanwhile. Also if it failed: then more than ever.
    ///
    /// # Errors
    /// That of `run`, or of printing.
    pub fn during<R>(self, context: &Context, run: impl FnOnce() -> Result<R, PerfError>) -> Result<R, PerfError> {
        if !self.wanted {
            return run();
        }
        let before = context.counters(self.port);
        let done = run();
        let after = context.counters(self.port);
        let printed = self.print(context.name(), &changes(&before, &after));
        let done = done?;
        printed?;
        Ok(done)
    }

    fn print(self, device: &str, changes: &BTreeMap<&str, i64>) -> Result<(), PrintError> {
        if self.json {
            return print_object(&Changed { test: self.test, device, port: self.port, counters: changes.clone() });
        }
        if changes.is_empty() {
            return print(&format!("# no counter of {device} changed"));
        }
        let rows = changes.iter().map(|(name, by)| vec![(*name).to_owned(), format!("{by:+}")]).collect();
        print(&format!("# counters of {device} that changed\n{}", whole(&["counter", "change"], rows)))
    }
}

/// By how much each changed that did, in the order of names.
fn changes<'a>(before: &[Counter], after: &'a [Counter]) -> BTreeMap<&'a str, i64> {
    let before: BTreeMap<&str, u64> = before.iter().map(|counter| (counter.name.as_ref(), counter.value)).collect();
    let change = |counter: &'a Counter| {
        let name = counter.name.as_ref();
        // A counter may be set back, and may wrap.
        let by = counter.value.wrapping_sub(before.get(name).copied().unwrap_or(0)).cast_signed();
        (by != 0).then_some((name, by))
    };
    after.iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(values: &[(&'static str, u64)]) -> Vec<Counter> {
        values.iter().map(|&(name, value)| Counter { name: name.into(), value }).collect()
    }

    #[test]
    fn what_did_not_change_is_left_out() {
        let before = counters(&[("sent_pkts", 10), ("out_of_sequence", 3), ("link_downed", 2), ("wraps", u64::MAX)]);
        let after =
            counters(&[("sent_pkts", 25), ("out_of_sequence", 3), ("link_downed", 0), ("wraps", 1), ("new", 1)]);
        let expected = BTreeMap::from([("link_downed", -2), ("new", 1), ("sent_pkts", 15), ("wraps", 2)]);
        assert_eq!(changes(&before, &after), expected);
        assert!(changes(&before, &before).is_empty());
    }
}
