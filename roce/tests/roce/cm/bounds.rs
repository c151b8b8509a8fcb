//! No datagrams make a manager grow without end, or panic.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use qpair_roce::Qpn;
use qpair_roce::cm::{Accept, CmConfig, CmState, Connect, ConnectionId, ConnectionManager, Event, Offered};
use qpair_roce::wire::cm::{LEN, Message, Packet, Pair, Reason, Refused};

use super::states::{PEER, disconnect, ready_to_use, reject, reply, request, sent, wait_request};

fn small() -> ConnectionManager {
    let config = CmConfig { pending: 10, connections: 30, backlog: 20, ..CmConfig::new([10, 0, 0, 1].into(), 1) };
    let mut cm = ConnectionManager::new(config);
    cm.listen(7).unwrap();
    cm
}

/// Entropy of which each piece is another.
fn counting() -> impl FnMut() -> u64 {
    let mut drawn = 0;
    move || {
        drawn += 1;
        drawn
    }
}

fn request_of(local_id: u32) -> [u8; LEN] {
    let Message::Request(request) = request() else { unreachable!() };
    let request = qpair_roce::wire::cm::Request { local_id, qpn: Qpn(local_id), ..request };
    Packet { transaction: 1, message: Message::Request(request) }.emit()
}

#[test]
fn a_flood_of_requests_is_dropped_and_counted() {
    let (mut cm, now, mut entropy) = (small(), Instant::now(), counting());
    for id in 0..2_000 {
        cm.handle(now, PEER, &request_of(id), &mut entropy);
    }
    assert_eq!((cm.connections(), cm.counters().refused_pending), (10, 1990));
    let ids: Vec<ConnectionId> = std::iter::from_fn(|| cm.poll_event())
        .map(|event| match event {
            Event::Requested { id, .. } => id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids.len(), 10);
    cm.reject(now, ids[0], Reason::NO_RESOURCES, &[0; 148]).unwrap();
    cm.handle(now, PEER, &request_of(20_000), &mut entropy);
    assert!(matches!(cm.poll_event(), Some(Event::Requested { .. })), "there is room again");
}

#[test]
fn events_and_datagrams_that_nobody_takes_are_bounded() {
    let (mut cm, now, mut entropy) = (small(), Instant::now(), counting());
    for id in 0..2_000 {
        cm.handle(now, PEER, &request_of(id), &mut entropy);
        // Taken back at once, as the first bytes of what is said more are the GUID.
        let ids = Pair { local: id, remote: 0 };
        let Message::Reject(mut back) = reject(ids, Refused::Other, Reason::TIMEOUT) else { unreachable!() };
        back.info_len = 8;
        back.info[..8].copy_from_slice(&super::states::PEER_GUID.to_be_bytes());
        cm.handle(now, PEER, &Packet { transaction: 1, message: Message::Reject(back) }.emit(), &mut entropy);
        // And answers to nothing.
        cm.handle(now, PEER, &Packet { transaction: 1, message: disconnect(ids) }.emit(), &mut entropy);
    }
    assert_eq!(cm.connections(), 0);
    assert_eq!(std::iter::from_fn(|| cm.poll_event()).count(), 20);
    assert_eq!((sent(&mut cm).len(), cm.counters().dropped), (20, 1980));
}

/// A stranger that asks to be waited for as long as can be said, and again each time.
#[test]
fn a_peer_that_was_accepted_is_waited_for_a_minute_or_so() {
    let (mut cm, start, mut entropy) = (small(), Instant::now(), counting());
    let Message::Request(asked) = request() else { unreachable!() };
    let asked = qpair_roce::wire::cm::Request { local_response_timeout: 31, max_cm_retries: 15, ..asked };
    cm.handle(start, PEER, &Packet { transaction: 1, message: Message::Request(asked) }.emit(), &mut entropy);
    let Some(Event::Requested { id, .. }) = cm.poll_event() else { panic!("it is a request") };
    cm.accept(start, id, &Accept::new(Offered::new(Qpn(5)))).unwrap();
    let Message::Reply(reply) = sent(&mut cm)[0] else { panic!("REP") };
    let ids = Pair { local: asked.local_id, remote: reply.ids.local };
    let wait = Message::Wait { ids, message: Refused::Reply, timeout: 31, private: [0; 222] };
    let mut now = start;
    for _ in 0..100 {
        cm.handle(now, PEER, &Packet { transaction: 1, message: wait }.emit(), &mut entropy);
        now = cm.timeout().expect("it is waited for");
        cm.handle_timeout(now);
        if let Some(Event::TimedOut { .. }) = cm.poll_event() {
            break;
        }
    }
    assert_eq!(now - start, Duration::from_secs(70));
    assert_eq!(cm.state(id), Some(CmState::TimeWait));
}

/// What an application or a peer does. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Connect,
    Accept(usize),
    Ready(usize),
    Reject(usize),
    Disconnect(usize),
    Hear(u8, u32, usize, u8),
    Bytes(Vec<u8>),
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Connect),
        1 => any::<usize>().prop_map(Step::Accept),
        1 => any::<usize>().prop_map(Step::Ready),
        1 => any::<usize>().prop_map(Step::Reject),
        1 => any::<usize>().prop_map(Step::Disconnect),
        8 => (0..8u8, 0..4u32, any::<usize>(), 0..4u8).prop_map(|(kind, id, to, from)| Step::Hear(kind, id, to, from)),
        1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Step::Bytes),
        1 => (0..10_000_000_000u64).prop_map(Step::Later),
    ]
}

