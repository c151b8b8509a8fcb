//! Messages out of memory of GPUs that no domain has, and into it, by slots.
//!
//! They run on a CUDA driver in memory, whose device memory faults where the processor touches it, each test with GPUs of its own;
//! with `QPAIR_TEST_GPU=1` those that need no driver that fails run on the first GPU of this machine.

mod support;

use std::time::Duration;

use qpair_fake_cuda::{code, control};
use qpair_transport::{
    CloseReason, Config, Event, Flow, HandlerId, OneSidedFailure, OpError, OpId, Payload, RecvFailure, Returned,
    SendFailure, Source, StreamEnd, Tag, Unmatched, Worker,
};
use qpair_verbs::calc::{Calc, Combine, DataType, ReduceOp, UserOp};
use qpair_verbs::{Access, Gpu, GpuBuffer, Local, MemoryError, PostError};
use support::*;

/// Longer than all slots of a direction together, and no whole number of them.
const LONG: usize = (5 << 20) + 4321;

/// A GPU, and what steers it if it is one in memory.
fn gpu() -> (Gpu, Option<control::Device>) {
    if std::env::var_os("QPAIR_TEST_GPU").is_some() {
        return (Gpu::open(0).expect("a GPU"), None);
    }
    let fake = control::add_device().expect("the library is built beside the tests");
    (Gpu::open(fake.ordinal() as usize).expect("a GPU"), Some(fake))
}

fn filled(gpu: Gpu, bytes: &[u8]) -> GpuBuffer {
    let mut buffer = gpu.alloc(bytes.len()).expect("memory");
    buffer.write(0, bytes).expect("its own memory");
    buffer
}

fn contents(buffer: &GpuBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).expect("its own memory");
    bytes
}

/// An operation of the program's own.
struct Last;

impl Combine for Last {
    type Element = u32;
    const NAME: &'static str = "last";
    fn combine(_: u32, b: u32) -> u32 {
        b
    }
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

/// What a failed operation gives back, whose error is that.
fn failed(event: Event, of: OpId, with: &OpError) -> Returned {
    match event {
        Event::Failed { op, error, returned, .. } => {
            assert_eq!((op, &error), (of, with));
            returned
        }
        other => panic!("{}", brief(&other)),
    }
}

#[test]
fn bytes_go_between_gpus_and_the_processor_whatever_their_length() {
    let ((one, fake), (other, other_fake)) = (gpu(), gpu());
    let mut pair = Pair::new();
    for (seed, len) in [1, 100, 4096, 65_537, 512 << 10, (512 << 10) + 1, LONG].into_iter().enumerate() {
        let bytes = pattern(len, seed);
        // From a GPU to another, to the processor, and from there; with room to spare.
        let processor = pair.b.domain().alloc(len).unwrap();
        pair.b.recv_into(pair.ep_b, Tag(1), other.alloc(len + 7).unwrap(), None).unwrap();
        pair.b.recv_into(pair.ep_b, Tag(2), processor, None).unwrap();
        pair.b.recv_into(Source::Any, Tag(3), other.alloc(len).unwrap(), None).unwrap();
        pair.a.send(pair.ep_a, Tag(1), filled(one, &bytes)).unwrap();
        pair.a.send(pair.ep_a, Tag(2), filled(one, &bytes)).unwrap();
        pair.a.send(pair.ep_a, Tag(3), bytes.clone()).unwrap();
        let (of_a, of_b) = pair.until(|of_a, of_b| count(of_a, is_sent) == 3 && count(of_b, is_into) == 3);
        for got in came(of_b) {
            assert!(got == bytes, "{len} bytes");
        }
        let backs = of_a.into_iter().filter_map(|event| match event {
            Event::Sent { payload: Payload::Gpu(buffer), .. } => Some(contents(&buffer)),
            _ => None,
        });
        let backs: Vec<_> = backs.collect();
        assert!(backs.len() == 2 && backs.iter().all(|back| *back == bytes), "{len} bytes come back");
    }
    drop(pair);
    tidy(fake);
    tidy(other_fake);
}

#[test]
fn a_message_is_combined_with_what_a_gpu_has() {
    let (gpu, _) = gpu();
    let sum = Calc::new(DataType::U32, ReduceOp::Sum).unwrap();
    let mut pair = Pair::new();
    for count in [3, 200_000, LONG / 4] {
        let words = |factor: u32| (0..count as u32).flat_map(|at| (at * factor).to_le_bytes()).collect::<Vec<u8>>();
        for from_gpu in [false, true] {
            pair.b.recv_into(pair.ep_b, Tag(1), filled(gpu, &words(3)), Some(sum)).unwrap();
            let payload: Payload = if from_gpu { filled(gpu, &words(4)).into() } else { words(4).into() };
            pair.a.send(pair.ep_a, Tag(1), payload).unwrap();
            let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 1 && of_b.len() == 1);
            assert!(came(of_b) == [words(7)], "{count} words");
        }
        // Memory of the processor, of which the device combines by itself.
        let mut own = pair.b.domain().alloc(4 * count).unwrap();
        own.copy_from_slice(&words(3));
        pair.b.recv_into(pair.ep_b, Tag(1), own, Some(sum)).unwrap();
        pair.a.send(pair.ep_a, Tag(1), filled(gpu, &words(4))).unwrap();
        let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 1 && of_b.len() == 1);
        assert!(came(of_b) == [words(7)], "{count} words");
    }
}

