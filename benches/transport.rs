//! Tagged messages between two threads, each with a worker: whole round trips.
//!
//! ```text
//! cargo bench --bench transport
//! ```
//!
//! Short messages are sent by copy and come back the same way; before they are timed, both threads together are shown to
//! allocate nothing. Long ones are buffers that the peer reads, and a short answer. Latency between processes, each on a
//! core, is what `qpair perf tag-lat --local` measures.
#![allow(missing_docs, reason = "what criterion_group makes is public")]

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use qpair::transport::{EndpointId, Payload, SendCopyError};
use qpair::verbs::Buffer;
use qpair::{Config, Event, Tag, Worker};

mod counting;

/// A worker of this thread, connected to one of another thread that answers.
struct Client {
    worker: Worker,
    ep: EndpointId,
    echo: Option<JoinHandle<()>>,
}

impl Client {
    fn new() -> Self {
        let (tell, told) = mpsc::channel();
        let echo = Some(std::thread::spawn(move || answer(tell)));
        let mut worker = Worker::new(Config::default()).unwrap();
        let ep = worker.connect(told.recv().unwrap()).unwrap();
        let mut client = Client { worker, ep, echo };
        while !matches!(client.event(), Event::Connected { .. }) {}
        client
    }

    /// Sends a copy of `data` and waits for the answer.
    fn round_trip(&mut self, data: &[u8]) {
        send_copy(&mut self.worker, self.ep, PING, data);
        self.answered(data.len());
    }

    /// Sends a buffer, and waits for the answer and for the buffer.
    fn long_round_trip(&mut self, buffer: Buffer) -> Buffer {
        self.worker.send(self.ep, PING, buffer).unwrap();
        let (mut back, mut answered) = (None, false);
        while back.is_none() || !answered {
            match self.event() {
                Event::Sent { payload: Payload::Buffer(buffer), .. } => back = Some(buffer),
                Event::Received { .. } => answered = true,
                other => panic!("{other:?}"),
            }
        }
        back.unwrap()
    }

    fn answered(&mut self, len: usize) {
        match self.event() {
            Event::Received { message, .. } => assert_eq!(message.len(), len),
            other => panic!("{other:?}"),
        }
    }

    fn event(&mut self) -> Event {
        poll(&mut self.worker)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.worker.close(self.ep);
        while !matches!(self.event(), Event::Closed { .. }) {}
        self.echo.take().unwrap().join().unwrap();
    }
}

/// The other thread: sends short messages back, answers long ones with one byte, and ends with the connection.
fn answer(tell: mpsc::Sender<SocketAddr>) {
    let mut worker = Worker::new(Config::default()).unwrap();
    tell.send(worker.listen("127.0.0.1:0").unwrap().local_addr()).unwrap();
    loop {
        match poll(&mut worker) {
            Event::Received { ep, tag, message } => {
                let echoed = if message.len() <= EAGER { message.len() } else { 1 };
                send_copy(&mut worker, ep, tag, &message[..echoed]);
            }
            Event::Closed { .. } => return,
            _ => {}
        }
    }
}

/// The next event: polls, and yields while there is none.
fn poll(worker: &mut Worker) -> Event {
    for turn in 1u32.. {
        if let Some(event) = worker.poll().unwrap() {
            return event;
        }
        if turn.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
    unreachable!("polls without end")
}

fn send_copy(worker: &mut Worker, ep: EndpointId, tag: Tag, data: &[u8]) {
    // One message is under way at a time; room for it is there, or comes by itself.
    while let Err(error) = worker.send_copy(ep, tag, data) {
        assert!(matches!(error, SendCopyError::WouldBlock), "{error}");
        assert!(worker.poll().unwrap().is_none());
    }
}

fn round_trips(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round_trip");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    let mut client = Client::new();
    for len in [8, 1024, EAGER] {
        let data = vec![7; len];
        (0..1_000).for_each(|_| client.round_trip(&data));
        // The least count of some batches: it is of the whole process, with the device's control thread.
        let counts = (0..5).map(|_| {
            let before = counting::allocations();
            (0..10_000).for_each(|_| client.round_trip(&data));
            counting::allocations() - before
        });
        assert_eq!(counts.min(), Some(0), "allocations in 10,000 round trips of {len} bytes");
        group.throughput(Throughput::Bytes(2 * len as u64));
        group.bench_function(BenchmarkId::new("eager", len), |bencher| bencher.iter(|| client.round_trip(&data)));
    }
    for len in [64 << 10, 1 << 20, 16 << 20] {
        let mut kept = Some(client.worker.domain().alloc(len).unwrap());
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("rendezvous", len), |bencher| {
            bencher.iter_custom(|rounds| {
                let start = Instant::now();
                for _ in 0..rounds {
                    let buffer = kept.take().unwrap();
                    kept = Some(client.long_round_trip(buffer));
                }
                start.elapsed()
            });
        });
    }
    group.finish();
}

const PING: Tag = Tag(1);
/// The default eager limit.
const EAGER: usize = 8192;

criterion_group!(benches, round_trips);
criterion_main!(benches);
