//! `qpair launch`: variables, output, signals, and how jobs end.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use common::{
    File, QPAIR, Running, assert_both_ended, assert_ended, finish, heeding, pid, qpair, stderr, stdout, tied,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use rustix::thread::sched_getaffinity;

/// `qpair launch OPTIONS -- sh -c SCRIPT`.
fn launch(options: &[&str], script: &str) -> Command {
    let mut args = vec!["launch"];
    args.extend(options);
    args.extend(["--", "sh", "-c", script]);
    heeding(&args)
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
fn ranks_are_not_told_of_a_store_of_torchruns() {
    let mut job = launch(&["-n", "1"], "echo ${TORCHELASTIC_USE_AGENT_STORE-none}");
    job.env("TORCHELASTIC_USE_AGENT_STORE", "True");
    let output = finish(job);
    assert_eq!(stdout(&output), "[0] none\n", "{}", stderr(&output));
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
fn a_terminal_that_stops_writers_in_the_background_stops_no_rank() {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    unlockpt(&controller).expect("unlocked");
    let name = ptsname(&controller, Vec::new()).expect("its name");
    let path = name.to_str().expect("a path").to_owned();
    let open = || {
        let mut options = fs::File::options();
        options.read(true).write(true).custom_flags(OFlags::NOCTTY.bits() as i32).open(&path).expect("opened")
    };
    let terminal = open();
    let mut attributes = tcgetattr(&terminal).expect("attributes");
    attributes.local_modes |= LocalModes::TOSTOP;
    tcsetattr(&terminal, OptionalActions::Now, &attributes).expect("set");
    // The launcher is in the foreground of a session of its own.
    let mut command = tied("setsid", &["-w", "-c", QPAIR, "launch", "--no-prefix", "-n", "1", "--", "echo", "written"]);
    command.stdin(open()).stdout(open()).stderr(open());
    let mut child = command.spawn().expect("started");
    drop(command);
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("its state").is_none() {
        if Instant::now() > until {
            child.kill().expect("ended");
            panic!("it is stopped");
        }
        thread::sleep(Duration::from_millis(10));
    }
    let mut text = Vec::new();
    let limit = Timespec::try_from(Duration::from_secs(60)).expect("short");
    while !text.ends_with(b"\n") {
        assert_eq!(poll(&mut [PollFd::new(&controller, PollFlags::IN)], Some(&limit)), Ok(1), "{text:?}");
        let mut part = [0; 64];
        let len = rustix::io::read(&controller, &mut part).expect("output");
        text.extend_from_slice(&part[..len]);
    }
    assert_eq!(String::from_utf8_lossy(&text), "written\r\n");
}

#[test]
fn the_launcher_may_have_more_descriptors_than_its_ranks() {
    let limited = |limit: &str| {
        let script = format!("ulimit {limit} -n 24; exec \"$0\" launch -n 12 -- sh -c 'ulimit -n'");
        finish(tied("sh", &["-c", &script, QPAIR]))
    };
    let output = limited("-S");
    assert!(output.status.success(), "{}", stderr(&output));
    let expected: Vec<String> = (0..12).map(|rank| format!("[{rank:>2}] 24")).collect();
    assert_eq!(lines(&stdout(&output)), expected.iter().map(String::as_str).collect());
    let output = limited("");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("may have 24: allow it more, as by `ulimit -n 56`"), "{}", stderr(&output));
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
fn the_rank_that_failed_is_named_and_not_those_that_it_took_along() {
    // Rank 2 wants another operation, at which all four fail; the shell around it makes it the last to end.
    let script = "if [ $RANK = 2 ]; then \"$0\" bench all-reduce -b 1K -e 1K --time 2h --op max; exit 7; fi; \
                  exec \"$0\" bench all-reduce -b 1K -e 1K --time 2h --op sum";
    for round in 0..20 {
        let output = finish(qpair(&["launch", "-n", "4", "--", "sh", "-c", script, QPAIR]));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(7), "round {round}: {text}");
        let named = "error: rank 2 ended with exit code 7, ranks 0, 1, 3 ended with exit code 1\n";
        assert!(text.ends_with(named), "round {round}: {text}");
        for rank in 0..4 {
            assert!(text.contains(&format!("[{rank}] error: ")), "round {round}, rank {rank}: {text}");
        }
    }
}

#[test]
fn a_rank_without_its_device_is_named_to_the_others() {
    for failing in [0, 1] {
        // The shell around it outlives it, so that nobody is ended before it has said what it knows.
        let script = format!(
            "if [ $RANK = {failing} ]; then export QPAIR_DEVICE=nothing7; fi; \
             \"$0\" bench all-reduce -e 8; [ $RANK = {failing} ] && exec sleep 1000; exit 1"
        );
        let output = finish(qpair(&["launch", "-n", "2", "--", "sh", "-c", &script, QPAIR]));
        let text = stderr(&output);
        let other = 1 - failing;
        // What it says more depends on whether there is a libibverbs.
        let said = text.lines().find_map(|line| line.strip_prefix(&format!("[{failing}] error: "))).unwrap_or_default();
        assert!(said.contains("`nothing7`"), "{text}");
        assert!(text.contains(&format!("[{other}] error: rank {failing} could not be set up: {said}")), "{text}");
    }
}

#[test]
fn a_rank_that_does_not_heed_sigterm_is_killed_after_the_grace_time() {
    let script = "if [ $RANK = 1 ]; then trap '' TERM; fi; echo $$; while :; do sleep 1000; done";
    let mut job = Running::start(launch(&["-n", "2", "--grace", "100ms"], script));
    let told = [job.line(), job.line()];
    let first = told.iter().find(|line| line.starts_with("[0]")).expect("rank 0's number");
    // Both ranks have told, so rank 1 ignores the signal.
    kill_process(pid(first), Signal::KILL).expect("it runs");
    let output = job.finish();
    assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 0 was killed by signal 9 (SIGKILL)"), "{}", stderr(&output));
    told.iter().for_each(|line| assert_ended(pid(line)));
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let output = finish(launch(&["-n", "2"], "sleep 1000 & echo $!"));
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).lines().for_each(|line| assert_ended(pid(line)));
}

