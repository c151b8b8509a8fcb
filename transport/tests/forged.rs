//! A peer that breaks the protocol: made by hand of a TCP stream and a queue pair. It costs it its connection, and nobody
//! else anything.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use qpair_transport::{
    Class, CloseReason, Config, EndpointId, Envelope, Event, HEADER_BYTES, Header, Kind, OFFER_LIMIT, Offer, OpError,
    Payload, RailKeys, Returned, Tag, Violation, WireError, Worker,
};
use qpair_verbs::{CompletionQueue, Context, ProtectionDomain, QpAddress, QueuePair, Rkey, WcStatus};
use serde::{Deserialize, Serialize};
use support::*;

#[derive(Serialize, Deserialize)]
struct Hello {
    address: QpAddress,
    epoch: u32,
    credits: u32,
    eager_limit: u32,
}

/// The forger's end of a connection.
struct Forger {
    qp: QueuePair,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    stream: TcpStream,
}

const EPOCH: u32 = 77;
const CREDITS: u32 = 64;
/// Version 3, and no key.
const PREFACE: &[u8; 12] = b"QPTR\x03\x03\0\0\0\0\0\0";

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (1 + body.len() as u16).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(body);
    bytes
}

impl Forger {
    /// Connects as a worker would, which is polled meanwhile by another thread. Says that it has room for [`CREDITS`] messages,
    /// and has so many receives; where there is none, the worker's device is to wait for `pause` before each of a few attempts.
    fn connect(address: SocketAddr, receives: u32, pause: Duration) -> Forger {
        let ctx = Context::open("soft0").unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(1024).unwrap();
        let mut prepared = pd.rc(&cq).min_rnr_timer(pause).build().unwrap();
        for _ in 0..receives {
            prepared.recv(pd.alloc(10_000).unwrap()).post().unwrap();
        }
        let hello = Hello { address: prepared.address(), epoch: EPOCH, credits: CREDITS, eager_limit: 8192 };
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&frame(1, &serde_json::to_vec(&hello).unwrap())).unwrap();
        let mut preface = [0; 12];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(&preface, PREFACE);
        let mut prefix = [0; 3];
        stream.read_exact(&mut prefix).unwrap();
        let [low, high, kind] = prefix;
        assert_eq!(kind, 2);
        let mut body = vec![0; usize::from(u16::from_le_bytes([low, high])) - 1];
        stream.read_exact(&mut body).unwrap();
        let answer: Hello = serde_json::from_slice(&body).unwrap();
        let qp = prepared.connect(&answer.address).unwrap();
        stream.write_all(&frame(3, b"")).unwrap();
        Forger { qp, pd, cq, stream }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.qp.send_inline(bytes).post().unwrap();
    }
}

fn of_epoch(epoch: u32, kind: Kind, sequence: u32, envelope: Envelope, length: u64) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES];
    Header { kind, envelope, epoch, sequence, credits: 64, length, acknowledged: 0 }.emit(&mut bytes);
    bytes.to_vec()
}

fn header(kind: Kind, sequence: u32, tag: u64, length: u64) -> Vec<u8> {
    of_epoch(EPOCH, kind, sequence, Envelope::bare(tag), length)
}

fn offer(length: u64) -> Vec<u8> {
    let mut body = [0; OFFER_LIMIT];
    let offer = Offer { addr: 4096, rkey: Rkey(0xdead_beef), id: 1, rails: RailKeys::default(), in_parts: false };
    [&header(Kind::ReadyToSend, 0, 1, length), offer.emit(&mut body)].concat()
}

