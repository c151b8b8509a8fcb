//! Messages between two workers of one process: every size and form, order, credits, memory.

mod support;

use bytes::Bytes;
use qpair_transport::{
    Config, Event, Misfit, OpError, Payload, Rail, RecvFailure, Returned, SendCopyError, SendFailure, Tag, Unmatched,
    Worker,
};
use qpair_verbs::calc::{Calc, ReduceOp};
use qpair_verbs::{Access, Local};
use support::*;

const RAGGED: [usize; 16] =
    [0, 1, 7, 8, 33, 188, 189, 220, 4095, 8191, 8192, 8193, 12_345, 65_537, (1 << 20) + 3, (4 << 20) - 1];

#[test]
fn every_size_arrives_as_it_was_both_ways() {
    // Which are copied is said, not measured, so that they can be counted.
    let config = || Config::default().eager_threshold(8192);
    every_size(Pair::with(config(), config()));
    let shared = || config().shared_receives(2, 64);
    every_size(Pair::with(shared(), shared()));
    // Twice the same way: what is long is cut all the same.
    let rails = || config().rails([Rail::port(1), Rail::port(1)]);
    every_size(Pair::with(rails(), rails()));
}

/// All of a window is for messages that the other side has not polled, from whatever queue they take their receives.
#[test]
fn a_window_is_used_before_anything_is_polled() {
    let config = || Config::default().window(1000).shared_receives(1000, 0).endpoints(1);
    let mut pair = Pair::with(config(), config());
    for number in 0..1000 {
        pair.a.send(pair.ep_a, Tag(number), vec![number as u8; 50]).unwrap();
    }
    let flush = pair.a.flush(pair.ep_a).unwrap();
    loop {
        match next(&mut pair.a) {
            Event::Flushed { op, .. } if op == flush => break,
            Event::Sent { .. } => {}
            other => panic!("{}", brief(&other)),
        }
    }
    let (_, of_b) = pair.until(|_, b| received(b).len() == 1000);
    for (number, (tag, message)) in (0..).zip(received(&of_b)) {
        assert!(tag == Tag(number) && *message == vec![number as u8; 50], "{tag}");
    }
}

fn every_size(mut pair: Pair) {
    for (seed, len) in RAGGED.into_iter().enumerate() {
        pair.a.send(pair.ep_a, Tag(seed as u64), pattern(len, seed)).unwrap();
        pair.b.send(pair.ep_b, Tag(seed as u64), pattern(len, seed + 100)).unwrap();
    }
    let all = |events: &[Event]| received(events).len() == RAGGED.len() && sent(events).len() == RAGGED.len();
    let (of_a, of_b) = pair.until(|a, b| all(a) && all(b));
    for (events, offset) in [(&of_b, 0), (&of_a, 100)] {
        for (tag, message) in received(events) {
            let seed = tag.0 as usize;
            assert!(message == &pattern(RAGGED[seed], seed + offset), "tag {tag}");
        }
    }
    for (op, payload) in sent(&of_a) {
        assert!(matches!(payload, Payload::Bytes(_)), "{op} hands back what was sent");
    }
    let counters = pair.b.counters();
    assert_eq!((counters.eager_received, counters.rendezvous_received), (11, 5));
}

