//! Verbs on the software device, both ends in one thread: what the caller pays per operation.
//!
//! ```text
//! cargo bench --bench verbs                  # all
//! cargo bench --bench verbs -- post_poll     # one group
//! ```
//!
//! Each rule of the hot path has a figure here that its breach would spoil:
//!
//! | Rule | Shown by |
//! |---|---|
//! | no allocation | the count before each group of `post_poll` is timed; the bench fails if it is not 0 |
//! | no system call, clock read or lock that is waited for | `post_poll`: at most 50 ns with each WRITE signaled, 30 ns with one in 64. A system call alone takes more; `benches/peers/run` compares with these limits |
//! | one copy per WRITE, SEND, READ | `transfer`: each against `memcpy` of that size in the same run |
//! | no staging copy under a reduction | `reduce`: `read_reduce` against a plain loop in the same run |
//! | spin first, then sleep | `event`: the price of arming and waking, which polling does without |
#![allow(missing_docs, reason = "what criterion_group makes is public")]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use qpair::verbs::calc::{Calc, ReduceOp};
use qpair::verbs::{
    Access, Arm, Buffer, CompletionChannel, CompletionQueue, Context, ExposedRegion, ProtectionDomain, QueuePair,
};

mod counting;

/// A queue pair connected to another of this thread, and memory that it may reach.
struct Loop {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    recv_cq: CompletionQueue,
    channel: CompletionChannel,
    qp: QueuePair,
    peer: QueuePair,
    region: ExposedRegion,
}

impl Loop {
    fn new(region: usize) -> Self {
        let ctx = Context::open("soft0").unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let channel = ctx.create_channel().unwrap();
        let (cq, recv_cq) = (ctx.create_cq(256).unwrap(), ctx.create_cq_on(256, &channel).unwrap());
        let (a, b) = (pd.rc(&cq).build().unwrap(), pd.rc(&recv_cq).build().unwrap());
        let (at_a, at_b) = (a.address(), b.address());
        let (qp, peer) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
        let region = pd.expose(region, Access::REMOTE_ALL).unwrap();
        Loop { pd, cq, recv_cq, channel, qp, peer, region }
    }

    /// One 8-byte WRITE; polled for if signaled.
    #[inline(always)]
    fn write_8(&mut self, number: u64, signaled: bool) {
        let data = number.to_ne_bytes();
        let request = self.qp.write_inline(&data, self.region.remote(0..8));
        if signaled {
            request.signaled().post().unwrap();
            self.sent();
        } else {
            request.post().unwrap();
        }
    }

    /// One WRITE of a buffer that moves into the request and comes back.
    fn write(&mut self, buffer: Buffer) -> Buffer {
        let remote = self.region.remote(0..buffer.len());
        self.qp.write(buffer, remote).signaled().post().unwrap();
        self.take()
    }

    /// One READ.
    fn read(&mut self, buffer: Buffer) -> Buffer {
        let remote = self.region.remote(0..buffer.len());
        self.qp.read(buffer, remote).signaled().post().unwrap();
        self.take()
    }

    /// One READ that is combined with the buffer.
    fn read_reduce(&mut self, buffer: Buffer) -> Buffer {
        let remote = self.region.remote(0..buffer.len());
        self.qp.read_reduce(buffer, remote, Calc::of::<f32>(ReduceOp::Sum)).signaled().post().unwrap();
        self.take()
    }

    /// One SEND into a posted receive.
    fn send(&mut self, from: Buffer, into: Buffer) -> (Buffer, Buffer) {
        self.peer.recv(into).post().unwrap();
        self.qp.send(from).signaled().post().unwrap();
        let from = self.take();
        let done = self.recv_cq.wait().unwrap();
        done.ok().unwrap();
        (from, done.into_buffer().unwrap())
    }

    /// One 8-byte SEND to a peer that sleeps on its channel until it comes.
    fn send_and_wake(&mut self, into: Buffer) -> Buffer {
        self.peer.recv(into).post().unwrap();
        self.recv_cq.arm(Arm::Any);
        assert!(self.recv_cq.poll().unwrap().is_none());
        self.qp.send_inline(&[0; 8]).signaled().post().unwrap();
        self.sent();
        assert!(self.channel.wait(Some(Duration::from_secs(1))).unwrap());
        self.channel.clear();
        let done = self.recv_cq.poll().unwrap().unwrap();
        done.ok().unwrap();
        done.into_buffer().unwrap()
    }

    /// The completion of the request just posted, which the device has done by then.
    #[inline(always)]
    fn sent(&mut self) {
        self.cq.poll().unwrap().unwrap().ok().unwrap();
    }

