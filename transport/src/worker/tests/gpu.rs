//! Messages of GPUs' memory while queue pairs fail under their connection, or a peer breaks the rules.

use qpair_fake_cuda::control;
use qpair_verbs::Gpu;

use super::gpu_memory::filled;
use super::recovery::{to_error, two};
use super::*;
use crate::engine::{Header, Kind, Offer, Pending, Readable, Violation};
use crate::worker::endpoint::Carried;

/// More than all slots of a direction, and no whole number of them.
const LONG: usize = (5 << 20) + 321;

fn gpu() -> Gpu {
    steered().0
}

/// A GPU, and what steers it.
fn steered() -> (Gpu, control::Device) {
    let fake = control::add_device().expect("the library is built beside the tests");
    (Gpu::open(fake.ordinal() as usize).expect("a GPU"), fake)
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..LONG).map(|at| (at ^ at >> 8 ^ seed) as u8).collect()
}

fn contents(memory: Local) -> Vec<u8> {
    match memory {
        Local::Gpu(buffer) => gpu_memory::contents(&buffer),
        Local::Buffer(buffer) => buffer.to_vec(),
        other => panic!("{}", other.form()),
    }
}

#[test]
fn a_message_goes_on_where_it_was_when_its_queue_pair_fails() {
    let gpu = gpu();
    let config = || Config::default().recovery(PATIENCE).eager_limit(512);
    let (mut a, at_a, mut b, at_b) = two(config(), config());
    let sent = [bytes(1), bytes(2)];
    // Each side in turn, ever later.
    for polls in 0..32 {
        // From a GPU, and from the processor, to a GPU.
        b.recv_into(at_b, Tag(0), gpu.alloc(LONG).unwrap(), None).unwrap();
        b.recv_into(at_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
        a.send(at_a, Tag(0), filled(gpu, &sent[0])).unwrap();
        a.send(at_a, Tag(1), sent[1].clone()).unwrap();
        // And to the processor: into a buffer, and into memory of the worker's own.
        let own = b.domain().alloc(LONG).unwrap();
        b.recv_into(at_b, Tag(2), own, None).unwrap();
        a.send(at_a, Tag(2), filled(gpu, &sent[0])).unwrap();
        a.send(at_a, Tag(3), filled(gpu, &sent[1])).unwrap();
        let (mut came, mut gone, start) = (0, 0, Instant::now());
        let mut polled = 0;
        while came < 4 || gone < 4 {
            match a.poll().unwrap() {
                Some(Event::Sent { .. }) => gone += 1,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            match b.poll().unwrap() {
                Some(Event::ReceivedInto { tag: Tag(tag), memory, len: LONG, .. }) => {
                    assert!(contents(memory) == sent[tag as usize % 2], "message {tag} after {polls} polls");
                    came += 1;
                }
                Some(Event::Received { tag: Tag(3), message, .. }) => {
                    assert!(message[..] == sent[1], "after {polls} polls");
                    came += 1;
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            if polled == polls / 2 {
                if polls % 2 == 0 { to_error(&mut a, at_a) } else { to_error(&mut b, at_b) }
            }
            polled += 1;
            assert!(start.elapsed() < PATIENCE, "after {polls} polls");
        }
        // All slots are free.
        for worker in [&mut a, &mut b] {
            while worker.staging.is_busy() {
                assert!(worker.poll().unwrap().is_none());
            }
        }
    }
    assert!(a.counters().recovered > 12, "{}", a.counters().recovered);
}

#[test]
fn a_worker_does_not_sleep_while_a_gpu_copies() {
    let (gpu, fake) = steered();
    let (mut a, at_a, mut b, at_b) = two(Config::default(), Config::default());
    b.recv_into(at_b, Tag(0), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(at_a, Tag(0), filled(gpu, &bytes(1))).unwrap();
    let start = Instant::now();
    fake.hold().unwrap();
    while !a.staging.is_copying() {
        assert!(a.poll().unwrap().is_none() && b.poll().unwrap().is_none());
        assert!(start.elapsed() < PATIENCE, "it does not begin");
    }
    // All slots but those that are left for other peers are being filled.
    assert_eq!(a.staging.filling(), 6);
    for _ in 0..100 {
        assert_eq!(a.arm().unwrap(), Armed::Ready);
        assert!(a.wait(Some(Duration::from_micros(1))).unwrap().is_none());
    }
    // Here nothing is copied before a slot comes.
    while b.arm().unwrap() == Armed::Ready {
        assert!(b.poll().unwrap().is_none());
        assert!(start.elapsed() < PATIENCE, "it does not sleep");
    }
    fake.let_go().unwrap();
    let (mut came, mut gone) = (false, false);
    while !came || !gone {
        gone |= a.poll().unwrap().is_some();
        came |= b.poll().unwrap().is_some();
        assert!(start.elapsed() < PATIENCE, "it does not go on");
    }
}

/// What the connection of a worker ends with that a peer offers part of a payload, of so many bytes, of which it wanted `wanted`.
fn offered(wanted: u64, part: u64, in_parts: bool) -> CloseReason {
    let gpu = gpu();
    let (mut a, _, mut b, at_b) = two(Config::default(), Config::default());
    b.recv_into(at_b, Tag(0), gpu.alloc(LONG).unwrap(), None).unwrap();
    let index = at_b.index as usize;
    let header = |envelope, length| Header {
        kind: Kind::ReadyToSend,
        envelope,
        epoch: 0,
        sequence: 0,
        credits: 0,
        length,
        acknowledged: 0,
    };
    b.offered(at_b, &header(Envelope::bare(0), wanted), Offer::in_parts(5));
    b.pump(index);
    let offer = Offer { in_parts, ..Offer::in_parts(6) };
    b.offered(at_b, &header(Envelope::part(5), part), offer);
    b.pump(index);
    let start = Instant::now();
    let reason = loop {
        match b.poll().unwrap() {
            Some(Event::Closed { reason, .. }) => break reason,
            Some(Event::Failed { returned: Returned::Memory(Local::Gpu(_)), .. }) | None => {}
            Some(other) => panic!("{other:?}"),
        }
        a.poll().unwrap();
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(!b.staging.is_busy());
    reason
}

#[test]
fn a_part_that_can_not_be_ends_the_connection() {
    for (wanted, part, in_parts) in [(1 << 20, 0, false), (100, 101, false), (1 << 20, 100, false), (100, 100, true)] {
        let CloseReason::Protocol(violation) = offered(wanted, part, in_parts) else { panic!("it is refused") };
        assert_eq!(violation, Violation::Part { id: 5, len: part, left: wanted });
    }
}

#[test]
fn a_part_of_what_nobody_waits_for_is_passed_over() {
    let (mut a, at_a, mut b, _) = two(Config::default(), Config::default());
    // The peer's word for it, as if it had sent that.
    let region = a.domain().expose(64, Access::REMOTE_READ).unwrap();
    let readable = Readable::At(a.remote(&region, 0..64));
    let (op, endpoint) = (a.op(), a.endpoints.get_mut(at_a).unwrap());
    let payload = Carried::Bytes(Bytes::new());
    let pending = Pending { op, envelope: Envelope::part(77), len: 64, readable: Some(readable), payload };
    endpoint.link.enqueue_part(pending);
    a.pump(at_a.index as usize);
    a.send(at_a, Tag(3), &b"behind it"[..]).unwrap();
    let start = Instant::now();
    loop {
        if let Some(Event::Received { message, .. }) = b.poll().unwrap() {
            assert_eq!(&message[..], b"behind it");
            break;
        }
        a.poll().unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
    // It is told of, as of one that was read.
    while a.endpoints.get_mut(at_a).unwrap().link.counts().1 > 0 {
        a.poll().unwrap();
        b.poll().unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn slots_that_a_device_keeps_are_replaced_and_receives_end() {
    let gpu = gpu();
    let (mut a, at_a, mut b, at_b) = two(Config::default(), Config::default());
    b.recv_into(at_b, Tag(0), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(at_a, Tag(0), bytes(1)).unwrap();
    let start = Instant::now();
    while !b.staging.is_busy() {
        assert!(a.poll().unwrap().is_none() && b.poll().unwrap().is_none());
        assert!(start.elapsed() < PATIENCE);
    }
    // As if the device gave nothing back.
    b.remove(at_b.index as usize);
    let events: Vec<_> = b.ready.drain(..).collect();
    let [Event::Failed { error: OpError::Closed, returned: Returned::Memory(Local::Gpu(_)), .. }, ..] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(!b.staging.takes_from(at_b));
    drop((a, events));
    // Others' messages come as before.
    let mut a = Worker::new(Config::default()).unwrap();
    let listener = b.listen("127.0.0.1:0").unwrap();
    let at_a = a.connect(listener.local_addr()).unwrap();
    b.recv_into(Source::Any, Tag(0), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(at_a, Tag(0), filled(gpu, &bytes(2))).unwrap();
    loop {
        if let Some(Event::ReceivedInto { memory, .. }) = b.poll().unwrap() {
            break assert!(contents(memory) == bytes(2));
        }
        a.poll().unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
}

/// The parts that the device of a worker is reading.
fn reads(worker: &mut Worker, ep: EndpointId) -> usize {
    worker.endpoints.get_mut(ep).map_or(0, |endpoint| endpoint.reads.len())
}

/// Whether reads take their time: within a host the software device has read when it is asked to.
fn reads_take_time(worker: &Worker, ep: EndpointId) -> bool {
    !worker.explain(ep).unwrap().wire.starts_with("shm")
}

#[test]
fn parts_are_read_at_once_into_memory_of_the_processor() {
    let gpu = gpu();
    let (mut a, at_a, mut b, at_b) = two(Config::default(), Config::default());
    let region = b.domain().expose(LONG, Access::NONE).unwrap();
    let buffer = Local::Buffer(b.domain().alloc(LONG).unwrap());
    for own in [Some(buffer), Some(Local::Region(region.local(0..LONG))), None] {
        if let Some(own) = own {
            b.recv_into(at_b, Tag(0), own, None).unwrap();
        }
        a.send(at_a, Tag(0), filled(gpu, &bytes(3))).unwrap();
        let (mut most, start) = (0, Instant::now());
        loop {
            // Some slots are filled, and offered.
            (0..100).for_each(|_| _ = a.poll().unwrap());
            match b.poll().unwrap() {
                Some(Event::ReceivedInto { memory: Local::Buffer(own), .. }) => break assert!(own[..] == bytes(3)),
                Some(Event::ReceivedInto { memory: Local::Region(_), .. }) => {
                    let mut found = vec![0; LONG];
                    region.read(0, &mut found).unwrap();
                    break assert!(found == bytes(3));
                }
                Some(Event::Received { message, .. }) => break assert!(message[..] == bytes(3)),
                Some(other) => panic!("{other:?}"),
                None => most = most.max(reads(&mut b, at_b)),
            }
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(most > 1 || !reads_take_time(&b, at_b), "{most} at once");
    }
}

#[test]
fn memory_of_which_a_device_keeps_parts_is_withheld() {
    let gpu = gpu();
    for is_own in [true, false] {
        let config = Config::default().pool_limit(2 * LONG);
        let (mut a, at_a, mut b, at_b) = two(Config::default(), config.clone());
        if is_own {
            let own = b.domain().alloc(LONG).unwrap();
            b.recv_into(at_b, Tag(0), own, None).unwrap();
        }
        a.send(at_a, Tag(0), filled(gpu, &bytes(1))).unwrap();
        let (takes_time, start) = (reads_take_time(&b, at_b), Instant::now());
        while !b.staging.is_busy() || takes_time && reads(&mut b, at_b) < 2 {
            assert!(a.poll().unwrap().is_none() && b.poll().unwrap().is_none());
            assert!(start.elapsed() < PATIENCE);
        }
        let is_kept = reads(&mut b, at_b) > 0;
        // As if the device gave nothing back.
        b.remove(at_b.index as usize);
        let events: Vec<_> = b.ready.drain(..).filter(|event| event.op().is_some()).collect();
        match &events[..] {
            [Event::Failed { error: OpError::Closed, returned, .. }] if is_own => match returned {
                Returned::Withheld => assert!(is_kept),
                Returned::Memory(Local::Buffer(_)) => assert!(!is_kept),
                other => panic!("{other:?}"),
            },
            [] if !is_own => {}
            other => panic!("{other:?}"),
        }
        assert!(!b.staging.takes_from(at_b));
        drop((a, events));
        // What the device has does not count any more: there is room for as much again, once.
        let mut a = Worker::new(config).unwrap();
        let listener = b.listen("127.0.0.1:0").unwrap();
        let at_a = a.connect(listener.local_addr()).unwrap();
        a.send(at_a, Tag(0), bytes(2)).unwrap();
        loop {
            if let Some(Event::Received { message, .. }) = b.poll().unwrap() {
                break assert!(message[..] == bytes(2));
            }
            a.poll().unwrap();
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

/// Though others wait for the memory of its second all the while: it sends one message after the other.
#[test]
fn a_peer_has_as_long_as_it_takes_for_all_its_messages() {
    const HOUR: Duration = Duration::from_secs(3600);
    let gpu = gpu();
    // Clocks that jump faster than a device answers say nothing of a peer's life.
    let config = || Config::default().keepalive(Duration::MAX, Duration::MAX);
    let (mut a, at_a, mut b, at_b) = two(config(), config().pool_limit(2 * LONG));
    let (other, _) = join(&mut b, |worker, address| worker.connect(address));
    b.recv_into(at_b, Tag(0), gpu.alloc(LONG).unwrap(), None).unwrap();
    (0..2).for_each(|tag| _ = a.send(at_a, Tag(tag), filled(gpu, &bytes(tag as usize))).unwrap());
    let (mut came, mut has_waited, mut polls, start) = ([false; 3], false, 0, Instant::now());
    while came != [true; 3] {
        if polls == 0 && b.staging.is_busy() && !b.inbox.is_stalled() {
            let own = b.domain().alloc(LONG).unwrap();
            b.send(other, Tag(2), own).unwrap();
        }
        match b.poll().unwrap() {
            Some(Event::ReceivedInto { tag: Tag(tag), .. } | Event::Received { tag: Tag(tag), .. }) => {
                came[tag as usize] = true;
            }
            Some(Event::Sent { .. }) | None => {}
            Some(event) => panic!("{event:?}"),
        }
        a.poll().unwrap();
        has_waited |= b.inbox.is_stalled();
        polls += u32::from(b.inbox.is_stalled());
        // The clock jumps each time that some parts have come.
        if polls > 0 && polls.is_multiple_of(100) {
            let now = b.now();
            b.service(now + polls / 100 * HOUR, Some(Duration::ZERO)).unwrap();
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(has_waited);
}

#[test]
fn a_receive_whose_memory_is_another_domains_fails_alone() {
    let gpu = gpu();
    let (mut a, at_a, mut b, at_b) = two(Config::default(), Config::default());
    let strange = a.domain().alloc(LONG).unwrap();
    let op = b.recv_into(at_b, Tag(0), strange, None).unwrap();
    a.send(at_a, Tag(0), filled(gpu, &bytes(1))).unwrap();
    a.send(at_a, Tag(1), &b"goes on"[..]).unwrap();
    let (mut failed, mut came, start) = (false, false, Instant::now());
    while !failed || !came {
        match b.poll().unwrap() {
            Some(Event::Failed { op: of, error: OpError::Post(PostError::WrongDomain), returned, .. }) => {
                assert!(of == op && matches!(returned, Returned::Memory(Local::Buffer(_))));
                failed = true;
            }
            Some(Event::Received { tag: Tag(1), .. }) => came = true,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        a.poll().unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
    // The sender has its memory, and all slots, back.
    while a.staging.is_busy() || a.endpoints.get_mut(at_a).unwrap().link.counts().1 > 0 {
        a.poll().unwrap();
        b.poll().unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
}