#[test]
fn buffers_come_back_and_messages_land_in_any_memory() {
    for len in [100, 8192, 8196, 1 << 20] {
        let mut pair = Pair::new();
        let data = pattern(len, 1);
        let pd = pair.b.domain().clone();
        let region = pd.expose(len + 64, Access::REMOTE_WRITE).unwrap();
        let (half, rest) = (len / 2, len - len / 2);
        let list = vec![pd.alloc(half).unwrap(), pd.alloc(rest + 9).unwrap()];
        let memories: [Local; 4] = [
            pd.alloc(len).unwrap().into(),
            pd.alloc(len + 1).unwrap().into_slab().into(),
            list.into(),
            region.local(64..len + 64).into(),
        ];
        for memory in memories {
            let form = memory.form();
            let posted = pair.b.recv_into(pair.ep_b, Tag(3), memory, None).unwrap();
            let mut buffer = pair.a.domain().alloc(len).unwrap();
            buffer.copy_from_slice(&data);
            let send = pair.a.send(pair.ep_a, Tag(3), buffer).unwrap();
            let (of_a, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
            let [Event::Sent { op, payload: Payload::Buffer(buffer) }] = &of_a[..] else { panic!("{form}") };
            assert!(*op == send && buffer[..] == data[..], "{form}");
            let [Event::ReceivedInto { op: got, tag: Tag(3), memory, len: came, .. }] = &of_b[..] else {
                panic!("{}", brief(&of_b[0]))
            };
            assert_eq!((*got, *came), (posted, len));
            let bytes = match memory {
                Local::Buffer(buffer) => buffer[..len].to_vec(),
                Local::Slab(slab) => slab[..len].to_vec(),
                Local::List(list) => [&list[0][..], &list[1][..rest]].concat(),
                Local::Region(_) => {
                    let mut bytes = vec![0; len];
                    region.read(64, &mut bytes).unwrap();
                    bytes
                }
                other => panic!("{}", other.form()),
            };
            assert!(bytes == data, "{form} of {len}");
        }
    }
}

#[test]
fn reductions_are_fused_with_the_receive() {
    // 12,000 bytes do not fit the eager limit, 1,200 do.
    for count in [300, 3000] {
        let mut pair = Pair::new();
        let ones: Vec<u8> = (0..count).flat_map(|at| (at as f32).to_ne_bytes()).collect();
        let source = pair.a.domain().expose(ones.len(), Access::REMOTE_READ).unwrap();
        source.write(0, &ones).unwrap();
        let target = pair.b.domain().expose(ones.len(), Access::REMOTE_READ).unwrap();
        target.write(0, &ones).unwrap();
        let sum = Some(Calc::of::<f32>(ReduceOp::Sum));
        for round in 0..2 {
            pair.b.recv_into(pair.ep_b, Tag(1), target.local(0..ones.len()), sum).unwrap();
            if round == 0 {
                pair.a.send(pair.ep_a, Tag(1), source.remote(0..ones.len())).unwrap();
            } else {
                pair.a.send(pair.ep_a, Tag(1), ones.clone()).unwrap();
            }
            let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
            assert!(matches!(&of_b[..], [Event::ReceivedInto { memory: Local::Region(_), .. }]), "{}", brief(&of_b[0]));
        }
        let mut bytes = vec![0; ones.len()];
        target.read(0, &mut bytes).unwrap();
        for (at, sum) in bytes.chunks(4).enumerate() {
            assert_eq!(f32::from_ne_bytes(sum.try_into().unwrap()), 3.0 * at as f32);
        }
    }
}

#[test]
fn a_message_that_does_not_fit_is_delivered_and_the_receive_fails() {
    for (len, calc) in [(100, None), (10_000, None), (30, Some(Calc::of::<f64>(ReduceOp::Sum)))] {
        let mut pair = Pair::new();
        let memory = pair.b.domain().alloc(80).unwrap();
        let op = pair.b.recv_into(pair.ep_b, Tag(1), memory, calc).unwrap();
        pair.a.send(pair.ep_a, Tag(1), pattern(len, 5)).unwrap();
        let (_, of_b) = pair.until(|_, b| b.len() == 2);
        let misfit = match calc {
            None => Misfit::TooLong { len: len as u64, room: 80 },
            Some(calc) => Misfit::Partial { len: len as u64, calc },
        };
        match &of_b[0] {
            Event::Failed { op: failed, error, returned: Returned::Memory(Local::Buffer(_)), .. } => {
                assert_eq!((*failed, error), (op, &OpError::Misfit(misfit)));
            }
            other => panic!("{}", brief(other)),
        }
        assert!(received(&of_b)[0].1 == &pattern(len, 5));
    }
}

#[test]
fn messages_of_one_tag_keep_their_order_whatever_their_length() {
    let mut pair = Pair::new();
    let lengths: Vec<usize> = (0..60).map(|at| [10, 20_000, 300, 9000, 1][at % 5]).collect();
    for (at, len) in lengths.iter().enumerate() {
        if at % 3 == 0 {
            let memory = pair.b.domain().alloc(20_000).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(9), memory, None).unwrap();
        }
        pair.a.send(pair.ep_a, Tag(9), pattern(*len, at)).unwrap();
    }
    let (_, of_b) = pair.until(|_, b| b.len() == lengths.len());
    for (at, event) in of_b.iter().enumerate() {
        let data = pattern(lengths[at], at);
        match event {
            Event::Received { message, .. } => assert!(at >= 20 && message == &data, "message {at}"),
            Event::ReceivedInto { memory: Local::Buffer(buffer), len, .. } => {
                assert!(at < 20 && buffer[..*len] == data[..], "message {at}");
            }
            other => panic!("{}", brief(other)),
        }
    }
}

