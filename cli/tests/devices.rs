//! `qpair devices`, and what all commands have in common.

mod common;

use common::{finish, qpair, stderr, stdout};
use serde_json::Value;

#[test]
fn the_software_device_is_always_there() {
    let output = finish(qpair(&["devices"]));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let row = text.lines().find(|line| line.starts_with("soft0")).expect("a row");
    assert!(row.contains("active"), "{text}");
}

#[test]
fn details_and_objects_tell_the_same() {
    let text = stdout(&finish(qpair(&["devices", "-v"])));
    let object: Value = serde_json::from_slice(&finish(qpair(&["devices", "--json"])).stdout).expect("one object");
    assert_eq!(object["name"], "soft0");
    let inline = object["limits"]["max_inline"].as_u64().expect("a number");
    let row = text.lines().find(|line| line.contains("longest inline data")).expect("a row");
    assert!(row.contains(&format!(" {inline} B")), "{row}");
    // The device's numbers are its own in each process: kinds are compared, not values.
    assert_eq!(object["ports"][0]["gids"].as_array().expect("a list").len(), text.matches("GID ").count());
}

#[test]
fn every_command_has_help_with_examples_and_a_version() {
    let version = format!(" {}\n", env!("CARGO_PKG_VERSION"));
    for command in
        [&["launch"][..], &["bench"], &["bench", "all-reduce"], &["bench", "broadcast"], &["perf"], &["devices"], &[]]
    {
        let help = finish(qpair(&[command, &["--help"]].concat()));
        assert!(help.status.success(), "{command:?}");
        assert!(stdout(&help).contains("Examples:"), "{command:?}");
        let output = finish(qpair(&[command, &["--version"]].concat()));
        assert!(stdout(&output).ends_with(&version), "{command:?}: {}", stdout(&output));
    }
}

#[test]
fn unknown_commands_and_options_exit_with_2() {
    for args in [&["no-such-command"][..], &["devices", "--no-such-option"], &["perf", "no-such-test"], &[]] {
        assert_eq!(finish(qpair(args)).status.code(), Some(2), "{args:?}");
    }
}
