//! `qpair bench`: local ranks, ranks of a launcher, checked results, bad arguments, a rank that dies.

mod common;

use std::process::Output;

use common::{QPAIR, Running, finish, qpair, rows, stderr, stdout, tied};
use qpair::collectives::Algorithm;
use qpair::collectives::Collective;
use rustix::process::{Pid, Signal, kill_process};

fn bench(args: &str) -> Output {
    let args: Vec<&str> = std::iter::once("bench").chain(args.split(' ')).collect();
    finish(qpair(&args))
}

#[test]
fn all_reduce_is_right_at_every_size() {
    let rows = rows(&bench("all-reduce -n 3 -b 4 -e 256K -f 8 --iters 2 --json"));
    let sizes: Vec<u64> = rows.iter().map(|row| row["size"].as_u64().expect("a number")).collect();
    assert_eq!(sizes, [4, 32, 256, 2048, 16384, 131_072, 262_144]);
    for row in &rows {
        assert_eq!(
            (&row["wrong"], &row["ranks"], &row["op"], &row["type"]),
            (&0.into(), &3.into(), &"sum".into(), &"f32".into())
        );
        let (time, algbw) = (row["time_us"].as_f64().expect("a number"), row["algbw_gb_s"].as_f64().expect("a number"));
        let size = row["size"].as_f64().expect("a number");
        assert!((algbw - size / time / 1e3).abs() < 1e-6 * algbw, "{row}");
        let busbw = row["busbw_gb_s"].as_f64().expect("a number");
        assert!((busbw - algbw * 4.0 / 3.0).abs() < 1e-6 * busbw, "{row}");
    }
}

#[test]
fn every_type_and_operation_is_checked() {
    for dtype in ["f32", "f64", "i32", "i64"] {
        for op in ["sum", "prod", "min", "max"] {
            let line = format!("all-reduce -n 2 -b 64 -e 4K -f 64 --iters 1 --dtype {dtype} --op {op} --json");
            let rows = rows(&bench(&line));
            assert_eq!(rows.len(), 2);
            assert!(rows.iter().all(|row| row["wrong"] == 0 && row["type"] == dtype && row["op"] == op), "{line}");
        }
    }
}

#[test]
fn broadcast_comes_from_the_root() {
    let rows = rows(&bench("broadcast -n 3 --root 2 -b 8 -e 64K -f 16 --iters 2 --json"));
    assert!(rows.iter().all(|row| row["wrong"] == 0 && row["root"] == 2));
    assert_eq!(rows.len(), 5);
}

#[test]
fn every_algorithm_gives_the_same_result() {
    for (name, collective) in [("all-reduce", Collective::AllReduce), ("broadcast", Collective::Broadcast { root: 0 })]
    {
        let help = stdout(&bench(&format!("{name} --help")));
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.does(collective)) {
            let line = format!("{name} -n 3 -b 4 -e 64K -f 32 --iters 1 --algo {algorithm} --json");
            let rows = rows(&bench(&line));
            assert_eq!(rows.len(), 4, "{line}");
            assert!(rows.iter().all(|row| row["wrong"] == 0), "{line}: {rows:?}");
            assert!(help.contains(algorithm.name()), "{algorithm}: {help}");
            // What ran is told, whatever was asked for.
            let told = |row: &serde_json::Value| row["algorithm"].as_str() == Some(algorithm.name());
            assert_eq!(rows.iter().all(told), algorithm != Algorithm::Auto, "{line}: {rows:?}");
        }
    }
}

#[test]
fn results_that_are_not_checked_are_not_called_right() {
    let rows = rows(&bench("all-reduce -n 2 -b 8 -e 8 --iters 1 --no-check --json"));
    assert!(rows[0]["wrong"].is_null(), "{rows:?}");
}

#[test]
fn a_time_limit_ends_the_benchmark() {
    let output = bench("all-reduce -n 2 -b 8 -e 8 --time 2h --timeout 300ms");
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
}

#[test]
fn who_closes_the_output_ends_the_benchmark_quietly() {
    // The pipe's other end goes with the reader, after the first line; all sizes would take some seconds.
    let script = "{ \"$0\" bench all-reduce -n 3 -b 8 -e 1M -f 2 --time 200ms; echo $? >&2; } | read line";
    let output = finish(tied("sh", &["-c", script, QPAIR]));
    assert_eq!(stderr(&output), "141\n");
}

#[test]
fn one_rank_is_a_group_too() {
    let rows = rows(&bench("all-reduce -n 1 -b 8 -e 8 --iters 1 --json"));
    assert_eq!((&rows[0]["wrong"], rows[0]["busbw_gb_s"].as_f64()), (&0.into(), Some(0.0)));
}