fn count_of(events: &[Event]) -> usize {
    count(events, is_sent)
}

#[test]
fn messages_of_every_kind_come_from_a_gpu() {
    let (gpu, fake) = gpu();
    let mut pair = Pair::new();
    let bytes = pattern(LONG, 5);
    // Without a receive, it is read into memory of the worker's own.
    pair.a.send(pair.ep_a, Tag(9), filled(gpu, &bytes)).unwrap();
    let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 1 && of_b.len() == 1);
    assert!(received(&of_b)[0].1[..] == bytes);
    // As it is, for a receive.
    pair.b.recv(pair.ep_b, Tag(9)).unwrap();
    pair.a.send(pair.ep_a, Tag(9), filled(gpu, &bytes)).unwrap();
    let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 1 && of_b.len() == 1);
    assert!(matches!(&of_b[0], Event::Matched { message, .. } if message[..] == bytes));
    drop(of_b);
    // A stream's parts stay in order, though short ones are copied.
    let stream = pair.a.open_stream(pair.ep_a).unwrap();
    pair.a.stream_send(stream, filled(gpu, &bytes)).unwrap();
    pair.a.stream_finish(stream, filled(gpu, &bytes[..70])).unwrap();
    let over = |event: &Event| matches!(event, Event::StreamEnded { end: StreamEnd::Finished, .. });
    let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 2 && count(of_b, over) == 1);
    let parts = of_b.iter().filter_map(|event| match event {
        Event::StreamData { message, .. } => Some(&message[..]),
        _ => None,
    });
    assert!(parts.eq([&bytes[..], &bytes[..70]]));
    drop(of_b);
    // A request and its answer.
    let op = pair.a.request(pair.ep_a, HandlerId(3), filled(gpu, &bytes)).unwrap();
    let asked = |event: &Event| matches!(event, Event::Request(_));
    let (mut of_a, mut of_b) = pair.until(|_, of_b| count(of_b, asked) == 1);
    let Event::Request(request) = of_b.remove(0) else { panic!("{}", brief(&of_b[0])) };
    assert!(request.message[..] == bytes);
    pair.b.respond(request.reply, filled(gpu, &bytes[..LONG - 1])).unwrap();
    let answered = |event: &Event| matches!(event, Event::Response { .. });
    let (more, _) = pair.until(|of_a, of_b| count(of_a, answered) == 1 && count_of(of_b) == 1);
    of_a.extend(more);
    match &of_a[..] {
        [Event::Response { op: of, message, returned: Returned::Payload(Payload::Gpu(_)), .. }] => {
            assert!(*of == op && message[..] == bytes[..LONG - 1]);
        }
        other => panic!("{:?}", other.iter().map(brief).collect::<Vec<_>>()),
    }
    drop((of_a, request.message, pair));
    tidy(fake);
}

