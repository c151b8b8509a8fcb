//! `qpair bench`: local ranks, ranks of a launcher, checked results, bad arguments, a rank that dies.

mod common;

use std::process::Output;

use common::{QPAIR, Running, finish, qpair, rows, stderr, stdout, tied};
use qpair::collectives::Algorithm;
use qpair::collectives::Collective;
use qpair::verbs::calc::{DataType, ReduceOp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn bench(args: &str) -> Output {
    let args: Vec<&str> = std::iter::once("bench").chain(args.split(' ')).collect();
    finish(qpair(&args))
}

#[test]
fn all_reduce_is_right_at_every_size() {
    let rows = rows(&bench("all-reduce -n 3 -b 4 -e 256K -f 8 --iters 2 --placement in --json"));
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

/// Every element type, and the operations that are for it.
#[test]
fn every_type_and_operation_is_checked_in_one_run() {
    let all = || DataType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    let expected: Vec<_> = all().filter(|(dtype, op)| op.supports(*dtype)).collect();
    for (name, ranks) in [("all-reduce", 3), ("reduce-scatter", 2)] {
        let line = format!("{name} -n {ranks} -b 600 -e 600 --iters 1 -w 0 --dtype all -o all --json");
        let rows = rows(&bench(&line));
        let kinds: Vec<_> = rows.iter().step_by(2).map(|row| (text(row, "type"), text(row, "op"))).collect();
        let names: Vec<_> = expected.iter().map(|(dtype, op)| (dtype.name(), op.name())).collect();
        assert_eq!(kinds, names, "{line}");
        assert_eq!(rows.len(), 2 * expected.len(), "out of place, and in place");
        assert!(rows.iter().all(|row| row["wrong"] == 0), "{line}");
    }
}

#[test]
fn multiples_are_summed_for_every_type() {
    let rows =
        rows(&bench("reduce -n 3 -b 600 -e 600 --iters 1 -w 0 --dtype all -o premul:2,premul:0.1 -r all --json"));
    // Integers are multiplied by whole numbers only.
    assert_eq!(rows.len(), 2 * (12 + 6));
    assert!(rows.iter().all(|row| row["wrong"] == 0 && row["root"] == "all"), "{rows:?}");
    assert!(rows.iter().any(|row| row["op"] == "premul:0.1" && row["type"] == "f8e5m2"));
}

#[test]
fn arguments_go_by_the_names_of_nccl_tests_too() {
    let line = "all-gather -n 2 --minbytes 1K --maxbytes 16K --stepfactor 4 --datatype half --warmup_iters 1 --iters 2";
    let rows = rows(&bench(&format!("{line} --json")));
    let sizes: Vec<_> = rows.iter().step_by(2).map(|row| row["size"].as_u64().expect("a number")).collect();
    assert_eq!(sizes, [1 << 10, 4 << 10, 16 << 10]);
    assert!(rows.iter().all(|row| row["type"] == "f16" && row["wrong"] == 0), "{rows:?}");
}

fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().expect("a text")
}

/// The operations, each with the factor from algbw to busbw among three ranks, and where results go.
const OPERATIONS: [(&str, f64, &[bool]); 9] = [
    ("all-reduce", 4.0 / 3.0, &[false, true]),
    ("reduce-scatter", 2.0 / 3.0, &[false, true]),
    ("all-gather", 2.0 / 3.0, &[false, true]),
    ("all-to-all", 2.0 / 3.0, &[false, true]),
    ("all-to-all-v", 2.0 / 3.0, &[false]),
    ("broadcast", 1.0, &[true]),
    ("reduce", 1.0, &[false, true]),
    ("scatter", 2.0 / 3.0, &[false]),
    ("gather", 2.0 / 3.0, &[false]),
];

#[test]
fn every_operation_is_right_among_one_two_and_three_ranks() {
    for ((name, factor, places), ranks) in OPERATIONS.into_iter().flat_map(|of| [1, 2, 3].map(|ranks| (of, ranks))) {
        let rows = rows(&bench(&format!("{name} -n {ranks} -b 24 -e 96K -f 64 --iters 2 --json")));
        let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_u64().expect("a number")).collect();
        let each = |size| places.iter().map(move |_| size);
        assert_eq!(sizes, [24, 1536, 98304].into_iter().flat_map(each).collect::<Vec<_>>(), "{name}");
        for (row, &in_place) in rows.iter().zip(places.iter().cycle()) {
            assert_eq!((&row["wrong"], &row["in_place"], &row["ranks"]), (&0.into(), &in_place.into(), &ranks.into()));
            assert_eq!(text(row, "collective"), name);
            let number = |name| row[name].as_f64().expect("a number");
            let blocks = number("size") / number("count") / 4.0;
            assert!(blocks == 1.0 || blocks == f64::from(ranks), "{row}");
            assert!((number("algbw_gb_s") - number("size") / number("time_us") / 1e3).abs() < 1e-9, "{row}");
            if ranks == 3 {
                assert!((number("busbw_gb_s") - number("algbw_gb_s") * factor).abs() < 1e-9, "{row}");
            }
        }
    }
}

