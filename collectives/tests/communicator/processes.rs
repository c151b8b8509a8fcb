//! Ranks that are processes: this very program, started again.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use qpair_collectives::tune::Tuning;
use qpair_collectives::{CollectiveError, Communicator, ReduceOp};

use crate::support::{all_reduce, broadcast};

/// What a rank's process does; in the test run itself there is no role, and nothing to do.
#[test]
fn rank() {
    let Ok(role) = std::env::var("QPAIR_TEST_ROLE") else { return };
    match Communicator::from_env() {
        Err(error) => println!("bootstrap: {error}"),
        Ok(comm) => match role.split_once(' ') {
            Some(("forever", size)) => forever(&comm, size.parse().expect("a size")),
            _ => work(&comm),
        },
    }
}

fn work(comm: &Communicator) {
    for op in ReduceOp::ALL {
        for len in [0, 1, 5, 1000, 10_007, 300_007] {
            all_reduce::<f32>(comm, len, op);
        }
        all_reduce::<f64>(comm, 777, op);
        all_reduce::<i32>(comm, 777, op);
        all_reduce::<i64>(comm, 777, op);
    }
    comm.set_tuning(Tuning { eager: 64, segment: 4096, ..Tuning::default() });
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

fn start(ranks: usize, role: &str) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::rank", "--nocapture"]);
        command.env("QPAIR_TEST_ROLE", role).env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Rank { child, lines }
    };
    (0..ranks).map(start).collect()
}

#[test]
fn results_are_right_between_processes() {
    for ranks in [2, 4, 5] {
        for (rank, process) in start(ranks, "work").iter_mut().enumerate() {
            let line = process.next();
            assert!(line.as_ref().is_some_and(|line| line.contains("done")), "rank {rank} of {ranks}: {line:?}");
            assert!(process.child.wait().unwrap().success());
        }
    }
}

/// Kills a rank in the middle of its work; all others name it within two seconds.
fn kill(ranks: usize, victim: usize, len: usize) {
    let mut processes = start(ranks, &format!("forever {len}"));
    for process in &mut processes {
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
