//! One-way latency and rate of tagged messages between two processes, each pinned to a core.
//!
//! `cargo bench -p qpair-transport --bench pingpong [-- SIZE..]`; with `-- datagrams` over a connection of that kind, with
//! `-- cost` for the code alone.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use qpair_transport::{Config, EndpointId, Event, Payload, SendCopyError, Tag, Worker};
use qpair_verbs::{Buffer, Local};
use rustix::thread::{CpuSet, sched_setaffinity};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 9;
const PING: Tag = Tag(1);
const PEER: &str = "QPAIR_PINGPONG_PEER";
const DATAGRAMS: &str = "datagrams";
const EAGER: usize = 8192;

fn main() -> Outcome {
    let named: Vec<usize> = env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let or = |sizes: &[usize]| if named.is_empty() { sizes.to_vec() } else { named.clone() };
    let datagrams = env::args().any(|arg| arg == DATAGRAMS);
    let sizes = match datagrams {
        true => or(&[8, 64, 256, 900]),
        false => or(&[8, 64, 256, 1024, 4096, 8192, 65536, 1 << 20, 16 << 20]),
    };
    if let Ok(address) = env::var(PEER) {
        return serve(&address, &sizes, datagrams);
    }
    if env::args().any(|arg| arg == "cost") {
        return cost(&if datagrams { or(&[8, 188, 900]) } else { or(&[8, 188, 1024, 8192]) }, datagrams);
    }
    let cores = std::thread::available_parallelism()?.get();
    pin(0)?;
    let mut worker = Worker::new(Config::default())?;
    let listener = worker.listen("127.0.0.1:0")?;
    let mut peer = Command::new(env::current_exe()?)
        .args(sizes.iter().map(ToString::to_string))
        .args(datagrams.then_some(DATAGRAMS))
        .env(PEER, listener.local_addr().to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let ep = loop {
        if let Some(Event::Accepted { ep, .. }) = worker.wait(None)? {
            break ep;
        }
    };
    println!("{cores} cores; medians of {ROUNDS} rounds, with least and greatest");
    println!("{:>10} {:>12} {:>22} {:>12}", "bytes", "one way, us", "spread", "GB/s");
    for &size in &sizes {
        let rounds = repetitions(size);
        let mut times = Vec::new();
        let mut memory = Memory::new(&worker, size)?;
        for round in 0..=ROUNDS {
            let start = Instant::now();
            for _ in 0..rounds {
                memory.post(&mut worker, ep)?;
                send(&mut worker, ep, &mut memory)?;
                receive(&mut worker, &mut memory)?;
            }
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e6 / (2 * rounds) as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        let (median, last) = (times[ROUNDS / 2], times[ROUNDS - 1]);
        let spread = format!("{:.3} .. {last:.3}", times[0]);
        println!("{size:>10} {median:>12.3} {spread:>22} {:>12.2}", size as f64 / median / 1e3);
    }
    rate(&mut worker, ep)?;
    worker.close(ep);
    while !matches!(worker.wait(None)?, Some(Event::Closed { .. })) {}
    for line in BufReader::new(peer.stdout.take().ok_or("no output of the peer")?).lines() {
        println!("{}", line?);
    }
    peer.wait()?;
    Ok(())
}

/// What one message costs in all, both sides on one core: code alone, no waiting for another core's memory.
fn cost(sizes: &[usize], datagrams: bool) -> Outcome {
    let mut worker = Worker::new(Config::default())?;
    let listener = worker.listen("127.0.0.1:0")?;
    let address = listener.local_addr();
    let ep = if datagrams { worker.connect_datagram(address)? } else { worker.connect(address)? };
    while !matches!(worker.wait(None)?, Some(Event::Accepted { .. })) {}
    let start = Instant::now();
    for _ in 0..COST {
        worker.poll()?;
    }
    println!("a poll that finds nothing, two connections: {:.1} ns", start.elapsed().as_secs_f64() * 1e9 / COST as f64);
    println!("both sides on one core, ns a message; least of {ROUNDS} rounds");
    println!("{:>10} {:>8} {:>8} {:>8}", "bytes", "send", "receive", "drop and post again");
    for &size in sizes {
        let data = vec![1; size];
        let mut least = [f64::MAX; 3];
        for _ in 0..ROUNDS {
            let mut times = [0.0; 3];
            for _ in 0..COST / BATCH {
                let start = Instant::now();
                for _ in 0..BATCH {
                    worker.send_copy(ep, PING, &data)?;
                }
                let sent = Instant::now();
                let mut events = Vec::with_capacity(BATCH);
                while events.len() < BATCH {
                    events.extend(worker.poll()?);
                }
                let received = Instant::now();
                drop(events);
                for _ in 0..BATCH / 4 {
                    worker.poll()?;
                }
                let parts = [sent - start, received - sent, received.elapsed()];
                times.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part.as_secs_f64());
            }
            least.iter_mut().zip(times).for_each(|(least, time)| *least = least.min(time * 1e9 / COST as f64));
        }
        println!("{size:>10} {:>8.1} {:>8.1} {:>8.1}", least[0], least[1], least[2]);
    }
    Ok(())
}

/// The peer: answers each message, then counts the stream.
fn serve(address: &str, sizes: &[usize], datagrams: bool) -> Outcome {
    pin(1)?;
    let mut worker = Worker::new(Config::default())?;
    let ep = if datagrams { worker.connect_datagram(address)? } else { worker.connect(address)? };
    while !matches!(worker.wait(None)?, Some(Event::Connected { .. })) {}
    for &size in sizes {
        let mut memory = Memory::new(&worker, size)?;
        memory.post(&mut worker, ep)?;
        for left in (0..(ROUNDS + 1) * repetitions(size)).rev() {
            receive(&mut worker, &mut memory)?;
            if left > 0 {
                memory.post(&mut worker, ep)?;
            }
            send(&mut worker, ep, &mut memory)?;
        }
    }
    let mut count = 0;
    let mut start = None;
    loop {
        match worker.poll()? {
            Some(Event::Received { .. }) => {
                start.get_or_insert_with(Instant::now);
                count += 1;
                if count == STREAM {
                    let time = start.map_or(0.0, |start| start.elapsed().as_secs_f64());
                    println!("stream of 8 B: {:.2} M messages/s", STREAM as f64 / time / 1e6);
                }
            }
            Some(Event::Closed { .. }) => return Ok(()),
            _ => {}
        }
    }
}

fn rate(worker: &mut Worker, ep: EndpointId) -> Outcome {
    for _ in 0..STREAM {
        while let Err(error) = worker.send_copy(ep, PING, &[1; 8]) {
            if error != SendCopyError::WouldBlock {
                return Err(error.into());
            }
            worker.poll()?;
        }
    }
    Ok(())
}

/// What is sent and received: bytes where they are copied, else buffers that the peer reads.
enum Memory {
    Short(Vec<u8>),
    Long { out: Option<Buffer>, into: Option<Buffer> },
}

impl Memory {
    fn new(worker: &Worker, size: usize) -> Outcome<Self> {
        if size <= EAGER {
            return Ok(Memory::Short(vec![7; size]));
        }
        let pd = worker.domain();
        Ok(Memory::Long { out: Some(pd.alloc(size)?), into: Some(pd.alloc(size)?) })
    }

    /// Posts a receive for a long message.
    fn post(&mut self, worker: &mut Worker, ep: EndpointId) -> Outcome {
        if let Memory::Long { into, .. } = self
            && let Some(into) = into.take()
        {
            worker.recv_into(ep, PING, into, None)?;
        }
        Ok(())
    }
}

#[inline]
fn send(worker: &mut Worker, ep: EndpointId, memory: &mut Memory) -> Outcome {
    match memory {
        Memory::Short(data) => worker.send_copy(ep, PING, data)?,
        Memory::Long { out, .. } => {
            while out.is_none() {
                if let Some(Event::Sent { payload: Payload::Buffer(buffer), .. }) = worker.poll()? {
                    *out = Some(buffer);
                }
            }
            if let Some(buffer) = out.take() {
                worker.send(ep, PING, buffer)?;
            }
        }
    }
    Ok(())
}

#[inline]
fn receive(worker: &mut Worker, memory: &mut Memory) -> Outcome {
    match memory {
        Memory::Short(_) => loop {
            match worker.poll()? {
                Some(Event::Received { .. }) => return Ok(()),
                Some(event) => return Err(format!("{event:?}").into()),
                None => {}
            }
        },
        Memory::Long { out, into } => loop {
            match worker.poll()? {
                Some(Event::ReceivedInto { memory: Local::Buffer(buffer), .. }) => {
                    *into = Some(buffer);
                    return Ok(());
                }
                Some(Event::Sent { payload: Payload::Buffer(buffer), .. }) => *out = Some(buffer),
                Some(event) => return Err(format!("{event:?}").into()),
                None => {}
            }
        },
    }
}

fn repetitions(size: usize) -> usize {
    (100_000_000 / (size + 2000)).clamp(20, 50_000)
}

fn pin(core: usize) -> Outcome {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

const COST: usize = 320_000;
const BATCH: usize = 8;
const STREAM: usize = 5_000_000;
