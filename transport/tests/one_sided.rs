//! One-sided operations between two workers: get, put, and what a peer that does not grant them does to a connection.

mod support;

use qpair_transport::{
    CloseReason, Config, Event, OneSidedFailure, OpError, OpId, Payload, Returned, Tag, Unmatched, Worker,
};
use qpair_verbs::calc::{Calc, ReduceOp};
use qpair_verbs::{Access, Local, PostError, RemoteSlice, Rkey, WcStatus};
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

#[test]
fn no_bytes_are_read_and_written_as_well() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(64, Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    let (ep, nothing) = (pair.ep_a, theirs.remote(10..10));
    let get = pair.a.get(ep, nothing, Local::None, None).unwrap();
    assert!(matches!(next(&mut pair.a), Event::Got { op, .. } if op == get));
    let some = pair.a.domain().alloc(8).unwrap();
    let put = pair.a.put(ep, some, nothing).unwrap();
    let Event::Put { op, memory, .. } = next(&mut pair.a) else { panic!("no put") };
    assert_eq!((op, bytes_of(memory).len()), (put, 8));
    pair.b.send(pair.ep_b, Tag(1), nothing).unwrap();
    let (of_a, of_b) = pair.until(|a, b| received(a).len() == 1 && sent(b).len() == 1);
    assert!(received(&of_a)[0].1.is_empty());
    assert!(matches!(sent(&of_b)[0].1, Payload::Exposed(remote) if *remote == nothing.into()));
}

