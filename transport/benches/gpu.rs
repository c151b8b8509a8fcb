//! Messages of a GPU's memory that is not registered, which go by slots of pinned memory, against copies of as many bytes between
//! the GPU and pinned memory.
//!
//! ```text
//! cargo bench -p qpair-transport --features cuda --bench gpu             # a table
//! cargo bench -p qpair-transport --features cuda --bench gpu -- --json   # the same as JSON
//! cargo bench -p qpair-transport --features cuda --bench gpu -- --test   # each once, of fewer bytes
//! ```
//!
//! Two workers in two threads, on the device that QPAIR_DEVICE names, else the software device. All is measured in turn, round by
//! round; medians with least and greatest. A message out of a GPU and into one goes to pinned memory, to pinned memory of the
//! receiver, and from there: it can be no faster than the slower of the two copies, and takes both where nothing overlaps. The
//! share that is printed is that of the copy which a message takes, or of the slower of two.

use std::env;
use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use qpair_transport::{Config, EndpointId, Event, OpId, Payload, Source, Tag, Worker};
use qpair_verbs::{Buffer, Gpu, GpuBuffer, Local};
use serde_json::json;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const SHORT: usize = 4 << 10;

/// How much is measured.
#[derive(Clone, Copy)]
struct Extent {
    /// Bytes of a long message.
    long: usize,
    /// After one that is not counted.
    rounds: usize,
    /// Messages of a round.
    repeats: usize,
}

impl Extent {
    fn asked_for() -> Self {
        if env::args().any(|argument| argument == "--test") { Self::TEST } else { Self::WHOLE }
    }

    fn lens(self) -> [usize; 2] {
        [self.long, SHORT]
    }

    const WHOLE: Self = Self { long: 64 << 20, rounds: 9, repeats: 4 };
    const TEST: Self = Self { long: 8 << 20, rounds: 1, repeats: 1 };
}

/// A length, as rows name it.
fn sized(len: usize) -> String {
    if len < 1 << 20 { format!("{} KiB", len >> 10) } else { format!("{} MiB", len >> 20) }
}

fn main() -> Outcome {
    let extent = Extent::asked_for();
    let gpu = Gpu::open(0).map_err(|error| format!("nothing is measured: {error}"))?;
    let (addresses, address) = channel();
    let (done, dones) = channel();
    let receiver = thread::spawn(move || receive(gpu, extent, &addresses, &done));
    let rows = match send(gpu, extent, &address, &dones) {
        Ok(rows) => rows,
        Err(error) => return Err(receiver.join().expect("the receiver").err().unwrap_or(error)),
    };
    receiver.join().expect("the receiver")?;
    print(extent, &rows);
    Ok(())
}

/// What is measured of messages of so many bytes, each in turn: from a GPU to the same, to the processor, and back.
#[derive(Clone, Copy)]
enum Way {
    GpuToGpu,
    GpuToHost,
    HostToGpu,
}

const WAYS: [(Way, &str); 3] = [
    (Way::GpuToGpu, "message, GPU to GPU"),
    (Way::GpuToHost, "message, GPU to processor"),
    (Way::HostToGpu, "message, processor to GPU"),
];
/// The copies that they are held against.
const TO_PINNED: &str = "copy to pinned memory";
const FROM_PINNED: &str = "copy from pinned memory";

/// Times of something, in seconds a message.
struct Row {
    what: String,
    len: usize,
    times: Vec<f64>,
}

fn receive(gpu: Gpu, extent: Extent, addresses: &Sender<std::net::SocketAddr>, done: &Sender<()>) -> Outcome {
    let mut worker = Worker::new(Config::default())?;
    worker.prepare_gpu(gpu)?;
    let listener = worker.listen("127.0.0.1:0")?;
    addresses.send(listener.local_addr())?;
    let (mut on_gpu, mut on_host) = (Some(gpu.alloc(extent.long)?), Some(worker.domain().alloc(extent.long)?));
    for _ in 0..=extent.rounds {
        for (way, _) in WAYS {
            for _ in 0..extent.lens().len() * extent.repeats {
                match way {
                    Way::GpuToHost => {
                        let memory: Buffer = on_host.take().ok_or("it is under way")?;
                        worker.recv_into(Source::Any, Tag(1), memory, None)?;
                    }
                    Way::GpuToGpu | Way::HostToGpu => {
                        let memory: GpuBuffer = on_gpu.take().ok_or("it is under way")?;
                        worker.recv_into(Source::Any, Tag(1), memory, None)?;
                    }
                }
                loop {
                    match worker.wait(None)?.ok_or("nothing comes")? {
                        Event::ReceivedInto { memory: Local::Gpu(buffer), .. } => break on_gpu = Some(buffer),
                        Event::ReceivedInto { memory: Local::Buffer(buffer), .. } => break on_host = Some(buffer),
                        Event::Failed { error, .. } => return Err(error.into()),
                        Event::Closed { reason, .. } => return Err(reason.into()),
                        _ => {}
                    }
                }
                // The sender times until it is there.
                done.send(())?;
                while let Some(event) = worker.poll()? {
                    if let Event::Closed { reason, .. } = event {
                        return Err(reason.into());
                    }
                }
            }
        }
    }
    loop {
        if let Some(Event::Closed { .. }) = worker.wait(None)? {
            return Ok(());
        }
    }
}