#[test]
fn a_barrier_has_a_time_and_no_size() {
    for ranks in [1, 2, 3] {
        let rows = rows(&bench(&format!("barrier -n {ranks} --iters 2 --json")));
        assert_eq!((rows.len(), &rows[0]["size"], &rows[0]["type"]), (1, &0.into(), &"none".into()));
        assert!(rows[0]["wrong"].is_null() && rows[0]["time_us"].as_f64().expect("a number") > 0.0, "{rows:?}");
    }
    let text = stdout(&bench("barrier -n 2 --iters 2"));
    assert!(text.contains("# there are no results to check"), "{text}");
}

#[test]
fn each_rank_is_the_root_in_turn() {
    for name in ["broadcast", "reduce", "scatter", "gather"] {
        let rows = rows(&bench(&format!("{name} -n 3 --root all -b 12 -e 12K -f 1024 --iters 4 --json")));
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["root"] == "all"), "{rows:?}");
    }
}

#[test]
fn sizes_grow_by_steps_too() {
    let rows = rows(&bench("all-gather -n 2 -b 8 -e 30 -i 8 --iters 1 --placement out --json"));
    let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_u64().expect("a number")).collect();
    assert_eq!(sizes, [8, 16, 24], "of whole blocks");
}

#[test]
fn algorithms_are_compared_and_the_best_and_the_choice_are_marked() {
    let rows = rows(&bench("all-reduce -n 3 -b 64 -e 64K -f 1024 --iters 2 --algorithm all --json"));
    for rows in rows.chunk_by(|a, b| (&a["size"], &a["in_place"]) == (&b["size"], &b["in_place"])) {
        let names: Vec<_> = rows.iter().map(|row| text(row, "algorithm")).collect();
        assert!(names.len() == 10 && names.contains(&"ring") && !names.contains(&"auto"), "{names:?}");
        let least = rows.iter().map(|row| row["time_us"].as_f64().expect("a number")).fold(f64::MAX, f64::min);
        let times = |row: &Value| row["times_best"].as_f64().expect("a number");
        assert!(rows.iter().all(|row| row["wrong"] == 0 && (row["best"] == true) == (row["time_us"] == least)));
        assert!(rows.iter().all(|row| times(row) >= 1.0), "{rows:?}");
        let auto: Vec<_> = rows.iter().filter(|row| row["auto"] == true).map(|row| text(row, "algorithm")).collect();
        // Which one it is depends on the machine.
        assert_eq!(auto.len(), 1, "{rows:?}");
    }
    assert_eq!(rows.len(), 40);
}