#[test]
fn a_message_that_waits_for_memory_is_not_passed_by_what_waits_behind_it() {
    let (gpu, fake) = gpu();
    let config = || Config::default().pool_limit(1 << 20);
    for order in [[600_000, 100_000], [100_000, 600_000], [600_000, 600_001]] {
        let mut pair = Pair::with(config(), config());
        for round in 0..4 {
            for (at, len) in order.into_iter().enumerate() {
                let bytes = pattern(len, at);
                let payload: Payload = if at == 0 { filled(gpu, &bytes).into() } else { bytes.into() };
                pair.a.send(pair.ep_a, Tag(7), payload).unwrap();
            }
            pair.a.send(pair.ep_a, Tag(7), filled(gpu, &pattern(order[0], 2))).unwrap();
            let (mut seen, mut gone, start) = (0, 0, std::time::Instant::now());
            while seen < 3 || gone < 3 {
                if let Some(event) = pair.a.poll().unwrap() {
                    assert!(is_sent(&event), "{}", brief(&event));
                    gone += 1;
                }
                // Each is dropped at once, and its memory free again.
                if let Some(Event::Received { message, .. }) = pair.b.poll().unwrap() {
                    assert!(message[..] == pattern([order[0], order[1], order[0]][seen], seen), "round {round}");
                    seen += 1;
                }
                assert!(start.elapsed() < LIMIT, "{order:?}: {seen} came in round {round}");
            }
        }
    }
    tidy(fake);
}

#[test]
fn many_messages_at_once_share_the_slots_and_stay_in_order() {
    const COUNT: usize = 40;
    let (gpu, fake) = gpu();
    let mut pair = Pair::new();
    pair.a.prepare_gpu(gpu).unwrap();
    let lens: Vec<_> = (0..COUNT).map(|at| [50, 70_000, 1_500_000][at % 3] + at).collect();
    // Both ways at once, of one tag.
    for (at, &len) in lens.iter().enumerate() {
        pair.a.recv_into(pair.ep_a, Tag(4), gpu.alloc(len).unwrap(), None).unwrap();
        pair.b.recv_into(pair.ep_b, Tag(4), gpu.alloc(len).unwrap(), None).unwrap();
        pair.a.send(pair.ep_a, Tag(4), filled(gpu, &pattern(len, at))).unwrap();
        pair.b.send(pair.ep_b, Tag(4), filled(gpu, &pattern(len, at + 1))).unwrap();
    }
    let (of_a, of_b) = pair.until(|of_a, of_b| of_a.len() == 2 * COUNT && of_b.len() == 2 * COUNT);
    for (events, shift) in [(of_a, 1), (of_b, 0)] {
        for (at, got) in came(events).into_iter().enumerate() {
            assert!(got == pattern(lens[at], at + shift), "message {at}");
        }
    }
    drop(pair);
    tidy(fake);
}

