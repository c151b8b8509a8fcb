//! Memory of GPUs is neither taken nor freed while streams are held.

use qpair_collectives::{Communicator, Pending, ReduceOp};
use qpair_fake_cuda::{code, control};
use qpair_verbs::{Gpu, GpuEvent};

use crate::ground::{Ground, LEN, Vector, ranks};
use crate::meeting::Meeting;

/// A GPU that an operation waits for, so that it begins when the test says so.
struct Gate {
    fake: control::Device,
    event: GpuEvent,
}

impl Gate {
    fn new() -> Gate {
        let fake = control::add_device().expect("the library is built beside the tests");
        fake.hold().expect("held");
        let event = Gpu::open(fake.ordinal() as usize).and_then(|gpu| gpu.record()).expect("an event");
        Gate { fake, event }
    }

    fn open(&self) {
        self.fake.let_go().expect("goes on");
    }

    /// Starts an operation behind it, that a stream waits for.
    fn start_and_hold<'a>(&self, ground: &Ground, comm: &'a Communicator) -> (Pending<'a, Vector>, GpuEvent) {
        let start = comm.start().after(&self.event);
        let pending = start.all_reduce(ground.vector(comm), ReduceOp::Sum).expect("started");
        pending.before(ground.gpu.hold().expect("held"));
        (pending, ground.gpu.record().expect("an event"))
    }
}

/// A rank that is alone, its GPU, and two gates.
fn alone() -> (Communicator, Ground, [Gate; 2]) {
    let comm = Communicator::group(1).expect("a group").remove(0);
    (comm, Ground::new(1), [Gate::new(), Gate::new()])
}

/// How much there is of the GPU's memory.
fn memory(ground: &Ground) -> usize {
    let live = ground.fake.live();
    live.lines().filter(|line| !["stream", "event", "host"].iter().any(|other| line.contains(other))).count()
}

#[test]
fn what_a_forgotten_operation_leaves_is_freed_once_no_stream_is_held() {
    let (comm, ground, gates) = alone();
    let (first, behind) = gates[0].start_and_hold(&ground, &comm);
    let (mut second, _) = gates[1].start_and_hold(&ground, &comm);
    drop(first);
    let before = memory(&ground);
    gates[0].open();
    while !behind.is_done().expect("no failure") {
        assert!(!second.test());
    }
    assert_eq!(memory(&ground), before);
    gates[1].open();
    let vector = second.wait().expect("done");
    assert!(memory(&ground) < before);
    assert_eq!(ground.fake.violations(), "");
    drop(vector);
}

#[test]
fn so_is_what_one_leaves_that_is_forgotten_after_its_end() {
    let (comm, ground, gates) = alone();
    let start = comm.start().after(&gates[0].event);
    let mut first = start.all_reduce(ground.vector(&comm), ReduceOp::Sum).expect("started");
    let (second, _) = gates[1].start_and_hold(&ground, &comm);
    let before = memory(&ground);
    gates[0].open();
    while !first.test() {}
    drop(first);
    assert_eq!(memory(&ground), before);
    gates[1].open();
    let _vector = second.wait().expect("done");
    assert!(memory(&ground) < before);
    assert_eq!(ground.fake.violations(), "");
}

#[test]
fn so_it_is_where_the_communicator_fails() {
    let (comm, ground, gates) = alone();
    let (first, behind) = gates[0].start_and_hold(&ground, &comm);
    let (second, later) = gates[1].start_and_hold(&ground, &comm);
    drop(first);
    let before = memory(&ground);
    gates[1].fake.fail_times("cuEventQuery", 1, 1000, code::LAUNCH_FAILED).expect("a symbol");
    gates[0].open();
    let failed = second.wait().unwrap_err();
    assert!(memory(&ground) < before);
    for event in [behind, later] {
        event.wait().expect("no failure");
    }
    assert_eq!(ground.fake.violations(), "");
    drop(failed);
}

#[test]
fn so_it_is_where_the_communicator_is_dropped() {
    let (comm, ground, gates) = alone();
    let before = memory(&ground);
    let [behind, later] = [0, 1].map(|at| gates[at].start_and_hold(&ground, &comm).1);
    gates[0].open();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            behind.wait().expect("no failure");
            gates[1].open();
        });
        drop(comm);
    });
    later.wait().expect("no failure");
    assert_eq!(memory(&ground), before);
    assert_eq!(ground.fake.violations(), "");
}

