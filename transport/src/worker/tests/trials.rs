//! The time between a queue pair that failed and another that works: sends meanwhile, and queue pairs that do no better.

use qpair_fake_ibverbs::control::Device;

use super::rails::until;
use super::recovery::{to_error, two};
use super::*;
use crate::worker::endpoint::{PART, Stage};

/// Short messages of the peer pass, and this side's long one does not.
#[test]
fn queue_pairs_that_fail_by_the_same_again_are_tried_until_the_limit() {
    fake::on_a_fake(|| {
        let (here, there) = (Device::new(fake::FAKE).unwrap(), Device::new("there0").unwrap());
        let limit = 10 * PATIENCE;
        let on = |device: &Device| Config::default().device(device.name()).recovery(PATIENCE).window(8);
        let (mut a, at_a, mut b, at_b) = two(on(&here).recovery(limit), on(&there));
        // It holds back what it is to send.
        here.set("defer", 1000).unwrap();
        a.send(at_a, Tag(1), vec![1; 400]).unwrap();
        to_error(&mut a, at_a);
        let (begin, mut failed) = (Instant::now(), 0);
        let reason = loop {
            assert!(begin.elapsed() < PATIENCE, "tried {failed} times");
            b.poll().unwrap();
            // There may be no room for it.
            let _ = b.send_copy(at_b, Tag(2), b"short");
            match a.poll().unwrap() {
                Some(Event::Closed { reason, .. }) => break reason,
                Some(Event::Received { .. }) if a.counters().recovered > failed => {
                    failed = a.counters().recovered;
                    // Of which a look counts an eighth at most.
                    a.start -= limit;
                    to_error(&mut a, at_a);
                }
                _ => {}
            }
        };
        assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
        assert!((2..20).contains(&failed), "tried {failed} times");
        here.set("defer", 0).unwrap();
    });
}

/// What goes out again is one message, for which nobody asks the device whether it has come, and the peer goes on talking, so that
/// nothing else asks.
#[test]
fn one_message_that_went_again_is_known_to_have_come() {
    fake::on_a_fake(|| {
        let config = || Config::default().device(fake::FAKE).recovery(PATIENCE).window(8);
        let (mut a, at_a, mut b, at_b) = two(config(), config());
        let here = Device::new(fake::FAKE).unwrap();
        here.set("defer", 1000).unwrap();
        a.send(at_a, Tag(1), vec![1; 40]).unwrap();
        to_error(&mut a, at_a);
        here.set("defer", 0).unwrap();
        let begin = Instant::now();
        let trial = |a: &mut Worker| a.endpoints.at(at_a.index as usize).unwrap().trial.is_some();
        while a.counters().recovered == 0 || trial(&mut a) {
            assert!(begin.elapsed() < PATIENCE, "nothing shows that it works");
            let _ = b.send_copy(at_b, Tag(2), b"short");
            a.poll().unwrap();
            b.poll().unwrap();
        }
        assert_eq!(b.counters().eager_received, 1);
    });
}

/// The failure was told of, and another queue pair is not made yet.
#[test]
fn what_is_sent_after_a_failure_waits_for_another_queue_pair() {
    fake::on_a_fake(|| {
        let device = Device::new(fake::FAKE).unwrap();
        let config = || Config::default().device(fake::FAKE).recovery(PATIENCE).window(8);
        let (mut a, at_a, mut b, _) = two(config(), config());
        let index = at_a.index as usize;
        a.send(at_a, Tag(0), vec![0; 8]).unwrap();
        a.break_off(index, CloseReason::PeerLost(Lost::QueuePair));
        for symbol in ["ibv_post_send", "ibv_wr_complete"] {
            device.fail_times(symbol, 1, 0, EINVAL).unwrap();
        }
        for (number, len) in [(1, 8), (2, 400), (3, 100_000)] {
            a.send(at_a, Tag(number), vec![number as u8; len]).unwrap();
        }
        assert!(matches!(a.send_copy(at_a, Tag(4), b"none"), Err(SendCopyError::WouldBlock)));
        assert!(matches!(a.put_copy(at_a, &[], nowhere()), Err(OneSidedFailure::WouldBlock)));
        // The keepalive asks at any time.
        a.post_probe(index);
        device.reset().unwrap();
        let events = until(&mut [&mut a, &mut b], |workers| {
            let came = workers[1].counters();
            came.eager_received + came.rendezvous_received == 4
        });
        let came = events.iter().filter_map(|event| match event {
            Event::Received { tag, message, .. } => Some((tag.0, message[0], message.len())),
            Event::Sent { .. } => None,
            other => panic!("{other:?}"),
        });
        assert!(came.eq([(0, 0, 8), (1, 1, 8), (2, 2, 400), (3, 3, 100_000)]));
        assert_eq!((a.counters().recovered, a.counters().lost), (1, 0));
    });
}

/// A part of it had come before the failure was told of, and the next would be asked for.
#[test]
fn a_payload_is_read_on_over_another_queue_pair() {
    fake::on_a_fake(|| {
        let (device, there) = (Device::new(fake::FAKE).unwrap(), Device::new("there0").unwrap());
        let on = |device: &Device| Config::default().device(device.name()).recovery(PATIENCE).window(8);
        let (mut a, at_a, mut b, at_b) = two(on(&device), on(&there));
        let (index, len) = (at_a.index as usize, 3 * PART as usize);
        device.set("defer", 1000).unwrap();
        b.send(at_b, Tag(5), vec![7; len]).unwrap();
        while a.endpoints.at(index).unwrap().reads.is_empty() {
            assert!(a.poll().unwrap().is_none() && b.poll().unwrap().is_none());
        }
        device.set("defer", 0).unwrap();
        device.run().unwrap();
        a.break_off(index, CloseReason::PeerLost(Lost::QueuePair));
        for symbol in ["ibv_post_send", "ibv_wr_complete"] {
            device.fail_times(symbol, 1, 0, EINVAL).unwrap();
        }
        while !matches!(a.endpoints.at(index).unwrap().stage, Stage::Recovering(_)) {
            assert!(a.poll().unwrap().is_none());
        }
        device.reset().unwrap();
        let events = until(&mut [&mut a, &mut b], |workers| {
            workers[0].counters().rendezvous_received == 1
                && workers[1].endpoints.get(at_b).unwrap().link.counts().1 == 0
        });
        let mut came = events.iter().filter_map(|event| match event {
            Event::Received { message, .. } => Some(message),
            Event::Sent { .. } => None,
            other => panic!("{other:?}"),
        });
        assert!(came.next().is_some_and(|message| message.len() == len && message.iter().all(|&byte| byte == 7)));
        assert_eq!((a.counters().recovered, a.counters().lost), (1, 0));
    });
}

fn nowhere() -> RemoteSlice {
    RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) }
}

const EINVAL: i32 = 22;