#[test]
fn a_peer_that_does_not_poll_holds_up_no_other() {
    let (gpu, _) = gpu();
    let [mut a, mut late, mut other] = [(); 3].map(|()| Worker::new(Config::default()).unwrap());
    let (to_late, late_ep) = Pair::connect(&mut a, &mut late);
    let (to_other, other_ep) = Pair::connect(&mut a, &mut other);
    let bytes = pattern(LONG, 1);
    late.recv_into(late_ep, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(to_late, Tag(1), filled(gpu, &bytes)).unwrap();
    other.recv_into(other_ep, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
    // The first says that it wants it, and then nothing: all that it can have is filled for it.
    let mut all = Vec::new();
    for _ in 0..20 {
        all.extend(a.poll().unwrap());
        all.extend(late.poll().unwrap());
        if a.explain(to_late).is_some_and(|now| now.offered > 1) {
            break;
        }
    }
    (0..200).for_each(|_| all.extend(a.poll().unwrap()));
    assert_eq!(count(&all, is_into), 0, "it polls no more");
    a.send(to_other, Tag(1), filled(gpu, &bytes)).unwrap();
    let start = std::time::Instant::now();
    while count(&all, is_into) == 0 {
        all.extend(a.poll().unwrap());
        all.extend(other.poll().unwrap());
        assert!(start.elapsed() < LIMIT, "it is held up");
    }
    while count(&all, is_into) < 2 {
        all.extend(a.poll().unwrap());
        all.extend(late.poll().unwrap());
        all.extend(other.poll().unwrap());
        assert!(start.elapsed() < LIMIT, "it never comes");
    }
    assert!(came(all).iter().all(|got| *got == bytes));
}

#[test]
fn what_waits_for_room_is_copied_at_once_and_comes_back_as_it_was() {
    let (gpu, _) = gpu();
    let mut pair = Pair::with(Config::default().window(4), Config::default().window(4));
    for at in 0..50 {
        pair.a.send(pair.ep_a, Tag(at), filled(gpu, &pattern(200, at as usize))).unwrap();
    }
    let (of_a, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 50 && of_b.len() == 50);
    for (at, (tag, message)) in received(&of_b).into_iter().enumerate() {
        assert!(tag == Tag(at as u64) && message[..] == pattern(200, at));
    }
    assert!(of_a.iter().all(|event| matches!(event, Event::Sent { payload: Payload::Gpu(_), .. })));
}

#[test]
fn a_close_waits_for_what_was_sent_and_for_what_is_read_after_it() {
    let (gpu, fake) = gpu();
    for receiver_closes in [false, true] {
        let Pair { mut a, mut b, ep_a, ep_b } = Pair::new();
        let bytes = pattern(LONG, 2);
        b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
        a.send(ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
        if receiver_closes {
            b.close(ep_b)
        } else {
            a.close(ep_a)
        }
        let mut pair = Pair { a, b, ep_a, ep_b };
        let (of_a, of_b) = pair.until(|of_a, of_b| count(of_a, is_closed) == 1 && count(of_b, is_closed) == 1);
        assert_eq!(count_of(&of_a), 1);
        assert!(came(of_b) == [bytes]);
    }
    tidy(fake);
}

#[test]
fn a_send_can_be_taken_back_until_the_peer_wants_it() {
    let (gpu, _) = gpu();
    let hold = || Config::default().unmatched(Unmatched::Hold);
    let mut pair = Pair::with(hold(), hold());
    let bytes = pattern(LONG, 3);
    let op = pair.a.send(pair.ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
    pair.until(|_, of_b| count(of_b, |event| matches!(event, Event::Offered { .. })) == 1);
    assert!(pair.a.cancel(op));
    let (mut of_a, _) = pair.until(|of_a, _| of_a.len() == 1);
    let returned = failed(of_a.remove(0), op, &OpError::Cancelled);
    assert!(matches!(returned, Returned::Payload(Payload::Gpu(buffer)) if contents(&buffer) == bytes));
}

#[test]
fn a_receive_whose_time_is_over_ends_in_the_middle_and_the_next_message_comes() {
    let (gpu, Some(fake)) = gpu() else { return };
    let Pair { mut a, mut b, ep_a, ep_b } = Pair::new();
    let op = b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(ep_a, Tag(1), filled(gpu, &pattern(LONG, 4))).unwrap();
    // The peer wants it, and the sender's GPU fills no slot.
    fake.hold().unwrap();
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        of_a.extend(a.poll().unwrap());
        of_b.extend(b.poll().unwrap());
    }
    assert!(!b.cancel(op), "it is being read");
    b.set_deadline(op, Duration::ZERO);
    let start = std::time::Instant::now();
    while of_b.len() < 2 {
        of_b.extend(b.poll().unwrap());
        assert!(start.elapsed() < LIMIT);
    }
    fake.let_go().unwrap();
    let over = of_b.remove(0);
    assert!(matches!(failed(over, op, &OpError::TimedOut), Returned::Withheld));
    let back = of_b.remove(0);
    assert!(matches!(back, Event::Released { op: of, returned: Returned::Memory(Local::Gpu(_)) } if of == op));
    let bytes = pattern(LONG, 6);
    b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
    let mut pair = Pair { a, b, ep_a, ep_b };
    let (more, of_b) = pair.until(|more, of_b| count_of(&of_a) + count_of(more) == 2 && of_b.len() == 1);
    assert!(came(of_b) == [bytes]);
    drop((of_a, more, back, pair));
    tidy(Some(fake));
}

#[test]
fn the_end_of_a_connection_gives_all_back_whatever_is_under_way() {
    let (gpu, fake) = gpu();
    for polls in (0..40).step_by(4).chain([70, 120, 250]) {
        for aborts in [0, 1] {
            let mut pair = Pair::new();
            pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(2), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.a.send(pair.ep_a, Tag(1), filled(gpu, &pattern(LONG, 7))).unwrap();
            pair.a.send(pair.ep_a, Tag(2), pattern(LONG, 8)).unwrap();
            let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
            for _ in 0..polls {
                of_a.extend(pair.a.poll().unwrap());
                of_b.extend(pair.b.poll().unwrap());
            }
            if aborts == 0 {
                pair.a.abort(pair.ep_a)
            } else {
                pair.b.abort(pair.ep_b)
            }
            let (more, rest) = pair.until(|more, rest| count(more, is_closed) + count(rest, is_closed) == 2);
            of_a.extend(more);
            of_b.extend(rest);
            let ends = |events: &[Event]| count(events, |event| event.op().is_some());
            let all = || [&of_a, &of_b].map(|events| events.iter().map(brief).collect::<Vec<_>>());
            assert_eq!((ends(&of_a), ends(&of_b)), (2, 2), "after {polls} polls: {:?}", all());
            let held = |event: &Event| matches!(event, Event::Failed { returned: Returned::Withheld, .. });
            assert_eq!(count(&of_a, held) + count(&of_b, held), 0, "after {polls} polls");
            // The slots are free again, for all that others send.
            let (ep_a, ep_b) = Pair::connect(&mut pair.a, &mut pair.b);
            let bytes = pattern(LONG, 9);
            pair.b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.a.send(ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
            let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 1 && count(of_b, is_into) == 1);
            assert!(came(of_b) == [bytes], "after {polls} polls");
        }
    }
    tidy(fake);
}

#[test]
fn a_gpu_that_fails_ends_the_connection_of_what_it_sends_and_the_receive_of_what_it_takes() {
    // Of what is sent: the peer waits for it.
    let ((bad, Some(fake)), (good, _)) = (gpu(), gpu()) else { return };
    let mut pair = Pair::new();
    pair.a.prepare_gpu(bad).unwrap();
    let op = pair.a.send(pair.ep_a, Tag(1), filled(bad, &pattern(LONG, 1))).unwrap();
    fake.fail("cuMemcpyAsync", 3, code::ECC_UNCORRECTABLE).unwrap();
    pair.b.recv_into(pair.ep_b, Tag(1), good.alloc(LONG).unwrap(), None).unwrap();
    let (of_a, of_b) = pair.until(|of_a, of_b| count(of_a, is_closed) == 1 && count(of_b, is_closed) == 1);
    let why = of_a.iter().find_map(|event| match event {
        Event::Closed { reason: CloseReason::Resources(error), .. } => Some(error.to_string()),
        _ => None,
    });
    assert!(why.is_some_and(|why| why.contains("GPU")), "{:?}", of_a.iter().map(brief).collect::<Vec<_>>());
    let gone = |event: &Event| matches!(event, Event::Failed { error: OpError::Closed, .. });
    assert_eq!((count(&of_a, |event| gone(event) && event.op() == Some(op)), count(&of_b, gone)), (1, 1));
    // Of what is received: the message is lost, and those after it come.
    let ((bad, Some(fake)), mut pair) = (gpu(), Pair::new()) else { return };
    let op = pair.b.recv_into(pair.ep_b, Tag(1), bad.alloc(LONG).unwrap(), None).unwrap();
    pair.a.send(pair.ep_a, Tag(1), filled(good, &pattern(LONG, 1))).unwrap();
    fake.fail("cuMemcpyAsync", 3, code::ECC_UNCORRECTABLE).unwrap();
    let (_, mut of_b) = pair.until(|of_a, of_b| count_of(of_a) == 1 && of_b.len() == 1);
    match of_b.remove(0) {
        Event::Failed { op: of, error: OpError::Memory(why), returned: Returned::Memory(Local::Gpu(_)), .. } => {
            assert_eq!(of, op);
            assert!(why.contains("GPU"), "{why}");
        }
        other => panic!("{}", brief(&other)),
    }
    pair.b.recv_into(pair.ep_b, Tag(1), good.alloc(LONG).unwrap(), None).unwrap();
    pair.a.send(pair.ep_a, Tag(1), filled(good, &pattern(LONG, 2))).unwrap();
    let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 1 && of_b.len() == 1);
    assert!(came(of_b) == [pattern(LONG, 2)]);
}

#[test]
fn what_can_not_be_is_refused_with_its_memory() {
    let (gpu, Some(fake)) = gpu() else { return };
    let mut pair = Pair::new();
    let calc = Calc::of::<u32>(ReduceOp::User(UserOp::of::<Last>()));
    let refused = pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(64).unwrap(), Some(calc)).unwrap_err();
    assert!(matches!((refused.error, refused.memory), (RecvFailure::Form(_), Local::Gpu(_))));
    // Memory for the slots.
    fake.fail("cuMemHostRegister_v2", 1, code::OUT_OF_MEMORY).unwrap();
    let refused = pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(64).unwrap(), None).unwrap_err();
    match (refused.error, refused.memory) {
        (RecvFailure::NoSlots(why), Local::Gpu(_)) => assert!(why.contains("memory"), "{why}"),
        (error, _) => panic!("{error}"),
    }
    fake.fail("cuMemHostRegister_v2", 1, code::OUT_OF_MEMORY).unwrap();
    let refused = pair.a.send(pair.ep_a, Tag(1), gpu.alloc(LONG).unwrap()).unwrap_err();
    assert!(matches!(refused.error, SendFailure::Memory(MemoryError::Gpu(_))), "{}", refused.error);
    assert!(matches!(refused.payload, Payload::Gpu(_)));
    // More than there is.
    let region = pair.a.domain().expose(65, Access::REMOTE_WRITE).unwrap();
    let refused = pair.a.put(pair.ep_a, gpu.alloc(64).unwrap(), region.remote(0..65)).unwrap_err();
    assert_eq!(refused.error, PostError::Range { start: 0, end: 65, len: 64 }.into());
    let refused = pair.a.get(pair.ep_a, region.remote(0..65), gpu.alloc(64).unwrap(), None).unwrap_err();
    assert_eq!(refused.error, PostError::Range { start: 0, end: 65, len: 64 }.into());
    // A GPU that fails.
    let memory = gpu.alloc(64).unwrap();
    fake.fail("cuMemcpyDtoH_v2", 1, code::ECC_UNCORRECTABLE).unwrap();
    fake.fail("cuMemcpyAsync", 1, code::ECC_UNCORRECTABLE).unwrap();
    let refused = pair.a.put(pair.ep_a, memory, region.remote(0..64)).unwrap_err();
    assert!(matches!((refused.error, refused.memory), (OneSidedFailure::Memory(_), Local::Gpu(_))));
}

