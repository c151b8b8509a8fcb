//! Collectives over two ranks that are threads of this process.
//!
//! ```text
//! cargo bench --bench collectives
//! ```
//!
//! Both ranks do the same number of operations; what is timed is rank 0. Before a size is timed, its plan is in the
//! cache and both ranks are shown to allocate nothing. `qpair bench all-reduce` measures the same between processes.
#![allow(missing_docs, reason = "what criterion_group makes is public")]

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use qpair::{CommBuffer, Communicator, ReduceOp};

mod counting;

/// What both ranks shall do: so many operations on vectors of so many elements.
#[derive(Clone, Copy)]
struct Order {
    what: Operation,
    len: usize,
    rounds: u64,
    /// Whether rank 1 comes to each operation so late that rank 0 no longer waits for it alone.
    late: bool,
}

#[derive(Clone, Copy)]
enum Operation {
    AllReduce,
    Broadcast,
    Barrier,
}

/// Rank 0, in this thread; rank 1 does in another what it is told.
struct Ranks {
    comm: Communicator,
    vector: CommBuffer<f32>,
    orders: Option<mpsc::SyncSender<Order>>,
    other: Option<JoinHandle<()>>,
}

impl Ranks {
    fn new() -> Self {
        let mut group = Communicator::group(2).unwrap();
        let other = group.pop().unwrap();
        let comm = group.pop().unwrap();
        let (orders, ordered) = mpsc::sync_channel::<Order>(1);
        let other = std::thread::spawn(move || {
            let mut vector = other.buffer(1).unwrap();
            ordered.iter().for_each(|order| obey(&other, &mut vector, order));
        });
        let vector = comm.buffer(1).unwrap();
        Ranks { comm, vector, orders: Some(orders), other: Some(other) }
    }

    fn run(&mut self, order: Order) -> Duration {
        self.orders.as_ref().unwrap().send(order).unwrap();
        let start = Instant::now();
        obey(&self.comm, &mut self.vector, order);
        start.elapsed()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.orders = None;
        self.other.take().unwrap().join().unwrap();
    }
}

fn obey(comm: &Communicator, vector: &mut CommBuffer<f32>, order: Order) {
    if vector.len() != order.len {
        *vector = comm.buffer(order.len).unwrap();
    }
    for _ in 0..order.rounds {
        if order.late && comm.rank() == 1 {
            std::thread::sleep(LATE);
        }
        match order.what {
            Operation::AllReduce => comm.all_reduce(vector, ReduceOp::Sum).unwrap(),
            Operation::Broadcast => comm.broadcast(vector, 0).unwrap(),
            Operation::Barrier => comm.barrier().unwrap(),
        }
    }
    comm.barrier().unwrap(); // both ranks end an order together; a broadcast's root waits for nobody
}

fn two_ranks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("two_ranks");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    let mut ranks = Ranks::new();
    for (name, what) in [("all-reduce", Operation::AllReduce), ("broadcast", Operation::Broadcast)] {
        for bytes in [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20] {
            let order = Order { what, len: bytes / size_of::<f32>(), rounds: 1, late: false };
            settle(&mut ranks, order);
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter_custom(|rounds| ranks.run(Order { rounds, ..order }));
            });
        }
    }
    let order = Order { what: Operation::Barrier, len: 1, rounds: 1, late: false };
    settle(&mut ranks, order);
    group.throughput(Throughput::Elements(1));
    group.bench_function("barrier", |bencher| bencher.iter_custom(|rounds| ranks.run(Order { rounds, ..order })));
    group.finish();
}

/// Brings everything that is made on first use into being, and shows that an operation allocates nothing after that, on
/// both ranks, whether or not one is late. The least count of some batches: a rank that takes its memory back while the other
/// still reads it may have to note that down.
fn settle(ranks: &mut Ranks, order: Order) {
    for late in [false, true] {
        let order = Order { rounds: 20, late, ..order };
        ranks.run(order);
        let count = (0..10).map(|_| {
            let before = counting::allocations();
            ranks.run(order);
            counting::allocations() - before
        });
        assert_eq!(count.min(), Some(0), "allocations in 20 operations on {} elements, late: {late}", order.len);
    }
}

/// Longer than a rank waits for a short operation before it looks after everything else as well.
const LATE: Duration = Duration::from_millis(2);

criterion_group!(benches, two_ranks);
criterion_main!(benches);