#[test]
fn without_credit_a_copy_is_refused_and_a_send_waits() {
    let config = || Config::default().window(3).queue_limit(5);
    let mut pair = Pair::with(config(), config());
    for _ in 0..3 {
        pair.a.send_copy(pair.ep_a, Tag(1), b"abc").unwrap();
    }
    assert_eq!(pair.a.send_copy(pair.ep_a, Tag(1), b"abc"), Err(SendCopyError::WouldBlock));
    let too_long = SendCopyError::TooLong { len: 8193, limit: 8192 };
    assert_eq!(pair.a.send_copy(pair.ep_a, Tag(1), &[0; 8193]), Err(too_long));
    for _ in 0..5 {
        pair.a.send(pair.ep_a, Tag(1), &b"def"[..]).unwrap();
    }
    let refused = pair.a.send(pair.ep_a, Tag(1), &b"ghi"[..]).unwrap_err();
    assert!(matches!(refused.error, SendFailure::QueueFull { limit: 5 }));
    assert!(matches!(refused.payload, Payload::Bytes(bytes) if bytes == "ghi"));
    let (of_a, of_b) = pair.until(|a, b| a.len() == 5 && b.len() == 8);
    assert_eq!((sent(&of_a).len(), received(&of_b).len()), (5, 8));
    let order: Vec<_> = received(&of_b).iter().map(|(_, message)| message[0]).collect();
    assert_eq!(order, *b"aaaddddd");
    assert_eq!(pair.a.counters().queued, 5);
}

#[test]
fn kept_messages_stay_as_they_are_and_the_stream_goes_on() {
    let config = || Config::default().window(8);
    kept_messages(Pair::with(config(), config()));
    kept_messages(Pair::with(config().shared_receives(8, 0), config().shared_receives(8, 0)));
    kept_messages(Pair::with(config().shared_receives(1, 20), config().shared_receives(1, 20)));
}

fn kept_messages(mut pair: Pair) {
    let mut kept = Vec::new();
    let mut count = 0;
    for at in 0..400usize {
        pair.a.send(pair.ep_a, Tag(at as u64), pattern(50 + at, at)).unwrap();
        let (_, of_b) = pair.until(|_, b| received(b).len() == 1);
        count += 1;
        if at % 10 == 0 {
            kept.extend(of_b);
        }
    }
    assert_eq!((count, kept.len()), (400, 40), "five windows of messages are kept");
    for (tag, message) in received(&kept) {
        assert!(message == &pattern(50 + tag.0 as usize, tag.0 as usize), "{tag}");
    }
    let first = received(&kept)[0].1.clone();
    drop(kept);
    let bytes: Bytes = first.slice(10..20).into();
    drop(first);
    assert_eq!(bytes, pattern(50, 0)[10..20]);
}

#[test]
fn an_application_that_keeps_everything_holds_the_sender_back_until_it_lets_go() {
    let config = || Config::default().window(4);
    let mut pair = Pair::with(config(), config());
    for at in 0..500usize {
        pair.a.send(pair.ep_a, Tag(1), pattern(40, at)).unwrap();
    }
    let mut kept = pair.until(|_, b| b.len() == 4).1;
    for _ in 0..20_000 {
        pair.a.poll().unwrap();
        kept.extend(pair.b.poll().unwrap());
    }
    assert!((4..100).contains(&kept.len()), "{} kept", kept.len());
    let mut seen = 0;
    while seen < 500 {
        for event in kept.drain(..) {
            let Event::Received { message, .. } = event else { panic!("{}", brief(&event)) };
            assert!(message == pattern(40, seen));
            seen += 1;
        }
        if seen < 500 {
            kept = pair.until(|_, b| !b.is_empty()).1;
        }
    }
}

