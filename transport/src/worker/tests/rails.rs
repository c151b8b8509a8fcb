//! Rails that fail and come back under a connection, or were never there.

use qpair_verbs::Context;

use super::recovery::{end, two};
use super::storm::Storm;
use super::*;
use crate::cm::{HandshakeError, RailNews, RailWord};
use crate::engine::{Class, Envelope, Header, Kind, Offer, RailKeys, RailStage, SLICED_FROM};

pub(super) fn config(count: usize) -> Config {
    let rails = (0..count).map(|_| Rail::port(1));
    Config::default().rails(rails).window(8).send_depth(16).eager_limit(512)
}

impl Storm {
    /// The device puts the queue pair of one end on a rail into the error state.
    pub(super) fn fail_rail(&mut self, side: usize, rail: usize) {
        fail_rail(&mut self.worker, self.ends[side], rail);
    }
}

pub(super) fn fail_rail(worker: &mut Worker, ep: EndpointId, rail: usize) {
    if let Some(lanes) = worker.endpoints.get_mut(ep).and_then(|endpoint| endpoint.lanes.as_mut()) {
        lanes.break_queue_pair(rail);
    }
}

pub(super) fn stages(worker: &Worker, ep: EndpointId) -> Vec<&'static str> {
    worker.explain(ep).map(|explanation| explanation.rails.iter().map(|rail| rail.stage).collect()).unwrap_or_default()
}

/// Polls all until it is so.
pub(super) fn until(workers: &mut [&mut Worker], so: impl Fn(&[&mut Worker]) -> bool) -> Vec<Event> {
    let mut events = Vec::new();
    let begin = Instant::now();
    while !so(workers) {
        assert!(begin.elapsed() < PATIENCE, "{events:?}");
        for worker in &mut *workers {
            events.extend(worker.poll().unwrap());
        }
    }
    for worker in workers {
        events.append(&mut worker.ready.drain(..).collect());
    }
    events
}

