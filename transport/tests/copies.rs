//! What is copied and what is not, counted: each way to send with each way to receive, and memory that stays registered.

mod support;

use std::sync::Arc;

use bytes::Bytes;
use qpair_transport::{Config, Event, Payload, Tag, Worker};
use qpair_verbs::{Access, ExposedRegion, Local};
use support::*;

const SHORT: usize = 1000;
const LONG: usize = 200_000;

/// A way to send a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bytes,
    Registered,
    Gather,
    Buffer,
    Exposed,
}

/// A way to receive one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Into {
    Event,
    Buffer,
    List,
}

/// A payload of that form with what `data` holds; what is exposed for it must live until it is sent.
fn payload(worker: &mut Worker, form: Form, data: &[u8]) -> (Payload, Option<ExposedRegion>) {
    let bytes = Bytes::copy_from_slice(data);
    match form {
        Form::Bytes => (bytes.into(), None),
        Form::Registered => {
            worker.register(bytes.clone()).unwrap();
            (bytes.into(), None)
        }
        Form::Gather => {
            let (third, rest) = (bytes.slice(..data.len() / 3), bytes.slice(data.len() / 3..));
            (vec![third, Bytes::new(), rest].into(), None)
        }
        Form::Buffer => {
            let mut buffer = worker.domain().alloc(data.len()).unwrap();
            buffer.copy_from_slice(data);
            (buffer.into(), None)
        }
        Form::Exposed => {
            let region = worker.domain().expose(data.len(), Access::REMOTE_READ).unwrap();
            region.write(0, data).unwrap();
            (region.remote(0..data.len()).into(), Some(region))
        }
    }
}

