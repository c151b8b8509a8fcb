//! Streams of GPUs that go on once an operation has ended. On a CUDA driver in memory.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use qpair_collectives::{CommBuffer, Communicator, OnGpu, Pending, ReduceOp};
use qpair_fake_cuda::{code, control};
use qpair_verbs::{Gpu, GpuBuffer, GpuEvent};

use port::Port;

#[path = "communicator/port.rs"]
mod port;

/// Runs each rank in a thread, and gives what they return.
fn ranks<R: Send>(count: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let comms = Communicator::group(count).expect("a group");
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

type Vector = CommBuffer<i32, OnGpu>;

/// A GPU whose default stream computes: it copies in and out of a vector, which is what a program's kernels do in effect.
struct Ground {
    gpu: Gpu,
    fake: control::Device,
    /// What the stream writes into the vector.
    gradient: GpuBuffer,
    /// What it writes the vector to afterwards.
    weights: GpuBuffer,
}

impl Ground {
    fn new(value: i32) -> Ground {
        Ground::on(control::add_device().expect("the library is built beside the tests"), value)
    }

    fn on(fake: control::Device, value: i32) -> Ground {
        let gpu = Gpu::open(fake.ordinal() as usize).expect("a GPU");
        let memory = || gpu.alloc(BYTES).expect("memory");
        let (mut gradient, weights) = (memory(), memory());
        let bytes: Vec<u8> = value.to_ne_bytes().into_iter().cycle().take(BYTES).collect();
        gradient.write(0, &bytes).expect("its own memory");
        Ground { gpu, fake, gradient, weights }
    }

    fn vector(&self, comm: &Communicator) -> Vector {
        comm.gpu_buffer(self.gpu, LEN).expect("memory")
    }

    /// Gives the stream what goes before an operation: it writes the vector. The event is the end of that.
    fn compute(&self, vector: &Vector) -> GpuEvent {
        self.fake.copy_later(vector.address(), self.gradient.address(), BYTES).expect("a device");
        self.gpu.record().expect("an event")
    }

    /// Gives it what goes behind the operation: it takes what is at the address.
    fn update(&self, pending: &Pending<'_, Vector>, address: u64) -> GpuEvent {
        pending.before(self.gpu.hold().expect("held"));
        self.fake.copy_later(self.weights.address(), address, BYTES).expect("a device");
        self.gpu.record().expect("an event")
    }

    /// Gives it a whole step.
    fn step<'a>(&self, comm: &'a Communicator, vector: Vector) -> (Pending<'a, Vector>, GpuEvent) {
        let (address, written) = (vector.address(), self.compute(&vector));
        let pending = comm.start().after(&written).all_reduce(vector, ReduceOp::Sum).expect("started");
        let updated = self.update(&pending, address);
        (pending, updated)
    }

    fn weights(&self) -> Vec<i32> {
        let mut bytes = vec![0; BYTES];
        self.weights.read(0, &mut bytes).expect("its own memory");
        bytes.chunks_exact(4).map(|four| i32::from_ne_bytes(four.try_into().expect("four"))).collect()
    }
}

fn is_held(event: &GpuEvent) -> bool {
    (0..5).all(|_| !event.is_done().expect("no failure"))
}

