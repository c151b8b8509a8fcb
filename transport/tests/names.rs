//! Peers by name, and with several addresses.

mod support;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Instant;

use qpair_transport::{CloseReason, Config, ConnectError, ConnectFailure, PeerAddress, ToPeer, Worker};
use support::*;

/// Connects to a listener at `at` by what `peer` makes of its port.
fn connects<P: ToPeer>(at: &str, peer: impl FnOnce(u16) -> P) {
    let mut server = Worker::new(Config::default()).unwrap();
    let listener = server.listen(at).unwrap();
    let serve = std::thread::spawn(move || {
        connected(&mut server);
        closed(next(&mut server))
    });
    let mut worker = Worker::new(Config::default()).unwrap();
    let ep = worker.connect(peer(listener.local_addr().port())).unwrap();
    assert_eq!(connected(&mut worker), ep);
    assert_eq!(worker.explain(ep).unwrap().peer, listener.local_addr());
    worker.close(ep);
    assert!(matches!(closed(next(&mut worker)), CloseReason::Local));
    assert!(matches!(serve.join().unwrap(), CloseReason::Remote));
}

#[test]
fn a_name_is_looked_up_while_the_worker_goes_on() {
    connects("127.0.0.1:0", |port| format!("localhost:{port}"));
    connects("127.0.0.1:0", |port| ("localhost", port));
    connects("127.0.0.1:0", |port| PeerAddress::Name { host: "localhost".into(), port });
}

#[test]
fn an_address_may_be_given_in_many_ways() {
    connects("127.0.0.1:0", |port| (Ipv4Addr::LOCALHOST, port));
    connects("127.0.0.1:0", |port| (IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    connects("127.0.0.1:0", |port| ("127.0.0.1".to_owned(), port));
}

/// What `localhost` means on many a machine, while a program listens at one of the two.
#[test]
fn of_a_hosts_addresses_the_one_that_listens_is_found() {
    let v6 = |port| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    connects("127.0.0.1:0", |port| vec![v6(port), v4(port)]);
    connects("127.0.0.1:0", |port| [v4(port), v6(port)]);
    if TcpListener::bind("[::1]:0").is_ok() {
        // Where no other test listens, who might have taken the port.
        let nobody = |port| SocketAddr::from(([127, 9, 8, 7], port));
        connects("[::1]:0", |port| [nobody(port), v6(port)]);
        connects("[::1]:0", |port| [v6(port), nobody(port)]);
    }
}

#[test]
fn a_name_without_an_address_is_named() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let start = Instant::now();
    let ep = worker.connect("no-such-host.invalid:4242").unwrap();
    worker.send(ep, qpair_transport::Tag(1), &b"lost"[..]).unwrap();
    assert!(start.elapsed() < LIMIT / 4, "nothing waits for the name server");
    next(&mut worker);
    let reason = closed(next(&mut worker));
    assert!(
        matches!(&reason, CloseReason::Failed(ConnectFailure::Name { host, .. }) if &**host == "no-such-host.invalid"),
        "{reason}"
    );
    assert!(reason.to_string().contains("check its spelling"), "{reason}");
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn what_is_no_address_is_refused_at_once() {
    let mut worker = Worker::new(Config::default()).unwrap();
    for text in ["localhost", "localhost:", ":80", "localhost:http"] {
        let error = worker.connect(text).unwrap_err();
        assert!(matches!(&error, ConnectError::Address(why) if why.kind() == ErrorKind::InvalidInput), "{error}");
        assert!(error.to_string().contains("write host:port"), "{error}");
    }
    assert!(worker.connect(Vec::new()).is_err());
}

#[test]
fn a_call_that_is_closed_before_it_comes_up_leaves_nothing() {
    let mut worker = Worker::new(Config::default().endpoints(1)).unwrap();
    for _ in 0..100 {
        let ep = worker.connect("no-such-host.invalid:4242").unwrap();
        worker.close(ep);
        assert!(matches!(closed(next(&mut worker)), CloseReason::Local));
    }
    // Answers for them come, and are for nobody.
    connects("127.0.0.1:0", |port| ("localhost", port));
    assert!(worker.poll().unwrap().is_none());
}
