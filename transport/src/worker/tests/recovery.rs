//! Queue pairs that fail under a connection: it goes on over others.

use std::collections::BTreeSet;

use qpair_fake_ibverbs::control::Device;
use qpair_verbs::calc::{Calc, ReduceOp};

use super::rails::until;
use super::storm::Storm;
use super::*;
use crate::cm::{HandshakeError, Renewal};
use crate::worker::arrival::At;
use crate::worker::recovery::Renewed;

fn config() -> Config {
    Config::default().recovery(PATIENCE).window(8).send_depth(16).eager_limit(512)
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_when_queue_pairs_fail() {
    let seed = crate::soak::seed();
    for (round, config) in [config(), config().shared_receives(4, 16)].into_iter().enumerate() {
        let mut storm = Storm::new(config, seed + round as u64);
        for _ in 0..2000 {
            storm.act();
            if storm.below(50) == 0 {
                let side = storm.below(2) as usize;
                storm.fail(side);
            }
            for _ in 0..storm.below(4) {
                if let Some(event) = storm.worker.poll().unwrap() {
                    storm.handle(event);
                }
            }
        }
        storm.run_until(Storm::is_over);
        storm.region_is_whole();
        let recovered = storm.worker.counters().recovered;
        assert!(recovered >= 2, "{recovered} times for both ends");
        storm.worker.close(storm.ends[0]);
        storm.run_until(|storm| storm.closed.len() == 2);
        assert!(storm.closed.iter().all(CloseReason::is_orderly), "{:?}", storm.closed);
    }
}

/// Two workers that are connected, with an end each.
pub(super) fn two(ours: Config, theirs: Config) -> (Worker, EndpointId, Worker, EndpointId) {
    let (mut a, mut b) = (Worker::new(ours).unwrap(), Worker::new(theirs).unwrap());
    let listener = b.listen("127.0.0.1:0").unwrap();
    let at_a = a.connect(listener.local_addr()).unwrap();
    let (mut up, mut at_b) = (false, None);
    while !up || at_b.is_none() {
        up |= matches!(a.poll().unwrap(), Some(Event::Connected { .. }));
        if let Some(Event::Accepted { ep, .. }) = b.poll().unwrap() {
            at_b = Some(ep);
        }
    }
    (a, at_a, b, at_b.unwrap())
}

pub(super) fn to_error(worker: &mut Worker, ep: EndpointId) {
    worker.endpoints.get_mut(ep).unwrap().qp.as_mut().unwrap().to_error().unwrap();
}

/// True if a queue pair that carries something has taken the place of the one that failed.
fn settled(worker: &Worker, ep: EndpointId) -> bool {
    worker.endpoints.get(ep).is_some_and(|endpoint| endpoint.up && endpoint.trial.is_none())
}

pub(super) fn end(worker: &mut Worker) -> CloseReason {
    loop {
        match worker.wait(Some(PATIENCE)).unwrap().expect("it ends in time") {
            Event::Closed { reason, .. } => return reason,
            Event::Failed { .. } | Event::Sent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn both_sides_must_want_to_recover() {
    for (ours, theirs) in [(config(), Config::default()), (Config::default(), config())] {
        let (mut a, at_a, mut b, at_b) = two(ours, theirs);
        for worker in [(&mut a, at_a), (&mut b, at_b)] {
            assert!(!worker.0.endpoints.get_mut(worker.1).unwrap().link.retains());
        }
        to_error(&mut a, at_a);
        assert!(matches!(end(&mut a), CloseReason::PeerLost(_)));
        assert!(matches!(end(&mut b), CloseReason::PeerLost(_)));
        assert_eq!(a.counters().recovered + b.counters().recovered, 0);
    }
}

#[test]
fn a_peer_that_does_not_answer_is_waited_for_until_the_limit_and_all_is_handed_back() {
    // It is not polled, from here on.
    let (mut a, ep, _b, _) = two(config().recovery(Duration::from_millis(20)), config());
    let region = a.domain().expose(64, Access::REMOTE_WRITE).unwrap();
    let mut open = BTreeSet::new();
    open.insert(a.send(ep, Tag(1), vec![1; 100]).unwrap());
    open.insert(a.send(ep, Tag(1), vec![2; 100_000]).unwrap());
    to_error(&mut a, ep);
    // The queue pair does nothing with it any more, and the connection would.
    open.insert(a.send(ep, Tag(1), vec![3; 100]).unwrap());
    let buffer = a.domain().alloc(64).unwrap();
    open.insert(a.put(ep, buffer, region.remote(0..64)).unwrap());
    open.insert(a.flush(ep).unwrap());
    let reason = loop {
        match a.wait(Some(PATIENCE)).unwrap().expect("it ends in time") {
            Event::Closed { reason, .. } => break reason,
            event => assert!(open.remove(&event.op().expect("of an operation")), "{event:?}"),
        }
    };
    assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
    assert_eq!((open.len(), a.counters().recovered, a.counters().lost), (0, 0, 1));
}

/// The sockets live, and nothing comes by the queue pairs: each that is made connects, and carries nothing.
#[test]
fn queue_pairs_that_connect_and_carry_nothing_are_tried_until_the_limit() {
    let limit = Duration::from_millis(200);
    let (mut a, _, mut b, at_b) = two(config().recovery(limit), config());
    let fail = |b: &mut Worker| {
        if let Some(qp) = b.endpoints.get_mut(at_b).and_then(|endpoint| endpoint.qp.as_mut()) {
            qp.to_error().unwrap();
        }
    };
    fail(&mut b);
    let begin = Instant::now();
    let reason = loop {
        assert!(begin.elapsed() < PATIENCE, "tried {} times", a.counters().recovered);
        b.poll().unwrap();
        // Before the other hears of it.
        fail(&mut b);
        match a.poll().unwrap() {
            Some(Event::Closed { reason, .. }) => break reason,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    };
    assert!(matches!(reason, CloseReason::PeerLost(_) | CloseReason::Completion(_)), "{reason}");
    assert!(a.counters().recovered >= 2, "tried {} times", a.counters().recovered);
}

/// One side has given its new queue pair up by the time when the other comes to connect to it.
#[test]
fn a_queue_pair_that_can_not_be_connected_is_followed_by_another() {
    let (mut a, at_a, mut b, at_b) = two(config(), config());
    let begin = Instant::now();
    let until = |worker: &mut Worker, done: &dyn Fn(&mut Worker) -> bool| {
        while !done(worker) {
            assert!(worker.poll().unwrap().is_none() && begin.elapsed() < PATIENCE);
        }
    };
    let has_queue_pair = |worker: &mut Worker, ep| worker.endpoints.get(ep).unwrap().qp.is_some();
    to_error(&mut a, at_a);
    until(&mut a, &|a| !has_queue_pair(a, at_a));
    let first = b.endpoints.get(at_b).unwrap().qp.as_ref().unwrap().number();
    until(&mut b, &|b| b.endpoints.get(at_b).unwrap().qp.as_ref().is_some_and(|qp| qp.number() != first));
    b.suspend(at_b.index as usize, CloseReason::PeerLost(Lost::QueuePair));
    until(&mut b, &|b| !has_queue_pair(b, at_b));
    let refused =
        |a: &mut Worker| a.endpoints.get(at_a).unwrap().history.to_string().contains("could not be connected");
    assert!(!refused(&mut a));
    while !settled(&a, at_a) || !settled(&b, at_b) {
        assert!(a.poll().unwrap().is_none() && b.poll().unwrap().is_none() && begin.elapsed() < PATIENCE);
    }
    // Over the network it connects, and carries nothing.
    assert_eq!(refused(&mut a), qpair_verbs::shared_memory_domain().is_some());
    assert!(a.counters().recovered >= 1 && b.counters().recovered >= 1);
}

#[test]
fn a_queue_pair_that_carries_something_ends_the_trial() {
    let (mut a, at_a, mut b, at_b) = two(config(), config());
    for round in 1..=3 {
        to_error(&mut a, at_a);
        let begin = Instant::now();
        while a.counters().recovered < round || !settled(&a, at_a) || !settled(&b, at_b) {
            assert!(a.poll().unwrap().is_none() && b.poll().unwrap().is_none());
            assert!(begin.elapsed() < PATIENCE, "idle connections show it too");
        }
        assert!(a.endpoints.get_mut(at_a).unwrap().link.is_proven());
    }
}

/// What a peer of `ep` may tell of another queue pair, which is gone again.
fn renewal(worker: &mut Worker, ep: EndpointId) -> Renewal {
    let prepared = worker.prepare(ep, 0).unwrap();
    let hello = worker.hello(prepared.address(), 1, 64);
    worker.unprepare();
    Renewal { hello, received: 0, sent: 0, rail: 0 }
}

/// As the peer tells of it.
fn told(renewal: Renewal) -> Box<Renewed> {
    Renewed::new(renewal, nobody_asked())
}

#[test]
fn a_late_answer_does_not_make_up_for_a_queue_pair_that_the_peer_gave_up() {
    let (mut worker, ep, _) = mirror(config());
    let index = ep.index as usize;
    for renewed in [false, true] {
        if renewed {
            let renewal = renewal(&mut worker, ep);
            worker.endpoints.get_mut(ep).unwrap().renewal = Some(told(renewal));
        }
        worker.break_off(index, CloseReason::PeerLost(Lost::Silent(PATIENCE)));
        let endpoint = worker.endpoints.get_mut(ep).unwrap();
        assert!(endpoint.link.is_answered());
        endpoint.timer = None;
        worker.end_broken(None);
        assert!(worker.endpoints.get_mut(ep).unwrap().timer.is_some(), "it is looked at again");
        let recovers = matches!(worker.endpoints.get_mut(ep).unwrap().stage, Stage::Recovering(_));
        assert_eq!(recovers, renewed);
    }
}

#[test]
fn what_was_sent_before_a_close_arrives_though_the_queue_pair_fails() {
    let mut recovered = 0;
    for polls in 0..60 {
        let mut storm = Storm::new(config(), polls + 1);
        for number in 0..12 {
            let len = if number % 5 == 4 { 5000 } else { 400 };
            let op = storm.worker.send(storm.ends[0], Tag(0), Storm::message(number, len)).unwrap();
            storm.open.insert(op);
            storm.is_sent(0, 0);
        }
        let (early, side) = (storm.below(2) == 0, storm.below(2) as usize);
        if early {
            storm.worker.close(storm.ends[0]);
        }
        for _ in 0..polls {
            if let Some(event) = storm.worker.poll().unwrap() {
                storm.handle(event);
            }
        }
        if storm.closed.len() < 2 {
            storm.fail(side);
        }
        if !early {
            storm.worker.close(storm.ends[0]);
        }
        storm.run_until(|storm| storm.closed.len() == 2);
        assert!(storm.is_over() && storm.closed.iter().all(CloseReason::is_orderly), "{polls}: {:?}", storm.closed);
        recovered += storm.worker.counters().recovered;
    }
    assert!(recovered > 20, "{recovered}");
}

/// The peer's CLOSE waits in the queue when the queue pair fails, and the peer hangs up before the queue is looked at.
#[test]
fn what_came_before_a_hang_up_counts_though_the_queue_pair_fails() {
    let (mut a, at_a, mut b, at_b) = two(config(), config());
    let index = at_a.index as usize;
    a.close(at_a);
    assert!(a.poll().unwrap().is_none());
    b.close(at_b);
    let reason = end(&mut b);
    assert!(reason.is_orderly(), "{reason}");
    a.suspend(index, CloseReason::PeerLost(Lost::QueuePair));
    let begin = Instant::now();
    while a.endpoints.at(index).is_some_and(|endpoint| endpoint.socket.is_some()) {
        assert!(begin.elapsed() < PATIENCE);
        a.service(a.now(), Some(Duration::ZERO)).unwrap();
    }
    let reason = end(&mut a);
    assert!(reason.is_orderly(), "{reason}");
}

/// Renewals that a peer may tell of while this side is not ready.
const MOST: u32 = 17;

#[test]
fn a_renewal_that_is_not_due_ends_the_connection() {
    for config in [Config::default(), config()] {
        let (mut worker, ep, _) = mirror(config);
        let index = ep.index as usize;
        let renewal = renewal(&mut worker, ep);
        let recovers = worker.endpoints.at(index).unwrap().link.retains();
        // One is due; so are others as long as this side has not come to see to it.
        for sent in 0..if recovers { MOST } else { 0 } {
            worker.peer_renews(index, told(Renewal { sent, ..renewal.clone() }));
            let endpoint = worker.endpoints.at(index).unwrap();
            assert!(endpoint.broken.is_some(), "renewal {sent}");
            assert_eq!(endpoint.renewal.as_ref().unwrap().renewal.sent, sent, "the last one counts");
        }
        worker.peer_renews(index, told(renewal));
        let reason = end(&mut worker);
        let CloseReason::Failed(ConnectFailure::Handshake { error, .. }) = reason else { panic!("{reason}") };
        assert_eq!(error, HandshakeError::Unexpected(6));
    }
}

/// Its queue pair came to nothing before this side had one to connect to it.
#[test]
fn a_peer_may_tell_of_another_queue_pair_while_this_side_is_not_ready() {
    let (mut worker, ep, _) = mirror(config());
    let index = ep.index as usize;
    let renewal = renewal(&mut worker, ep);
    worker.suspend(index, CloseReason::PeerLost(Lost::QueuePair));
    for sent in 0..MOST {
        worker.peer_renews(index, told(Renewal { sent, ..renewal.clone() }));
        let last = worker.endpoints.at(index).unwrap().renewal.as_ref().unwrap();
        assert_eq!(last.renewal.sent, sent, "the last one counts");
    }
    worker.peer_renews(index, told(Renewal { sent: MOST, ..renewal }));
    let reason = end(&mut worker);
    assert!(matches!(reason, CloseReason::Failed(ConnectFailure::Handshake { .. })), "{reason}");
}

#[test]
fn what_the_device_combines_can_not_be_done_again() {
    let (mut worker, ep, _) = mirror(config());
    let sum = Some(Calc::of::<i32>(ReduceOp::Sum));
    let endpoint = worker.endpoints.get_mut(ep).unwrap();
    let reason = CloseReason::PeerLost(Lost::QueuePair);
    assert!(endpoint.can_recover(&reason) && !endpoint.can_recover(&CloseReason::PeerLost(Lost::HungUp)));
    for (calc, recovers) in [(None, true), (sum, false)] {
        let what = OneSided::Get { remote: RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) }.into(), calc };
        endpoint.reads.push_back(InFlight { number: 70, order: 0, awaited: true, len: 0, what });
        assert_eq!(endpoint.can_recover(&reason), recovers);
    }
    endpoint.reads.clear();
}

#[test]
fn a_get_that_is_no_longer_awaited_is_not_done_again() {
    let (mut worker, ep, _) = mirror(config());
    let region = worker.domain().expose(64, Access::REMOTE_READ).unwrap();
    let memory = worker.domain().alloc(64).unwrap();
    to_error(&mut worker, ep);
    let endpoint = worker.endpoints.get_mut(ep).unwrap();
    let what = OneSided::Get { remote: region.remote(0..64).into(), calc: None };
    let order = endpoint.link.posted();
    let work = InFlight { number: 70, order, awaited: true, len: 64, what };
    endpoint.repeats.lost.push((work, memory.into()));
    let op = OpId { number: 70, index: ep.index };
    assert!(!worker.cancel(op), "its memory may be with the device");
    worker.set_deadline(op, Duration::ZERO);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match worker.wait(Some(PATIENCE)).unwrap().expect("in time") {
            Event::Failed { op: of, error: OpError::TimedOut, returned: Returned::Withheld, .. } if of == op => {
                seen.push("failed");
            }
            Event::Released { op: of, returned: Returned::Memory(_) } if of == op => seen.push("released"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["failed", "released"]);
}

#[test]
fn what_had_come_counts_though_nobody_has_polled() {
    let config = config().close_timeout(Duration::from_millis(10));
    let (mut a, at_a, mut b, at_b) = two(config.clone(), config);
    for number in 0..5u8 {
        a.send_copy(at_a, Tag(7), &[number]).unwrap();
    }
    let begin = Instant::now();
    while b.endpoints.get(at_b).unwrap().qp.as_ref().unwrap().arrivals() == Some(0) && begin.elapsed() < PATIENCE {}
    to_error(&mut b, at_b);
    let before = b.endpoints.get(at_b).unwrap().link.sequences().1;
    b.suspend(at_b.index as usize, CloseReason::PeerLost(Lost::QueuePair));
    b.look_at_recovering().unwrap();
    let endpoint = b.endpoints.get(at_b).unwrap();
    let ready = b.ready.iter().filter(|event| matches!(event, Event::Received { .. })).count() as u32;
    assert_eq!(endpoint.link.sequences().1 - before, ready, "each of them is handed out");
    assert!(endpoint.qp.is_none(), "another was made");
    let (mut seen, begin) = (Vec::new(), Instant::now());
    while seen.len() < 5 {
        if let Some(Event::Received { message, .. }) = b.poll().unwrap() {
            seen.push(message[0]);
        }
        assert!(a.poll().unwrap().is_none() && begin.elapsed() < PATIENCE, "{seen:?}");
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn one_sided_work_is_done_again_unless_that_might_do_harm() {
    let (mut worker, ep, _) = mirror(config());
    let index = ep.index as usize;
    let remote = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) }.into();
    let work = |number: u64, order, what| InFlight { number, order, awaited: true, len: 0, what };
    let get = || OneSided::Get { remote, calc: None };
    let lost = &mut worker.endpoints.get_mut(ep).unwrap().repeats.lost;
    for work in [
        // The peer has a message that went after it, and may have changed the place since.
        work(70, 5, OneSided::Put { remote, own: None }),
        work(71, 6, OneSided::Fetch { pooled: 0 }),
        work(72, 6, get()),
        work(73, 9, OneSided::Put { remote, own: None }),
        InFlight { awaited: false, ..work(74, 9, get()) },
        InFlight { awaited: false, ..work(75, 9, OneSided::Put { remote, own: None }) },
        InFlight { awaited: false, ..work(77, 5, OneSided::Put { remote, own: None }) },
        work(76, 9, OneSided::Fetch { pooled: 0 }),
    ] {
        lost.push((work, Local::None));
    }
    let again = worker.settle_works(index, Some(7));
    // What is behind 75 may have told the peer that it was done, whoever waits for it here.
    assert_eq!(again.iter().map(|(work, _)| work.number).collect::<Vec<_>>(), [72, 73, 75]);
    let events: Vec<_> = worker.ready.drain(..).collect();
    let [
        Event::Put { op: OpId { number: 70, .. }, .. },
        Event::Failed { op: OpId { number: 71, .. }, error: OpError::Unknown, .. },
        Event::Released { op: OpId { number: 74, .. }, .. },
        Event::Released { op: OpId { number: 77, .. }, .. },
        Event::Failed { op: OpId { number: 76, .. }, error: OpError::Unknown, .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
}

/// A peer that was in the middle of it may end a receive of the old queue pair when the new one is there.
#[test]
fn what_comes_late_over_a_queue_pair_that_was_given_up_is_left_alone() {
    let (mut worker, ep, _) = mirror(config());
    let qpn = worker.endpoints.get_mut(ep).unwrap().qp.as_ref().unwrap().number();
    let received = worker.endpoints.get_mut(ep).unwrap().link.sequences().1;
    let id = work_id::receive_id(ep);
    // The number counts on its own device only.
    for at in [At { device: 0, qpn: Qpn(qpn.0 ^ 1) }, At { device: 1, qpn }] {
        let slab = worker.domain().alloc(64).unwrap().into_slab();
        assert!(worker.received(at, id, 40, slab).is_none());
    }
    assert_eq!((worker.broken, worker.endpoints.get_mut(ep).unwrap().link.sequences().1), (0, received));
}

/// Others have all of it when the connection goes on.
#[test]
fn what_goes_out_again_waits_for_memory() {
    fake::on_a_fake(|| {
        let device = Device::new(fake::FAKE).unwrap();
        // For two messages that do not go inline.
        let config = || config().device(fake::FAKE).pool_limit(2 << 14);
        let (mut a, at_a, mut b, _) = two(config(), config());
        device.set("defer", 1000).unwrap();
        for number in 0..2 {
            a.send(at_a, Tag(number), vec![number as u8; 400]).unwrap();
        }
        to_error(&mut a, at_a);
        until(&mut [&mut a], |workers| workers[0].endpoints.get(at_a).unwrap().copied == 0);
        let taken = [(); 2].map(|()| a.pool.message(400).unwrap());
        device.set("defer", 0).unwrap();
        until(&mut [&mut a, &mut b], |workers| workers[0].endpoints.get(at_a).unwrap().is_starved);
        taken.into_iter().for_each(|block| a.pool.give_message(block));
        let events = until(&mut [&mut a, &mut b], |workers| workers[1].counters().eager_received == 2);
        let came = events.iter().filter_map(|event| match event {
            Event::Received { tag, message, .. } => Some((tag.0, message[0])),
            _ => None,
        });
        assert!(came.eq([(0, 0), (1, 1)]), "{events:?}");
    });
}

/// Of a device that takes nothing with the request. A notice that can not go keeps back what it tells of.
#[test]
fn nothing_is_put_whose_notice_has_no_memory() {
    fake::on_a_fake(|| {
        let device = Device::new(fake::FAKE).unwrap();
        let config = || config().device(fake::FAKE).pool_limit(2 << 14);
        let (mut a, at_a, mut b, at_b) = two(config(), config());
        a.max_inline = 0;
        let board = b.domain().expose(8, Access::REMOTE_WRITE).unwrap();
        let put = |a: &mut Worker, value: u8| {
            let mut from = a.domain().alloc(8).unwrap();
            from.fill(value);
            a.put_notify(at_a, from, board.remote(0..8), Notice::Value(value.into()))
        };
        device.set("defer", 1000).unwrap();
        let mut taken = Vec::new();
        while a.pool.has_message_now(32).unwrap() {
            taken.push(a.pool.message(32).unwrap());
        }
        let refused = put(&mut a, 1).unwrap_err();
        assert!(matches!(refused.error, OneSidedFailure::WouldBlock) && refused.memory.len() == 8, "{refused}");
        device.set("defer", 0).unwrap();
        taken.into_iter().for_each(|block| a.pool.give_message(block));
        put(&mut a, 2).unwrap();
        let mut told = None;
        let start = Instant::now();
        while told.is_none() {
            a.poll().unwrap();
            if let Some(Event::Notified { ep, value }) = b.poll().unwrap() {
                assert_eq!((ep, board.load(0).unwrap()), (at_b, u64::from_ne_bytes([2; 8])));
                told = Some(value);
            }
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(told, Some(2), "and nothing of the first");
    });
}