#[test]
fn the_comparison_is_a_table_of_algorithms_and_sizes() {
    let output = bench("all-to-all -n 2 -b 16 -e 4M -f 2 --iters 1 -w 0 --compare");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    // 19 sizes are three tables, for each of two placements.
    for name in ["direct", "flat", "bruck", "pairwise", "hierarchical"] {
        assert_eq!(text.lines().filter(|line| line.starts_with(name)).count(), 6, "{text}");
    }
    assert!(text.contains("# out-of-place, f32: time (us) by size (B)"), "{text}");
    let headers: Vec<_> = text.lines().filter(|line| line.starts_with("# ") && line.ends_with("4M")).collect();
    assert_eq!(headers.len(), 2, "{text}");
    assert_eq!(text.matches("# auto / best").count(), 6, "{text}");
    assert_eq!((text.matches('*').count(), text.contains("# auto takes the best in")), (1 + 2 * 19, true), "{text}");
    assert!(text.ends_with("# all results checked\n"), "{text}");
}

#[test]
fn what_was_the_fastest_is_kept_and_chosen_from_then_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |args: &str, model: &str| {
        let mut command = qpair(&args.split(' ').collect::<Vec<_>>());
        command.env("XDG_CACHE_HOME", folder.path()).env("QPAIR_COST_MODEL", model);
        finish(command)
    };
    let output = run("bench all-reduce -n 2 -b 64 -e 1K -f 16 --iters 2 --compare --keep", "");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let path = text.lines().last().and_then(|line| line.split_once("kept in ")).expect("it says where").1;
    let kept = std::fs::read_to_string(path).expect("it is there");
    // Whatever was the fastest: as if it had been a ring, which no model takes for so little.
    let mut kept: Value = serde_json::from_str(&kept).expect("JSON");
    let cases = kept["kept"].as_array_mut().expect("cases");
    let [place] = &mut cases[..] else { panic!("{cases:?}") };
    let sizes = place["sizes"].as_array_mut().expect("sizes");
    assert_eq!(sizes.iter().map(|size| size[0].as_u64()).collect::<Vec<_>>(), [Some(64), Some(1024)]);
    sizes.iter_mut().for_each(|size| size[1] = "ring".into());
    std::fs::write(path, kept.to_string()).expect("written");
    for (model, is_ring) in [("", true), ("default", false)] {
        let rows = rows(&run("bench all-reduce -n 2 -b 100 -e 100 --iters 1 --json", model));
        assert!(rows.iter().all(|row| (row["algorithm"] == "ring") == is_ring), "{rows:?}");
    }
    let compare = "plan compare all-reduce -n 2 -c 16,1M --cores 2 --model";
    for (model, measured) in [("here", 1), ("default", 0)] {
        let output = run(&format!("{compare} {model} --json"), "");
        let table: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(table["measured"].as_array().map(Vec::len), Some(measured), "{table}");
        let ring = table["algorithms"].as_array().and_then(|rows| rows.iter().find(|row| row["algorithm"] == "ring"));
        assert_eq!(ring.expect("a ring")["points"][0]["auto"], measured == 1, "{model}");
    }
    let text = stdout(&run(&format!("{compare} here"), ""));
    assert!(text.contains("what auto takes: at 16 what was the fastest when `qpair bench --compare --keep`"), "{text}");
    let other = rows(&run("bench all-reduce -n 3 -b 100 -e 100 --iters 1 --json", ""));
    assert!(other.iter().all(|row| row["algorithm"] != "ring"), "{other:?}");
}

