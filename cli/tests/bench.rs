//! `qpair bench`: local ranks, ranks of a launcher, checked results, bad arguments, a rank that dies.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use common::{finish, qpair, stderr, stdout};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn bench(args: &str) -> Output {
    let args: Vec<&str> = std::iter::once("bench").chain(args.split(' ')).collect();
    finish(qpair(&args))
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output).lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect()
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
        let (time, algbw) = (row["time_us"].as_f64().expect("a number"), row["algbw_gbs"].as_f64().expect("a number"));
        let size = row["size"].as_f64().expect("a number");
        assert!((algbw - size / time / 1e3).abs() < 1e-6 * algbw, "{row}");
        let busbw = row["busbw_gbs"].as_f64().expect("a number");
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
    for algorithm in ["ring", "recursive-doubling", "direct"] {
        let rows = rows(&bench(&format!("all-reduce -n 3 -b 4 -e 64K -f 32 --iters 1 --algo {algorithm} --json")));
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["algorithm"] == algorithm), "{rows:?}");
    }
    for algorithm in ["binomial-tree", "chain"] {
        let rows = rows(&bench(&format!("broadcast -n 3 -b 4 -e 64K -f 32 --iters 1 --algo {algorithm} --json")));
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["algorithm"] == algorithm), "{rows:?}");
    }
}

#[test]
fn one_rank_is_a_group_too() {
    let rows = rows(&bench("all-reduce -n 1 -b 8 -e 8 --iters 1 --json"));
    assert_eq!((&rows[0]["wrong"], rows[0]["busbw_gbs"].as_f64()), (&0.into(), Some(0.0)));
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
    let program = env!("CARGO_BIN_EXE_qpair");
    let args = "launch -n 2 --no-prefix -- PROGRAM bench all-reduce -b 1K -e 1K --iters 1 --json";
    let args: Vec<&str> = args.split(' ').map(|arg| if arg == "PROGRAM" { program } else { arg }).collect();
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
        ("all-reduce --dtype f8", "f32, f64, i32, i64"),
        ("all-reduce --op avg", "sum, prod, min, max"),
        ("all-reduce --algo no-such", "unknown algorithm `no-such`"),
        ("all-reduce --algo chain", "chain is no algorithm for all-reduce"),
        ("all-reduce -n 0", "0 is not in 1..=4096"),
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
    let mut command = qpair(&["bench", "all-reduce", "-n", "4"]);
    command.env("RANK", "0").env("WORLD_SIZE", "2");
    let output = finish(command);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("a launcher started 2 ranks"), "{}", stderr(&output));
}

#[test]
fn a_killed_rank_ends_the_benchmark_and_is_named() {
    // Rank 1 tells its number and becomes the benchmark, which would run for hours.
    let script = "if [ $RANK = 1 ]; then echo $$; fi; exec \"$0\" bench all-reduce -b 64K -e 64K --time 2h";
    let mut command = qpair(&["launch", "-n", "3", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_qpair")]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut victim = None;
    let mut running = false;
    while victim.is_none() || !running {
        let line = out.next().expect("more output").expect("text");
        running |= line.contains("(us)");
        victim = victim.or_else(|| line.strip_prefix("[1] ").and_then(|pid| pid.parse().ok()));
    }
    let victim = Pid::from_raw(victim.expect("a process number")).expect("a process number");
    kill_process(victim, Signal::KILL).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 1 was killed by signal 9 (SIGKILL)"), "{}", stderr(&output));
}
