//! Ranks that are processes: this very program, started again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use qpair_collectives::tune::Tuning;
use qpair_collectives::{Algorithm, CollectiveError, Communicator, ReduceOp};
use rustix::process::{Pid, Signal, kill_process};

use crate::port::Port;
use crate::support::{OPERATIONS, all_reduce, broadcast};

/// What a rank's process does; in the test run itself there is no role, and nothing to do.
#[test]
fn rank() {
    let Ok(role) = std::env::var("QPAIR_TEST_ROLE") else { return };
    match Communicator::from_env() {
        Err(error) => println!("bootstrap: {error}"),
        Ok(_) if role == "meet" => println!("done"),
        Ok(comm) => match role.split_once(' ') {
            Some(("forever", size)) => forever(&comm, size.parse().expect("a size")),
            _ if role == "shrink" => shrink(comm, None, Duration::from_secs(60)),
            Some(("shrink", seconds)) => {
                let limit = Duration::from_secs(seconds.parse().expect("seconds"));
                // Where all is slow, ranks come further apart.
                let limit = if std::env::var_os("QPAIR_PATIENCE").is_some() { 3 * limit } else { limit };
                shrink(comm, Some(Duration::from_secs(2)), limit);
            }
            _ if role == "ring" => ring(&comm),
            Some(("keep", size)) => keep(&comm, size.parse().expect("a size")),
            _ => work(&comm),
        },
    }
}

fn work(comm: &Communicator) {
    for op in OPERATIONS {
        for len in [0, 1, 5, 1000, 10_007, 300_007] {
            all_reduce::<f32>(comm, len, op);
        }
        all_reduce::<f64>(comm, 777, op);
        all_reduce::<i32>(comm, 777, op);
        all_reduce::<i64>(comm, 777, op);
    }
    comm.set_tuning(Tuning { eager: Some(64), segment: 4096, ..Tuning::default() });
    for len in [10, 1000, 100_003] {
        all_reduce::<f32>(comm, len, ReduceOp::Sum);
        broadcast::<f32>(comm, len, len % comm.size());
    }
    comm.barrier().expect("a barrier");
    println!("done");
}

/// All-reduces until an error, which is printed with what its type says.
fn forever(comm: &Communicator, len: usize) {
    let mut vector = comm.buffer::<f32>(len).expect("a buffer");
    for round in 0_u64.. {
        if let Err(error) = comm.all_reduce(&mut vector, ReduceOp::Sum) {
            let rank = match &error {
                CollectiveError::RankGone { rank, .. } => rank.to_string(),
                other => format!("{other:?}"),
            };
            vector.fill(1.0);
            println!("gone {rank}: {error}");
            return;
        }
        if round == 20 {
            println!("ready");
        }
    }
}

/// All-reduces along a ring until an error: each waits for the one before it.
fn ring(comm: &Communicator) {
    comm.set_algorithm(Algorithm::Ring);
    let mut vector = comm.buffer::<i32>(1000).expect("a buffer");
    for round in 0_u64.. {
        if let Err(error) = comm.all_reduce(&mut vector, ReduceOp::Max) {
            return println!("gone: {error}");
        }
        if round == 20 {
            comm.set_timeout(Duration::from_secs(2));
            println!("ready");
        }
    }
}

/// All-reduces until an error, then sees to it that nobody writes to the vector any more.
fn keep(comm: &Communicator, len: usize) {
    let mut vector = comm.buffer::<f32>(len).expect("a buffer");
    let mut rounds = 0;
    let error = loop {
        vector.fill(1.0);
        if let Err(error) = comm.all_reduce(&mut vector, ReduceOp::Sum) {
            break error;
        }
        rounds += 1;
        if rounds == 5 {
            comm.set_timeout(Duration::from_secs(2));
            println!("ready");
        }
    };
    vector.fill(-1.0);
    println!("gone: {error}");
    // Until the one that was stopped has gone on.
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let kept = vector.iter().all(|&element| element == -1.0);
    println!("done: {}", if kept { "kept" } else { "overwritten" });
}

/// All-reduces until an error, and goes on with those that are left as long as it can.
fn shrink(mut comm: Communicator, timeout: Option<Duration>, limit: Duration) {
    loop {
        let mut vector = comm.buffer::<i32>(1000).expect("a buffer");
        for round in 0_u64.. {
            vector.fill(comm.rank() as i32 + 1);
            if comm.all_reduce(&mut vector, ReduceOp::Sum).is_err() {
                break;
            }
            let size = comm.size() as i32;
            assert_eq!(vector[999], size * (size + 1) / 2);
            if round == 20 {
                timeout.into_iter().for_each(|timeout| comm.set_timeout(timeout));
                println!("ready: {} of {size}", comm.rank());
            }
        }
        match comm.shrink(limit) {
            Ok(new) => comm = new,
            Err(error) => return println!("gone: {error}"),
        }
    }
}