#[test]
fn what_no_communicator_could_choose_by_is_not_kept() {
    for (line, hint) in [
        ("all-reduce -n 2 --keep", "--compare"),
        ("all-reduce -n 2 --compare --keep --deterministic", "cannot be used with"),
        ("all-reduce -n 2 --compare --keep --dtype f32,f64", "give one --dtype"),
        ("all-reduce -n 2 --compare --keep --algorithm ring,direct", "leave --algorithm out"),
        (&format!("all-reduce -n 2 --compare --keep --algorithm ring{}", ",ring".repeat(30)), "leave --algorithm out"),
        ("all-to-all-v -n 2 --compare --keep", "keep all-to-all"),
    ] {
        let output = bench(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(stderr(&output).contains(hint), "{line}: {}", stderr(&output));
    }
}

#[test]
fn what_the_environment_has_used_is_what_the_table_says() {
    let bench = |args: &str| {
        let args: Vec<&str> = std::iter::once("bench").chain(args.split(' ')).collect();
        let mut command = qpair(&args);
        command.env("QPAIR_ALGORITHM", "ring");
        finish(command)
    };
    let rows = rows(&bench("all-reduce -n 2 -b 8 -e 8 --iters 1 --placement in --json"));
    assert_eq!(rows[0]["algorithm"], "ring", "{rows:?}");
    let output = bench("all-reduce -n 2 -b 8 -e 8 --iters 1 --algorithm ring --json");
    assert!(output.status.success(), "{}", stderr(&output));
    for options in ["--compare", "--algorithm direct", "--compare --keep"] {
        let output = bench(&format!("all-reduce -n 2 -b 8 -e 8 --iters 1 {options}"));
        assert_eq!(output.status.code(), Some(2), "{options}: {}", stderr(&output));
        assert!(stderr(&output).contains("unset QPAIR_ALGORITHM"), "{options}: {}", stderr(&output));
    }
}

#[test]
fn some_algorithms_are_compared_and_one_that_is_not_for_it_is_refused() {
    let rows = rows(&bench("all-gather -n 2 -b 64 -e 64 --iters 1 --algorithm ring,bruck --json"));
    assert_eq!(rows.iter().map(|row| text(row, "algorithm")).collect::<Vec<_>>(), ["ring", "bruck", "ring", "bruck"]);
    assert!(rows.iter().all(|row| row["auto"] == false), "what it chooses is not among them");
}

#[test]
fn tuning_is_passed_on_and_changes_no_result() {
    let line = "all-reduce -n 3 -b 300 -e 300K -f 32 --iters 1 --segment 4K --eager 64 --deterministic --json";
    assert!(rows(&bench(line)).iter().all(|row| row["wrong"] == 0));
}

#[test]
fn a_picture_has_a_line_for_each_algorithm_and_placement() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("busbw.svg");
    let file = path.to_str().expect("text");
    for (line, labels) in [
        ("all-reduce -n 2 -b 64 -e 64K --iters 1", &["auto, out-of-place", "auto, in-place"][..]),
        (
            "all-gather -n 2 -b 64 -e 64K --iters 1 --compare",
            &["ring, in-place", "bruck, out-of-place", "what auto takes"],
        ),
        ("broadcast -n 2 -b 64 -e 64K --iters 1 --dtype u8,f64", &["u8, in-place", "f64, in-place"]),
    ] {
        let output = bench(&format!("{line} --plot {file}"));
        assert!(output.status.success(), "{}", stderr(&output));
        let text = std::fs::read_to_string(&path).expect("a picture");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        for label in labels.iter().chain(&["size (B)", "busbw (GB/s)", "1K", "64K"]) {
            assert!(text.contains(label), "{line}: {label} is not in {text}");
        }
    }
}