#[test]
fn memory_that_is_outgrown_is_freed_once_no_stream_is_held() {
    let (comm, ground, gates) = alone();
    // What is worked on is a copy of the input, which is kept for the next.
    let scaled = |len: usize, gate: Option<&Gate>| {
        let [input, output] = [(); 2].map(|()| comm.gpu_buffer::<i32>(ground.gpu, len).expect("memory"));
        let start = gate.map_or(comm.start(), |gate| comm.start().after(&gate.event));
        start.all_reduce_into(input, output, ReduceOp::pre_mul_sum(2.0)).expect("started")
    };
    drop(scaled(LEN, None).wait().expect("done"));
    let mut larger = scaled(1000 * LEN, Some(&gates[0]));
    let (second, _) = gates[1].start_and_hold(&ground, &comm);
    gates[0].open();
    while !larger.test() {}
    assert_eq!(ground.fake.violations(), "");
    gates[1].open();
    drop((larger.wait().expect("done"), second.wait().expect("done")));
    // The one copy is not there any more.
    let before = memory(&ground);
    drop(scaled(1000 * LEN, None).wait().expect("done"));
    assert_eq!(memory(&ground), before);
    assert_eq!(ground.fake.violations(), "");
}

#[test]
fn so_is_memory_of_an_operation_that_can_not_begin() {
    let (comm, ground, gates) = alone();
    let [input, output] = [(); 2].map(|()| ground.vector(&comm));
    let start = comm.start().after(&gates[0].event);
    let mut first = start.all_reduce_into(input, output, ReduceOp::pre_mul_sum(2.0)).expect("started");
    let (second, _) = gates[1].start_and_hold(&ground, &comm);
    ground.fake.fail_times("cuMemcpyAsync", 1, 1, code::INVALID_VALUE).expect("a symbol");
    gates[0].open();
    while !first.test() {}
    let failed = first.wait().unwrap_err();
    assert_eq!(ground.fake.violations(), "");
    gates[1].open();
    drop((failed, second.wait().unwrap_err()));
    assert_eq!(ground.fake.violations(), "");
}

/// Pieces of memory that a GPU was ever asked for, for buffers.
fn taken(ground: &Ground) -> u64 {
    ground.fake.count("cuMemCreate").expect("a device")
}

#[test]
fn operations_take_no_memory_under_holds_after_as_many_as_long_at_once() {
    let turn = Meeting::new(2);
    ranks(2, |comm| {
        let ground = Ground::new(1);
        // More than would be kept once only, if it were the processor's.
        let vector = || comm.gpu_buffer::<i32>(ground.gpu, (1 << 20) + 1).expect("memory");
        let mut vectors: Vec<_> = (0..4).map(|_| vector()).collect();
        let mut before = 0;
        for round in 0..2 {
            if comm.rank() == 1 {
                turn.wait();
            }
            let mut pendings = Vec::new();
            while let Some(input) = vectors.pop() {
                let output = vectors.pop().expect("an even number");
                let start = comm.start();
                let op = ReduceOp::pre_mul_sum(2.0);
                let pending = start.all_reduce_into(input, output, op).expect("started");
                if round == 1 {
                    pending.before(ground.gpu.hold().expect("held"));
                }
                pendings.push(pending);
            }
            if comm.rank() == 0 {
                // All are under way: the other has begun none.
                turn.wait();
            }
            for pending in pendings {
                vectors.extend(<[Vector; 2]>::from(pending.wait().expect("done")));
            }
            before = if round == 0 { taken(&ground) } else { before };
        }
        // The other may have done one after the other at first.
        if comm.rank() == 0 {
            assert_eq!(taken(&ground), before);
        }
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn operations_on_gpus_and_others_by_turns_take_no_memory_of_each_other() {
    let comm = Communicator::group(1).expect("a group").remove(0);
    let ground = Ground::new(1);
    let op = ReduceOp::pre_mul_sum(2.0);
    let mut vectors = Some([(); 2].map(|()| ground.vector(&comm)));
    let mut before = 0;
    for round in 0..5 {
        let [input, output] = vectors.take().expect("given back");
        let back = comm.start().all_reduce_into(input, output, op).expect("started").wait().expect("done");
        vectors = Some(back.into());
        let [input, output] = [(); 2].map(|()| comm.buffer::<i32>(LEN).expect("memory"));
        comm.start().all_reduce_into(input, output, op).expect("started").wait().expect("done");
        if round == 0 {
            before = taken(&ground);
        }
    }
    assert_eq!(taken(&ground), before);
}
