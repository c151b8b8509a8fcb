//! Tests on the libibverbs in memory, each in a process of its own: it is loaded once in a process, and steered for all of it.

use qpair_fake_ibverbs::control::library_path;
use qpair_fake_ibverbs::process::in_process;

/// The device that the libibverbs in memory has from the start.
pub const FAKE: &str = "fake0";

/// Runs the calling test in a process of its own, whose libibverbs is the one in memory: `case` is a closure that stands in
/// the test, whose name it tells by.
#[track_caller]
pub fn on_a_fake<F: FnOnce()>(case: F) {
    on_a_fake_with(&[], case);
}

/// The same, with these variables in its environment.
#[track_caller]
pub fn on_a_fake_with<F: FnOnce()>(variables: &[(&str, &str)], case: F) {
    let library = library_path().expect("the library is built beside the tests");
    let library = library.to_str().expect("a plain path");
    in_process(&[&[("QPAIR_LIBIBVERBS", library)], variables].concat(), case);
}