fn send(gpu: Gpu, extent: Extent, address: &Receiver<std::net::SocketAddr>, dones: &Receiver<()>) -> Outcome<Vec<Row>> {
    let Extent { long, repeats, .. } = extent;
    let mut worker = Worker::new(Config::default())?;
    worker.prepare_gpu(gpu)?;
    let ep = worker.connect(address.recv()?)?;
    let mut pinned = worker.domain().alloc_pinned(long, gpu)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut note = |counted: bool, what: String, len: usize, time: f64| match rows.iter_mut().find(|r| r.what == what) {
        Some(row) if counted => row.times.push(time),
        None if counted => rows.push(Row { what, len, times: vec![time] }),
        _ => {}
    };
    let mut memories = extent.lens().map(|len| Memories { len, gpu: None, host: None });
    for memories in &mut memories {
        memories.gpu = Some(gpu.alloc(memories.len)?);
        memories.host = Some(worker.domain().alloc(memories.len)?);
    }
    for round in 0..=extent.rounds {
        let counted = round > 0; // the first maps the memory
        if let Some(near) = &mut memories[0].gpu {
            let out = timed(repeats, || Ok(near.read(0, &mut pinned)?))?;
            note(counted, format!("{TO_PINNED}, {}", sized(long)), long, out);
            let into = timed(repeats, || Ok(near.write(0, &pinned)?))?;
            note(counted, format!("{FROM_PINNED}, {}", sized(long)), long, into);
        }
        for (way, what) in WAYS {
            for memories in &mut memories {
                let time = timed(repeats, || memories.go(&mut worker, ep, way, dones))?;
                note(counted, format!("{what}, {}", sized(memories.len)), memories.len, time);
            }
        }
    }
    worker.close(ep);
    while !matches!(worker.wait(None)?, Some(Event::Closed { .. })) {}
    Ok(rows)
}

/// What is sent of one length, unless it is under way.
struct Memories {
    len: usize,
    gpu: Option<GpuBuffer>,
    host: Option<Buffer>,
}

impl Memories {
    /// Sends a message, and waits until it is there and its memory is back.
    fn go(&mut self, worker: &mut Worker, ep: EndpointId, way: Way, dones: &Receiver<()>) -> Outcome {
        let payload: Payload = match way {
            Way::HostToGpu => self.host.take().ok_or("it is under way")?.into(),
            Way::GpuToGpu | Way::GpuToHost => self.gpu.take().ok_or("it is under way")?.into(),
        };
        let sent: OpId = worker.send(ep, Tag(1), payload)?;
        let mut is_there = false;
        while !is_there || (self.gpu.is_none() || self.host.is_none()) {
            match worker.poll()? {
                Some(Event::Sent { op, payload }) if op == sent => match payload {
                    Payload::Gpu(buffer) => self.gpu = Some(buffer),
                    Payload::Buffer(buffer) => self.host = Some(buffer),
                    _ => return Err("another payload came back".into()),
                },
                Some(Event::Failed { error, .. }) => return Err(error.into()),
                Some(Event::Closed { reason, .. }) => return Err(reason.into()),
                _ => {}
            }
            is_there |= dones.try_recv().is_ok();
        }
        Ok(())
    }
}

/// Seconds that `what` takes, of so many times.
fn timed(times: usize, mut what: impl FnMut() -> Outcome) -> Outcome<f64> {
    let start = Instant::now();
    (0..times).try_for_each(|_| what())?;
    Ok(start.elapsed().as_secs_f64() / times as f64)
}

impl Row {
    /// The median, least and greatest.
    fn figures(&self) -> (f64, f64, f64) {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[0], times[times.len() - 1])
    }

    /// Bytes in a second.
    fn rate(&self) -> f64 {
        self.len as f64 / self.figures().0
    }

    /// What it reaches of the copies of as many bytes that it takes, as the slowest of them goes.
    fn share(&self, rows: &[Row]) -> Option<f64> {
        let (_, what) = WAYS.iter().find(|(_, what)| self.what.starts_with(what))?;
        let is_its = |copy: &Row| match copy.what.split_once(',').map(|(copy, _)| copy) {
            Some(TO_PINNED) => what.contains(", GPU"),
            Some(FROM_PINNED) => what.ends_with("GPU"),
            _ => false,
        };
        let copies = rows.iter().filter(|copy| copy.len == self.len && is_its(copy));
        copies.map(Row::rate).min_by(f64::total_cmp).map(|copy| self.rate() / copy)
    }
}

fn print(extent: Extent, rows: &[Row]) {
    let rounds = extent.rounds;
    if env::args().any(|argument| argument == "--json") {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                let (median, least, most) = row.figures();
                json!({
                    "what": row.what, "bytes": row.len, "seconds": median, "least": least, "most": most,
                    "share": row.share(rows),
                })
            })
            .collect();
        println!("{}", json!({ "rounds": rounds, "rows": rows }));
        return;
    }
    println!("medians of {rounds} rounds, with least and greatest");
    for row in rows {
        let (median, least, most) = row.figures();
        let [median_us, least_us, most_us] = [median, least, most].map(|time| time * 1e6);
        let (rate, share) = (row.rate() / 1e9, row.share(rows));
        let share = share.map_or(String::new(), |share| format!("{share:.2}"));
        println!(
            "{:<42} {median_us:>10.1} us {rate:>7.2} GB/s {share:>5}  ({least_us:.1} to {most_us:.1} us)",
            row.what
        );
    }
}
