//! A peer that ends and comes back at the same address: the old connection ends, the new one is another.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use qpair_transport::{CloseReason, Config, EndpointId, Event, SendFailure, Tag, Worker};
use support::*;

const ADDRESS: &str = "QPAIR_TEST_ADDRESS";

/// A process that listens, and answers each message with its number.
struct Server {
    process: Process,
    address: String,
    id: u32,
    _output: BufReader<ChildStdout>,
}

impl Server {
    fn start(address: &str) -> Server {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_a_server", "--nocapture", "--include-ignored"])
            .env(ADDRESS, address)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (id, process) = (child.id(), Process(child));
        let mut line = String::new();
        loop {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "it ended before it listened");
            if let Some((_, address)) = line.trim_end().split_once("listens at ") {
                return Server { process, address: address.to_owned(), id, _output: output };
            }
        }
    }
}

#[test]
#[ignore = "needs a test below to start it, as its other process"]
fn as_a_server() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let mut worker = Worker::new(Config::default()).unwrap();
    let listener = worker.listen(address).unwrap();
    println!("listens at {}", listener.local_addr());
    let id = std::process::id().to_le_bytes();
    loop {
        if let Event::Received { ep, tag, .. } = next(&mut worker) {
            worker.send(ep, tag, id.to_vec()).unwrap();
        }
    }
}

/// Asks a server for its number, as message `tag`.
fn ask(worker: &mut Worker, ep: EndpointId, tag: Tag) -> u32 {
    worker.send(ep, tag, &b"who?"[..]).unwrap();
    loop {
        match next(worker) {
            Event::Received { ep: from, tag: of, message } => {
                assert_eq!((from, of), (ep, tag), "of no other connection");
                return u32::from_le_bytes(message[..].try_into().unwrap());
            }
            Event::Sent { .. } => {}
            other => panic!("{}", brief(&other)),
        }
    }
}

#[test]
fn a_peer_that_comes_back_at_its_address_is_another() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let mut server = Server::start(&own_address());
    let mut old: Option<EndpointId> = None;
    for turn in 0..3 {
        let ep = worker.connect(server.address.as_str()).unwrap();
        assert_eq!(connected(&mut worker), ep);
        assert_eq!(ask(&mut worker, ep, Tag(turn)), server.id);
        // With a message under way, of which nobody can tell whether it came.
        worker.send(ep, Tag(99), &b"lost?"[..]).unwrap();
        server.process.kill();
        let reason = loop {
            match next(&mut worker) {
                Event::Closed { ep: ended, reason } => {
                    assert_eq!(ended, ep);
                    break reason;
                }
                Event::Sent { .. } | Event::Received { tag: Tag(99), .. } => {}
                other => panic!("{}", brief(&other)),
            }
        };
        assert!(matches!(reason, CloseReason::PeerLost(_) | CloseReason::Completion(_)), "{reason}");
        for gone in old.into_iter().chain([ep]) {
            let refused = worker.send(gone, Tag(0), &b"you?"[..]).unwrap_err();
            assert!(matches!(refused.error, SendFailure::Unknown(_)), "{}", refused.error);
        }
        old = Some(ep);
        server = Server::start(&server.address);
    }
}
