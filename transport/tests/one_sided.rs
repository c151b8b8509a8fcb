//! One-sided operations between two workers: get, put, and what a peer that does not grant them does to a connection.

mod support;

use qpair_transport::{Event, OneSidedFailure, Returned, Tag};
use qpair_verbs::calc::{Calc, ReduceOp};
use qpair_verbs::{Access, Local, PostError};
use support::*;

fn bytes_of(memory: Local) -> Vec<u8> {
    match memory {
        Local::Buffer(buffer) => buffer.to_vec(),
        other => panic!("{} came back", other.form()),
    }
}

#[test]
fn get_reads_and_combines_the_peers_memory() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(4096, Access::REMOTE_READ).unwrap();
    theirs.write(0, &3i32.to_le_bytes().repeat(1024)).unwrap();
    let mut ours = pair.a.domain().alloc(4096).unwrap();
    ours.copy_from_slice(&4i32.to_le_bytes().repeat(1024));
    let (ep, remote) = (pair.ep_a, theirs.remote(0..4096));
    let sum = pair.a.get(ep, remote, ours, Some(Calc::of::<i32>(ReduceOp::Sum))).unwrap();
    let plain = pair.a.domain().alloc(100).unwrap();
    let copy = pair.a.get(ep, remote.slice(0..100), plain, None).unwrap();
    let mut got: Vec<_> = [next(&mut pair.a), next(&mut pair.a)].into();
    match got.remove(0) {
        Event::Got { op, ep: on, memory } => {
            assert_eq!((op, on), (sum, ep));
            assert_eq!(bytes_of(memory), 7i32.to_le_bytes().repeat(1024));
        }
        other => panic!("{other:?}"),
    }
    match got.remove(0) {
        Event::Got { op, memory, .. } => {
            assert_eq!(op, copy);
            assert_eq!(bytes_of(memory), 3i32.to_le_bytes().repeat(25));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_after_a_put_finds_the_data_in_place() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(1 << 20, Access::REMOTE_WRITE).unwrap();
    let data = pattern(1 << 20, 5);
    let mut ours = pair.a.domain().alloc(1 << 20).unwrap();
    ours.copy_from_slice(&data);
    let put = pair.a.put(pair.ep_a, ours, theirs.remote(0..1 << 20)).unwrap();
    pair.a.send_copy(pair.ep_a, Tag(1), b"there").unwrap();
    let (of_a, of_b) = pair.until(|a, b| count(a, |e| matches!(e, Event::Put { .. })) == 1 && received(b).len() == 1);
    assert!(of_a.iter().any(|event| matches!(event, Event::Put { op, .. } if *op == put)));
    assert_eq!(&received(&of_b)[0].1[..], b"there");
    assert!(theirs.revoke().unwrap()[..] == data[..]);
}

#[test]
fn a_refused_request_leaves_the_connection_and_hands_the_memory_back() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(64, Access::REMOTE_READ).unwrap();
    // Far more often than there are send slots: none may be lost.
    for _ in 0..1000 {
        let short = pair.a.domain().alloc(8).unwrap();
        let failed = pair.a.get(pair.ep_a, theirs.remote(0..64), short, None).unwrap_err();
        assert!(matches!(failed.error, OneSidedFailure::Post(PostError::Range { .. })), "{failed}");
        assert_eq!(bytes_of(failed.memory).len(), 8);
    }
    let enough = pair.a.domain().alloc(64).unwrap();
    pair.a.get(pair.ep_a, theirs.remote(0..64), enough, None).unwrap();
    assert!(matches!(next(&mut pair.a), Event::Got { .. }));
}

#[test]
fn memory_that_is_not_granted_breaks_the_connection() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(64, Access::REMOTE_READ).unwrap();
    let ours = pair.a.domain().alloc(64).unwrap();
    let put = pair.a.put(pair.ep_a, ours, theirs.remote(0..64)).unwrap();
    let (of_a, _) = pair.until(|a, b| count(a, is_closed) == 1 && count(b, is_closed) == 1);
    let returned = of_a.into_iter().find_map(|event| match event {
        Event::Failed { op, returned: Returned::Memory(memory), .. } if op == put => Some(memory),
        _ => None,
    });
    assert_eq!(bytes_of(returned.expect("the put failed")).len(), 64);
    let ours = pair.a.domain().alloc(64).unwrap();
    let failed = pair.a.get(pair.ep_a, theirs.remote(0..64), ours, None).unwrap_err();
    assert!(matches!(failed.error, OneSidedFailure::Closed(_)), "{failed}");
}
