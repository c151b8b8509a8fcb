//! Bandwidth of long messages over one rail or several, between two hosts. One end serves, the other calls:
//!
//! ```text
//! cargo bench -p qpair-transport --bench rails -- serve 10.1.0.1:4400 10.1.0.1 10.2.0.1
//! cargo bench -p qpair-transport --bench rails -- call 10.1.0.1:4400 10.1.0.2 10.2.0.2
//! ```
//!
//! After the address to listen or call at, the addresses of the rails. The caller says how many GB/s it got through, and what
//! each rail carried. `benches/network/rails` makes two hosts of one machine and compares.

use std::env;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use qpair_transport::{Config, Event, Rail, Tag, Worker};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LEN: usize = 4 << 20;
/// Messages under way.
const AHEAD: usize = 4;
/// Time before the measurement, in which the rails show what they carry, and of it.
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

fn main() -> Outcome {
    // Cargo says --bench.
    let words: Vec<_> = env::args().skip(1).filter(|word| word != "--bench").collect();
    let [role, address, rails @ ..] = &words[..] else {
        println!("rails: skipped; say serve or call, an address, and the addresses of rails");
        return Ok(());
    };
    let address: SocketAddr = address.parse()?;
    let rails: Vec<IpAddr> = rails.iter().map(|rail| rail.parse()).collect::<Result<_, _>>()?;
    let worker = Worker::new(Config::default().rails(rails.into_iter().map(Rail::address)))?;
    match &role[..] {
        "serve" => serve(worker, address),
        _ => call(worker, address),
    }
}

/// Takes what comes, until the caller closes.
fn serve(mut worker: Worker, address: SocketAddr) -> Outcome {
    worker.listen(address)?;
    loop {
        match worker.wait(None)? {
            Some(Event::Accepted { ep, .. }) => {
                // Says by its first message how the rails stand at the end.
                worker.send(ep, Tag(0), &b"go"[..])?;
            }
            Some(Event::Received { message, ep, .. }) if message.is_empty() => {
                let rails = worker.explain(ep).map(|now| now.rails).unwrap_or_default();
                let bytes: Vec<_> = rails.iter().map(|rail| format!("{} MB", rail.bytes / 1_000_000)).collect();
                worker.send(ep, Tag(0), bytes.join(", ").into_bytes())?;
            }
            Some(Event::Closed { .. }) => return Ok(()),
            _ => {}
        }
    }
}

fn call(mut worker: Worker, address: SocketAddr) -> Outcome {
    let ep = worker.connect(address)?;
    let data = Bytes::from(vec![7; LEN]);
    worker.register(data.clone())?;
    let (mut under_way, mut sent, mut begin) = (0, 0, Instant::now());
    let mut warm = false;
    while !warm || begin.elapsed() < MEASURED {
        while under_way < AHEAD {
            worker.send(ep, Tag(1), data.clone())?;
            under_way += 1;
        }
        match worker.wait(None)? {
            Some(Event::Sent { .. }) => (under_way, sent) = (under_way - 1, sent + 1),
            Some(Event::Closed { reason, .. }) => return Err(reason.into()),
            _ => {}
        }
        if !warm && begin.elapsed() >= WARM_UP {
            (warm, sent, begin) = (true, 0, Instant::now());
        }
    }
    let rate = sent as f64 * LEN as f64 / begin.elapsed().as_secs_f64() / 1e9;
    worker.send(ep, Tag(1), Bytes::new())?;
    let rails = loop {
        match worker.wait(None)? {
            Some(Event::Received { message, .. }) if *message != *b"go" => {
                break String::from_utf8_lossy(&message).into_owned();
            }
            Some(Event::Closed { reason, .. }) => return Err(reason.into()),
            _ => {}
        }
    };
    println!("{rate:.4} GB/s; rails: {rails}");
    worker.close(ep);
    while !matches!(worker.wait(None)?, Some(Event::Closed { .. })) {}
    Ok(())
}
