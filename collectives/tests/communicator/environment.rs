//! Variables of a launcher, as this process has them.

use std::process::Command;

use crate::port::Port;
use crate::processes::process;

/// What a process says that has these variables and no others of a launcher.
fn says(variables: &[(&str, &str)]) -> String {
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let output = process("connect", &variables).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn from_env_names_the_variable_that_is_missing() {
    let words = says(&[("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")]);
    assert!(words.contains("RANK is not set: set it to this process's number"), "{words}");
    let words = says(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "localhost")]);
    assert!(words.contains("MASTER_PORT is not set"), "{words}");
}

#[test]
fn rank_0_says_in_time_that_it_may_not_open_as_many_files_as_there_are_ranks() {
    let program = std::env::current_exe().unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 100; exec \"$0\" --exact processes::rank --nocapture"]).arg(program);
    limited.env("QPAIR_TEST_ROLE", "meet").env("RANK", "0").env("LOCAL_RANK", "0").env("WORLD_SIZE", "512");
    limited.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", Port::keep().number.to_string());
    let output = limited.output().unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(words.contains("to meet 512 ranks, and may have 100: raise the limit by `ulimit -n"), "{words}");
}

#[test]
fn from_env_names_a_rank_that_does_not_exist() {
    let words = says(&[
        ("RANK", "2"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "4242"),
    ]);
    assert!(words.contains("RANK is 2, but there are 2 ranks: they are numbered from 0 to 1"), "{words}");
}
