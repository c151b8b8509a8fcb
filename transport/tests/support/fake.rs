//! Tests on the libibverbs in memory, each in a process of its own: it is loaded once in a process, and steered for all of it.

use std::env;
use std::process::Command;

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
    const CHILD: &str = "QPAIR_FAKE_TEST_CHILD";
    if env::var_os(CHILD).is_some() {
        return case();
    }
    let (_, test) = std::any::type_name::<F>().split_once("::").expect("the program, and a path in it");
    let test = test.strip_suffix("::{{closure}}").expect("a closure within a test");
    let output = Command::new(env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture", "--test-threads", "1"])
        .env(
            "QPAIR_LIBIBVERBS",
            qpair_fake_ibverbs::control::library_path().expect("the library is built beside the tests"),
        )
        // What the user chose for other tests is not for these.
        .env_remove("QPAIR_DEVICE")
        .env_remove("QPAIR_NICS")
        .env_remove("QPAIR_TOPOLOGY")
        .envs(variables.iter().copied())
        .env(CHILD, "1")
        .output()
        .expect("this program starts");
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {}\n{text}", output.status);
}
