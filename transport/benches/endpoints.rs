//! What idle connections cost: time to connect, memory, and what they add to a poll and to a message.
//!
//! `cargo bench -p qpair-transport --bench endpoints [-- COUNT..]`; with `-- datagrams` of connections of that kind.

use std::env;
use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use qpair_transport::{Config, EndpointId, Event, SendCopyError, Tag, Worker};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PEER: &str = "QPAIR_ENDPOINTS_PEER";
const DATAGRAMS: &str = "datagrams";
const ROUNDS: usize = 2000;

fn main() -> Outcome {
    if let Ok(address) = env::var(PEER) {
        return serve(&address);
    }
    let datagrams = of_datagrams();
    let named: Vec<usize> = env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let counts = if named.is_empty() { vec![1, 100, 1000, 5000] } else { named };
    if datagrams {
        println!("over datagrams");
    }
    println!(
        "{:>10} {:>12} {:>14} {:>12} {:>14} {:>10}",
        "endpoints", "connect, us", "KiB each", "poll, ns", "8 B, us", "files"
    );
    for count in counts {
        measure(count)?;
    }
    Ok(())
}

fn of_datagrams() -> bool {
    env::args().any(|arg| arg == DATAGRAMS)
}

fn config(count: usize) -> Config {
    let count = if of_datagrams() { 1 } else { count };
    Config::default().endpoints(count).send_depth(16).shared_receives(2, 1024).connect_timeout(Duration::from_secs(120))
}

fn measure(count: usize) -> Outcome {
    let before = memory()?;
    let mut worker = Worker::new(config(count))?;
    let listener = worker.listen("127.0.0.1:0")?;
    let start = Instant::now();
    let mut peer = Command::new(env::current_exe()?)
        .arg(count.to_string())
        .args(of_datagrams().then_some(DATAGRAMS))
        .env(PEER, listener.local_addr().to_string())
        .stdout(Stdio::inherit())
        .spawn()?;
    let mut endpoints = Vec::new();
    while endpoints.len() < count {
        match worker.wait(None)? {
            Some(Event::Accepted { ep, .. }) => endpoints.push(ep),
            Some(Event::Rejected { error, .. }) => return Err(error.into()),
            _ => {}
        }
    }
    let connect = start.elapsed().as_secs_f64() * 1e6 / count as f64;
    let each = memory()?.saturating_sub(before) as f64 / count as f64;
    let start = Instant::now();
    for _ in 0..1_000_000 {
        worker.poll()?;
    }
    let poll = start.elapsed().as_secs_f64() * 1e3;
    let busy = endpoints[count / 2];
    let start = Instant::now();
    for _ in 0..ROUNDS {
        ping(&mut worker, busy)?;
    }
    let latency = start.elapsed().as_secs_f64() * 1e6 / (2 * ROUNDS) as f64;
    let files = std::fs::read_dir("/proc/self/fd")?.count();
    println!("{count:>10} {connect:>12.1} {each:>14.1} {poll:>12.1} {latency:>14.3} {files:>10}");
    drop(worker);
    peer.wait()?;
    Ok(())
}

fn ping(worker: &mut Worker, ep: EndpointId) -> Outcome {
    while let Err(error) = worker.send_copy(ep, Tag(1), &[1; 8]) {
        if error != SendCopyError::WouldBlock {
            return Err(error.into());
        }
        worker.poll()?;
    }
    loop {
        match worker.poll()? {
            Some(Event::Received { .. }) => return Ok(()),
            Some(event) => return Err(format!("{event:?}").into()),
            None => {}
        }
    }
}

fn serve(address: &str) -> Outcome {
    let count: usize = env::args().skip(1).find_map(|arg| arg.parse().ok()).ok_or("no count")?;
    let datagrams = of_datagrams();
    let mut worker = Worker::new(config(count))?;
    let (mut begun, mut up) = (0, 0);
    while up < count {
        // Some at a time: a listener has only so many places for strangers.
        while begun < count && begun - up < 100 {
            if datagrams {
                worker.connect_datagram(address)?;
            } else {
                worker.connect(address)?;
            }
            begun += 1;
        }
        match worker.wait(None)? {
            Some(Event::Connected { .. }) => up += 1,
            Some(Event::Closed { reason, .. }) => return Err(reason.into()),
            _ => {}
        }
    }
    loop {
        match worker.poll()? {
            Some(Event::Received { ep, tag, message }) => {
                worker.send(ep, tag, message.to_vec())?;
            }
            Some(Event::Closed { .. }) => return Ok(()),
            _ => {}
        }
    }
}

/// Memory of this process and what it shares of others', in KiB.
fn memory() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find(|line| line.starts_with("Pss:")).ok_or("no Pss")?;
    Ok(line.split_whitespace().nth(1).ok_or("no value")?.parse()?)
}