#[test]
fn long_messages_are_read_over_all_rails_and_short_ones_over_none() {
    let (mut a, at_a, mut b, at_b) = two(config(3), config(3));
    until(&mut [&mut a, &mut b], |workers| {
        stages(workers[0], at_a) == ["up"; 3] && stages(workers[1], at_b) == ["up"; 3]
    });
    let len = 5_000_001;
    let text: Vec<u8> = (0..len).map(|at: u32| (at % 251) as u8).collect();
    a.send(at_a, Tag(1), text.clone()).unwrap();
    a.send(at_a, Tag(1), vec![9; SLICED_FROM as usize - 1]).unwrap();
    let buffer = b.domain().alloc(len as usize + 10).unwrap();
    b.recv_into(Source::Any, Tag(1), buffer, None).unwrap();
    let (mut got, mut sent) = (Vec::new(), 0);
    while got.len() < 2 || sent < 2 {
        sent += usize::from(matches!(a.poll().unwrap(), Some(Event::Sent { .. })));
        match b.poll().unwrap() {
            Some(Event::ReceivedInto { memory: Local::Buffer(buffer), len, .. }) => got.push(buffer[..len].to_vec()),
            Some(Event::Received { message, .. }) => got.push(message.to_vec()),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    assert!(got[0] == text && got[1] == vec![9; SLICED_FROM as usize - 1]);
    let explanation = b.explain(at_b).unwrap();
    let bytes: Vec<_> = explanation.rails.iter().map(|rail| rail.bytes).collect();
    assert_eq!(bytes.iter().sum::<u64>(), len as u64, "{bytes:?}");
    assert!(bytes.iter().all(|&bytes| bytes > 0), "{bytes:?}");
    assert!(explanation.rails.iter().all(|rail| rail.rate.is_some() && !rail.wire.is_empty()));
    let text = explanation.to_string();
    assert!(text.contains("rail 0 (and messages): up, carried ") && text.contains("\nrail 2: up, "), "{text}");
    assert_eq!((b.counters().rails_used, b.counters().rails_lost), (3, 0));
    assert_eq!(b.counters().bytes_copied, 0);
}

#[test]
fn what_one_side_alone_has_stays_unused() {
    for (ours, theirs, both) in [(2, 3, 2), (3, 2, 2), (1, 2, 0), (2, 1, 0), (0, 8, 0)] {
        let (mut a, at_a, mut b, at_b) = two(config(ours), config(theirs));
        until(&mut [&mut a, &mut b], |workers| {
            stages(workers[0], at_a) == vec!["up"; both] && stages(workers[1], at_b) == vec!["up"; both]
        });
        let taken = |worker: &Worker| worker.config.endpoints * worker.rails.count() - worker.rails.room();
        assert_eq!((taken(&a), taken(&b)), (both, both), "no place is lost");
        a.send(at_a, Tag(1), vec![3; 400_000]).unwrap();
        let events = until(&mut [&mut a, &mut b], |workers| workers[1].counters().rendezvous_received == 1);
        assert!(
            events.iter().all(|event| matches!(event, Event::Received { message, .. } if *message == [3; 400_000]))
        );
        a.close(at_a);
        until(&mut [&mut a, &mut b], |workers| workers.iter().all(|worker| worker.endpoints.len() == 0));
        assert_eq!((taken(&a), taken(&b)), (0, 0), "all places are free again");
    }
}

#[test]
fn a_rail_that_fails_is_left_out_by_both_sides_and_comes_back() {
    for side in 0..2 {
        let (mut a, at_a, mut b, at_b) = two(config(2), config(2));
        until(&mut [&mut a, &mut b], |workers| {
            stages(workers[0], at_a) == ["up"; 2] && stages(workers[1], at_b) == ["up"; 2]
        });
        match side {
            0 => fail_rail(&mut a, at_a, 1),
            _ => fail_rail(&mut b, at_b, 1),
        }
        // Nothing but traffic shows it.
        let len = 4 << 20;
        a.send(at_a, Tag(1), vec![5; len]).unwrap();
        b.send(at_b, Tag(1), vec![6; len]).unwrap();
        let both = |workers: &[&mut Worker], so: fn(&Counters) -> bool| workers.iter().all(|one| so(&one.counters()));
        let events = until(&mut [&mut a, &mut b], |workers| both(workers, |counts| counts.rendezvous_received == 1));
        let received =
            events.iter().filter(|event| matches!(event, Event::Received { message, .. } if message.len() == len));
        assert_eq!(received.count(), 2, "{events:?}");
        until(&mut [&mut a, &mut b], |workers| both(workers, |counts| counts.rails_lost >= 1));
        until(&mut [&mut a, &mut b], |workers| {
            stages(workers[0], at_a) == ["up"; 2] && stages(workers[1], at_b) == ["up"; 2]
        });
        assert!(a.counters().rails_used >= 3 && b.counters().rails_used >= 3);
        assert_eq!(a.counters().lost + b.counters().lost, 0);
    }
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_when_rails_fail() {
    let seed = crate::soak::seed();
    for round in 0..2 {
        let recovery = if round == 1 { PATIENCE } else { Duration::ZERO };
        let mut storm = Storm::new(config(3).recovery(recovery), seed + round);
        storm.longest = 900_000;
        for _ in 0..600 {
            storm.act();
            if storm.below(10) == 0 {
                let (side, rail) = (storm.below(2) as usize, storm.below(3) as usize);
                storm.fail_rail(side, rail);
            }
            if round == 1 && storm.below(40) == 0 {
                let side = storm.below(2) as usize;
                storm.fail(side);
            }
            for _ in 0..storm.below(6) {
                if let Some(event) = storm.worker.poll().unwrap() {
                    storm.handle(event);
                }
            }
        }
        storm.run_until(Storm::is_over);
        storm.region_is_whole();
        let counters = storm.worker.counters();
        assert!(counters.rails_lost > 3 && counters.rails_used > 3, "{counters:?}");
        assert_eq!(counters.recovered > 0, round == 1);
        storm.worker.close(storm.ends[0]);
        storm.run_until(|storm| storm.closed.len() == 2);
        assert!(storm.closed.iter().all(CloseReason::is_orderly), "{:?}", storm.closed);
        assert_eq!(storm.worker.rails.room(), storm.worker.config.endpoints * 3);
    }
}

/// Where no rail is left, the messages' queue pair reads.
#[test]
fn messages_come_without_any_rail() {
    let (mut worker, ep, other) = mirror(config(2));
    until(&mut [&mut worker], |workers| stages(workers[0], ep) == ["up"; 2] && stages(workers[0], other) == ["up"; 2]);
    for rail in 0..2 {
        fail_rail(&mut worker, ep, rail);
        fail_rail(&mut worker, other, rail);
    }
    for number in 0..4 {
        worker.send(ep, Tag(number), vec![number as u8; 1_000_000]).unwrap();
    }
    let events = until(&mut [&mut worker], |workers| workers[0].counters().rendezvous_received == 4);
    let received = |event: &&Event| matches!(event, Event::Received { message, tag: Tag(tag), .. } if *message == vec![*tag as u8; 1_000_000]);
    assert_eq!(events.iter().filter(received).count(), 4);
}

#[test]
fn transfers_end_with_their_connection_and_give_their_memory_back() {
    for stopped in [false, true] {
        let (mut worker, ep, other) = mirror(config(2));
        until(&mut [&mut worker], |workers| {
            stages(workers[0], ep) == ["up"; 2] && stages(workers[0], other) == ["up"; 2]
        });
        let memory = worker.domain().alloc(3_000_000).unwrap();
        let receive = worker.recv_into(Source::Any, Tag(1), memory, None).unwrap();
        let send = worker.send(ep, Tag(1), vec![1; 3_000_000]).unwrap();
        if stopped {
            // Its limit does not wait for the peer.
            worker.set_deadline(receive, Duration::ZERO);
        }
        let mut events = until(&mut [&mut worker], |workers| {
            let lanes = workers[0].endpoints.get(other).and_then(|endpoint| endpoint.lanes.as_ref());
            lanes.is_some_and(|lanes| !lanes.is_idle()) || workers[0].counters().rendezvous_received > 0
        });
        worker.abort(other);
        let mut open = vec![receive, send];
        open.retain(|op| events.iter().all(|event| event.op() != Some(*op)));
        while worker.endpoints.len() > 0 || !open.is_empty() {
            let event = worker.wait(Some(PATIENCE)).unwrap().expect("all ends in time");
            open.retain(|op| event.op() != Some(*op));
            events.push(event);
        }
        let is_back = |event: &Event| match event {
            Event::Failed { op, returned: Returned::Memory(Local::Buffer(buffer)), .. }
            | Event::Released { op, returned: Returned::Memory(Local::Buffer(buffer)) } => {
                *op == receive && buffer.len() == 3_000_000
            }
            Event::ReceivedInto { op, .. } => *op == receive,
            _ => false,
        };
        assert!(events.iter().any(is_back), "{events:?}");
        assert_eq!(worker.rails.room(), worker.config.endpoints * 2);
    }
}

#[test]
fn words_about_rails_that_are_not_due_end_the_connection() {
    let address = {
        let (mut worker, ep, _) = mirror(config(2));
        let prepared = worker.prepare(ep, 0).unwrap();
        worker.unprepare();
        prepared.address()
    };
    for news in [RailNews::Made(address), RailNews::Ready, RailNews::Down] {
        for (count, rail) in [(2, 1), (2, 2), (0, 0)] {
            // That side called: nobody tells it that it can begin. An answer may be late.
            if news != RailNews::Ready && rail < count {
                continue;
            }
            let (mut a, at_a, mut b, _b) = two(config(count), config(count));
            until(&mut [&mut a, &mut b], |workers| stages(workers[0], at_a) == vec!["up"; count]);
            a.heard_of_rail(at_a.index as usize, RailWord { rail: rail as u8, news }, &nobody_asked());
            let reason = end(&mut a);
            let unexpected = |reason: &CloseReason| {
                let CloseReason::Failed(ConnectFailure::Handshake { error, .. }) = reason else { return false };
                matches!(error, HandshakeError::Unexpected(7))
            };
            assert!(unexpected(&reason), "{news:?} of rail {rail} of {count}: {reason}");
        }
    }
}

/// Both sides have tried again meanwhile.
#[test]
fn an_answer_about_a_rail_that_comes_too_late_costs_the_rail_a_while() {
    let (mut a, at_a, mut b, at_b) = two(config(2), config(2));
    let both_up =
        |workers: &[&mut Worker]| stages(workers[0], at_a) == ["up"; 2] && stages(workers[1], at_b) == ["up"; 2];
    until(&mut [&mut a, &mut b], both_up);
    let prepared = a.prepare(at_a, 0).unwrap();
    a.unprepare();
    a.heard_of_rail(
        at_a.index as usize,
        RailWord { rail: 1, news: RailNews::Made(prepared.address()) },
        &nobody_asked(),
    );
    assert_eq!(stages(&a, at_a), ["up", "left out"]);
    until(&mut [&mut a, &mut b], both_up);
    b.heard_of_rail(at_b.index as usize, RailWord { rail: 1, news: RailNews::Ready }, &nobody_asked());
    assert_eq!(stages(&b, at_b), ["up", "left out"]);
    until(&mut [&mut a, &mut b], both_up);
    // The side that called heard late that the other had given the rail up, and has begun anew.
    let until_then = b.now() + PATIENCE;
    b.endpoints.get_mut(at_b).unwrap().lanes.as_mut().unwrap().renew_until(1, until_then);
    let news = RailNews::Made(prepared.address());
    b.heard_of_rail(at_b.index as usize, RailWord { rail: 1, news }, &nobody_asked());
    assert_eq!(stages(&b, at_b), ["up", "left out"]);
    until(&mut [&mut a, &mut b], both_up);
    assert_eq!((a.counters().lost, b.counters().lost), (0, 0));
}

/// Completions wait while a program does other things: that says nothing of the rails.
#[test]
fn rails_are_not_left_out_because_this_side_was_late() {
    let (mut a, at_a, mut b, at_b) = two(config(3), config(3));
    until(&mut [&mut a, &mut b], |workers| {
        stages(workers[0], at_a) == ["up"; 3] && stages(workers[1], at_b) == ["up"; 3]
    });
    let region = a.domain().expose(4 << 20, Access::REMOTE_READ).unwrap();
    let remote = region.remote(0..4 << 20);
    let reading = Header {
        kind: Kind::ReadyToSend,
        envelope: Envelope { class: Class::Tagged, port: 0, tag: 7 },
        epoch: 0,
        sequence: 0,
        credits: 0,
        length: remote.len,
        acknowledged: 0,
    };
    let offer = Offer { addr: remote.addr, rkey: remote.rkey, id: 1, rails: RailKeys::default(), in_parts: false };
    b.recv(Source::Any, Tag(7)).unwrap();
    b.offered(at_b, &reading, offer);
    b.advance(at_b.index as usize);
    let is_under_way = |worker: &Worker| {
        worker.endpoints.get(at_b).and_then(|endpoint| endpoint.lanes.as_ref()).is_some_and(|lanes| !lanes.is_idle())
    };
    assert!(is_under_way(&b), "slices are with the device");
    // Half a minute goes by.
    b.start -= Duration::from_secs(30);
    let later = b.now();
    b.service(later, Some(Duration::ZERO)).unwrap();
    assert_eq!(b.counters().rails_lost, 0);
}

#[test]
fn a_receive_whose_memory_no_rail_can_reach_fails_alone() {
    let (mut a, at_a, mut b, at_b) = two(config(2), config(2));
    until(&mut [&mut a, &mut b], |workers| {
        stages(workers[0], at_a) == ["up"; 2] && stages(workers[1], at_b) == ["up"; 2]
    });
    let foreign = Context::open("soft0").unwrap().alloc_pd().unwrap();
    let receive = b.recv_into(Source::Any, Tag(1), foreign.alloc(1_000_000).unwrap(), None).unwrap();
    a.send(at_a, Tag(1), vec![4; 1_000_000]).unwrap();
    let events = until(&mut [&mut a, &mut b], |workers| workers[1].counters().rendezvous_received == 1);
    let refused = |event: &Event| {
        let Event::Failed { op, error, returned: Returned::Memory(Local::Buffer(memory)), .. } = event else {
            return false;
        };
        *op == receive && memory.len() == 1_000_000 && error.to_string().contains("protection domain")
    };
    assert!(events.iter().any(refused), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Received { message, .. } if *message == [4; 1_000_000])));
    assert_eq!((stages(&b, at_b), b.counters().rails_lost, b.counters().lost), (vec!["up"; 2], 0, 0));
}

/// While a rail is left out there is nothing to do for it, on the side that waits for the peer's next try least of all.
#[test]
fn rails_that_are_left_out_wake_nobody() {
    let calm = || config(2).keepalive(Duration::from_secs(60), Duration::from_secs(600));
    let (mut a, at_a, mut b, at_b) = two(calm(), calm());
    until(&mut [&mut a, &mut b], |workers| {
        stages(workers[0], at_a) == ["up"; 2] && stages(workers[1], at_b) == ["up"; 2]
    });
    let next = |worker: &mut Worker, ep: EndpointId| {
        worker.lose_rail(ep.index as usize, 1, false);
        let now = worker.now();
        let lanes = worker.endpoints.get(ep).and_then(|endpoint| endpoint.lanes.as_ref());
        lanes.and_then(|lanes| lanes.due(now)).map(|due| due.saturating_sub(now))
    };
    let of_caller = next(&mut a, at_a).expect("it tries again");
    assert!(of_caller > Duration::from_millis(50), "{of_caller:?}");
    assert_eq!(next(&mut b, at_b), None);
}

#[test]
fn a_peer_that_makes_no_other_queue_pair_is_asked_again() {
    let (mut a, at_a, b, _b) = two(config(2).connect_timeout(Duration::from_millis(30)), config(2));
    until(&mut [&mut a], |workers| stages(workers[0], at_a) == ["up"; 2]);
    // It does not answer any more.
    let stopped = b;
    a.lose_rail(at_a.index as usize, 1, true);
    let tried = |worker: &Worker| {
        let lanes = worker.endpoints.get(at_a).and_then(|endpoint| endpoint.lanes.as_ref());
        lanes.is_some_and(|lanes| matches!(lanes.stage(1), RailStage::Renewing(_)))
    };
    for _ in 0..2 {
        until(&mut [&mut a], |workers| tried(workers[0]));
        until(&mut [&mut a], |workers| !tried(workers[0]));
    }
    assert_eq!(a.counters().rails_lost, 3);
    drop(stopped);
}

/// It may have failed to connect a rail that the other has.
#[test]
fn a_rail_that_one_side_could_not_connect_stays_unused() {
    let (mut a, at_a, mut b, at_b) = two(config(2), config(2));
    until(&mut [&mut a, &mut b], |workers| {
        stages(workers[0], at_a) == ["up"; 2] && stages(workers[1], at_b) == ["up"; 2]
    });
    a.endpoints.get_mut(at_a).unwrap().lanes.as_mut().unwrap().lose(1);
    b.lose_rail(at_b.index as usize, 1, true);
    a.send(at_a, Tag(1), vec![1; 1_000_000]).unwrap();
    let events = until(&mut [&mut a, &mut b], |workers| workers[1].counters().rendezvous_received == 1);
    assert!(events.iter().all(|event| !matches!(event, Event::Closed { .. })), "{events:?}");
    assert_eq!(stages(&a, at_a), ["up", "one side does not have it"]);
}

#[test]
fn a_peer_that_has_queue_pairs_made_again_and_again_is_refused_and_then_left() {
    let (mut a, at_a, mut b, at_b) = two(config(2), config(2));
    until(&mut [&mut a, &mut b], |workers| {
        stages(workers[0], at_a) == ["up"; 2] && stages(workers[1], at_b) == ["up"; 2]
    });
    // It asks over and over, and reads no answer: what the system keeps for it is some megabytes.
    let index = at_b.index as usize;
    let prepared = b.prepare(at_b, 0).unwrap();
    b.unprepare();
    let address = prepared.address();
    let mut made = 0;
    for _ in 0..5_000_000 {
        b.heard_of_rail(index, RailWord { rail: 1, news: RailNews::Down }, &nobody_asked());
        b.heard_of_rail(index, RailWord { rail: 1, news: RailNews::Made(address) }, &nobody_asked());
        let lanes = b.endpoints.get(at_b).and_then(|endpoint| endpoint.lanes.as_ref());
        made += usize::from(lanes.is_some_and(|lanes| matches!(lanes.stage(1), RailStage::Renewing(_))));
        if !b.sockets.notices().is_empty() {
            break;
        }
    }
    let time = b.now().as_millis() as usize;
    assert!(made <= time / 20 + 1, "{made} in {time} ms");
    let error = loop {
        match b.wait(Some(PATIENCE)).unwrap().expect("it ends in time") {
            Event::Closed { reason: CloseReason::Failed(ConnectFailure::Handshake { error, .. }), .. } => break error,
            Event::Closed { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    };
    assert_eq!(error, HandshakeError::Flood);
}

#[test]
fn words_about_rails_without_end_are_not_listened_to() {
    let (mut a, at_a, mut b, _) = two(config(2), config(2));
    let socket = a.endpoints.get(at_a).unwrap().socket.unwrap();
    for _ in 0..5000 {
        a.sockets.send(socket, &crate::cm::Message::Rail(RailWord { rail: 0, news: RailNews::Down }));
    }
    let reason = end(&mut b);
    let is_flood = |reason: &CloseReason| {
        matches!(reason, CloseReason::Failed(ConnectFailure::Handshake { error: HandshakeError::Flood, .. }))
    };
    assert!(is_flood(&reason), "{reason}");
}

#[test]
fn a_stream_of_short_messages_does_not_hold_rails_up() {
    let (mut worker, ep, other) = mirror(config(2));
    until(&mut [&mut worker], |workers| stages(workers[0], ep) == ["up"; 2] && stages(workers[0], other) == ["up"; 2]);
    worker.send(ep, Tag(1), vec![1; 2_000_000]).unwrap();
    let mut ahead = 0;
    let mut is_there = false;
    // The queue of the messages is never empty.
    for _ in 0..1_000_000 {
        while ahead < 4 && worker.send_copy(ep, Tag(2), b"short").is_ok() {
            ahead += 1;
        }
        match worker.poll().unwrap() {
            Some(Event::Received { tag: Tag(2), .. }) => ahead -= 1,
            Some(Event::Received { tag: Tag(1), .. }) => is_there = true,
            _ => {}
        }
        if is_there {
            return;
        }
    }
    panic!("it does not come");
}