fn message(kind: u8, ids: Pair) -> Message {
    match kind {
        0 => Packet::parse(&request_of(ids.local)).unwrap().message,
        1 => wait_request(ids),
        2 => reject(ids, Refused::Other, Reason::CONSUMER),
        3 => reply(ids),
        4 => ready_to_use(ids),
        5 => disconnect(ids),
        6 => Message::Disconnected { ids, private: [0; 224] },
        _ => reject(ids, Refused::Request, Reason::STALE_CONNECTION),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Numbers are drawn one after the other, so that peers hit them.
    #[test]
    fn any_sequence_keeps_to_the_bounds(steps in prop::collection::vec(step(), 0..200)) {
        let (mut cm, mut now, mut drawn) = (small(), Instant::now(), 0);
        let mut known = vec![];
        let mut last = std::collections::BTreeMap::new();
        for step in steps {
            let last_drawn = drawn as usize;
            let mut entropy = || { drawn += 1; drawn };
            let id = |at: usize| known.get(at % known.len().max(1)).copied();
            match step {
                Step::Connect => {
                    let connect = Connect::new(PEER, 7, Offered::new(Qpn(0x11)));
                    known.extend(cm.connect(now, &connect, &mut entropy));
                }
                Step::Accept(at) => {
                    let accept = Accept::new(Offered::new(Qpn(0x11)));
                    let _ = id(at).map(|id| cm.accept(now, id, &accept));
                }
                Step::Ready(at) => drop(id(at).map(|id| cm.ready(id, &[0; 224]))),
                Step::Reject(at) => drop(id(at).map(|id| cm.reject(now, id, Reason::CONSUMER, &[0; 148]))),
                Step::Disconnect(at) => drop(id(at).map(|id| cm.disconnect(now, id, &[0; 220]))),
                Step::Hear(kind, local, to, from) => {
                    let ids = Pair { local, remote: (to % (last_drawn + 2)) as u32 };
                    let bytes = Packet { transaction: 1, message: message(kind, ids) }.emit();
                    let from = if from == 0 { IpAddr::from([10, 0, 0, 3]) } else { PEER };
                    cm.handle(now, from, &bytes, &mut entropy);
                }
                Step::Bytes(bytes) => cm.handle(now, PEER, &bytes, &mut entropy),
                Step::Later(by) => {
                    now += Duration::from_nanos(by);
                    cm.handle_timeout(now);
                }
            }
            prop_assert!(cm.connections() <= 30);
            prop_assert!(sent(&mut cm).len() <= 20);
            while let Some(event) = cm.poll_event() {
                follows(&mut last, &mut known, event);
            }
        }
        // Nobody answers any more: all that wait for a peer end.
        now += Duration::from_secs(16 * 70 * 2);
        for _ in 0..40 {
            now += Duration::from_secs(140);
            cm.handle_timeout(now);
        }
        prop_assert_eq!(cm.timeout(), None);
        for id in known {
            let waits = matches!(
                cm.state(id),
                None | Some(CmState::RequestReceived(_) | CmState::ReplyReceived(_) | CmState::Established)
            );
            prop_assert!(waits, "{:?}", cm.state(id));
        }
    }
}

/// Checks that an event may follow the last one of its connection.
fn follows(last: &mut std::collections::BTreeMap<ConnectionId, u8>, known: &mut Vec<ConnectionId>, event: Event) {
    // A connection begins, is accepted or established, ends, is released.
    let (id, rank) = match event {
        Event::Requested { id, .. } => {
            known.push(id);
            (id, 1)
        }
        Event::Accepted { id, .. } | Event::Established { id } => (id, 2),
        Event::Rejected { id, .. } | Event::Stale { id } | Event::Disconnected { id } | Event::TimedOut { id, .. } => {
            (id, 3)
        }
        Event::Released { id } => (id, 4),
    };
    let before = last.insert(id, rank).unwrap_or(0);
    assert!(before < rank, "{event:?} after {before}");
}
