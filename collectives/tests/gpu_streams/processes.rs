//! Streams of ranks that are processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use qpair_collectives::Communicator;
use qpair_fake_cuda::control;

use crate::ground::Ground;
use crate::port::Port;

/// What a rank's process does: as many steps as it takes until one fails, or ten.
#[test]
#[ignore = "needs a test to start it, as a rank's process"]
fn rank() {
    control::load().expect("the library is built beside the tests");
    let comm = Communicator::from_env().expect("its peers");
    let ground = Ground::on(control::Device::of(0), comm.rank() as i32 + 1);
    let mut vector = ground.vector(&comm);
    let lives = comm.rank() == 0 || std::env::var_os(DIES).is_none();
    for round in 0..10 {
        if round == 5 && !lives {
            println!("ready");
            std::io::stdin().read_line(&mut String::new()).expect("a line, or the end");
        }
        let (pending, updated) = ground.step(&comm, vector);
        match pending.wait() {
            Ok(back) => vector = back,
            Err(failed) => {
                updated.wait().expect("no failure");
                println!("gone: {}", failed.error);
                return;
            }
        }
    }
    ground.gpu.record().expect("an event").wait().expect("no failure");
    assert_eq!(ground.fake.violations(), "");
    println!("done: {}", ground.weights().iter().all(|&weight| weight == 3));
}

/// A rank's process, and what it prints.
struct Process(Child);

impl Process {
    fn start(rank: usize, port: u16, dies: bool) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["processes::rank", "--exact", "--ignored", "--nocapture"]);
        let numbers = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2), ("MASTER_PORT", port.into())];
        command.envs(numbers.map(|(name, number)| (name, number.to_string()))).env("MASTER_ADDR", "127.0.0.1");
        if dies {
            command.env(DIES, "1");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process(command.spawn().expect("this program starts"))
    }

    /// Its next line with one of these words.
    fn next(&mut self) -> String {
        let lines = BufReader::new(self.0.stdout.as_mut().expect("piped")).lines();
        let ours = |line: &String| ["ready", "gone", "done"].iter().any(|word| line.contains(word));
        lines.map_while(Result::ok).find(ours).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two ranks, which meet at the port.
fn processes(dies: bool) -> ([Process; 2], Port) {
    let port = Port::keep();
    ([0, 1].map(|rank| Process::start(rank, port.number, dies)), port)
}

#[test]
fn streams_of_processes_go_on_with_what_they_reduce_together() {
    let (processes, _port) = processes(false);
    for mut process in processes {
        assert!(process.next().contains("done: true"));
    }
}

#[test]
fn a_stream_goes_on_where_the_process_of_another_rank_dies() {
    let ([mut left, mut dies], _port) = processes(true);
    assert!(dies.next().contains("ready"));
    drop(dies);
    assert!(left.next().contains("gone: "));
}

const DIES: &str = "QPAIR_TEST_DIES";