#[test]
fn long_messages_wait_for_a_receive_where_that_is_asked_for() {
    let config = || Config::default().unmatched(Unmatched::HoldLong);
    let mut pair = Pair::with(config(), config());
    pair.a.send(pair.ep_a, Tag(1), pattern(50_000, 1)).unwrap();
    pair.a.send(pair.ep_a, Tag(1), pattern(50, 2)).unwrap();
    pair.a.send(pair.ep_a, Tag(2), pattern(60, 3)).unwrap();
    let (_, of_b) = pair.until(|_, b| b.len() == 2);
    assert!(matches!(of_b[0], Event::Offered { tag: Tag(1), len: 50_000, .. }), "{}", brief(&of_b[0]));
    assert!(matches!(of_b[1], Event::Received { tag: Tag(2), .. }), "the short one of tag 1 waits behind the long one");
    let short = pair.b.domain().alloc(100).unwrap();
    let refused = pair.b.recv_into(pair.ep_b, Tag(1), short, None).unwrap_err();
    assert_eq!(refused.error, RecvFailure::Misfit(Misfit::TooLong { len: 50_000, room: 100 }));
    let long = pair.b.domain().alloc(50_000).unwrap();
    pair.b.recv_into(pair.ep_b, Tag(1), long, None).unwrap();
    let (_, of_b) = pair.until(|_, b| b.len() == 2);
    let Event::ReceivedInto { memory: Local::Buffer(buffer), .. } = &of_b[0] else { panic!("{}", brief(&of_b[0])) };
    assert!(buffer[..] == pattern(50_000, 1)[..]);
    assert!(received(&of_b)[0].1 == &pattern(50, 2));
}

#[test]
fn long_messages_wait_for_memory_when_the_pool_is_spent() {
    let config = || Config::default().pool_limit(64 << 10);
    let mut pair = Pair::with(Config::default(), config());
    for at in 0..10 {
        pair.a.send(pair.ep_a, Tag(at), pattern(30_000, at as usize)).unwrap();
    }
    let mut kept = pair.until(|_, b| b.len() == 2).1;
    for _ in 0..20_000 {
        pair.a.poll().unwrap();
        kept.extend(pair.b.poll().unwrap());
    }
    assert_eq!(kept.len(), 2, "two blocks of 32 KiB are all");
    let mut seen = 0;
    while seen < 10 {
        for (tag, message) in received(&kept) {
            assert!(message == &pattern(30_000, tag.0 as usize));
        }
        seen += kept.len();
        kept.clear();
        if seen < 10 {
            kept = pair.until(|_, b| !b.is_empty()).1;
        }
    }
}

#[test]
fn memory_of_another_domain_fails_the_receive_alone() {
    let mut pair = Pair::new();
    let foreign = pair.a.domain().alloc(20_000).unwrap();
    let op = pair.b.recv_into(pair.ep_b, Tag(1), foreign, None).unwrap();
    pair.a.send(pair.ep_a, Tag(1), pattern(20_000, 1)).unwrap();
    let (_, of_b) = pair.until(|_, b| b.len() == 2);
    match &of_b[0] {
        Event::Failed { op: failed, error: OpError::Post(_), returned: Returned::Memory(Local::Buffer(_)), .. } => {
            assert_eq!(*failed, op);
        }
        other => panic!("{}", brief(other)),
    }
    assert!(received(&of_b)[0].1 == &pattern(20_000, 1));
}

#[test]
fn receives_that_can_not_be_are_refused() {
    let mut pair = Pair::new();
    let sum = Some(Calc::of::<f32>(ReduceOp::Sum));
    let list = vec![pair.b.domain().alloc(8).unwrap()];
    let refused = pair.b.recv_into(pair.ep_b, Tag(1), list, sum).unwrap_err();
    assert_eq!(refused.error, RecvFailure::Form("a list of buffers"));
    let slab = pair.b.domain().alloc(8).unwrap().into_slab();
    let view = slab.share(0..4);
    let refused = pair.b.recv_into(pair.ep_b, Tag(1), slab, None).unwrap_err();
    assert_eq!(refused.error, RecvFailure::StillShared);
    drop(view);
    assert!(pair.b.recv_into(pair.ep_b, Tag(1), refused.memory, None).is_ok());
}

#[test]
fn a_worker_may_talk_to_itself() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let ep = worker.connect(listener.local_addr()).unwrap();
    worker.send(ep, Tag(1), &b"before it is up"[..]).unwrap();
    worker.send(ep, Tag(2), pattern(100_000, 1)).unwrap();
    let mut seen = Vec::new();
    while received(&seen).len() < 2 || sent(&seen).len() < 2 {
        seen.push(next(&mut worker));
    }
    assert!(*received(&seen)[0].1 == b"before it is up");
    assert_eq!(count(&seen, |event| matches!(event, Event::Accepted { .. } | Event::Connected { .. })), 2);
    let text = worker.explain(ep).unwrap().to_string();
    assert!(text.contains("up to 8192 bytes copied"), "{text}");
}

