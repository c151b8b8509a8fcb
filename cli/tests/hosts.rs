//! `qpair launch` over several hosts, which are all this one: a script stands in for ssh.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use common::{QPAIR, Running, assert_both_ended, assert_ended, finish, heeding, pid, qpair, stderr, stdout};
use rustix::process::{Signal, kill_process};

/// What stands in for ssh: like it, it runs a command in a session of its own, ends as that does, and leaves it alone when it is
/// killed. `nowhere` is no host, `silent` one that does not answer, `bare` one without the launcher's folder, and `verbose` one that
/// says more to whoever comes than a pipe takes.
const SSH: &str = r#"#!/bin/sh
[ "$1" = -p ] && shift 2
host=$1
shift
case $host in
    nowhere) echo "ssh: Could not resolve hostname nowhere" >&2; exit 255 ;;
    silent) exec sleep 1000 ;;
    verbose) seq 15000; exec setsid -w sh -c "$*" ;;
    bare) rmdir "$PWD"; cd /; exec setsid -w sh -c "$*" ;;
    *) echo "Welcome to $host!"; REACHED=$host; export REACHED; cd /; exec setsid -w sh -c "$*" ;;
esac
"#;

/// A folder with the script, gone when dropped.
struct Cluster(PathBuf);

impl Cluster {
    fn new(test: &str) -> Cluster {
        let folder = std::env::temp_dir().join(format!("qpair-hosts-{test}-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let cluster = Cluster(folder);
        fs::write(cluster.ssh(), SSH).expect("a file");
        fs::set_permissions(cluster.ssh(), fs::Permissions::from_mode(0o700)).expect("a program");
        cluster
    }

    fn ssh(&self) -> PathBuf {
        self.0.join("ssh")
    }

    /// `qpair launch --ssh SCRIPT OPTIONS -- sh -c SCRIPT`.
    fn launch(&self, options: &[&str], script: &str) -> Command {
        let ssh = self.ssh().display().to_string();
        heeding(&[&["launch", "--ssh", &ssh], options, &["--", "sh", "-c", script]].concat())
    }

    fn run(&self, options: &[&str], script: &str) -> Output {
        finish(self.launch(options, script))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Lines of ranks, without what hosts say to whoever comes.
fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().filter(|line| !line.contains("Welcome to ")).collect()
}

/// The next line of a rank's.
fn line(job: &mut Running) -> String {
    loop {
        let line = job.line();
        if !line.contains("Welcome to ") {
            return line;
        }
    }
}

#[test]
fn ranks_of_several_hosts_get_their_variables() {
    let cluster = Cluster::new("variables");
    let script = "echo $REACHED $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR";
    let output = cluster.run(&["-H", "a:2,localhost:1,b:2", "-n", "4"], script);
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = ["[0] a 0/4 0/2 0 a", "[1] a 1/4 1/2 0 a", "[2] 2/4 0/1 1 a", "[3] b 3/4 0/1 2 a"];
    assert_eq!(lines(&stdout(&output)), BTreeSet::from(expected));
    let output = cluster
        .run(&["-H", "user@a,b", "--master-addr", "10.0.0.1", "--port", "4242"], "echo $MASTER_ADDR:$MASTER_PORT");
    assert_eq!(lines(&stdout(&output)), BTreeSet::from(["[0] 10.0.0.1:4242", "[1] 10.0.0.1:4242"]));
}

#[test]
fn a_file_of_hosts_and_options_of_ssh_are_heeded() {
    let cluster = Cluster::new("file");
    let file = cluster.0.join("hosts");
    fs::write(&file, "# two hosts\na slots=2\nb # one rank\n").expect("a file");
    let ssh = format!("{} -p 2222", cluster.ssh().display());
    let file = file.display().to_string();
    let mut command = qpair(&["launch", "--hostfile", &file, "--", "sh", "-c", "echo $REACHED"]);
    command.env("QPAIR_SSH", ssh);
    let output = finish(command);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(lines(&stdout(&output)), BTreeSet::from(["[0] a", "[1] a", "[2] b"]));
}

#[test]
fn the_environment_and_the_folder_come_along() {
    let cluster = Cluster::new("environment");
    let odd = "it's $HOME; \"x\"";
    let script = "echo \"$ODD|$QPAIR_ODD|$OTHER|$QPAIR_DEVICE|$PWD\"";
    let mut command = cluster.launch(&["-H", "a", "-x", "ODD", "-x", "OTHER=a=b", "-d", "soft0"], script);
    command.env("ODD", odd).env("QPAIR_ODD", odd).env("UNSAID", "x").current_dir(&cluster.0);
    let folder = fs::canonicalize(&cluster.0).expect("a folder");
    let output = finish(command);
    let expected = format!("[0] {odd}|{odd}|a=b|soft0|{}", folder.display());
    assert_eq!(lines(&stdout(&output)), BTreeSet::from([expected.as_str()]), "{}", stderr(&output));
    let output = cluster.run(&["-H", "a", "-x", "QPAIR_TEST_NO_SUCH"], "true");
    assert!(stderr(&output).contains("QPAIR_TEST_NO_SUCH can not be passed on"), "{}", stderr(&output));
}

#[test]
fn a_rank_that_fails_ends_those_on_other_hosts_and_is_named_with_its_host() {
    let cluster = Cluster::new("fails");
    let begin = Instant::now();
    let output = cluster.run(&["-H", "a:2,b:2"], "echo $$; [ $RANK != 2 ] || exit 7; exec sleep 1000");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let named = "error: rank 2 on b ended with exit code 7; the other 3 ranks were ended\n";
    assert!(stderr(&output).ends_with(named), "{}", stderr(&output));
    lines(&stdout(&output)).into_iter().for_each(|line| assert_ended(pid(line)));
    let output = cluster.run(&["-H", "a,b"], "[ $RANK = 1 ] || exec sleep 1000; kill -9 $$");
    let named = "error: rank 1 on b was killed by signal 9 (SIGKILL); the other rank was ended\n";
    assert_eq!(stderr(&output), named, "shells have nothing to add");
    assert_eq!(output.status.code(), Some(137));
    assert!(begin.elapsed() < Duration::from_secs(30), "the others were not ended at once");
}

#[test]
fn a_host_that_does_not_exist_ends_the_job_and_is_named() {
    let cluster = Cluster::new("nowhere");
    let output = cluster.run(&["-H", "a:1,nowhere:2"], "exec sleep 1000");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(255), "{text}");
    assert!(text.contains("ssh: Could not resolve hostname nowhere"), "{text}");
    assert!(text.contains("on nowhere could not be started: its host was not reached (exit code 255)"), "{text}");
    let advice = format!("see whether `{} nowhere true` ends well", cluster.ssh().display());
    assert!(text.contains(&advice), "{text}");
}

#[test]
fn a_host_that_does_not_answer_ends_the_job_and_is_named() {
    let cluster = Cluster::new("silent");
    let output = cluster.run(&["-H", "a,silent", "--host-timeout", "500ms"], "exec sleep 1000");
    let text = stderr(&output);
    assert!(text.contains("silent has not answered within 500ms, and the ranks were ended"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_host_without_the_folder_is_not_taken_for_one_that_was_not_reached() {
    let cluster = Cluster::new("bare");
    let folder = cluster.0.join("here");
    fs::create_dir(&folder).expect("a folder");
    let mut command = cluster.launch(&["-H", "bare"], "true");
    command.current_dir(&folder);
    let output = finish(command);
    let text = stderr(&output);
    assert!(text.contains("cd: ") && text.contains(&folder.display().to_string()), "{text}");
    assert!(text.contains("rank 0 on bare ended with exit code 1"), "{text}");
}

#[test]
fn a_script_longer_than_a_pipe_arrives_and_a_host_that_does_not_read_it_is_not_waited_for() {
    let cluster = Cluster::new("long");
    let launch = |options: &[&str], script| {
        let mut command = cluster.launch(&[options, &["-x", "LONG"]].concat(), script);
        command.env("LONG", "x".repeat(100_000));
        finish(command)
    };
    let output = launch(&["-H", "silent", "--host-timeout", "500ms"], "exec sleep 1000");
    assert!(stderr(&output).contains("silent has not answered within 500ms"), "{}", stderr(&output));
    let output = launch(&["-H", "a:2"], "echo ${#LONG}");
    assert_eq!(lines(&stdout(&output)), BTreeSet::from(["[0] 100000", "[1] 100000"]), "{}", stderr(&output));
}

#[test]
fn a_host_that_says_much_has_answered_also_where_that_is_read_late() {
    let cluster = Cluster::new("verbose");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut job = Running::with_output(cluster.launch(&["-H", "verbose"], "echo end; echo $$ >&2"), writer.into());
    assert_ended(pid(&job.error_line()));
    // Longer than a stream is waited for that gives nothing.
    thread::sleep(Duration::from_secs(3));
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert!(text.ends_with("\n[0] 15000\n[0] end\n"), "{:?}", text.lines().last());
    let output = job.finish();
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_host_that_says_much_to_nobody_keeps_no_signal_from_ending_the_launcher() {
    let cluster = Cluster::new("unheard");
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let mut job = Running::with_output(cluster.launch(&["-H", "verbose"], "echo $$ >&2"), writer.into());
    assert_ended(pid(&job.error_line()));
    job.signal(Signal::TERM);
    assert_eq!(job.finish().status.code(), Some(143));
}

#[test]
fn without_ssh_nothing_is_started() {
    let output = finish(qpair(&["launch", "-H", "a", "--ssh", "no-such-ssh -p 1", "--", "true"]));
    assert!(stderr(&output).contains("there is no program `no-such-ssh`"), "{}", stderr(&output));
    let output = finish(qpair(&["launch", "-H", "a:2", "-n", "3", "--", "true"]));
    assert!(stderr(&output).contains("the hosts take 2 ranks and not 3"), "{}", stderr(&output));
    let output = finish(qpair(&["launch", "-H", "-oProxyCommand=x", "--", "true"]));
    assert!(!output.status.success());
}

#[test]
fn ranks_on_other_hosts_die_with_the_launcher() {
    let cluster = Cluster::new("killed");
    let mut job =
        Running::start(cluster.launch(&["-H", "a:2,b"], "trap '' TERM HUP INT; sleep 1000 & echo $$ $!; wait"));
    let told: Vec<String> = (0..3).map(|_| line(&mut job)).collect();
    job.signal(Signal::KILL);
    told.iter().for_each(|line| assert_both_ended(line));
}

#[test]
fn a_rank_whose_ssh_dies_ends_and_is_named() {
    let cluster = Cluster::new("lost");
    // The parent's parent of a rank is what stands in for ssh: above it only the shell that reads the script.
    let script =
        "shell=$PPID; read -r line </proc/$shell/stat; line=${line##*) }; set -- $line; echo $$ $2; exec sleep 1000";
    let mut job = Running::start(cluster.launch(&["-H", "a,b"], script));
    let told = [line(&mut job), line(&mut job)];
    let of_b = told.iter().find(|line| line.starts_with("[1]")).expect("a line of rank 1");
    kill_process(pid(of_b), Signal::KILL).expect("it runs");
    let output = job.finish();
    assert!(stderr(&output).contains("rank 1 on b was killed by signal 9"), "{}", stderr(&output));
    for line in &told {
        assert_ended(pid(line.rsplit_once(' ').expect("two numbers").0));
    }
}

#[test]
fn a_signal_goes_to_ranks_on_other_hosts() {
    let cluster = Cluster::new("signal");
    let script = "trap 'echo bye $RANK; exit 0' TERM INT; echo ready; while :; do sleep 1000 & wait; done";
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut job = Running::start(cluster.launch(&["-H", "a,localhost,b"], script));
        for _ in 0..3 {
            assert!(line(&mut job).ends_with("ready"));
        }
        job.signal(signal);
        let output = job.finish();
        assert_eq!(lines(&stdout(&output)), BTreeSet::from(["[0] bye 0", "[1] bye 1", "[2] bye 2"]));
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn output_without_prefix_passes_as_it_is() {
    let cluster = Cluster::new("raw");
    let output = cluster.run(&["-H", "a", "--no-prefix"], "printf raw");
    assert_eq!(stdout(&output), "Welcome to a!\nraw");
}

#[test]
fn more_ranks_than_a_host_is_asked_for_at_a_time_all_start() {
    let cluster = Cluster::new("many");
    let output = cluster.run(&["-H", "a:11,b:2"], "echo $RANK");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(lines(&stdout(&output)).len(), 13);
}

#[test]
fn ranks_of_several_hosts_meet() {
    let cluster = Cluster::new("meet");
    let script = format!("exec {QPAIR} bench all-reduce -b 8 -e 64K -f 8192 --iters 3");
    let output = cluster.run(&["-H", "a:2,b:1", "--master-addr", "127.0.0.1", "--no-prefix"], &script);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains(", 3 ranks"), "{}", stdout(&output));
}
