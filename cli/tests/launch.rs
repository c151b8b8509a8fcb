//! `qpair launch`: variables, output, signals, and how jobs end.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LIMIT, finish, qpair, stderr, stdout};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// `qpair launch OPTIONS -- sh -c SCRIPT`.
fn launch(options: &[&str], script: &str) -> Command {
    let mut args = vec!["launch"];
    args.extend(options);
    args.extend(["--", "sh", "-c", script]);
    qpair(&args)
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[test]
fn ranks_get_torchruns_variables() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT";
    let output = finish(launch(&["-n", "3"], script));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let port = text.trim_end().rsplit(':').next().expect("a port").to_owned();
    assert_ne!(port.parse::<u16>().expect("a port"), 0);
    let expected: Vec<String> = (0..3).map(|r| format!("[{r}] {r}/3 {r}/3 127.0.0.1:{port}")).collect();
    assert_eq!(lines(&text), expected.iter().map(String::as_str).collect());
}

#[test]
fn each_stream_goes_to_its_own_with_the_rank_in_front() {
    let output = finish(launch(&["-n", "2"], "echo out; echo err >&2"));
    assert_eq!(lines(&stdout(&output)), BTreeSet::from(["[0] out", "[1] out"]));
    assert_eq!(lines(&stderr(&output)), BTreeSet::from(["[0] err", "[1] err"]));
}

#[test]
fn lines_of_several_ranks_do_not_mix() {
    let script = "i=0; while [ $i -lt 400 ]; do printf 'start %s ' $i; printf 'end\\n'; i=$((i+1)); done";
    let output = finish(launch(&["-n", "4"], script));
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 1600);
    for rank in 0..4 {
        let own = text.lines().filter_map(|line| line.strip_prefix(&format!("[{rank}] ")));
        let expected: Vec<String> = (0..400).map(|i| format!("start {i} end")).collect();
        assert_eq!(own.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn without_prefix_output_passes_as_it_is() {
    let output = finish(launch(&["-n", "1", "--no-prefix"], "printf raw"));
    assert_eq!(stdout(&output), "raw");
}

#[test]
fn a_rank_that_fails_ends_the_others_and_is_named() {
    let start = Instant::now();
    let output = finish(launch(&["-n", "4"], "if [ $RANK = 2 ]; then exit 7; fi; exec sleep 1000"));
    assert_eq!(output.status.code(), Some(7));
    assert!(stderr(&output).contains("error: rank 2 ended with exit code 7"), "{}", stderr(&output));
    assert!(start.elapsed() < Duration::from_secs(20), "the others were not ended at once");
}

#[test]
fn a_rank_that_is_killed_ends_the_others_and_is_named() {
    let output = finish(launch(&["-n", "3"], "if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep 1000"));
    assert_eq!(output.status.code(), Some(137));
    assert!(stderr(&output).contains("rank 1 was killed by signal 9 (SIGKILL)"), "{}", stderr(&output));
}

#[test]
fn a_rank_that_does_not_heed_sigterm_is_killed_after_the_grace_time() {
    // Rank 0 fails only once rank 1 ignores the signal: the pipe tells.
    let folder = std::env::temp_dir().join(format!("qpair-launch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let fifo = folder.join("ready");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    assert!(made.success());
    let script = format!(
        "if [ $RANK = 0 ]; then read line < {0}; exit 5; fi; trap '' TERM; echo go > {0}; while :; do sleep 1000; done",
        fifo.display()
    );
    let output = finish(launch(&["-n", "2", "--grace", "100ms"], &script));
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 0 ended with exit code 5"), "{}", stderr(&output));
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let output = finish(launch(&["-n", "2"], "sleep 1000 & echo $!"));
    assert!(output.status.success(), "{}", stderr(&output));
    for line in stdout(&output).lines() {
        let pid: i32 = line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a process number");
        assert_ended(pid);
    }
}

#[test]
fn a_signal_goes_to_all_ranks() {
    let script = "trap 'echo bye $RANK; exit 0' TERM; echo ready; while :; do sleep 1000 & wait; done";
    let (mut child, mut out) = start(launch(&["-n", "2"], script));
    for _ in 0..2 {
        assert!(next_line(&mut out).ends_with("ready"));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    assert_eq!(lines(&rest), BTreeSet::from(["[0] bye 0", "[1] bye 1"]));
    assert_eq!(child.wait().expect("it ended").code(), Some(143));
}

#[test]
fn ranks_die_with_the_launcher() {
    let (mut child, mut out) = start(launch(&["-n", "2"], "echo $$; exec sleep 1000"));
    let pids: Vec<i32> = (0..2)
        .map(|_| next_line(&mut out).rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a process number"))
        .collect();
    child.kill().expect("it runs");
    child.wait().expect("it ended");
    pids.into_iter().for_each(assert_ended);
}

#[test]
fn a_time_limit_ends_the_job() {
    let output = finish(launch(&["-n", "2", "--timeout", "200ms"], "exec sleep 1000"));
    assert_eq!(output.status.code(), Some(124));
    assert!(stderr(&output).contains("not done within 200ms (ranks 0, 1 still ran)"), "{}", stderr(&output));
}

#[test]
fn a_taken_port_is_an_error_that_says_what_to_do() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = holder.local_addr().expect("bound").port().to_string();
    let output = finish(launch(&["-n", "2", "--port", &port], "true"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output).trim_end(),
        format!("error: port {port} is taken: give another with --port, or leave --port out and a free one is chosen")
    );
}

#[test]
fn a_command_that_is_not_there_is_one_error() {
    let output = finish(qpair(&["launch", "-n", "4", "--", "no-such-program-anywhere"]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("no program `no-such-program-anywhere`"), "{}", stderr(&output));
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [&["launch", "-n", "2"][..], &["launch", "-n", "0", "--", "true"], &["launch", "--", "true"]] {
        assert_eq!(finish(qpair(args)).status.code(), Some(2), "{args:?}");
    }
}

fn start(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let out = child.stdout.take().expect("a pipe");
    (child, BufReader::new(out))
}

fn next_line(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    assert_ne!(out.read_line(&mut line).expect("text"), 0, "the output ended");
    line.trim_end().to_owned()
}

/// Waits until the process has ended.
fn assert_ended(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a process number");
    // If there is no such process any more, it has ended.
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)).expect("poll works");
    assert_eq!(ready, 1, "process {pid:?} still runs");
}
