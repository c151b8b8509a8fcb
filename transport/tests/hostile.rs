//! A listener that is called by a worker and does not keep to the protocol: each costs the worker that one call, in a
//! bounded time, and nothing that it would miss later.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use qpair_transport::{CloseReason, ClusterKey, Config, ConnectFailure, HandshakeError, Worker};
use support::*;

const PREFACE: &[u8] = b"QPTR\x03\x03\0\0\0\0\0\0";
const KEYED: &[u8] = b"QPTR\x03\x03\x01\0\0\0\0\0";

/// What a listener does with a call.
enum Deed {
    Say(Vec<u8>),
    /// Reads the caller's preface.
    Greet,
    /// Reads the caller's preface and a record.
    Hear,
    /// Reads the caller's preface and hello, and gives that back as the answer, with something changed.
    Echo(fn(&mut serde_json::Value)),
}

fn record(kind: u8, body: &[u8]) -> Deed {
    Deed::Say([&(1 + body.len() as u16).to_le_bytes()[..], &[kind], body].concat())
}

fn say(bytes: &[u8]) -> Deed {
    Deed::Say(bytes.to_vec())
}

fn greet(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 12]).unwrap();
}

fn hear(stream: &mut TcpStream) -> Vec<u8> {
    greet(stream);
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut contents = vec![0; usize::from(u16::from_le_bytes(len))];
    stream.read_exact(&mut contents).unwrap();
    contents
}

fn echo(stream: &mut TcpStream, change: fn(&mut serde_json::Value)) {
    let mut hello = serde_json::from_slice(&hear(stream)[1..]).unwrap();
    change(&mut hello);
    let Deed::Say(bytes) = record(2, hello.to_string().as_bytes()) else { unreachable!() };
    stream.write_all(&bytes).unwrap();
}