#[test]
fn who_leaves_its_rank_for_good_is_not_waited_for() {
    // It is in a session of its own, and has told its number, once it is the sleep.
    let script = "setsid sh -c 'echo $$; exec sleep 60' & until grep -q sleep /proc/$!/comm; do :; done";
    let output = finish(launch(&["-n", "1"], script));
    assert!(output.status.success(), "{}", stderr(&output));
    // It still holds the rank's output open, and is no concern of the launcher.
    kill_process(pid(stdout(&output).trim_end()), Signal::KILL).expect("it still runs");
}

#[test]
fn a_reader_that_takes_its_time_gets_all() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    // More than a pipe takes, and less than two and what is held between them: the rank ends while nobody reads.
    let mut job = Running::with_output(launch(&["-n", "1"], "echo $$ >&2; exec seq 15000"), writer.into());
    assert_ended(pid(&job.error_line()));
    // Longer than a stream is waited for that gives nothing.
    thread::sleep(Duration::from_secs(3));
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert_eq!(text.lines().count(), 15000);
    assert!(text.ends_with("\n[0] 15000\n"), "{:?}", text.lines().last());
    assert!(job.finish().status.success());
}

#[test]
fn who_left_its_rank_and_says_more_and_more_is_not_waited_for() {
    let script =
        "setsid sh -c 'echo $$; while echo more; do sleep 0.1; done' & until [ -e \"$0\" ]; do sleep 0.01; done";
    let go = File::new("chatty");
    let mut job = Running::start(qpair(&["launch", "-n", "1", "--", "sh", "-c", script, go.path()]));
    let left = pid(&job.line());
    assert_eq!(job.line(), "[0] more");
    fs::write(go.path(), "").expect("a file of the test's own");
    assert!(job.finish().status.success());
    // Nobody takes what it says any more.
    assert_ended(left);
}