/// What becomes of a connection over which `bytes` come.
fn fate(bytes: &[u8]) -> CloseReason {
    let mut worker = Worker::new(Config::default()).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let bytes = bytes.to_vec();
    let forger = std::thread::spawn(move || {
        let mut forger = Forger::connect(address, CREDITS, Duration::from_millis(1));
        forger.send(&bytes);
        // Until the worker hangs up.
        let _ = forger.stream.read(&mut [0; 1]);
    });
    let reason = loop {
        match next(&mut worker) {
            Event::Closed { reason, .. } => break reason,
            Event::Accepted { .. } => {}
            other => panic!("{}", brief(&other)),
        }
    };
    forger.join().unwrap();
    // The worker serves others as before.
    let ep = worker.connect(address).unwrap();
    worker.send(ep, Tag(1), &b"hello"[..]).unwrap();
    while !matches!(next(&mut worker), Event::Received { .. }) {}
    reason
}

#[test]
fn what_is_no_message_ends_the_connection() {
    let wrong_epoch = of_epoch(EPOCH + 1, Kind::Credit, 0, Envelope::bare(0), 0);
    let stream = |tag| of_epoch(EPOCH, Kind::Eager, 0, Envelope { class: Class::Stream, port: 0, tag }, 0);
    let limit = 1 << 31;
    let longest = (1 << 48) - 1;
    let part = of_epoch(EPOCH, Kind::Eager, 0, Envelope { class: Class::Part, port: 0, tag: 7 }, 0);
    let nothing_in_parts = [header(Kind::ReadyToSend, 0, 1, 0), vec![9, 0, 0, 0]].concat();
    let cases: [(Vec<u8>, Violation); 16] = [
        (vec![], Violation::Wire(WireError::Short { len: 0, needed: 32 })),
        (vec![7; 31], Violation::Wire(WireError::Short { len: 31, needed: 32 })),
        (vec![7; 40], Violation::Wire(WireError::Version(7))),
        ([vec![3, 9], vec![0; 30]].concat(), Violation::Wire(WireError::Kind(9))),
        ([vec![3, 0x71], vec![0; 30]].concat(), Violation::Wire(WireError::Class(7))),
        ([vec![3, 3, 2], vec![0; 29]].concat(), Violation::Wire(WireError::Port(2))),
        (wrong_epoch, Violation::Epoch { expected: EPOCH, got: EPOCH + 1 }),
        (header(Kind::Eager, 5, 1, 0), Violation::Sequence { expected: 0, got: 5 }),
        (header(Kind::Eager, 0, 1, 9), Violation::Wire(WireError::Length { said: 9, got: 0 })),
        (header(Kind::Finished, 0, 0x1_0000, 10), Violation::Finished { id: 0x1_0000 }),
        (header(Kind::Withdrawn, 0, 0x1_0000, 0), Violation::Finished { id: 0x1_0000 }),
        (header(Kind::Want, 0, 0x1_0000, 0), Violation::Wanted { id: 0x1_0000 }),
        (part, Violation::Part { id: 7, len: 0, left: 0 }),
        (nothing_in_parts, Violation::Part { id: 9, len: 0, left: 0 }),
        // One that this side would have opened.
        (stream(3), Violation::Stream { number: 3 }),
        (offer(longest), Violation::TooLong { len: longest, limit }),
    ];
    for (bytes, expected) in cases {
        match fate(&bytes) {
            CloseReason::Protocol(violation) => assert_eq!(violation, expected),
            other => panic!("{other}, not {expected}"),
        }
    }
    let short = [header(Kind::ReadyToSend, 0, 1, 10), vec![0; 3]].concat();
    let reason = fate(&short);
    assert!(
        matches!(reason, CloseReason::Protocol(Violation::Wire(WireError::Short { len: 3, needed: 16 }))),
        "{reason}"
    );
}

#[test]
fn an_offer_of_memory_that_may_not_be_read_ends_the_connection() {
    let reason = fate(&offer(10_000));
    assert!(matches!(&reason, CloseReason::Completion(error) if error.status == WcStatus::REM_ACCESS_ERR), "{reason}");
}

#[test]
fn a_message_too_long_for_a_slab_ends_the_connection() {
    let reason = fate(&[header(Kind::Eager, 0, 1, 20_000), vec![0; 20_000]].concat());
    assert!(matches!(&reason, CloseReason::Completion(error) if error.status == WcStatus::LOC_LEN_ERR), "{reason}");
}

