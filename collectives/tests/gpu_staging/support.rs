//! Ranks, and vectors on a GPU.

use qpair_collectives::{CommBuffer, Communicator, Element, OnGpu};
use qpair_verbs::Gpu;

/// The first GPU of the driver in memory.
pub fn gpu() -> Gpu {
    qpair_fake_cuda::control::load().expect("the library is built beside the tests");
    Gpu::open(0).expect("a GPU")
}

/// Runs each rank in a thread, and gives what they return.
pub fn in_threads<R: Send>(comms: Vec<Communicator>, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// A vector on a GPU with those elements.
pub fn vector<T: Element>(comm: &Communicator, gpu: Gpu, elements: &[T]) -> CommBuffer<T, OnGpu> {
    let mut vector = comm.gpu_buffer(gpu, elements.len()).expect("memory");
    vector.write(0, elements).expect("its own memory");
    vector
}

/// What is in it.
pub fn elements<T: Element>(vector: &CommBuffer<T, OnGpu>) -> Vec<T> {
    let mut elements = vec![T::default(); vector.len()];
    vector.read(0, &mut elements).expect("its own memory");
    elements
}
