//! A GPU, and its stream that computes.

use qpair_collectives::{CommBuffer, Communicator, OnGpu, Pending, ReduceOp};
use qpair_fake_cuda::control;
use qpair_verbs::{Gpu, GpuBuffer, GpuEvent};

/// Runs each rank in a thread, and gives what they return.
pub fn ranks<R: Send>(count: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let comms = Communicator::group(count).expect("a group");
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

pub type Vector = CommBuffer<i32, OnGpu>;

/// A GPU whose default stream computes: it copies in and out of a vector, which is what a program's kernels do in effect.
pub struct Ground {
    pub gpu: Gpu,
    pub fake: control::Device,
    /// What the stream writes into the vector.
    pub gradient: GpuBuffer,
    /// What it writes the vector to afterwards.
    pub weights: GpuBuffer,
}

impl Ground {
    pub fn new(value: i32) -> Ground {
        Ground::on(control::add_device().expect("the library is built beside the tests"), value)
    }

    pub fn on(fake: control::Device, value: i32) -> Ground {
        let gpu = Gpu::open(fake.ordinal() as usize).expect("a GPU");
        let memory = || gpu.alloc(BYTES).expect("memory");
        let (mut gradient, weights) = (memory(), memory());
        let bytes: Vec<u8> = value.to_ne_bytes().into_iter().cycle().take(BYTES).collect();
        gradient.write(0, &bytes).expect("its own memory");
        Ground { gpu, fake, gradient, weights }
    }

    pub fn vector(&self, comm: &Communicator) -> Vector {
        comm.gpu_buffer(self.gpu, LEN).expect("memory")
    }

    /// Gives the stream what goes before an operation: it writes the vector. The event is the end of that.
    pub fn compute(&self, vector: &Vector) -> GpuEvent {
        self.fake.copy_later(vector.address(), self.gradient.address(), BYTES).expect("a device");
        self.gpu.record().expect("an event")
    }

    /// Gives it what goes behind the operation: it takes what is at the address.
    pub fn update(&self, pending: &Pending<'_, Vector>, address: u64) -> GpuEvent {
        pending.before(self.gpu.hold().expect("held"));
        self.fake.copy_later(self.weights.address(), address, BYTES).expect("a device");
        self.gpu.record().expect("an event")
    }

    /// Gives it a whole step.
    pub fn step<'a>(&self, comm: &'a Communicator, vector: Vector) -> (Pending<'a, Vector>, GpuEvent) {
        let (address, written) = (vector.address(), self.compute(&vector));
        let pending = comm.start().after(&written).all_reduce(vector, ReduceOp::Sum).expect("started");
        let updated = self.update(&pending, address);
        (pending, updated)
    }

    pub fn weights(&self) -> Vec<i32> {
        let mut bytes = vec![0; BYTES];
        self.weights.read(0, &mut bytes).expect("its own memory");
        bytes.chunks_exact(4).map(|four| i32::from_ne_bytes(four.try_into().expect("four"))).collect()
    }
}

pub fn is_held(event: &GpuEvent) -> bool {
    (0..5).all(|_| !event.is_done().expect("no failure"))
}

pub const LEN: usize = 3000;
const BYTES: usize = LEN * 4;