#[test]
fn rank_0_alone_touches_the_file_of_the_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("0")).expect("a folder");
    // On the host of rank 1 there is no such folder.
    let script = "exec \"$0\" bench all-reduce -b 64 -e 4K --iters 1 --plot \"$1/$RANK/x.svg\"";
    let folder = folder.path().to_str().expect("text");
    let output = finish(qpair(&["launch", "-n", "2", "--", "sh", "-c", script, QPAIR, folder]));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(format!("{folder}/0/x.svg")).expect("a picture");
    assert!(text.trim_end().ends_with("</svg>"), "{text}");
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
        let known = Algorithm::ALL.into_iter().filter(|&algorithm| algorithm != Algorithm::Listed);
        for algorithm in known.filter(|algorithm| algorithm.does(collective)) {
            let line = format!("{name} -n 3 -b 4 -e 64K -f 32 --iters 1 --placement in --algo {algorithm} --json");
            let rows = rows(&bench(&line));
            assert_eq!(rows.len(), 4, "{line}");
            assert!(rows.iter().all(|row| row["wrong"] == 0), "{line}: {rows:?}");
            assert!(help.contains(algorithm.name()), "{algorithm}: {help}");
            // What ran is told, whatever was asked for.
            let told = |row: &Value| row["algorithm"].as_str() == Some(algorithm.name());
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
    let args = "launch -n 2 --no-prefix -- PROGRAM bench all-reduce -b 1K -e 1K --iters 1 --placement in --json";
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
        ("all-reduce --op mean", "sum, prod, min, max, avg"),
        ("all-reduce --algo no-such", "unknown algorithm `no-such`"),
        ("all-reduce --algo bruck", "bruck is no algorithm for all-reduce; choose auto, all, or of: ring, "),
        ("all-reduce --algo no-such", "hierarchical, dissemination, or all"),
        ("all-reduce --algo listed", "listed is no algorithm for all-reduce; choose auto, all, or of: ring, "),
        ("all-reduce --algo ring,listed", "listed is no algorithm for all-reduce; choose of: ring, "),
        ("all-to-all-v --algo bruck", "choose auto, all, or of: direct, pairwise"),
        ("all-reduce --algo auto,ring", "leave auto out"),
        ("all-reduce --op land", "land is not for f32; give an integer --dtype"),
        ("all-reduce --dtype i32 --op premul:0.5", "premul:0.5 is not for i32; give a whole number"),
        ("all-reduce --op premul:x", "write a finite number"),
        ("all-reduce --root 0", "unexpected argument '--root'"),
        ("broadcast --op sum", "unexpected argument '--op'"),
        ("barrier -b 8", "unexpected argument '-b'"),
        ("scatter --placement in", "scatter is not done in-place; leave --placement out"),
        ("gather --root x", "write a number from 0, or all"),
        ("all-reduce -i 0", "give larger --step-bytes, or a --factor instead"),
        ("all-reduce -i 8 -f 2", "cannot be used with"),
        ("all-reduce -n 1 --plot x.svg", "give -n at least 2"),
        ("all-reduce -n 0", "0 is not in 1..=4096"),
        ("all-reduce --time 10000000000000000000", "longer than 100 years"),
    ] {
        let output = bench(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(stderr(&output).contains(part), "{line}: {}", stderr(&output));
    }
    let output = bench("all-reduce --plot /nowhere/x.svg");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("can not write /nowhere/x.svg"), "{}", stderr(&output));
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

/// `srun --pty bash` starts a shell as the only rank of a step, `salloc` one as none.
#[test]
fn in_a_shell_of_slurms_there_are_as_many_ranks_as_are_asked_for() {
    for step in ["0", "4294967290"] {
        let mut command = qpair(&["bench", "barrier", "-n", "2", "--iters", "1", "--json"]);
        command.envs([("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]);
        command.envs([("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", step), ("SLURM_STEP_NODELIST", "node1")]);
        let rows = rows(&finish(command));
        assert!(!rows.is_empty() && rows.iter().all(|row| row["ranks"] == 2), "{rows:?}");
    }
}

#[test]
fn what_is_a_launchers_matter_is_refused_in_its_ranks() {
    for (option, hint) in [
        ("-d soft0", "QPAIR_DEVICE"),
        ("--timeout 1m", "qpair launch --timeout"),
        ("--port 4242", "leave it out"),
        ("--no-pin", "binds ranks to CPUs with --pin only"),
    ] {
        let output = launched(&format!("all-reduce {option}"), &[]);
        assert_eq!(output.status.code(), Some(2), "{option}: {}", stderr(&output));
        assert!(stderr(&output).contains(hint), "{option}: {}", stderr(&output));
    }
    let output = bench("all-reduce -n 2 -d soft0 --timeout 1m --no-pin -b 8 -e 8 --iters 1 --json");
    assert!(output.status.success(), "{}", stderr(&output));
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