#[test]
fn a_reader_that_reads_no_more_is_given_up_by_a_signal_and_by_the_time_limit() {
    let unread = |options: &[&str], script| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        (Running::with_output(launch(&[&["-n", "1"], options].concat(), script), writer.into()), reader)
    };
    let (mut job, _reader) = unread(&[], "echo $$ >&2; exec seq 15000");
    assert_ended(pid(&job.error_line()));
    job.signal(Signal::TERM);
    assert_eq!(job.finish().status.code(), Some(143));
    // One that ended the ranks is enough.
    let (mut job, _reader) = unread(&[], "seq 15000; echo $$ >&2; exec sleep 1000");
    let rank = pid(&job.error_line());
    job.signal(Signal::TERM);
    assert_eq!(job.finish().status.code(), Some(143));
    assert_ended(rank);
    let (job, _reader) = unread(&["--timeout", "3s"], "exec seq 15000");
    let output = job.finish();
    assert!(stderr(&output).contains("not done within 3s (output was still to be read)"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(124));
}

#[test]
fn a_launcher_that_can_not_say_why_it_ends_ends_by_the_next_signal() {
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let go = File::new("unsaid");
    // Of one pipe with its output, so that its own errors find it full.
    let script = "exec env --default-signal=TERM \"$0\" launch -n 1 -- sh -c 'seq 15000; echo >\"$0\"' \"$1\" 2>&1";
    let job = Running::with_output(tied("sh", &["-c", script, QPAIR, go.path()]), writer.into());
    while !fs::exists(go.path()).expect("the system tells") {
        thread::sleep(Duration::from_millis(1));
    }
    let ended = pidfd_open(job.pid(), PidfdFlags::empty()).expect("it was not waited for");
    let pause = Timespec::try_from(Duration::from_millis(100)).expect("in range");
    let start = Instant::now();
    while poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&pause)).expect("poll works") == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "no signal ends it");
        job.signal(Signal::TERM);
    }
    assert_eq!(job.finish().status.code(), Some(143));
}