#[test]
fn a_message_outlives_any_number_of_receives_that_the_device_does_not_take() {
    const RECEIVES: usize = 2000;
    const LEN: usize = 9000;
    let config = || Config::default().eager_threshold(8192).unmatched(Unmatched::HoldLong);
    let mut pair = Pair::with(config(), config());
    let pd = pair.b.domain().clone();
    // More pieces than a request takes.
    let many = pair.b.context().attributes().max_sge as usize + 1;
    for _ in 0..RECEIVES {
        let mut list: Vec<_> = (1..many).map(|_| pd.alloc(8).unwrap()).collect();
        list.push(pd.alloc(LEN).unwrap());
        pair.b.recv_into(pair.ep_b, Tag(1), list, None).unwrap();
    }
    pair.a.send(pair.ep_a, Tag(1), pattern(LEN, 4)).unwrap();
    let failed = |events: &[Event]| count(events, |event| matches!(event, Event::Failed { .. }));
    pair.until(|_, b| failed(b) == RECEIVES);
    pair.b.recv_into(pair.ep_b, Tag(1), pd.alloc(LEN).unwrap(), None).unwrap();
    let (_, of_b) =
        pair.until(|a, b| !a.is_empty() && b.iter().any(|event| matches!(event, Event::ReceivedInto { .. })));
    let Some(Event::ReceivedInto { memory: Local::Buffer(buffer), .. }) = of_b.last() else { panic!("no message") };
    assert!(buffer[..] == pattern(LEN, 4)[..]);
}

/// Long messages are read in parts, so that a sign of life is never long in coming.
#[test]
fn messages_of_many_parts_arrive_whole_in_any_memory() {
    const LEN: usize = (20 << 20) + 4104;
    let data = pattern(LEN, 3);
    let mut pair = Pair::with(Config::default().in_place(0), Config::default());
    let pd = pair.b.domain().clone();
    let region = pd.expose(LEN, Access::REMOTE_READ).unwrap();
    let list = vec![pd.alloc(5).unwrap(), pd.alloc(9 << 20).unwrap(), pd.alloc(LEN).unwrap()];
    let memories: [Option<Local>; 4] =
        [Some(pd.alloc(LEN).unwrap().into()), Some(list.into()), Some(region.local(0..LEN).into()), None];
    for memory in memories {
        let form = memory.as_ref().map_or("none", Local::form);
        if let Some(memory) = memory {
            pair.b.recv_into(pair.ep_b, Tag(1), memory, None).unwrap();
        }
        pair.a.send(pair.ep_a, Tag(1), data.clone()).unwrap();
        let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
        let bytes = match &of_b[..] {
            [Event::Received { message, .. }] => message.to_vec(),
            [Event::ReceivedInto { memory, len: LEN, .. }] => match memory {
                Local::Buffer(buffer) => buffer.to_vec(),
                Local::List(list) => {
                    let rest = LEN - list[0].len() - list[1].len();
                    [&list[0][..], &list[1][..], &list[2][..rest]].concat()
                }
                _ => {
                    let mut bytes = vec![0; LEN];
                    region.read(0, &mut bytes).unwrap();
                    bytes
                }
            },
            other => panic!("{form}: {}", brief(&other[0])),
        };
        assert!(bytes == data, "{form}");
    }
}

#[test]
fn a_reduction_of_many_parts_takes_in_each_byte_once() {
    let count: i32 = (3 << 20) + 1;
    let mut pair = Pair::new();
    let numbers: Vec<u8> = (0..count).flat_map(|at| i64::from(at).to_ne_bytes()).collect();
    let mut memory = pair.b.domain().alloc(numbers.len()).unwrap();
    memory.copy_from_slice(&numbers);
    pair.b.recv_into(pair.ep_b, Tag(1), memory, Some(Calc::of::<i64>(ReduceOp::Sum))).unwrap();
    pair.a.send(pair.ep_a, Tag(1), numbers).unwrap();
    let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    let [Event::ReceivedInto { memory: Local::Buffer(sums), .. }] = &of_b[..] else { panic!("{}", brief(&of_b[0])) };
    let doubled = |(at, sum): (usize, &[u8])| i64::from_ne_bytes(sum.try_into().unwrap()) == 2 * at as i64;
    assert!(sums.chunks(8).enumerate().all(doubled));
}