    fn take(&mut self) -> Buffer {
        let done = self.cq.wait().unwrap();
        done.ok().unwrap();
        done.into_buffer().unwrap()
    }
}

/// Runs `operation` many times and fails if it allocates. Not timed. The least count of some batches: the count is of the
/// whole process, and the device's control thread may clear up after what was measured before.
fn allocates_nothing(what: &str, mut operation: impl FnMut(u64)) {
    (0..1_000).for_each(&mut operation);
    let counts = (0..5).map(|_| {
        let before = counting::allocations();
        (0..100_000).for_each(&mut operation);
        counting::allocations() - before
    });
    assert_eq!(counts.min(), Some(0), "{what}: allocations in 100,000 operations");
}

fn post_poll(criterion: &mut Criterion) {
    let mut group = group(criterion, "post_poll");
    group.throughput(Throughput::Elements(1));
    for (name, every) in [("WRITE 8 B, each signaled", 1), ("WRITE 8 B, one in 64 signaled", 64)] {
        let mut ends = Loop::new(4096);
        allocates_nothing(name, |number| ends.write_8(number, number % every == 0));
        let mut number = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                number += 1;
                ends.write_8(number, number % every == 0);
            });
        });
    }
    let mut ends = Loop::new(4096);
    let mut kept = Some(ends.pd.alloc(8).unwrap());
    let mut there_and_back = |_| {
        let buffer = kept.take().unwrap();
        kept = Some(ends.write(buffer));
    };
    allocates_nothing("WRITE 8 B of a buffer", &mut there_and_back);
    group.bench_function("WRITE 8 B of a buffer, each signaled", |bencher| bencher.iter(|| there_and_back(0)));
    group.finish();
}

fn transfer(criterion: &mut Criterion) {
    let mut group = group(criterion, "transfer");
    for len in SIZES {
        group.throughput(Throughput::Bytes(len as u64));
        let mut ends = Loop::new(len);
        let mut pair = Some((ends.pd.alloc(len).unwrap(), ends.pd.alloc(len).unwrap()));
        if let Some((a, b)) = &mut pair {
            a.fill(1);
            b.fill(2);
            group.bench_function(BenchmarkId::new("memcpy", len), |bencher| {
                bencher.iter(|| black_box(&mut *b).copy_from_slice(black_box(&*a)));
            });
        }
        group.bench_function(BenchmarkId::new("WRITE", len), |bencher| {
            bencher.iter(|| {
                let (a, b) = pair.take().unwrap();
                pair = Some((ends.write(a), b));
            });
        });
        group.bench_function(BenchmarkId::new("READ", len), |bencher| {
            bencher.iter(|| {
                let (a, b) = pair.take().unwrap();
                pair = Some((ends.read(a), b));
            });
        });
        group.bench_function(BenchmarkId::new("SEND", len), |bencher| {
            bencher.iter(|| {
                let (a, b) = pair.take().unwrap();
                pair = Some(ends.send(a, b));
            });
        });
    }
    group.finish();
}

fn reduce(criterion: &mut Criterion) {
    let mut group = group(criterion, "reduce");
    for len in SIZES {
        group.throughput(Throughput::Bytes(len as u64));
        let (mut sum, part) = (vec![0f32; len / 4], vec![1f32; len / 4]);
        group.bench_function(BenchmarkId::new("plain sum", len), |bencher| {
            bencher.iter(|| {
                let part = black_box(&part);
                black_box(&mut sum).iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            });
        });
        let mut ends = Loop::new(len);
        let mut kept = Some(ends.pd.alloc(len).unwrap());
        group.bench_function(BenchmarkId::new("read_reduce", len), |bencher| {
            bencher.iter(|| {
                let buffer = kept.take().unwrap();
                kept = Some(ends.read_reduce(buffer));
            });
        });
    }
    group.finish();
}

fn event(criterion: &mut Criterion) {
    let mut group = group(criterion, "event");
    let mut ends = Loop::new(4096);
    let mut kept = Some(ends.pd.alloc(64).unwrap());
    group.bench_function("SEND 8 B, polled for", |bencher| {
        let mut from = Some(ends.pd.alloc(8).unwrap());
        bencher.iter(|| {
            let (a, b) = ends.send(from.take().unwrap(), kept.take().unwrap());
            (from, kept) = (Some(a), Some(b));
        });
    });
    group.bench_function("SEND 8 B, arm, wait, clear, poll", |bencher| {
        bencher.iter(|| kept = Some(ends.send_and_wake(kept.take().unwrap())));
    });
    group.finish();
}

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    group
}

/// In and out of the caches of one core.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];

criterion_group!(benches, post_poll, transfer, reduce, event);
criterion_main!(benches);