/// Why calls of one worker, with one endpoint for all of them, end over these deeds. A listener that has done its deeds
/// hangs up, or, where it is `patient`, when the caller has.
fn fates(config: Config, cases: Vec<(Vec<Deed>, bool)>) -> Vec<ConnectFailure> {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let count = cases.len();
    let serve = std::thread::spawn(move || {
        for (deeds, patient) in cases {
            let (mut stream, _) = server.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            for deed in deeds {
                match deed {
                    Deed::Say(bytes) => stream.write_all(&bytes).unwrap(),
                    Deed::Greet => greet(&mut stream),
                    Deed::Hear => drop(hear(&mut stream)),
                    Deed::Echo(change) => echo(&mut stream, change),
                }
            }
            if patient {
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
    });
    let mut worker = Worker::new(config.endpoints(1)).unwrap();
    let ends = (0..count).map(|_| {
        worker.connect(address).unwrap();
        match closed(next(&mut worker)) {
            CloseReason::Failed(failure) => failure,
            other => panic!("{other}"),
        }
    });
    let ends = ends.collect();
    serve.join().unwrap();
    ends
}

#[test]
fn what_is_not_due_ends_the_call() {
    use HandshakeError::{Body, HungUp, TooLong, Unexpected};
    let preface = || say(PREFACE);
    let early = |bytes: &[u8]| Deed::Say([PREFACE, bytes].concat());
    let tail = |error: &ConnectFailure| match error {
        ConnectFailure::Handshake { error, .. } => error.clone(),
        other => panic!("{other}"),
    };
    let cases = vec![
        // Before a hello: in one piece with what it answers to.
        (vec![early(b"\x03\0\x02{}")], true, Unexpected(2)),
        (vec![early(b"\x01\0\x03")], true, Unexpected(3)),
        (vec![early(b"\x03\0\x04no")], true, Unexpected(4)),
        (vec![preface(), say(PREFACE)], true, TooLong { len: 0x5051, limit: 4096 }),
        (vec![preface(), Deed::Greet], false, HungUp),
        // After it.
        (vec![preface(), Deed::Hear, record(1, b"{}")], true, Unexpected(1)),
        (
            vec![preface(), Deed::Hear, record(2, b"{}")],
            true,
            Body("missing field `address` at line 1 column 2".into()),
        ),
        (vec![preface(), Deed::Hear, record(3, b"")], true, Unexpected(3)),
        (vec![preface(), Deed::Hear, record(5, b"")], true, Unexpected(5)),
        (vec![preface(), Deed::Hear, record(99, b"")], true, Unexpected(99)),
        (vec![preface(), Deed::Hear, say(b"\0\0")], true, Unexpected(0)),
        (vec![preface(), Deed::Hear, say(b"\x01\x10")], true, TooLong { len: 4097, limit: 4096 }),
        (vec![preface(), Deed::Hear, say(b"\x10\0\x02")], false, HungUp),
        (vec![preface(), Deed::Hear], false, HungUp),
    ];
    let (cases, expected): (Vec<_>, Vec<_>) =
        cases.into_iter().map(|(deeds, patient, expected)| ((deeds, patient), expected)).unzip();
    let ends = fates(Config::default(), cases);
    assert_eq!(ends.iter().map(tail).collect::<Vec<_>>(), expected);
}

#[test]
fn devices_that_do_not_go_together_are_named() {
    let echo = |change| (vec![say(PREFACE), Deed::Echo(change)], true);
    let ends = fates(
        Config::default(),
        vec![
            echo(|hello| {
                hello["fabric"] = "infiniband".into();
                hello["of a later release"] = 7.into();
            }),
            echo(|hello| hello["path_mtu"] = "B256".into()),
            echo(|hello| hello["address"]["qp_type"] = "Uc".into()),
        ],
    );
    let error = |end: &ConnectFailure| match end {
        ConnectFailure::Handshake { error, .. } => Some(error.clone()),
        _ => None,
    };
    assert!(matches!(error(&ends[0]), Some(HandshakeError::Fabrics { theirs: "InfiniBand", .. })), "{}", ends[0]);
    assert!(ends[0].to_string().contains("choose devices of one kind"), "{}", ends[0]);
    assert_eq!(error(&ends[1]), Some(HandshakeError::Value { what: "a path MTU", value: 256 }));
    assert!(matches!(&ends[2], ConnectFailure::QueuePair(_)), "{}", ends[2]);
}

#[test]
fn a_key_is_not_got_around() {
    use HandshakeError::{PeerHasNoKey, TooLong, WrongKey};
    let config = Config::default().cluster_key(ClusterKey::from_bytes([7; 32]));
    let keyed = || say(KEYED);
    let part = |len: usize| say(&[&(len as u16).to_le_bytes()[..], &vec![9; len]].concat());
    let cases = vec![
        (vec![say(PREFACE)], true, PeerHasNoKey),
        (vec![keyed(), Deed::Hear, say(b"\0\0")], true, WrongKey),
        (vec![keyed(), Deed::Hear, part(48)], true, WrongKey),
        (vec![keyed(), Deed::Hear, part(47)], true, WrongKey),
        (vec![keyed(), Deed::Hear, part(49)], true, TooLong { len: 49, limit: 48 }),
        // In the clear, as if there were no key.
        (vec![keyed(), Deed::Hear, record(4, b"no")], true, WrongKey),
    ];
    let (cases, expected): (Vec<_>, Vec<_>) =
        cases.into_iter().map(|(deeds, patient, expected)| ((deeds, patient), expected)).unzip();
    for (end, expected) in fates(config, cases).iter().zip(&expected) {
        assert!(matches!(end, ConnectFailure::Handshake { error, .. } if error == expected), "{end}, not {expected}");
    }
}

#[test]
fn silence_at_any_moment_ends_with_the_time_for_connecting() {
    let limit = Duration::from_millis(150);
    let cases = vec![
        (vec![], true),
        (vec![say(&PREFACE[..11])], true),
        (vec![say(PREFACE)], true),
        (vec![say(PREFACE), Deed::Hear, say(b"\x10")], true),
        (vec![say(PREFACE), Deed::Hear, say(b"\x10\0\x02{")], true),
    ];
    for end in fates(Config::default().connect_timeout(limit), cases) {
        // QPAIR_PATIENCE may have made it longer.
        assert!(matches!(end, ConnectFailure::TimedOut { limit: after, .. } if after >= limit), "{end}");
    }
}

#[test]
fn a_refusal_is_told_in_its_own_words() {
    let cases = vec![(vec![say(PREFACE), Deed::Hear, record(4, "no more, \u{e4}h\u{ff}".as_bytes())], true)];
    let ends = fates(Config::default(), cases);
    assert!(matches!(&ends[0], ConnectFailure::Rejected { reason, .. } if reason.contains("no more, ")), "{}", ends[0]);
}