#[test]
fn gets_go_into_a_gpu_and_puts_out_of_it() {
    let (gpu, _) = gpu();
    let mut pair = Pair::new();
    let region = pair.b.domain().expose(100_000, Access::REMOTE_READ).unwrap();
    let bytes = pattern(100_000, 3);
    region.write(0, &bytes).unwrap();
    let remote = pair.b.remote(&region, 0..100_000);
    pair.a.get(pair.ep_a, remote, gpu.alloc(100_000).unwrap(), None).unwrap();
    let (mut of_a, _) = pair.until(|of_a, _| of_a.len() == 1);
    let Event::Got { memory: Local::Gpu(buffer), .. } = of_a.remove(0) else { panic!("{}", brief(&of_a[0])) };
    assert!(contents(&buffer) == bytes);
    let target = pair.b.domain().expose(99_999, Access::REMOTE_WRITE).unwrap();
    let remote = pair.b.remote(&target, 0..99_999);
    pair.a.put(pair.ep_a, buffer, remote).unwrap();
    let (mut of_a, _) = pair.until(|of_a, _| of_a.len() == 1);
    let Event::Put { memory: Local::Gpu(buffer), .. } = of_a.remove(0) else { panic!("{}", brief(&of_a[0])) };
    let mut there = vec![0; 99_999];
    target.read(0, &mut there).unwrap();
    assert!(there[..] == bytes[..99_999] && contents(&buffer) == bytes);
}