/// Sends `data` in one way and receives it in another. Gives what each side copied.
fn copied(pair: &mut Pair, form: Form, into: Into, data: &[u8]) -> (u64, u64) {
    let before = (pair.a.counters().bytes_copied, pair.b.counters().bytes_copied);
    let pd = pair.b.domain().clone();
    let memory: Option<Local> = match into {
        Into::Event => None,
        Into::Buffer => Some(pd.alloc(data.len()).unwrap().into()),
        Into::List => Some(vec![pd.alloc(100).unwrap(), pd.alloc(data.len()).unwrap()].into()),
    };
    if let Some(memory) = memory {
        pair.b.recv_into(pair.ep_b, Tag(1), memory, None).unwrap();
    }
    let (payload, _region) = payload(&mut pair.a, form, data);
    pair.a.send(pair.ep_a, Tag(1), payload).unwrap();
    let (of_a, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    assert!(matches!(&of_a[..], [Event::Sent { .. }]), "{form:?}: {}", brief(&of_a[0]));
    match &of_b[..] {
        [Event::Received { message, .. }] => assert!(message == data, "{form:?} {into:?}"),
        [Event::ReceivedInto { memory: Local::Buffer(buffer), .. }] => assert!(buffer[..] == *data, "{form:?}"),
        [Event::ReceivedInto { memory: Local::List(list), .. }] => {
            assert!([&list[0][..], &list[1][..data.len() - 100]].concat() == data, "{form:?}");
        }
        other => panic!("{form:?} {into:?}: {}", brief(&other[0])),
    }
    let after = (pair.a.counters().bytes_copied, pair.b.counters().bytes_copied);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn copies_are_those_that_the_manual_says() {
    let config = || Config::default().eager_threshold(8192);
    for in_place in [false, true] {
        let from = if in_place { 8192 } else { usize::MAX };
        let mut pair = Pair::with(config().in_place(from), config());
        for form in [Form::Bytes, Form::Registered, Form::Gather, Form::Buffer, Form::Exposed] {
            for into in [Into::Event, Into::Buffer, Into::List] {
                let here = match form {
                    Form::Exposed => 0,
                    _ => SHORT as u64,
                };
                let there = match (form, into) {
                    (_, Into::Event) | (Form::Exposed, _) => 0,
                    _ => SHORT as u64,
                };
                let short = copied(&mut pair, form, into, &pattern(SHORT, 1));
                assert_eq!(short, (here, there), "{SHORT} bytes, {form:?}, {into:?}");
                let here = match form {
                    Form::Gather => LONG as u64,
                    Form::Bytes if !in_place => LONG as u64,
                    _ => 0,
                };
                let long = copied(&mut pair, form, into, &pattern(LONG, 2));
                assert_eq!(long, (here, 0), "{LONG} bytes, {form:?}, {into:?}, in place: {in_place}");
            }
        }
    }
}

/// Sends `bytes` and waits until they are back.
fn round(pair: &mut Pair, bytes: Bytes) {
    let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
    pair.a.send(pair.ep_a, Tag(1), bytes).unwrap();
    let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    let [Event::Received { message, .. }] = &of_b[..] else { panic!("{}", brief(&of_b[0])) };
    assert_eq!(message.iter().map(|&byte| u64::from(byte)).sum::<u64>(), sum);
}

#[test]
fn what_is_sent_again_is_registered_once() {
    let mut pair = Pair::with(Config::default().in_place(0), Config::default());
    let bytes = Bytes::from(pattern(LONG, 3));
    for part in 0..10 {
        round(&mut pair, bytes.slice(part * 1000..));
    }
    let counters = pair.a.counters();
    assert_eq!((counters.registered, counters.reused, counters.bytes_copied), (1, 9, 0));
}

#[test]
fn without_a_cache_nothing_stays_registered() {
    let mut pair = Pair::with(Config::default().in_place(0).registration_cache(0), Config::default());
    let bytes = Bytes::from(pattern(LONG, 4));
    for _ in 0..3 {
        round(&mut pair, bytes.clone());
    }
    assert_eq!((pair.a.counters().registered, pair.a.counters().reused), (3, 0));
    pair.until(|_, _| bytes.is_unique());
}

#[test]
fn memory_is_held_as_long_as_it_stays_registered() {
    let config = Config::default().in_place(0).registration_cache(LONG);
    let mut pair = Pair::with(config, Config::default());
    let memory: Arc<[u8]> = pattern(LONG, 5).into();
    round(&mut pair, Bytes::from_owner(memory.clone()));
    assert_eq!(Arc::strong_count(&memory), 2, "it may be sent again");
    // Others need the room.
    round(&mut pair, Bytes::from(pattern(LONG, 6)));
    pair.until(|_, _| Arc::strong_count(&memory) == 1);
}

#[test]
fn a_message_is_passed_on_without_a_copy() {
    let mut pair = Pair::with(Config::default(), Config::default().in_place(0));
    let mut buffer = pair.a.domain().alloc(LONG).unwrap();
    buffer.copy_from_slice(&pattern(LONG, 8));
    pair.a.send(pair.ep_a, Tag(1), buffer).unwrap();
    let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    let [Event::Received { message, .. }] = &of_b[..] else { panic!("{}", brief(&of_b[0])) };
    pair.b.send(pair.ep_b, Tag(2), message.clone().into_bytes()).unwrap();
    let (of_a, _) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    let [Event::Received { tag: Tag(2), message, .. }] = &of_a[..] else { panic!("{}", brief(&of_a[0])) };
    assert!(*message == pattern(LONG, 8));
    assert_eq!((pair.a.counters().bytes_copied, pair.b.counters().bytes_copied), (0, 0));
}

#[test]
fn who_passes_messages_on_does_not_run_out_of_memory_for_them() {
    let mut pair = Pair::with(Config::default(), Config::default().in_place(0).pool_limit(4 * LONG));
    for turn in 0..20 {
        let mut buffer = pair.a.domain().alloc(LONG).unwrap();
        buffer.copy_from_slice(&pattern(LONG, turn));
        pair.a.send(pair.ep_a, Tag(1), buffer).unwrap();
        let (_, mut of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
        let Some(Event::Received { message, .. }) = of_b.pop() else { panic!("no message") };
        pair.b.send(pair.ep_b, Tag(2), message.into_bytes()).unwrap();
        let (of_a, _) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
        assert!(*received(&of_a)[0].1 == pattern(LONG, turn));
    }
}

#[test]
fn several_pieces_are_one_message_also_when_they_wait() {
    let mut a = Worker::new(Config::default()).unwrap();
    let listener = a.listen("127.0.0.1:0").unwrap();
    let ep = a.connect(listener.local_addr()).unwrap();
    let lens = [0, 1, 700, 0, 3];
    let pieces: Vec<Bytes> = lens.iter().enumerate().map(|(seed, &len)| pattern(len, seed).into()).collect();
    let whole = pieces.concat();
    for sent in [pieces.clone(), Vec::new(), vec![whole.clone().into(); 100]] {
        // Queued, since nothing is connected yet.
        a.send(ep, Tag(1), sent).unwrap();
    }
    let (mut came, mut back) = (Vec::new(), Vec::new());
    while came.len() < 3 || back.len() < 3 {
        match next(&mut a) {
            Event::Received { message, .. } => came.push(message.to_vec()),
            Event::Sent { payload: Payload::Gather(pieces), .. } => back.push(pieces.len()),
            Event::Connected { .. } | Event::Accepted { .. } => {}
            other => panic!("{}", brief(&other)),
        }
    }
    back.sort_unstable();
    came.sort_by_key(Vec::len);
    assert_eq!(back, [0, 5, 100]);
    assert!(came == [Vec::new(), whole.clone(), whole.repeat(100)]);
}

#[test]
fn bytes_for_which_the_pool_has_no_room_are_read_where_they_lie() {
    let config = Config::default().pool_limit(16 << 10).in_place(usize::MAX);
    let mut pair = Pair::with(config, Config::default());
    round(&mut pair, pattern(LONG, 9).into());
    let counters = pair.a.counters();
    assert_eq!((counters.bytes_copied, counters.registered), (0, 1));
}

#[test]
fn what_is_unregistered_while_it_is_sent_arrives() {
    let mut pair = Pair::with(Config::default().registration_cache(0), Config::default());
    let bytes = Bytes::from(pattern(LONG, 10));
    pair.a.register(bytes.clone()).unwrap();
    pair.a.send(pair.ep_a, Tag(1), bytes.clone()).unwrap();
    assert!(pair.a.unregister(&bytes) && !pair.a.unregister(&bytes));
    let (of_a, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    assert!(received(&of_b)[0].1 == &bytes[..]);
    drop(of_a);
    pair.until(|_, _| bytes.is_unique());
}

/// Another process reads the bytes where they lie: by the system, by the network, or by this process's own thread.
#[test]
fn another_process_reads_them_where_they_lie() {
    let mut worker = Worker::new(Config::default().in_place(0)).unwrap();
    let peer = Process::start("reader", &mut worker);
    let ep = connected(&mut worker);
    for seed in 0..ROUNDS {
        worker.send(ep, Tag(seed as u64), pattern(LONG + seed, seed)).unwrap();
    }
    let mut sent = 0;
    while sent < ROUNDS {
        match next(&mut worker) {
            Event::Sent { .. } => sent += 1,
            other => panic!("{}", brief(&other)),
        }
    }
    assert_eq!(worker.counters().bytes_copied, 0);
    worker.close(ep);
    peer.finish();
}

const ROUNDS: usize = 20;

#[test]
#[ignore = "needs a test above to start it, as its other process"]
fn as_a_peer() {
    let Some((_, address)) = role() else { return };
    let mut worker = Worker::new(Config::default()).unwrap();
    worker.connect(address).unwrap();
    connected(&mut worker);
    for seed in 0..ROUNDS {
        match next(&mut worker) {
            Event::Received { tag, message, .. } => {
                assert_eq!(tag, Tag(seed as u64));
                assert!(message == pattern(LONG + seed, seed));
            }
            other => panic!("{}", brief(&other)),
        }
    }
    loop {
        if is_closed(&next(&mut worker)) {
            return;
        }
    }
}