/// A rank's process, with these variables and no others of a launcher: one may have started the tests.
pub fn process(role: &str, variables: &[(&str, String)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::rank", "--nocapture"]);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_launcher) {
            command.env_remove(name);
        }
    }
    command.env("QPAIR_TEST_ROLE", role).envs(variables.iter().map(|(name, value)| (*name, value)));
    command
}

fn is_of_launcher(name: &str) -> bool {
    let prefixes = ["MASTER_", "TORCHELASTIC_", "OMPI_", "PRTE_", "PMIX_", "PMI_", "MPI_", "HYDRA_", "SLURM_"];
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "QPAIR_PORT"].contains(&name)
        || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// A rank's process, and what it prints.
struct Rank {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Rank {
    /// Its next line that is not the test harness's.
    fn next(&mut self) -> Option<String> {
        let ours = |line: &String| ["ready", "gone", "done", "bootstrap"].iter().any(|word| line.contains(word));
        self.lines.by_ref().map_while(Result::ok).find(ours)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Ended or not: nothing of a test stays behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of a job, and the port where they meet.
struct Job {
    ranks: Vec<Rank>,
    _port: Port,
}

fn start(ranks: usize, role: &str) -> Job {
    let port = Port::keep();
    let start = |rank: usize| {
        let variables = [
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", ranks.to_string()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.number.to_string()),
        ];
        let mut command = process(role, &variables);
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Rank { child, lines }
    };
    Job { ranks: (0..ranks).map(start).collect(), _port: port }
}

#[test]
fn results_are_right_between_processes() {
    for ranks in [2, 4, 5] {
        for (rank, process) in start(ranks, "work").ranks.iter_mut().enumerate() {
            let line = process.next();
            assert!(line.as_ref().is_some_and(|line| line.contains("done")), "rank {rank} of {ranks}: {line:?}");
            assert!(process.child.wait().unwrap().success());
        }
    }
}

#[test]
fn many_ranks_meet() {
    for (rank, process) in start(64, "meet").ranks.iter_mut().enumerate() {
        let line = process.next();
        assert!(line.as_ref().is_some_and(|line| line.contains("done")), "rank {rank}: {line:?}");
        assert!(process.child.wait().unwrap().success());
    }
}

/// Kills a rank in the middle of its work; all others name it within two seconds.
fn kill(ranks: usize, victim: usize, len: usize) {
    let mut job = start(ranks, &format!("forever {len}"));
    let processes = &mut job.ranks;
    for process in &mut *processes {
        assert!(process.next().is_some_and(|line| line.contains("ready")));
    }
    processes[victim].child.kill().unwrap();
    let killed = Instant::now();
    for (rank, process) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let line = process.next().unwrap_or_default();
        let elapsed = killed.elapsed();
        assert!(line.contains(&format!("gone {victim}: rank {victim} is gone")), "rank {rank}: {line}");
        assert!(elapsed < Duration::from_secs(2), "rank {rank} took {elapsed:?}");
        assert!(process.child.wait().unwrap().success());
    }
}

#[test]
fn a_killed_rank_is_named_by_all_in_small_operations() {
    kill(4, 2, 4);
}

#[test]
fn a_killed_rank_is_named_by_all_in_large_operations() {
    kill(4, 2, 1 << 20);
}

#[test]
fn a_killed_rank_0_is_named_by_all() {
    kill(3, 0, 1000);
}

#[test]
fn a_killed_rank_is_named_by_those_that_never_talk_to_it() {
    // Recursive doubling on 8 ranks: each talks to 3.
    kill(8, 5, 1);
}

#[test]
fn those_that_are_left_go_on_whoever_ended() {
    let mut job = start(4, "shrink");
    let mut left = vec![0, 1, 2, 3];
    // Each communicator has its own rank 0.
    for victim in [1, 0, 2] {
        go_on(&mut job, &left);
        job.ranks[victim].child.kill().unwrap();
        left.retain(|&rank| rank != victim);
    }
    assert_eq!(left, [3]);
    go_on(&mut job, &left);
}

/// Those ranks are in a communicator, in that order, and have run for a while in it.
fn go_on(job: &mut Job, ranks: &[usize]) {
    for (number, &rank) in ranks.iter().enumerate() {
        let line = job.ranks[rank].next().unwrap_or_default();
        assert!(line.contains(&format!("ready: {number} of {}", ranks.len())), "rank {rank}: {line}");
    }
}

fn send(rank: &Rank, signal: Signal) {
    kill_process(Pid::from_child(&rank.child), signal).unwrap();
}

/// Ranks that shrink, which have run for a while.
fn shrinking(ranks: usize, role: &str) -> Job {
    let mut job = start(ranks, role);
    assert!(job.ranks.iter_mut().all(|rank| rank.next().is_some_and(|line| line.contains(&format!("of {ranks}")))));
    job
}

#[test]
fn without_rank_0_and_those_that_stand_in_for_it_none_goes_on() {
    let mut job = shrinking(5, "shrink");
    // None of them acts while another has ended.
    job.ranks[..3].iter().for_each(|rank| send(rank, Signal::STOP));
    job.ranks[..3].iter_mut().for_each(|rank| rank.child.kill().unwrap());
    for rank in 3..5 {
        let line = job.ranks[rank].next().unwrap_or_default();
        assert!(
            line.contains("gone: rank 0, by which") && line.contains("those that stand in for it are gone"),
            "{line}"
        );
    }
}

#[test]
fn fewer_than_half_do_not_go_on_without_rank_0() {
    let mut job = shrinking(4, "shrink 5");
    job.ranks[2..].iter().for_each(|rank| send(rank, Signal::STOP));
    job.ranks[0].child.kill().unwrap();
    let line = job.ranks[1].next().unwrap_or_default();
    assert!(line.contains("gone: rank 0 is gone, and of 4 ranks only 1"), "{line}");
}

/// Also by those that wait for others, who wait for it.
#[test]
fn a_rank_that_is_stopped_is_named() {
    for stopped in [2, 0] {
        let mut job = start(4, "ring");
        assert!(job.ranks.iter_mut().all(|rank| rank.next().is_some_and(|line| line.contains("ready"))));
        send(&job.ranks[stopped], Signal::STOP);
        let others = (0..4).filter(|&rank| rank != stopped);
        let lines: Vec<_> = others.map(|rank| job.ranks[rank].next().unwrap_or_default()).collect();
        let named = |line: &&String| match stopped {
            0 => line.contains("rank 0 failed: it has not answered rank"),
            _ => line.contains("rank 2 does not answer") || line.contains("see what rank 2 does"),
        };
        // Without rank 0 nobody tells the others; who is told by the end of a connection knows no more.
        let least = if stopped == 0 { 1 } else { 3 };
        assert!(lines.iter().filter(named).count() >= least, "{stopped}: {lines:#?}");
    }
}

/// One that stands in does not know that another has ended as well: it waits for that one, from when it comes itself.
#[test]
fn who_stands_in_may_come_later_than_those_who_ask_it() {
    let mut job = shrinking(4, "shrink 5");
    send(&job.ranks[1], Signal::STOP);
    for rank in [0, 3] {
        job.ranks[rank].child.kill().unwrap();
    }
    std::thread::sleep(Duration::from_secs(3));
    send(&job.ranks[1], Signal::CONT);
    go_on(&mut job, &[1, 2]);
}

#[test]
fn where_the_first_that_stands_in_does_not_answer_the_next_does() {
    let mut job = shrinking(4, "shrink 5");
    send(&job.ranks[1], Signal::STOP);
    job.ranks[0].child.kill().unwrap();
    go_on(&mut job, &[2, 3]);
    // It comes back to nobody.
    send(&job.ranks[1], Signal::CONT);
    let line = job.ranks[1].next().unwrap_or_default();
    assert!(line.contains("gone: rank 0"), "{line}");
}

#[test]
fn the_others_go_on_without_a_rank_0_that_is_stopped() {
    let mut job = shrinking(3, "shrink 5");
    send(&job.ranks[0], Signal::STOP);
    go_on(&mut job, &[1, 2]);
    send(&job.ranks[0], Signal::CONT);
    let line = job.ranks[0].next().unwrap_or_default();
    assert!(line.contains("gone: the other ranks went on without rank 0"), "{line}");
}

#[test]
fn a_stopped_rank_is_left_out_and_hears_of_it() {
    let mut job = shrinking(3, "shrink 5");
    send(&job.ranks[1], Signal::STOP);
    go_on(&mut job, &[0, 2]);
    send(&job.ranks[1], Signal::CONT);
    let line = job.ranks[1].next().unwrap_or_default();
    assert!(line.contains("gone: the other ranks went on without rank 1"), "{line}");
}

#[test]
fn a_stopped_rank_never_writes_to_a_vector_that_was_given_back() {
    // Some are stopped in the middle of writing to the other.
    let mut jobs: Vec<_> = (0..3).map(|_| start(2, "keep 4000000")).collect();
    for (number, job) in (0..).zip(&mut jobs) {
        assert!(job.ranks.iter_mut().all(|rank| rank.next().is_some_and(|line| line.contains("ready"))));
        std::thread::sleep(Duration::from_millis(100 + 7 * number));
        send(&job.ranks[1], Signal::STOP);
    }
    for job in &mut jobs {
        let line = job.ranks[0].next().unwrap_or_default();
        assert!(line.contains("gone: rank 0 gave up"), "{line}");
        send(&job.ranks[1], Signal::CONT);
        // It is through with what it did when it says how that ended.
        let line = job.ranks[1].next().unwrap_or_default();
        assert!(line.contains("gone: "), "{line}");
        writeln!(job.ranks[0].child.stdin.as_mut().unwrap()).unwrap();
        let line = job.ranks[0].next().unwrap_or_default();
        assert!(line.contains("done: kept"), "{line}");
    }
}
