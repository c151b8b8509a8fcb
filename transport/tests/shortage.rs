//! A device that runs out: of registrations, of memory that may be locked, of receives. It costs the operation that needed
//! them, which hands back what it was given, and nothing after it.

mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use qpair_fake_ibverbs::control::{Completion, Device};
use qpair_transport::{
    CloseReason, Config, EndpointId, Event, Listener, OpError, OpId, Payload, Returned, SendCopyError, SendFailure,
    Tag, Worker,
};
use qpair_verbs::{MemoryError, WcStatus};
use support::*;

const LONG: usize = 300_000;
/// Of a message in pieces that is copied for the peer to read: a block of the pool each.
const COPIED: usize = 12_000;

/// Two connected workers on a device in memory. `in_place`: from which length on `Bytes` are read where they lie.
fn pair(in_place: usize) -> (Pair, Device) {
    let fake = Device::new(FAKE).unwrap();
    let config = || Config::default().device(FAKE).in_place(in_place);
    (Pair::with(config(), config()), fake)
}

/// The ways in which a device has no more: each with what it is told, and how that is taken back.
const SHORTAGES: [(&str, &str); 2] = [("max_mr", "live.mr"), ("max_locked", "")];

/// Lets the device register nothing more, does `work`, and lets it register again.
fn without(fake: &Device, (setting, used): (&str, &str), work: impl FnOnce()) {
    let before = fake.get(setting).unwrap();
    fake.set(setting, if used.is_empty() { 0 } else { fake.get(used).unwrap() }).unwrap();
    work();
    fake.set(setting, before).unwrap();
}

/// Says what to do, or what the system said.
fn is_of_memory(error: &MemoryError) -> bool {
    match error {
        MemoryError::Refused { source, .. } | MemoryError::NoMemory { source, .. } => {
            source.kind() == std::io::ErrorKind::OutOfMemory
        }
        MemoryError::Memlock { .. } => true,
        _ => false,
    }
}

