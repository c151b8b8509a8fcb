//! Datagrams of strangers and of peers that lie, and a queue pair that fails under its connections.

use qpair_verbs::{Context, DatagramQueuePair};

use super::*;
use crate::engine::{FLOW_BYTES, FlowHeader, HEADER_BYTES, Header, Kind, Violation};
use crate::worker::datagram::HELD;

/// A worker that is connected to itself, over datagrams.
fn mirror() -> (Worker, EndpointId, EndpointId) {
    let mut worker = Worker::new(Config::default()).unwrap();
    let ends = again(&mut worker);
    (worker, ends.0, ends.1)
}

fn again(worker: &mut Worker) -> (EndpointId, EndpointId) {
    join(worker, |worker, address| worker.connect_datagram(address))
}

/// Someone else with a queue pair for datagrams, and what it sends with.
struct Stranger {
    qp: DatagramQueuePair,
    _cq: CompletionQueue,
}

impl Stranger {
    fn new() -> Self {
        let context = Context::open(&Config::default().placement().unwrap().device).unwrap();
        let cq = context.create_cq(64).unwrap();
        let qp = context.alloc_pd().unwrap().ud(&cq).build().unwrap().activate().unwrap();
        Stranger { qp, _cq: cq }
    }

    fn send(&mut self, to: &Worker, bytes: &[u8]) {
        let handle = self.qp.address_handle(&to.datagrams.as_ref().unwrap().address()).unwrap();
        self.qp.send_inline(bytes, &handle).post().unwrap();
    }
}

/// A packet for one end, as its peer would send it.
fn packet(worker: &Worker, ep: EndpointId, secret: Option<u32>, header: FlowHeader, contents: &[u8]) -> Vec<u8> {
    let own = worker.endpoints.get(ep).unwrap().line.as_ref().unwrap().secret();
    let mut bytes = [0; FLOW_BYTES];
    header.emit(ep.index, secret.unwrap_or(own), &mut bytes);
    [&bytes, contents].concat()
}

/// The next packet of the other end's, which has nothing to acknowledge.
fn next_data(worker: &Worker, of: EndpointId) -> FlowHeader {
    worker.endpoints.get(of).unwrap().line.as_ref().unwrap().next_header()
}

fn until(worker: &mut Worker, so: impl Fn(&Worker) -> bool) -> Vec<Event> {
    let begin = Instant::now();
    let mut events = Vec::new();
    while !so(worker) {
        assert!(begin.elapsed() < PATIENCE, "{events:?}");
        events.extend(worker.poll().unwrap());
    }
    events
}

fn rest(worker: &mut Worker, ends: [EndpointId; 2]) {
    let settled = |worker: &Worker, ep| {
        worker.endpoints.get(ep).and_then(|endpoint| endpoint.line.as_ref()).is_none_or(|line| line.is_settled())
    };
    until(worker, |worker| ends.into_iter().all(|ep| settled(worker, ep)));
}

fn end(worker: &mut Worker, of: EndpointId) -> CloseReason {
    loop {
        match worker.wait(Some(PATIENCE)).unwrap().expect("it ends in time") {
            Event::Closed { ep, reason } if ep == of => return reason,
            _ => {}
        }
    }
}

#[test]
fn packets_of_strangers_count_for_nothing() {
    let (mut worker, ep, other) = mirror();
    rest(&mut worker, [ep, other]);
    let header = next_data(&worker, ep);
    let mut stranger = Stranger::new();
    let message = [7; 60];
    let wrong = packet(&worker, other, Some(12345), header, &message);
    let mut nobody = packet(&worker, other, None, header, &message);
    nobody[0] = 200;
    // All right but for who sends it.
    let forged = packet(&worker, other, None, header, &message);
    let packets: [&[u8]; 6] = [b"", b"short", &[0xff; 900], &wrong, &nobody, &forged];
    for packet in packets {
        stranger.send(&worker, packet);
    }
    let events = until(&mut worker, |worker| worker.counters().packets_stray == 6);
    assert!(events.is_empty(), "{events:?}");
    worker.send(ep, Tag(1), &b"heard all the same"[..]).unwrap();
    let events = until(&mut worker, |worker| worker.counters().eager_received == 1);
    let came =
        |event: &Event| matches!(event, Event::Received { message, .. } if *message == b"heard all the same"[..]);
    assert!(events.iter().any(came) || worker.ready.iter().any(came), "{events:?}");
    assert_eq!(worker.counters().lost, 0);
}