/// On a NIC that is told of no memory of GPUs, in a process of its own.
#[test]
fn a_nic_that_reaches_no_gpu_carries_its_messages() {
    on_a_fake(|| {
        let (gpu, Some(_)) = gpu() else { return };
        let nic = qpair_fake_ibverbs::control::Device::new(FAKE).unwrap();
        nic.set("dmabuf", 0).unwrap();
        let config = || Config::default().device(FAKE);
        let mut pair = Pair::with(config(), config());
        assert!(!pair.a.domain().reaches_gpus());
        let bytes = pattern(LONG, 2);
        for _ in 0..2 {
            let own = pair.b.domain().alloc(LONG).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(1), own, None).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.a.send(pair.ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
            pair.a.send(pair.ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
            pair.a.send(pair.ep_a, Tag(1), bytes.clone()).unwrap();
            let (_, of_b) = pair.until(|of_a, of_b| count_of(of_a) == 3 && count(of_b, is_into) == 3);
            assert!(came(of_b).iter().all(|got| *got == bytes));
        }
        drop(pair);
        assert_eq!(nic.violations(), "");
    });
}

#[test]
fn a_worker_sleeps_while_a_gpu_copies_and_wakes_when_it_is_done() {
    let (gpu, _) = gpu();
    let bytes = pattern(LONG, 4);
    let mut worker = Worker::new(Config::default()).unwrap();
    let server = worker.listen("127.0.0.1:0").unwrap();
    let ep = worker.connect(server.local_addr()).unwrap();
    worker.recv_into(Source::Any, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
    worker.send(ep, Tag(1), filled(gpu, &bytes)).unwrap();
    let (mut got, mut sent) = (None, false);
    worker
        .run(|event, _| {
            match event {
                Event::ReceivedInto { memory, len, .. } => got = Some(first(memory, len)),
                Event::Sent { .. } => sent = true,
                _ => {}
            }
            if got.is_some() && sent { Flow::Stop } else { Flow::Continue }
        })
        .unwrap();
    assert!(got == Some(bytes));
}
