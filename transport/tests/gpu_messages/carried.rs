//! What is carried, from where to where, and beside what else.

use qpair_fake_ibverbs::control::Device;
use qpair_transport::{Config, Event, Flow, HandlerId, Payload, Returned, Source, StreamEnd, Tag, Worker};
use qpair_verbs::calc::{Calc, DataType, ReduceOp};
use qpair_verbs::{Access, Local};

use super::*;

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
            let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 1 && of_b.len() == 1);
            assert!(came(of_b) == [words(7)], "{count} words");
        }
        // Memory of the processor, of which the device combines by itself.
        let mut own = pair.b.domain().alloc(4 * count).unwrap();
        own.copy_from_slice(&words(3));
        pair.b.recv_into(pair.ep_b, Tag(1), own, Some(sum)).unwrap();
        pair.a.send(pair.ep_a, Tag(1), filled(gpu, &words(4))).unwrap();
        let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 1 && of_b.len() == 1);
        assert!(came(of_b) == [words(7)], "{count} words");
    }
}

#[test]
fn messages_of_every_kind_come_from_a_gpu() {
    let (gpu, fake) = gpu();
    let mut pair = Pair::new();
    let bytes = pattern(LONG, 5);
    // Without a receive, it is read into memory of the worker's own.
    pair.a.send(pair.ep_a, Tag(9), filled(gpu, &bytes)).unwrap();
    let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 1 && of_b.len() == 1);
    assert!(received(&of_b)[0].1[..] == bytes);
    // As it is, for a receive.
    pair.b.recv(pair.ep_b, Tag(9)).unwrap();
    pair.a.send(pair.ep_a, Tag(9), filled(gpu, &bytes)).unwrap();
    let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 1 && of_b.len() == 1);
    assert!(matches!(&of_b[0], Event::Matched { message, .. } if message[..] == bytes));
    drop(of_b);
    // A stream's parts stay in order, though short ones are copied.
    let stream = pair.a.open_stream(pair.ep_a).unwrap();
    pair.a.stream_send(stream, filled(gpu, &bytes)).unwrap();
    pair.a.stream_finish(stream, filled(gpu, &bytes[..70])).unwrap();
    let over = |event: &Event| matches!(event, Event::StreamEnded { end: StreamEnd::Finished, .. });
    let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 2 && count(of_b, over) == 1);
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
    let (more, _) = pair.until(|of_a, of_b| count(of_a, answered) == 1 && count_sent(of_b) == 1);
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
    let (of_a, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 50 && of_b.len() == 50);
    for (at, (tag, message)) in received(&of_b).into_iter().enumerate() {
        assert!(tag == Tag(at as u64) && message[..] == pattern(200, at));
    }
    assert!(of_a.iter().all(|event| matches!(event, Event::Sent { payload: Payload::Gpu(_), .. })));
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
    if is_real() {
        return;
    }
    on_a_fake(|| {
        let (gpu, _) = gpu();
        let nic = Device::new(FAKE).unwrap();
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
            let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 3 && count(of_b, is_into) == 3);
            assert!(came(of_b).iter().all(|got| *got == bytes));
        }
        drop(pair);
        assert_eq!(nic.violations(), "");
    });
}

#[test]
fn a_worker_that_may_sleep_goes_on_as_a_gpu_copies() {
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