#[test]
fn peers_that_break_the_protocol_are_left() {
    for (what, kind) in
        [("no message", None), ("an offer", Some(Kind::ReadyToSend)), ("another session", Some(Kind::Eager))]
    {
        let (mut worker, ep, other) = mirror();
        rest(&mut worker, [ep, other]);
        let epoch = worker.endpoints.get(ep).unwrap().link.epoch();
        let (sequence, _) = worker.endpoints.get(ep).unwrap().link.sequences();
        let mut contents = [0xee; HEADER_BYTES];
        if let Some(kind) = kind {
            let envelope = Envelope { class: Class::Tagged, port: 0, tag: 1 };
            let epoch = if kind == Kind::Eager { epoch ^ 1 } else { epoch };
            let header = Header { kind, envelope, epoch, sequence, credits: 0, length: 0, acknowledged: 0 };
            header.emit(&mut contents);
        }
        let header = next_data(&worker, ep);
        let bytes = packet(&worker, other, None, header, &contents);
        worker.datagrams.as_mut().unwrap().forge(&bytes);
        let reason = end(&mut worker, other);
        assert!(matches!(reason, CloseReason::Protocol(_)), "{what}: {reason}");
    }
}

#[test]
fn a_peer_that_acknowledges_what_was_not_sent_is_left() {
    let (mut worker, ep, other) = mirror();
    rest(&mut worker, [ep, other]);
    let header = FlowHeader { acknowledged: 1000, ..next_data(&worker, ep) };
    let bytes = packet(&worker, other, None, header, b"");
    worker.datagrams.as_mut().unwrap().forge(&bytes);
    let reason = end(&mut worker, other);
    assert!(matches!(reason, CloseReason::Protocol(Violation::Acknowledged { said: 1000, .. })), "{reason}");
}

/// A longer one than its slabs take.
#[test]
fn a_message_that_is_too_long_ends_its_connection() {
    let (mut worker, ep, other) = mirror();
    rest(&mut worker, [ep, other]);
    worker.slabs = EagerSlabs::new(&worker.pd, None, HEADER_BYTES + 300);
    let header = next_data(&worker, ep);
    let bytes = packet(&worker, other, None, header, &[1; 900]);
    worker.datagrams.as_mut().unwrap().forge(&bytes);
    let reason = end(&mut worker, other);
    assert!(matches!(reason, CloseReason::Protocol(Violation::Wire(_))), "{reason}");
}

/// A packet that is longer than the receives is no concern of the connections, whoever sends it.
#[test]
fn a_receive_that_fails_costs_a_packet_and_no_connection() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let on = (&worker.context, &worker.pd, &worker.channel);
    worker.datagrams = Some(Box::new(Datagrams::with_short_packets(on, worker.start)));
    worker.has_other_queues = true;
    let (ep, other) = again(&mut worker);
    rest(&mut worker, [ep, other]);
    let context = Context::open(&Config::default().placement().unwrap().device).unwrap();
    let cq = context.create_cq(64).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut qp = pd.ud(&cq).build().unwrap().activate().unwrap();
    let handle = qp.address_handle(&worker.datagrams.as_ref().unwrap().address()).unwrap();
    for count in 1..=10 {
        qp.send(pd.alloc(1024).unwrap(), &handle).post().unwrap();
        until(&mut worker, |worker| worker.counters().packets_stray == count);
    }
    for number in 0..2000 {
        worker.send(ep, Tag(number), &b"heard all the same"[..]).unwrap();
        until(&mut worker, |worker| worker.counters().eager_received == number + 1);
    }
    assert_eq!(worker.counters().lost, 0);
}