#[test]
fn a_signal_goes_to_all_ranks() {
    for (name, signal, code) in [("TERM", Signal::TERM, 143), ("QUIT", Signal::QUIT, 131)] {
        let script = format!("trap 'echo bye $RANK; exit 0' {name}; echo ready; while :; do sleep 1000 & wait; done");
        let mut job = Running::start(launch(&["-n", "2"], &script));
        for _ in 0..2 {
            assert!(job.line().ends_with("ready"));
        }
        job.signal(signal);
        let output = job.finish();
        assert_eq!(lines(&stdout(&output)), BTreeSet::from(["[0] bye 0", "[1] bye 1"]), "{name}");
        assert_eq!(output.status.code(), Some(code), "{name}");
    }
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_so() {
    let nohup = ("nohup", &[][..], Signal::HUP);
    // As a shell that is not interactive starts what it has in the background.
    let background = ("sh", &["-c", "trap '' INT QUIT; exec \"$@\"", "sh"][..], Signal::INT);
    for (number, (program, args, signal)) in [nohup, background].into_iter().enumerate() {
        let go = File::new(&format!("ignored-{number}"));
        let script = format!("echo ready; until [ -e {} ]; do sleep 0.01; done; echo done", go.path());
        let launch = [QPAIR, "launch", "-n", "1", "--", "sh", "-c", &script];
        let mut job = Running::start(tied(program, &[args, &launch].concat()));
        assert_eq!(job.line(), "[0] ready");
        job.signal(signal);
        fs::write(go.path(), "").expect("a file of the test's own");
        let output = job.finish();
        assert_eq!(stdout(&output), "[0] done\n", "{program}: {}", stderr(&output));
        assert!(output.status.success(), "{program}: {}", stderr(&output));
    }
}

#[test]
fn a_second_signal_kills() {
    let script = "trap 'echo not yet' INT; echo $$; while :; do sleep 1000 & wait; done";
    let mut job = Running::start(launch(&["-n", "1", "--grace", "2h"], script));
    let rank = pid(&job.line());
    job.signal(Signal::INT);
    assert_eq!(job.line(), "[0] not yet");
    job.signal(Signal::INT);
    assert_eq!(job.finish().status.code(), Some(130));
    assert_ended(rank);
}

#[test]
fn ranks_die_with_the_launcher() {
    let mut job = Running::start(launch(&["-n", "2"], "echo $$; exec sleep 1000"));
    let pids = [pid(&job.line()), pid(&job.line())];
    job.signal(Signal::KILL);
    pids.into_iter().for_each(assert_ended);
}

#[test]
fn what_ranks_started_dies_with_the_launcher() {
    let script = "trap '' TERM HUP INT; sleep 1000 & echo $$ $!; wait";
    let mut job = Running::start(launch(&["-n", "2"], script));
    let told = [job.line(), job.line()];
    job.signal(Signal::KILL);
    told.iter().for_each(|line| assert_both_ended(line));
}

#[test]
fn nothing_that_the_launcher_started_is_left() {
    for ends_well in [true, false] {
        let go = File::new(&format!("left-{ends_well}"));
        let script = "echo $(cat /proc/$PPID/task/*/children); until [ -e \"$0\" ]; do sleep 0.01; done";
        let mut job = Running::start(qpair(&["launch", "-n", "1", "--", "sh", "-c", script, go.path()]));
        let told = job.line();
        if ends_well {
            fs::write(go.path(), "").expect("a file of the test's own");
            assert!(job.finish().status.success());
        } else {
            job.signal(Signal::KILL);
        }
        // The rank, and what watches over it.
        let pids: Vec<Pid> = told.split(' ').skip(1).map(pid).collect();
        assert_eq!(pids.len(), 2, "{told}");
        pids.into_iter().for_each(assert_ended);
    }
}

#[test]
fn pinned_ranks_share_the_cpus_evenly() {
    let allowed = sched_getaffinity(None).expect("the system tells").count() as usize;
    for ranks in [1, allowed, allowed + 1] {
        let script = "grep Cpus_allowed: /proc/self/status";
        let output = finish(launch(&["-n", &ranks.to_string(), "--pin", "--no-prefix"], script));
        let masks = stdout(&output);
        // A mask is hexadecimal digits in groups.
        let cpus = |line: &str| {
            line.chars().skip_while(|&c| c != '\t').filter_map(|c| c.to_digit(16)).map(u32::count_ones).sum::<u32>()
        };
        assert_eq!(masks.lines().count(), ranks, "{masks}");
        assert!(masks.lines().all(|line| cpus(line) == 1), "{masks}");
        // As many different ones as there can be.
        assert_eq!(lines(&masks).len(), ranks.min(allowed), "{masks}");
    }
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
fn a_command_is_looked_for_where_ranks_will() {
    let program = File::with("in-path", "#!/bin/sh\necho found\n");
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o700)).expect("a program");
    let (folder, name) = program.path().rsplit_once('/').expect("a path");
    let path = format!("PATH={folder}");
    let output = finish(qpair(&["launch", "-n", "1", "-x", &path, "--", name]));
    assert_eq!(stdout(&output), "[0] found\n", "{}", stderr(&output));
    let output = finish(qpair(&["launch", "-n", "2", "-x", "PATH=/no/such/folder", "--", "sleep", "0"]));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("no program `sleep`"), "{}", stderr(&output));
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &["launch", "-n", "2"][..],
        &["launch", "-H", "a", "--hostfile", "b", "--", "true"],
        &["launch", "-n", "2", "--no-prefix", "--tag-output", "--", "true"],
        &["launch", "-n", "0", "--", "true"],
        &["launch", "--", "true"],
        &["launch", "-n", "2", "--timeout", "10000000000000000000", "--", "true"],
        &["launch", "-n", "2", "--grace", "10000000000000000000", "--", "true"],
    ] {
        assert_eq!(finish(qpair(args)).status.code(), Some(2), "{args:?}");
    }
}

/// What nobody can have is not taken for success, nor for the ranks' own failure, which see a broken pipe by it.
#[test]
fn output_that_can_not_be_written_is_told() {
    for script in ["echo hi", "seq 1 100000"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is full");
        let output = Running::with_output(launch(&["-n", "2"], script), full.into()).finish();
        assert_eq!(output.status.code(), Some(1), "{script}: {}", stderr(&output));
        let told = stderr(&output);
        assert!(told.contains("could not be passed on") && told.contains("No space left"), "{script}: {told}");
    }
}
