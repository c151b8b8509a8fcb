//! `qpair devices`, and what all commands have in common.

mod common;

use common::{Running, finish, qpair, stderr, stdout};
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
    assert_eq!((&object["name"], &object["usable"]), (&"soft0".into(), &true.into()));
    let inline = object["limits"]["max_inline"].as_u64().expect("a number");
    let row = text.lines().find(|line| line.contains("longest inline data")).expect("a row");
    assert!(row.contains(&format!(" {inline} B")), "{row}");
    // The device's numbers are its own in each process: kinds are compared, not values.
    assert_eq!(object["ports"][0]["gids"].as_array().expect("a list").len(), text.matches("GID ").count());
}

#[test]
fn one_device_is_listed_by_its_name() {
    let output = finish(qpair(&["devices", "--json", "soft0"]));
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(object["name"], "soft0");
    let output = finish(qpair(&["devices", "no-such-device"]));
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    let error = stderr(&output);
    assert!(error.contains("`no-such-device`") && error.contains("soft0"), "{error}");
}

#[test]
fn the_machine_is_told_whole_by_who_is_bound_to_a_part() {
    let machine = |args: &str| {
        let text = stdout(&finish(qpair(&args.split(' ').collect::<Vec<_>>())));
        let line = text.lines().find(|line| line.contains("core")).expect("the machine").to_owned();
        line.split(';').next().expect("a part").to_owned()
    };
    let whole = machine("bench all-reduce -n 1 -b 8 -e 8 --iters 1 --no-pin");
    assert_eq!(machine("bench all-reduce -n 1 -b 8 -e 8 --iters 1"), whole);
    assert_eq!(machine("perf read-lat --local -n 1"), whole);
}

#[test]
fn every_command_has_help_with_examples_and_a_version() {
    let version = format!(" {}\n", env!("CARGO_PKG_VERSION"));
    for command in [
        &["launch"][..],
        &["bench"],
        &["bench", "all-reduce"],
        &["bench", "broadcast"],
        &["bench", "all-to-all-v"],
        &["bench", "reduce"],
        &["bench", "barrier"],
        &["perf"],
        &["devices"],
        &["doctor"],
        &[],
    ] {
        let help = finish(qpair(&[command, &["--help"]].concat()));
        assert!(help.status.success(), "{command:?}");
        assert!(stdout(&help).contains("Examples:"), "{command:?}");
        let output = finish(qpair(&[command, &["--version"]].concat()));
        assert!(stdout(&output).ends_with(&version), "{command:?}: {}", stdout(&output));
    }
}

/// The exit status is that of the error, whether or not anybody hears of it.
#[test]
fn an_error_that_nobody_reads_is_the_same_error() {
    // Through a shell, which gives it a pipe whose reader has gone.
    let script = "exec 3>&2; { sleep 0.1; \"$0\" devices no-such-device; echo $? >&3; } 2>&1 | true";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script, common::QPAIR]);
    assert_eq!(stderr(&finish(command)).trim(), "1");
}

#[test]
fn a_command_whose_output_nobody_reads_ends_quietly() {
    for args in ["devices", "doctor --json", "perf read-lat --local -n 10", "bench all-reduce -n 2 --time 2h"] {
        let output = Running::unread(qpair(&args.split(' ').collect::<Vec<_>>())).finish();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(141), ""), "{args}");
    }
}

#[test]
fn unknown_commands_and_options_exit_with_2() {
    for args in [&["no-such-command"][..], &["devices", "--no-such-option"], &["perf", "no-such-test"], &[]] {
        assert_eq!(finish(qpair(args)).status.code(), Some(2), "{args:?}");
    }
}