#[test]
fn a_stream_computes_reduces_and_goes_on_with_the_result() {
    let both = Barrier::new(2);
    ranks(2, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        if comm.rank() == 1 {
            both.wait();
        }
        let (mut pending, updated) = ground.step(&comm, ground.vector(&comm));
        if comm.rank() == 0 {
            // The other has not begun.
            for _ in 0..100 {
                assert!(!pending.test());
            }
            assert!(is_held(&updated));
            assert_eq!(ground.weights(), [0; LEN]);
            both.wait();
        }
        let _vector = pending.wait().expect("done");
        updated.wait().expect("no failure");
        assert_eq!(ground.weights(), [3; LEN]);
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn steps_of_one_stream_follow_each_other() {
    ranks(3, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        let mut vector = ground.vector(&comm);
        let pinned = ground.fake.count("cuMemHostAlloc").expect("a device");
        for _ in 0..50 {
            let (pending, updated) = ground.step(&comm, vector);
            vector = pending.wait().expect("done");
            // The next step is given to the stream before it has done this one.
            drop(updated);
        }
        ground.gpu.record().expect("an event").wait().expect("no failure");
        assert_eq!(ground.weights(), [6; LEN]);
        assert_eq!(ground.fake.count("cuStreamWaitValue32").expect("a device"), 50);
        assert_eq!(ground.fake.count("cuMemHostAlloc").expect("a device"), pinned + 1);
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn several_operations_of_a_stream_are_under_way() {
    ranks(2, |comm| {
        let ground = Ground::new(comm.rank() as i32 + 1);
        let steps: Vec<_> = (0..6).map(|_| ground.step(&comm, ground.vector(&comm))).collect();
        // Two streams, or more, may wait for one operation.
        steps[5].0.before(ground.gpu.hold().expect("held"));
        let behind = ground.gpu.record().expect("an event");
        let (pendings, updates): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        // The last first: those before are carried out before.
        let vectors: Vec<_> = pendings.into_iter().rev().map(|pending| pending.wait().expect("done")).collect();
        for updated in updates {
            updated.wait().expect("no failure");
        }
        behind.wait().expect("no failure");
        drop(vectors);
        assert_eq!(ground.weights(), [3; LEN]);
    });
}

#[test]
fn where_the_operation_has_ended_the_stream_goes_on_at_once() {
    let comm = Communicator::group(1).expect("a group").remove(0);
    let ground = Ground::new(5);
    let mut pending = comm.start().all_reduce(ground.vector(&comm), ReduceOp::Sum).expect("started");
    while !pending.test() {}
    pending.before(ground.gpu.hold().expect("held"));
    ground.gpu.record().expect("an event").wait().expect("no failure");
    pending.wait().expect("done");
}

#[test]
fn a_stream_goes_on_where_its_operation_fails() {
    let both = Barrier::new(2);
    let errors = ranks(2, |comm| {
        let ground = Ground::new(1);
        comm.set_timeout(Duration::from_secs(20));
        if comm.rank() == 1 {
            // It never begins what the other waits for.
            both.wait();
            return comm.barrier().unwrap_err().to_string();
        }
        let vector = ground.vector(&comm);
        let address = vector.address();
        let start = comm.start().within(Duration::from_millis(50));
        let first = start.all_reduce(vector, ReduceOp::Sum).expect("started");
        let updated = ground.update(&first, address);
        let (second, later) = ground.step(&comm, ground.vector(&comm));
        let failed = first.wait().unwrap_err();
        updated.wait().expect("no failure");
        // So do streams of operations behind it, and of those that are too late.
        later.wait().expect("no failure");
        second.before(ground.gpu.hold().expect("held"));
        ground.gpu.record().expect("an event").wait().expect("no failure");
        drop(second.wait().unwrap_err());
        both.wait();
        failed.error.to_string()
    });
    assert!(errors[0].contains("50"), "{errors:?}");
}

#[test]
fn a_stream_goes_on_where_another_rank_aborts() {
    ranks(2, |comm| {
        let ground = Ground::new(1);
        if comm.rank() == 1 {
            return comm.abort("enough");
        }
        let (pending, updated) = ground.step(&comm, ground.vector(&comm));
        let failed = pending.wait().unwrap_err();
        updated.wait().expect("no failure");
        assert!(failed.error.to_string().contains("enough"), "{failed}");
    });
}

#[test]
fn a_stream_goes_on_where_work_before_the_operation_fails() {
    let comm = Communicator::group(1).expect("a group").remove(0);
    let (ground, broken) = (Ground::new(1), Ground::new(1));
    let event = broken.gpu.record().expect("an event");
    broken.fake.fail_times("cuEventQuery", 1, 1000, code::LAUNCH_FAILED).expect("a symbol");
    let vector = ground.vector(&comm);
    let address = vector.address();
    let pending = comm.start().after(&event).all_reduce(vector, ReduceOp::Sum).expect("started");
    let updated = ground.update(&pending, address);
    let _failed = pending.wait().unwrap_err();
    updated.wait().expect("no failure");
}

/// Starts an operation that a stream waits for, which does not read the vector then: that goes with the operation.
fn start_and_hold<'a>(ground: &Ground, comm: &'a Communicator) -> (Pending<'a, Vector>, GpuEvent) {
    let pending = comm.start().all_reduce(ground.vector(comm), ReduceOp::Sum).expect("started");
    pending.before(ground.gpu.hold().expect("held"));
    (pending, ground.gpu.record().expect("an event"))
}

#[test]
fn a_stream_goes_on_where_nobody_waits_for_the_operation_any_more() {
    ranks(2, |comm| {
        let ground = Ground::new(1);
        let (pending, behind) = start_and_hold(&ground, &comm);
        drop(pending);
        // It moves on with those behind it.
        let mut later = comm.start().all_reduce(ground.vector(&comm), ReduceOp::Sum).expect("started");
        while !behind.is_done().expect("no failure") {
            later.test();
        }
        later.wait().expect("done");
        let (pending, behind) = start_and_hold(&ground, &comm);
        drop(pending);
        // Or when the communicator ends.
        drop(comm);
        behind.wait().expect("no failure");
        assert_eq!(ground.fake.violations(), "");
    });
}

#[test]
fn a_stream_goes_on_as_its_thread_panics() {
    let (told, tells) = std::sync::mpsc::channel();
    let mut comms = Communicator::group(2).expect("a group").into_iter();
    let (first, _second) = (comms.next().expect("two"), comms.next().expect("two"));
    let panics = std::thread::spawn(move || {
        let ground = Ground::new(1);
        let (_pending, behind) = start_and_hold(&ground, &first);
        assert!(is_held(&behind));
        told.send(behind).expect("somebody waits");
        panic!("as it is to");
    });
    tells.recv().expect("an event").wait().expect("no failure");
    assert!(panics.join().is_err());
}

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
    drop((failed, second.wait().expect("done")));
    assert_eq!(ground.fake.violations(), "");
}

/// Pieces of memory that a GPU was ever asked for, for buffers.
fn taken(ground: &Ground) -> u64 {
    ground.fake.count("cuMemCreate").expect("a device")
}

#[test]
fn operations_take_no_memory_under_holds_after_as_many_as_long_at_once() {
    let turn = Barrier::new(2);
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
        command.args(["rank", "--exact", "--ignored", "--nocapture"]);
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

const LEN: usize = 3000;
const BYTES: usize = LEN * 4;
const DIES: &str = "QPAIR_TEST_DIES";