#[test]
fn connections_end_with_the_queue_pair_and_the_next_gets_another() {
    let (mut worker, ep, _) = mirror();
    let number = worker.datagrams.as_ref().unwrap().address().qpn;
    worker.datagrams.as_mut().unwrap().break_queue_pair();
    let reason = end(&mut worker, ep);
    assert!(matches!(reason, CloseReason::PeerLost(Lost::QueuePair)), "{reason}");
    until(&mut worker, |worker| worker.endpoints.len() == 0);
    worker.ready.clear();
    assert_eq!(worker.lines, 0);
    let (ep, _) = again(&mut worker);
    assert_ne!(worker.datagrams.as_ref().unwrap().address().qpn, number);
    worker.send(ep, Tag(1), &b"again"[..]).unwrap();
    until(&mut worker, |worker| worker.counters().eager_received == 1);
}

/// A completion queue that had more completions than it holds, and gives an error ever after.
fn overrun() -> CompletionQueue {
    let context = Context::open(&Config::default().placement().unwrap().device).unwrap();
    let mut cq = context.create_cq(1).unwrap();
    let mut qp = context.alloc_pd().unwrap().ud(&cq).send_depth(cq.depth() + 1).build().unwrap().activate().unwrap();
    let own = qp.address_handle(&qp.address()).unwrap();
    let begin = Instant::now();
    for number in 0..=cq.depth() {
        qp.send_inline(&[1], &own).signaled().id(number.into()).post().unwrap();
    }
    while cq.poll().is_ok() {
        assert!(begin.elapsed() < PATIENCE, "it holds them all");
    }
    cq
}

#[test]
fn a_completion_queue_of_datagrams_that_fails_costs_their_connections_and_no_worker() {
    let (mut worker, ep, _) = mirror();
    worker.datagrams.as_mut().unwrap().receives = overrun();
    let reason = end(&mut worker, ep);
    assert!(matches!(reason, CloseReason::PeerLost(Lost::QueuePair)), "{reason}");
    until(&mut worker, |worker| worker.endpoints.len() == 0);
    worker.ready.clear();
    let (ep, _) = again(&mut worker);
    worker.send(ep, Tag(1), &b"again"[..]).unwrap();
    until(&mut worker, |worker| worker.counters().eager_received == 1);
}

/// The last acknowledgment, and what waits for packets that never come, are no reason to keep anything.
#[test]
fn nothing_is_left_of_connections_that_ended() {
    let (mut worker, ep, other) = mirror();
    for number in 0..100 {
        worker.send(ep, Tag(number), vec![1; 500]).unwrap();
    }
    rest(&mut worker, [ep, other]);
    let header = next_data(&worker, ep);
    let bytes = packet(&worker, other, None, FlowHeader { sequence: header.sequence + 3, ..header }, &[5; 100]);
    worker.datagrams.as_mut().unwrap().forge(&bytes);
    worker.abort(ep);
    end(&mut worker, other);
    until(&mut worker, |worker| worker.endpoints.len() == 0);
    worker.ready.clear();
    worker.reclaim(1000);
    assert_eq!((worker.lines, worker.slabs.lent()), (0, 0));
    assert_eq!(worker.datagrams.as_ref().unwrap().held, 0);
    assert!(worker.slabs.has_all(), "no slab is lost");
}

/// What waits for a packet before it takes a slab: peers have so many together, however many they are.
#[test]
fn packets_behind_missing_ones_take_a_bounded_share_of_memory() {
    let (mut worker, ep, other) = mirror();
    rest(&mut worker, [ep, other]);
    let header = next_data(&worker, ep);
    let ahead = |worker: &mut Worker, by: u32| {
        let bytes = packet(worker, other, None, FlowHeader { sequence: header.sequence + by, ..header }, &[5; 100]);
        worker.datagrams.as_mut().unwrap().forge(&bytes);
    };
    worker.datagrams.as_mut().unwrap().held = HELD - 2;
    for by in 1..=5 {
        ahead(&mut worker, by);
    }
    let repeated = |worker: &Worker| {
        worker.endpoints.get(other).and_then(|endpoint| endpoint.line.as_ref()).map(|line| line.state().duplicates)
    };
    until(&mut worker, |worker| repeated(worker) == Some(3));
    assert_eq!(worker.datagrams.as_ref().unwrap().held, HELD);
    worker.datagrams.as_mut().unwrap().held = 2;
    worker.abort(other);
    until(&mut worker, |worker| worker.endpoints.len() == 0);
    assert_eq!(worker.datagrams.as_ref().unwrap().held, 0);
}
