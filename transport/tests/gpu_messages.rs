//! Messages out of memory of GPUs that no domain has, and into it, by slots.
//!
//! They run on a CUDA driver in memory, whose device memory faults where the processor touches it, each test with GPUs of its own;
//! with `QPAIR_TEST_GPU=1` those that need no driver that fails run on the first GPU of this machine.

#[path = "gpu_messages/carried.rs"]
mod carried;
#[path = "gpu_messages/ending.rs"]
mod ending;
mod support;

use qpair_fake_cuda::control;
use qpair_transport::Event;
use qpair_verbs::{Gpu, Local};
use support::*;

/// Longer than all slots of a direction together, and no whole number of them.
const LONG: usize = (5 << 20) + 4321;

/// Whether the GPU is one of this machine, to which the program may have come without the libraries beside it.
fn is_real() -> bool {
    std::env::var_os("QPAIR_TEST_GPU").is_some()
}

/// A GPU, and what steers it if it is one in memory.
fn gpu() -> (Gpu, Option<control::Device>) {
    if is_real() {
        return (Gpu::open(0).expect("a GPU"), None);
    }
    let fake = control::add_device().expect("the library is built beside the tests");
    (Gpu::open(fake.ordinal() as usize).expect("a GPU"), Some(fake))
}

/// The message in the memory of a receive, as far as it goes.
fn came(events: Vec<Event>) -> Vec<Vec<u8>> {
    let pick = |event| match event {
        Event::ReceivedInto { memory, len, .. } => Some(first(memory, len)),
        _ => None,
    };
    events.into_iter().filter_map(pick).collect()
}

fn first(memory: Local, len: usize) -> Vec<u8> {
    let mut bytes = match memory {
        Local::Gpu(buffer) => contents(&buffer),
        Local::Buffer(buffer) => buffer.to_vec(),
        other => panic!("{}", other.form()),
    };
    bytes.truncate(len);
    bytes
}

/// Nothing is left of a GPU but what is kept for the next that needs it.
fn tidy(fake: Option<control::Device>) {
    let Some(fake) = fake else { return };
    assert_eq!(fake.violations(), "");
    let live = fake.live();
    let is_kept = |line: &str| line.starts_with("primary context") || line.starts_with("stream");
    assert!(live.lines().all(is_kept), "{live}");
}

fn is_sent(event: &Event) -> bool {
    matches!(event, Event::Sent { .. })
}

fn is_into(event: &Event) -> bool {
    matches!(event, Event::ReceivedInto { .. })
}

fn count_sent(events: &[Event]) -> usize {
    count(events, is_sent)
}