/// A worker with a connection to a peer that says it has room, and has no receive: once it is told to go on it posts some, if
/// it is to, and waits for so many messages; then it stays until the worker hangs up.
fn with_no_receives(
    pause: Duration,
    late: u32,
    messages: usize,
    then: impl FnOnce(Worker, EndpointId, mpsc::Sender<()>),
) {
    let mut worker = Worker::new(Config::default()).unwrap();
    let address = worker.listen("127.0.0.1:0").unwrap().local_addr();
    let (go_on, told) = mpsc::channel();
    let peer = std::thread::spawn(move || {
        let Forger { mut qp, pd, mut cq, mut stream } = Forger::connect(address, 0, pause);
        told.recv_timeout(LIMIT).unwrap();
        for _ in 0..late {
            qp.recv(pd.alloc(10_000).unwrap()).post().unwrap();
        }
        for _ in 0..messages {
            assert!(cq.wait_for(LIMIT).unwrap().status().is_success());
        }
        let _ = stream.read(&mut [0; 1]);
    });
    let Event::Accepted { ep, .. } = next(&mut worker) else { panic!("no connection") };
    then(worker, ep, go_on);
    peer.join().unwrap();
}

#[test]
fn a_peer_that_has_no_receive_for_a_while_gets_everything_all_the_same() {
    // Long enough for the peer's thread to have its turn.
    with_no_receives(Duration::from_millis(500), 8, 3, |mut worker, ep, go_on| {
        let sends: Vec<_> = (0..3).map(|tag| worker.send(ep, Tag(tag), pattern(100, 1)).unwrap()).collect();
        go_on.send(()).unwrap();
        for send in sends {
            assert!(matches!(next(&mut worker), Event::Sent { op, .. } if op == send));
        }
        worker.flush(ep).unwrap();
        let event = next(&mut worker);
        assert!(matches!(event, Event::Flushed { .. }), "{}", brief(&event));
    });
}

#[test]
fn a_peer_that_never_has_a_receive_costs_it_its_connection_and_nobody_memory() {
    with_no_receives(Duration::from_millis(1), 0, 0, |mut worker, ep, go_on| {
        let buffer = worker.domain().alloc(100_000).unwrap();
        let shared = Bytes::from(pattern(500_000, 2));
        let ops = [worker.send(ep, Tag(1), buffer).unwrap(), worker.send(ep, Tag(2), shared.clone()).unwrap()];
        let flush = worker.flush(ep).unwrap();
        let mut ended = Vec::new();
        let reason = loop {
            match next(&mut worker) {
                Event::Failed { op, error: OpError::Closed, returned, .. } => {
                    let whole = match &returned {
                        Returned::Payload(Payload::Buffer(buffer)) => op == ops[0] && buffer.len() == 100_000,
                        Returned::Payload(Payload::Bytes(bytes)) => op == ops[1] && *bytes == shared,
                        _ => op == flush,
                    };
                    assert!(whole, "{op}: {returned:?}");
                    ended.push(op);
                }
                Event::Closed { reason, .. } => break reason,
                other => panic!("{}", brief(&other)),
            }
        };
        ended.sort_unstable_by_key(|op| op.to_string());
        let mut all = [ops[0], ops[1], flush];
        all.sort_unstable_by_key(|op| op.to_string());
        assert_eq!(ended, all);
        assert!(
            matches!(&reason, CloseReason::Completion(error) if error.status == WcStatus::RNR_RETRY_EXC_ERR),
            "{reason}"
        );
        assert!(reason.to_string().contains("connect again"), "{reason}");
        go_on.send(()).unwrap();
        // The worker serves others as before.
        let address = worker.listen("127.0.0.1:0").unwrap().local_addr();
        let ep = worker.connect(address).unwrap();
        worker.send(ep, Tag(1), shared).unwrap();
        while !matches!(next(&mut worker), Event::Received { .. }) {}
    });
}
