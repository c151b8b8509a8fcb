//! Ranks, vectors on a GPU, and processes for tests.

use std::env;
use std::process::Command;

use qpair_collectives::{CommBuffer, Communicator, Element, OnGpu};
use qpair_verbs::Gpu;

/// The first GPU of the driver in memory.
pub fn gpu() -> Gpu {
    qpair_fake_cuda::control::load().expect("the library is built beside the tests");
    Gpu::open(0).expect("a GPU")
}

/// Runs the calling test in a process of its own with these variables: `case` is a closure that stands in the test, whose name it
/// tells by.
#[track_caller]
pub fn in_process<F: FnOnce()>(variables: &[(&str, &str)], case: F) {
    const CHILD: &str = "QPAIR_STAGING_TEST_CHILD";
    if env::var_os(CHILD).is_some() {
        return case();
    }
    let (_, test) = std::any::type_name::<F>().split_once("::").expect("the program, and a path in it");
    let test = test.strip_suffix("::{{closure}}").expect("a closure within a test");
    let output = Command::new(env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture", "--test-threads", "1"])
        // What the user chose for other tests is not for these.
        .env_remove("QPAIR_DEVICE")
        .env_remove("QPAIR_NICS")
        .env_remove("QPAIR_TOPOLOGY")
        .env_remove("QPAIR_GPU_STAGING")
        .envs(variables.iter().copied())
        .env(CHILD, "1")
        .output()
        .expect("this program starts");
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {}\n{text}", output.status);
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