#[test]
fn the_table_lines_up() {
    let output = bench("all-reduce -n 2 -b 8 -e 1M -f 32 --iters 1");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let header = text.lines().find(|line| line.contains("#wrong")).expect("a header");
    let ends = |line: &str| -> Vec<usize> {
        let line = line.replacen('#', " ", usize::from(line.starts_with('#')));
        let at =
            line.char_indices().filter(|&(i, c)| c != ' ' && line[i + 1..].chars().next().is_none_or(|c| c == ' '));
        at.map(|(i, _)| i).collect()
    };
    let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), 5, "{text}");
    for row in rows {
        assert_eq!(ends(row), ends(header), "{text}");
    }
    assert!(text.contains("# average busbw: "), "{text}");
}

#[test]
fn it_is_a_rank_of_a_launcher() {
    let args = "launch -n 2 --no-prefix -- PROGRAM bench all-reduce -b 1K -e 1K --iters 1 --json";
    let args: Vec<&str> = args.split(' ').map(|arg| if arg == "PROGRAM" { QPAIR } else { arg }).collect();
    let rows = rows(&finish(qpair(&args)));
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["ranks"], &rows[0]["wrong"]), (&2.into(), &0.into()));
}

#[test]
fn bad_arguments_are_errors_that_say_what_to_do() {
    for (line, part) in [
        ("all-reduce -b 8Q", "`8Q` is not a size"),
        ("all-reduce -b 1M -e 1K", "begin with at least 1 byte"),
        ("all-reduce -f 1", "1 is not in 2.."),
        ("all-reduce --dtype f8", "f16, bf16, f32, f64"),
        ("all-reduce --op mean", "sum, prod, min, max"),
        ("all-reduce --algo no-such", "unknown algorithm `no-such`"),
        ("all-reduce --algo chain", "chain is no algorithm for all-reduce"),
        ("all-reduce -n 0", "0 is not in 1..=4096"),
        ("all-reduce --time 10000000000000000000", "longer than 100 years"),
    ] {
        let output = bench(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
    }
    let output = bench("broadcast -n 2 --root 2 -e 8");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there is no rank 2 among 2"), "{}", stderr(&output));
}

#[test]
fn a_launcher_with_another_number_of_ranks_is_refused() {
    let output = launched("all-reduce -n 4", &[("WORLD_SIZE", "2")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("a launcher started 2 ranks"), "{}", stderr(&output));
}

#[test]
fn variables_of_a_launcher_that_make_no_sense_start_nothing() {
    for (name, value, part) in [
        ("WORLD_SIZE", "banana", "WORLD_SIZE is `banana`"),
        ("WORLD_SIZE", "", "WORLD_SIZE is ``"),
        ("WORLD_SIZE", "0", "0 ranks are not possible"),
        ("RANK", "7", "RANK is 7, but there are 2 ranks"),
        ("MASTER_PORT", "banana", "MASTER_PORT is `banana`"),
    ] {
        let output = launched("all-reduce -b 8 -e 8", &[(name, value)]);
        assert_eq!(output.status.code(), Some(2), "{name}={value}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{name}={value}: {}", stderr(&output));
        assert!(stderr(&output).contains("unset RANK and WORLD_SIZE"), "{name}={value}: {}", stderr(&output));
    }
    for (name, missing) in [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")] {
        let mut command = qpair(&["bench", "all-reduce", "-b", "8", "-e", "8"]);
        command.env(name, "1");
        let output = finish(command);
        assert_eq!(output.status.code(), Some(2), "{name} alone: {}", stderr(&output));
        assert!(stderr(&output).contains(&format!("{missing} is not set")), "{name} alone: {}", stderr(&output));
    }
}

/// The benchmark as rank 0 of 2, but for these variables.
fn launched(args: &str, variables: &[(&str, &str)]) -> Output {
    let args: Vec<&str> = std::iter::once("bench").chain(args.split(' ')).collect();
    let mut command = qpair(&args);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]);
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]);
    command.envs(variables.iter().copied());
    finish(command)
}

#[test]
fn a_killed_rank_ends_the_benchmark_and_is_named() {
    // Rank 1 tells its number and becomes the benchmark, which would run for hours.
    let script = "if [ $RANK = 1 ]; then echo $$; fi; exec \"$0\" bench all-reduce -b 64K -e 64K --time 2h";
    let mut job = Running::start(qpair(&["launch", "-n", "3", "--", "sh", "-c", script, QPAIR]));
    let mut victim = None;
    let mut running = false;
    while victim.is_none() || !running {
        let line = job.line();
        running |= line.contains("(us)");
        victim = victim.or_else(|| line.strip_prefix("[1] ").and_then(|pid| pid.parse().ok()));
    }
    let victim = Pid::from_raw(victim.expect("a process number")).expect("a process number");
    kill_process(victim, Signal::KILL).expect("it runs");
    let output = job.finish();
    assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 1 was killed by signal 9 (SIGKILL)"), "{}", stderr(&output));
}
