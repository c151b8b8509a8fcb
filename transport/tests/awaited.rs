//! Polling for a message, or the first of some, which is taken where it is.

mod support;

use std::time::Instant;

use qpair_transport::{Config, Event, Polled, Tag};
use support::*;

/// In memory of the worker's own, in the ring, in slabs; before and behind others; also where receives are posted.
#[test]
fn one_message_is_polled_for_and_taken_where_it_is() {
    let shared = || Config::default().shared_receives(2, 64);
    for mut pair in [Pair::new(), Pair::with(shared(), shared())] {
        let posted = pair.b.domain().alloc(16).unwrap();
        let posted = pair.b.recv_into(pair.ep_b, Tag(99), posted, None).unwrap();
        let mut receives = 0;
        for len in (0..400).step_by(9).chain([32, 33, 307, 308, 309, 4000]) {
            if len == 32 {
                // From here on the inbox has nothing to do with what comes.
                pair.a.send(pair.ep_a, Tag(99), pattern(9, 1)).unwrap();
            }
            let message = pattern(len, len);
            for tag in [1, 2, 3] {
                pair.a.send(pair.ep_a, Tag(tag), message.clone()).unwrap();
            }
            let (mut taken, mut others) = (0, Vec::new());
            let start = Instant::now();
            while taken + others.len() < 3 {
                assert!(start.elapsed() < patient_limit());
                pair.a.poll().unwrap();
                match pair.b.poll_for(pair.ep_b, Tag(2), |found| found == message).unwrap() {
                    Polled::Message(is_right) => {
                        assert!(is_right, "{len}");
                        // Those before have been given, and those behind have not.
                        assert_eq!(others, [Tag(1)]);
                        taken += 1;
                    }
                    Polled::Event(Event::Received { tag, message: found, .. }) => {
                        assert!(found == message, "{len}");
                        others.push(tag);
                    }
                    Polled::Event(Event::ReceivedInto { op, len: 9, .. }) if op == posted => receives += 1,
                    Polled::Event(other) => panic!("{}", brief(&other)),
                    _ => std::thread::yield_now(),
                }
            }
            assert_eq!((taken, others), (1, vec![Tag(1), Tag(3)]));
        }
        assert_eq!(receives, 1);
        // All that was taken has its room again.
        for round in 0..10_000_u32 {
            while pair.a.send_copy(pair.ep_a, Tag(5), &round.to_le_bytes()).is_err() {
                pair.a.poll().unwrap();
            }
            let start = Instant::now();
            while !matches!(
                pair.b.poll_for(pair.ep_b, Tag(5), |found| found == round.to_le_bytes()).unwrap(),
                Polled::Message(true)
            ) {
                assert!(start.elapsed() < patient_limit());
            }
        }
    }
}

#[test]
fn the_first_of_some_messages_is_taken_whichever_it_is() {
    for len in [0, 8, 300, 8192] {
        let mut pair = Pair::new();
        let order = [4, 9, 2, 3, 7];
        for tag in order {
            pair.a.send_copy(pair.ep_a, Tag(tag), &pattern(len, tag as usize)).unwrap();
        }
        let (mut taken, mut others) = (Vec::new(), Vec::new());
        let (ep_b, start) = (pair.ep_b, Instant::now());
        while taken.len() + others.len() < order.len() {
            assert!(start.elapsed() < patient_limit());
            pair.a.poll().unwrap();
            let find = |ep, Tag(tag)| (ep == ep_b && tag < 5 && !taken.contains(&tag)).then_some(tag);
            match pair.b.poll_for_any(find, |tag, found| (tag, found == pattern(len, tag as usize))).unwrap() {
                Polled::Message((tag, is_right)) => {
                    assert!(is_right, "{len}");
                    taken.push(tag);
                }
                Polled::Event(Event::Received { tag: Tag(tag), message: found, .. }) => {
                    assert!(found == pattern(len, tag as usize), "{len}");
                    others.push(tag);
                }
                Polled::Event(other) => panic!("{}", brief(&other)),
                _ => std::thread::yield_now(),
            }
        }
        assert_eq!((taken, others), (vec![4, 2, 3], vec![9, 7]), "{len}");
    }
}