/// Sends a long message: all is in order. Gives what was sent.
fn works(pair: &mut Pair, tag: u64) -> Bytes {
    let data = Bytes::from(pattern(LONG, tag as usize));
    let send = pair.a.send(pair.ep_a, Tag(tag), data.clone()).unwrap();
    let (of_a, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    assert!(matches!(&of_a[..], [Event::Sent { op, .. }] if *op == send), "{}", brief(&of_a[0]));
    let [(of, message)] = received(&of_b)[..] else { panic!("{}", brief(&of_b[0])) };
    assert!(of == Tag(tag) && *message == data);
    data
}

#[test]
fn a_long_message_that_can_not_be_registered_is_handed_back_and_the_next_goes() {
    on_a_fake(|| {
        for in_place in [0, usize::MAX] {
            let (mut pair, fake) = pair(in_place);
            for (turn, shortage) in (0..).zip(SHORTAGES) {
                let data = Bytes::from(pattern(LONG, 1));
                let pieces = vec![data.slice(..1000), data.slice(1000..)];
                without(&fake, shortage, || {
                    let refused = pair.a.send(pair.ep_a, Tag(1), data.clone()).unwrap_err();
                    assert!(matches!(&refused.error, SendFailure::Memory(why) if is_of_memory(why)), "{refused}");
                    assert!(matches!(refused.payload, Payload::Bytes(back) if back.as_ptr() == data.as_ptr()));
                    let refused = pair.a.send(pair.ep_a, Tag(1), pieces).unwrap_err();
                    assert!(matches!(&refused.error, SendFailure::Memory(why) if is_of_memory(why)), "{refused}");
                    assert!(matches!(refused.payload, Payload::Gather(back) if back.concat() == data));
                    // What needs no registration goes on.
                    pair.a.send_copy(pair.ep_a, Tag(2), b"short").unwrap();
                    let (of_a, of_b) = pair.until(|_, b| !b.is_empty());
                    assert!(of_a.is_empty() && matches!(received(&of_b)[..], [(Tag(2), _)]));
                });
                assert!(data.is_unique(), "nothing of it is kept");
                works(&mut pair, 3 + turn);
            }
            drop(pair);
            fake.assert_clean();
            fake.reset().unwrap();
        }
    });
}

#[test]
fn a_buffer_that_can_not_be_exposed_is_handed_back() {
    on_a_fake(|| {
        let (mut pair, fake) = pair(0);
        for shortage in SHORTAGES {
            let mut buffer = pair.a.domain().alloc(LONG).unwrap();
            buffer.copy_from_slice(&pattern(LONG, 1));
            let mut back = None;
            without(&fake, shortage, || {
                let refused = pair.a.send(pair.ep_a, Tag(1), buffer).unwrap_err();
                assert!(matches!(&refused.error, SendFailure::Memory(why) if is_of_memory(why)), "{refused}");
                back = Some(refused.payload);
            });
            let Some(Payload::Buffer(buffer)) = back else { panic!("{back:?}") };
            assert!(buffer[..] == pattern(LONG, 1));
            pair.a.send(pair.ep_a, Tag(1), buffer).unwrap();
            let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
            assert!(*received(&of_b)[0].1 == pattern(LONG, 1));
        }
        drop(pair);
        fake.assert_clean();
    });
}

#[test]
fn bytes_that_can_not_be_registered_are_not_kept_and_can_be_later() {
    on_a_fake(|| {
        let (mut pair, fake) = pair(0);
        for shortage in SHORTAGES {
            let data = Bytes::from(pattern(LONG, 2));
            without(&fake, shortage, || {
                let refused = pair.a.register(data.clone()).unwrap_err();
                assert!(is_of_memory(&refused), "{refused}");
                assert!(!pair.a.unregister(&data) && data.is_unique());
            });
            pair.a.register(data.clone()).unwrap();
            // It needs no other registration.
            without(&fake, shortage, || {
                let before = pair.a.counters().registered;
                pair.a.send(pair.ep_a, Tag(1), data.slice(7..)).unwrap();
                assert_eq!(pair.a.counters().registered, before);
            });
            let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
            assert!(*received(&of_b)[0].1 == data[7..]);
            assert!(pair.a.unregister(&data));
        }
        drop(pair);
        fake.assert_clean();
    });
}

/// Messages too long to go inline, and too short to be read by the peer; long enough for an arena of their own.
fn of_long_slabs() -> Config {
    Config::default().device(FAKE).eager_limit(1 << 20).eager_threshold(1 << 20).window(8)
}

#[test]
fn short_messages_go_one_after_the_other_where_there_is_no_memory_for_two() {
    on_a_fake(|| {
        for shortage in SHORTAGES {
            let fake = Device::new(FAKE).unwrap();
            let mut pair = Pair::with(of_long_slabs(), of_long_slabs());
            let short = Bytes::from(pattern(700_000, 1));
            without(&fake, shortage, || {
                pair.a.send_copy(pair.ep_a, Tag(1), &short).unwrap();
                assert_eq!(pair.a.send_copy(pair.ep_a, Tag(2), &short), Err(SendCopyError::WouldBlock));
                for tag in 3..6 {
                    pair.a.send(pair.ep_a, Tag(tag), short.clone()).unwrap();
                }
                let (_, of_b) = pair.until(|a, b| a.len() == 3 && b.len() == 4);
                let came = received(&of_b);
                assert!(came.iter().map(|(tag, _)| tag.0).eq([1, 3, 4, 5]));
                assert!(came.iter().all(|(_, message)| **message == short));
            });
            works(&mut pair, 2);
            drop(pair);
            fake.assert_clean();
            fake.reset().unwrap();
        }
    });
}

/// Nor was there memory to keep when the connection was made.
#[test]
fn a_short_message_that_there_is_no_memory_for_is_handed_back() {
    on_a_fake(|| {
        let fake = Device::new(FAKE).unwrap();
        let before = Pair::with(of_long_slabs(), of_long_slabs());
        let all = fake.get("live.mr").unwrap();
        drop(before);
        // The last that is registered is what the end that accepts keeps.
        fake.set("max_mr", all - 1).unwrap();
        let mut pair = Pair::with(of_long_slabs(), of_long_slabs());
        let short = Bytes::from(pattern(700_000, 1));
        assert_eq!(pair.b.send_copy(pair.ep_b, Tag(1), &short), Err(SendCopyError::NoMemory { len: short.len() }));
        let refused = pair.b.send(pair.ep_b, Tag(1), short.clone()).unwrap_err();
        assert!(matches!(&refused.error, SendFailure::Memory(why) if is_of_memory(why)), "{refused}");
        assert!(matches!(refused.payload, Payload::Bytes(back) if back.as_ptr() == short.as_ptr()));
        fake.set("max_mr", 1000).unwrap();
        pair.b.send(pair.ep_b, Tag(1), short.clone()).unwrap();
        let (of_a, _) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
        assert!(matches!(received(&of_a)[..], [(Tag(1), message)] if *message == short));
        works(&mut pair, 2);
        drop((pair, of_a));
        fake.assert_clean();
    });
}

/// The memory that nobody uses any more makes room for what does not fit beside it.
#[test]
fn what_is_registered_for_nobody_gives_way() {
    on_a_fake(|| {
        let (mut pair, fake) = pair(0);
        // It stays registered, since it may be sent again.
        let _sent = works(&mut pair, 1);
        let kept = fake.get("live.mr").unwrap();
        without(&fake, SHORTAGES[0], || drop(works(&mut pair, 2)));
        assert_eq!(fake.get("live.mr").unwrap(), kept);
        drop(pair);
        fake.assert_clean();
    });
}

#[test]
fn a_receiver_without_memory_for_a_message_ends_the_connection_and_says_so_and_others_stay() {
    on_a_fake(|| {
        let (mut pair, fake) = pair(0);
        let data = Bytes::from(pattern(LONG, 1));
        let send = pair.a.send(pair.ep_a, Tag(1), data.clone()).unwrap();
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        without(&fake, SHORTAGES[0], || {
            (of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
        });
        let [Event::Closed { reason: CloseReason::Resources(why), .. }] = &of_b[..] else {
            panic!("{}", brief(&of_b[0]));
        };
        assert!(why.to_string().contains("register"), "{why}");
        let [Event::Failed { op, error: OpError::Closed, returned: Returned::Payload(Payload::Bytes(back)), .. }, _] =
            &of_a[..]
        else {
            panic!("{}", brief(&of_a[0]));
        };
        assert!(*op == send && *back == data);
        let listener = pair.b.listen("127.0.0.1:0").unwrap();
        pair.ep_a = pair.a.connect(listener.local_addr()).unwrap();
        pair.until(|a, b| !a.is_empty() && !b.is_empty());
        works(&mut pair, 2);
        drop(pair);
        fake.assert_clean();
    });
}

/// Credits see to it that there is a receive for each message. A device that has none all the same says so in the end.
#[test]
fn a_peer_that_is_said_to_have_no_receive_ends_the_connection_on_both_sides() {
    on_a_fake(|| {
        let (mut pair, fake) = pair(usize::MAX);
        let ops: HashSet<_> = (0..40).map(|tag| pair.a.send(pair.ep_a, Tag(tag), pattern(LONG, 1)).unwrap()).collect();
        pair.b.send(pair.ep_b, Tag(1), pattern(10, 1)).unwrap();
        fake.forge(1, Completion::new().status(WcStatus::RNR_RETRY_EXC_ERR.0)).unwrap();
        let (of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
        let said = |events: &[Event]| {
            events.iter().any(|event| {
                matches!(event, Event::Closed { reason: reason @ CloseReason::Completion(error), .. }
                    if error.status == WcStatus::RNR_RETRY_EXC_ERR && reason.to_string().contains("connect again"))
            })
        };
        assert!(said(&of_a) || said(&of_b), "one of them is told why");
        let mut ended = HashSet::new();
        for event in &of_a {
            match event {
                Event::Sent { op, payload } => assert!(payload.len() == LONG as u64 && ended.insert(*op)),
                Event::Failed { op, returned: Returned::Payload(payload), .. } => {
                    assert!(payload.len() == LONG as u64 && ended.insert(*op));
                }
                Event::Received { .. } | Event::Closed { .. } => {}
                other => panic!("{}", brief(other)),
            }
        }
        assert_eq!(ended, ops);
        drop(pair);
        drop((of_a, of_b));
        fake.assert_clean();
    });
}

/// Two workers on a device in memory, whose pools have room for two short messages.
fn with_little_memory() -> (Worker, Worker, Listener, Device) {
    let fake = Device::new(FAKE).unwrap();
    // No probe wakes what was forgotten.
    let config =
        || Config::default().device(FAKE).window(8).pool_limit(2 << 14).keepalive(Duration::MAX, Duration::MAX);
    let (a, mut b) = (Worker::new(config()).unwrap(), Worker::new(config()).unwrap());
    let listener = b.listen("127.0.0.1:0").unwrap();
    (a, b, listener, fake)
}

/// Polls both until `b` has `each` messages of each connection, in order. A message's tag is its connection's number and its
/// own; it has 1500 bytes, or as many as a long one.
fn until_all_came(a: &mut Worker, b: &mut Worker, connections: u64, each: u64) {
    let mut came = vec![0; connections as usize];
    let begin = Instant::now();
    while came.iter().any(|&came| came < each) {
        assert!(begin.elapsed() < LIMIT, "{came:?} of {each}");
        if let Some(event) = a.poll().unwrap() {
            assert!(matches!(event, Event::Sent { .. } | Event::Connected { .. }), "{}", brief(&event));
        }
        match b.poll().unwrap() {
            Some(Event::Accepted { .. }) | None => {}
            Some(Event::Received { tag: Tag(tag), message, .. }) => {
                let came = &mut came[(tag >> 32) as usize];
                assert!(tag & 0xFFFF_FFFF == *came && [1500, COPIED].contains(&message.len()));
                assert!(message == pattern(message.len(), *came as usize));
                *came += 1;
            }
            Some(other) => panic!("{}", brief(&other)),
        }
    }
    assert_eq!(a.counters().lost, 0);
}

/// Two connections of `a`.
fn two_connections(a: &mut Worker, b: &mut Worker, listener: &Listener) -> [EndpointId; 2] {
    let eps = [(); 2].map(|()| a.connect(listener.local_addr()).unwrap());
    let (begin, mut up) = (Instant::now(), 0);
    while up < 4 {
        assert!(begin.elapsed() < LIMIT);
        up += u32::from(matches!(a.poll().unwrap(), Some(Event::Connected { .. })));
        up += u32::from(matches!(b.poll().unwrap(), Some(Event::Accepted { .. })));
    }
    eps
}

/// Sends that many messages of a connection.
fn send_some(a: &mut Worker, ep: EndpointId, connection: u64, count: u64) -> HashSet<OpId> {
    let send = |number| a.send(ep, Tag(connection << 32 | number), pattern(1500, number as usize)).unwrap();
    (0..count).map(send).collect()
}

/// More of them become due at once than there is memory for.
#[test]
fn messages_that_wait_for_the_peer_wait_for_memory_too() {
    on_a_fake(|| {
        let (mut a, mut b, listener, _) = with_little_memory();
        let ep = a.connect(listener.local_addr()).unwrap();
        send_some(&mut a, ep, 0, 40);
        until_all_came(&mut a, &mut b, 1, 40);
    });
}

/// Another connection has all the memory when theirs comes up, and nothing of their own would wake them.
#[test]
fn connections_that_find_no_memory_have_their_turn_when_there_is_some() {
    on_a_fake(|| {
        let (mut a, mut b, listener, fake) = with_little_memory();
        let first = a.connect(listener.local_addr()).unwrap();
        let begin = Instant::now();
        while !matches!(a.poll().unwrap(), Some(Event::Connected { .. })) {
            assert!(begin.elapsed() < LIMIT);
            b.poll().unwrap();
        }
        let (others, each) = (12, 2);
        for connection in 1..=others {
            let ep = a.connect(listener.local_addr()).unwrap();
            send_some(&mut a, ep, connection, each);
        }
        fake.set("defer", 1000).unwrap();
        send_some(&mut a, first, 0, each);
        let mut up = 0;
        while up < others {
            assert!(begin.elapsed() < LIMIT, "{up} of {others}");
            up += u64::from(matches!(a.poll().unwrap(), Some(Event::Connected { .. })));
            assert!(matches!(b.poll().unwrap(), None | Some(Event::Accepted { .. })));
        }
        fake.set("defer", 0).unwrap();
        fake.run().unwrap();
        until_all_came(&mut a, &mut b, others + 1, each);
    });
}

/// They stand behind a message that goes out of such memory, and would never go, nor it, if they had all of it.
#[test]
fn copies_that_wait_leave_messages_their_memory() {
    on_a_fake(|| {
        let (mut a, mut b, listener, _) = with_little_memory();
        let ep = a.connect(listener.local_addr()).unwrap();
        send_some(&mut a, ep, 0, 1);
        for number in 1..3 {
            let mut first = Bytes::from(pattern(COPIED, number));
            let rest = first.split_off(COPIED / 3);
            a.send(ep, Tag(number as u64), vec![first, rest]).unwrap();
        }
        until_all_came(&mut a, &mut b, 1, 3);
    });
}

/// What one sends on and on would take the memory each time that some comes back.
#[test]
fn who_waits_for_memory_is_not_passed_by_for_ever() {
    on_a_fake(|| {
        let (mut a, mut b, listener, _) = with_little_memory();
        let [busy, other] = two_connections(&mut a, &mut b, &listener);
        let mut ops = send_some(&mut a, busy, 0, 6);
        send_some(&mut a, other, 1, 6);
        let (begin, mut came, mut sent) = (Instant::now(), 0, 0);
        while came < 6 {
            assert!(begin.elapsed() < LIMIT && sent < 30, "{came} came while {sent} were sent");
            if let Some(Event::Sent { op, .. }) = a.poll().unwrap()
                && ops.remove(&op)
            {
                sent += 1;
                ops.extend(send_some(&mut a, busy, 0, 1));
            }
            if let Some(Event::Received { tag: Tag(tag), .. }) = b.poll().unwrap() {
                came += tag >> 32;
            }
        }
    });
}
