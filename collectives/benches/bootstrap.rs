//! How long it takes until many ranks have met, and what that costs rank 0: processes of this host, and nothing between them but
//! the store.
//!
//! ```text
//! cargo bench -p qpair-collectives --bench bootstrap -- 512
//! ```
//!
//! prints, for that number of ranks (64 unless given),
//!
//! - `started`: until all processes were started, by one that does nothing else;
//! - `met`: from then, or from a rank's start if that was later, until the last had its communicator;
//! - `left`: until all had dropped it and ended;
//! - processor time of the store's thread, and of rank 0 and another rank as a whole, and their memory at its highest.
//!
//! What would spoil it: work for each rank that grows with their number (the roster in full for each, a scan of all for each that
//! comes), or rank 0 kept from its work by those that ask for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use qpair_collectives::Environment;

fn main() {
    if std::env::var_os("RANK").is_some() {
        return rank();
    }
    // Cargo hands on `--bench`.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let ranks: u32 =
        numbers.next().unwrap_or(if std::env::args().any(|argument| argument == "--test") { 4 } else { 64 });
    let port = TcpListener::bind("127.0.0.1:0").and_then(|kept| kept.local_addr()).expect("a port").port();
    let begin = Instant::now();
    let mut children: Vec<Child> = (0..ranks).map(|rank| start(rank, ranks, port)).collect();
    let started = begin.elapsed();
    let mut said: Vec<String> = children.iter_mut().map(hear).collect();
    let met = begin.elapsed() - started;
    let leaving = Instant::now();
    for child in &mut children {
        drop(child.stdin.take());
    }
    for child in &mut children {
        assert!(child.wait().expect("its end").success());
    }
    println!("{ranks} ranks: started {started:.2?}, met {met:.2?} later, left {:.2?}", leaving.elapsed());
    println!("rank 0: {}", said.remove(0));
    if let Some(last) = said.pop() {
        println!("rank {}: {last}", ranks - 1);
    }
}

fn start(rank: u32, ranks: u32, port: u16) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process")
}

fn hear(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.contains("ms"), "a rank failed");
    line.trim_end().to_owned()
}

fn rank() {
    let begin = Instant::now();
    let comm = Environment::from_env().and_then(|environment| environment.connect()).expect("a communicator");
    let took = begin.elapsed();
    let own = processor_time("/proc/self/stat").unwrap_or_default();
    let store = store_time().map(|time| format!(", its store {time} ms")).unwrap_or_default();
    println!("{} ms, {own} ms of a processor{store}, {} KiB", took.as_millis(), memory().unwrap_or_default());
    std::io::stdout().flush().expect("a reader");
    let _ = std::io::stdin().read(&mut [0]);
    drop(comm);
}

/// The processor time of the store's thread, in milliseconds.
fn store_time() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?.filter_map(|task| Some(task.ok()?.path().join("stat")));
    let mut stores =
        tasks.filter(|stat| std::fs::read_to_string(stat).is_ok_and(|text| text.contains("(qpair-store)")));
    processor_time(stores.next()?.to_str()?)
}

fn processor_time(stat: &str) -> Option<u64> {
    let text = std::fs::read_to_string(stat).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let ticks: u64 = rest.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Some(ticks * 10)
}

/// The most memory that this process had, in KiB.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