/// What becomes of a get of `remote`, which `b` grants `access` to in 64 bytes, or of a put there.
fn refused(access: Access, put: bool, remote: impl Fn(RemoteSlice) -> RemoteSlice) -> WcStatus {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(64, access).unwrap();
    let ours = pair.a.domain().alloc(4096).unwrap();
    let (ep, remote) = (pair.ep_a, remote(theirs.remote(0..64)));
    let posted = if put { pair.a.put(ep, ours, remote) } else { pair.a.get(ep, remote, ours, None) };
    let op = posted.unwrap();
    let (mut of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    assert!(matches!(&of_b[..], [Event::Closed { .. }]), "the other side hears of the end only");
    let reason = closed(of_a.remove(1));
    let CloseReason::Completion(error) = reason else { panic!("{reason}") };
    let Event::Failed { op: failed, error: OpError::Closed, returned: Returned::Memory(memory), .. } = of_a.remove(0)
    else {
        panic!("the memory is lost")
    };
    assert_eq!((failed, bytes_of(memory).len()), (op, 4096));
    error.status
}

#[test]
fn ranges_keys_and_rights_are_the_peers_to_grant() {
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    for put in [false, true] {
        let past = refused(both, put, |remote| RemoteSlice { len: 65, ..remote });
        let far = refused(both, put, |remote| RemoteSlice { addr: u64::MAX - 3, ..remote });
        let key = refused(both, put, |remote| RemoteSlice { rkey: Rkey(remote.rkey.0 ^ 1), ..remote });
        let right = refused(if put { Access::REMOTE_READ } else { Access::REMOTE_WRITE }, put, |remote| remote);
        assert_eq!([past, far, key, right], [WcStatus::REM_ACCESS_ERR; 4], "put: {put}");
    }
}

#[test]
fn an_exposed_payload_that_can_not_be_read_ends_the_connection_for_both() {
    for revoked in [false, true] {
        let hold = || Config::default().unmatched(Unmatched::HoldLong);
        let mut pair = Pair::with(hold(), hold());
        let region = pair.a.domain().expose(64, Access::REMOTE_READ).unwrap();
        // A range past the region, or a region that is revoked before it was read.
        let remote = RemoteSlice { len: if revoked { 64 } else { 65 }, ..region.remote(0..64) };
        let send = pair.a.send(pair.ep_a, Tag(1), remote).unwrap();
        let _kept = if revoked {
            drop(region.revoke().unwrap());
            None
        } else {
            Some(region)
        };
        let (_, of_b) = pair.until(|_, b| !b.is_empty());
        assert!(matches!(of_b[..], [Event::Offered { tag: Tag(1), .. }]));
        let memory = pair.b.domain().alloc(100).unwrap();
        let receive = pair.b.recv_into(pair.ep_b, Tag(1), memory, None).unwrap();
        let (of_a, mut of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
        assert!(matches!(&of_a[..], [Event::Failed { op, returned: Returned::Payload(Payload::Exposed(back)), .. }, _]
                if (*op, *back) == (send, remote.into())));
        let reason = closed(of_b.remove(1));
        let CloseReason::Completion(error) = reason else { panic!("{reason}") };
        assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
        assert!(matches!(&of_b[0], Event::Failed { op, returned: Returned::Memory(_), .. } if *op == receive));
    }
}

#[test]
fn a_full_send_queue_or_a_connection_to_be_is_a_matter_of_polling() {
    let mut pair = Pair::with(Config::default().send_depth(8), Config::default());
    let theirs = pair.b.domain().expose(64, Access::REMOTE_READ).unwrap();
    let (ep, remote) = (pair.ep_a, theirs.remote(0..8));
    let memory = |worker: &Worker| worker.domain().alloc(8).unwrap();
    // A probe may have one of the eight slots.
    let full = (0..9).any(|_| pair.a.get(ep, remote, memory(&pair.a), None).is_err());
    assert!(full);
    let ninth = memory(&pair.a);
    let refused = pair.a.put(ep, ninth, remote).unwrap_err();
    assert_eq!((refused.error, bytes_of(refused.memory).len()), (OneSidedFailure::WouldBlock, 8));
    let first = next(&mut pair.a);
    assert!(matches!(first, Event::Got { .. }));
    let ninth = memory(&pair.a);
    pair.a.get(ep, remote, ninth, None).unwrap();
    let listener = pair.b.listen("127.0.0.1:0").unwrap();
    let early = pair.a.connect(listener.local_addr()).unwrap();
    let tenth = memory(&pair.a);
    let refused = pair.a.get(early, remote, tenth, None);
    assert_eq!(refused.unwrap_err().error, OneSidedFailure::WouldBlock);
}

/// The next event, which is of an atomic: what was there before.
fn fetched(worker: &mut Worker, op: OpId) -> u64 {
    match next(worker) {
        Event::Fetched { op: of, value, .. } if of == op => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn atomics_change_the_peers_memory_and_tell_what_was_there() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(64, Access::REMOTE_ATOMIC).unwrap();
    let (ep, word) = (pair.ep_a, theirs.remote(8..16));
    let add = pair.a.fetch_add(ep, word, u64::MAX).unwrap();
    assert_eq!(fetched(&mut pair.a, add), 0);
    let add = pair.a.fetch_add(ep, word, 8).unwrap();
    assert_eq!(fetched(&mut pair.a, add), u64::MAX);
    for (compare, swap, before, after) in [(6, 9, 7, 7), (7, 9, 7, 9)] {
        let op = pair.a.compare_swap(ep, word, compare, swap).unwrap();
        assert_eq!((fetched(&mut pair.a, op), theirs.load(8).unwrap()), (before, after));
    }
    assert_eq!((theirs.load(0).unwrap(), theirs.load(16).unwrap()), (0, 0));
}

#[test]
fn atomics_of_many_at_once_are_all_counted() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(8, Access::REMOTE_ATOMIC).unwrap();
    let (ep, word) = (pair.ep_a, theirs.remote(0..8));
    let (mut posted, mut seen) = (0, Vec::new());
    while seen.len() < 1000 {
        while posted < 1000 {
            match pair.a.fetch_add(ep, word, 1) {
                Ok(_) => posted += 1,
                Err(OneSidedFailure::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        match next(&mut pair.a) {
            Event::Fetched { value, .. } => seen.push(value),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, (0..1000).collect::<Vec<_>>());
}

#[test]
fn an_atomic_that_is_not_granted_breaks_the_connection_and_may_have_been_done() {
    let mut pair = Pair::new();
    let theirs = pair.b.domain().expose(8, Access::REMOTE_WRITE).unwrap();
    let (ep, word) = (pair.ep_a, theirs.remote(0..8));
    let short = pair.a.fetch_add(ep, RemoteSlice { len: 4, ..word }, 1).unwrap_err();
    assert!(matches!(short, OneSidedFailure::Post(PostError::Range { end: 4, .. })), "{short}");
    let op = pair.a.fetch_add(ep, word, 1).unwrap();
    let (mut of_a, _) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    let reason = closed(of_a.remove(1));
    let CloseReason::Completion(error) = reason else { panic!("{reason}") };
    assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
    assert!(matches!(&of_a[0], Event::Failed { op: failed, error: OpError::Unknown, .. } if *failed == op));
    assert_eq!(theirs.load(0).unwrap(), 0);
    assert!(matches!(pair.a.fetch_add(ep, word, 1), Err(OneSidedFailure::Closed(_))));
}

#[test]
fn a_fence_is_refused_as_all_is_on_a_connection_that_ends() {
    let mut pair = Pair::new();
    let (ep, into) = (pair.ep_a, pair.a.domain().alloc(8).unwrap());
    let board = pair.b.domain().alloc(8).unwrap().expose(Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    // What is with the device keeps it for a while.
    pair.a.get(ep, board.remote(0..8), into, None).unwrap();
    pair.a.abort(ep);
    assert!(matches!(pair.a.put_copy(ep, &[0; 8], board.remote(0..8)), Err(OneSidedFailure::Closed(_))));
    assert!(matches!(pair.a.fence(ep), Err(OneSidedFailure::Closed(_))));
    pair.until(|a, _| a.iter().any(is_closed));
}
