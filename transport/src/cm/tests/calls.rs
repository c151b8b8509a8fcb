//! Those who call.

use std::net::TcpListener;

use super::*;

/// A listener by hand.
fn server() -> (TcpListener, SocketAddr) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    (server, address)
}

fn to(addresses: &[SocketAddr]) -> PeerAddress {
    PeerAddress::Addresses(addresses.to_vec())
}

/// The caller that the server sees next, while `sockets` are polled.
fn accept(server: &TcpListener, sockets: &mut Sockets, now: Duration) -> TcpStream {
    server.set_nonblocking(true).unwrap();
    let start = Instant::now();
    loop {
        look(sockets, Duration::ZERO, now);
        if let Ok((stream, _)) = server.accept() {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            return stream;
        }
        assert!(start.elapsed() < PATIENCE);
    }
}

/// Polls until the call has not a stream any more, and gives the time at which it goes on.
fn rests(sockets: &mut Sockets, now: Duration, deadline: Duration) -> Duration {
    let start = Instant::now();
    loop {
        look(sockets, Duration::from_millis(1), now);
        assert!(start.elapsed() < PATIENCE && sockets.notices().is_empty(), "{:?}", sockets.notices());
        match sockets.next_deadline() {
            // Neither the end of its place nor that of the call.
            Some(next) if next != now + Duration::from_millis(250) && next < deadline => return next,
            _ => {}
        }
    }
}

#[test]
fn a_call_that_is_taken_says_hello_when_it_is_asked_and_has_its_time_and_haste() {
    let (server, address) = server();
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    let called = sockets.call(to(&[address]), NOW);
    assert!(sockets.is_brisk(NOW) && !sockets.is_brisk(NOW + SECOND));
    let mut peer = accept(&server, &mut sockets, NOW);
    // Nothing is due before the peer has shown who it is.
    sockets.send(called, &Message::Hello(hello()));
    peer.write_all(&preface()).unwrap();
    let all = notices(&mut sockets, 1, NOW);
    assert!(matches!(all[..], [Notice::Greeted { socket, peer }] if (socket, peer) == (called, address)), "{all:?}");
    sockets.send(called, &Message::Hello(hello()));
    assert_eq!(read_preface(&mut peer), Preface::ours(false));
    assert_eq!(read_record(&mut peer), Message::Hello(hello()));
    assert_eq!(sockets.next_deadline(), Some(NOW + Duration::from_millis(250)), "its place is another's then");
    sockets.expire(NOW + SECOND);
    assert_eq!(sockets.next_deadline(), Some(NOW + 100 * SECOND));
    sockets.expire(NOW + 100 * SECOND);
    assert!(matches!(sockets.notices()[..], [Notice::TimedOut { socket }] if socket == called));
    assert_eq!((sockets.is_brisk(NOW), sockets.next_deadline()), (false, None));
}

/// A host that is gone without a word does not keep a stream, on either side of it.
#[test]
fn the_system_watches_the_streams_of_both_sides() {
    let (mut listening, _, address) = listening();
    let mut calling = Sockets::new(settings(), &context()).unwrap();
    let ours = calling.call(to(&[address]), NOW);
    let theirs = incoming(&mut listening);
    let start = Instant::now();
    while calling.notices().is_empty() {
        for sockets in [&mut listening, &mut calling] {
            look(sockets, Duration::ZERO, NOW);
        }
        assert!(start.elapsed() < PATIENCE);
    }
    for socket in [calling.socket(ours), listening.socket(theirs)] {
        assert!(rustix::net::sockopt::socket_keepalive(socket).unwrap());
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(socket).unwrap(), 9000);
    }
}

#[test]
fn a_call_that_is_given_up_leaves_nothing_behind() {
    let (server, address) = server();
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    let called = sockets.call(to(&[address, "127.0.0.2:9".parse().unwrap()]), NOW);
    sockets.close(called);
    sockets.close(called);
    assert_eq!((sockets.is_brisk(NOW), sockets.next_deadline()), (false, None));
    let mut peer = accept(&server, &mut sockets, NOW);
    assert!(matches!(peer.read(&mut [0; 1]), Ok(0) | Err(_)), "it hung up");
    sockets.expire(NOW + 1000 * SECOND);
    assert!(sockets.notices().is_empty());
}

/// Busy, hung up, reset: each is called again, later each time, until the call's time is over.
#[test]
fn a_peer_without_room_is_called_again() {
    let (server, address) = server();
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    let (mut now, deadline) = (NOW, NOW + 100 * SECOND);
    let called = sockets.call(to(&[address]), now);
    for (round, most) in [20, 90, 80, 210, 320].into_iter().enumerate() {
        let mut peer = accept(&server, &mut sockets, now);
        match round % 3 {
            0 => drop(peer),
            1 => peer.write_all(&Preface::busy(true, Duration::from_millis(50)).encode()).unwrap(),
            _ => {
                rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
                drop(peer);
            }
        }
        let next = rests(&mut sockets, now, deadline);
        let rest = (next - now).as_millis();
        assert!(rest <= most && rest >= most / 2, "round {round}: {rest} ms");
        sockets.expire(next - Duration::from_nanos(1));
        assert_eq!(sockets.next_deadline(), Some(next));
        now = next;
        sockets.expire(now);
    }
    let mut peer = accept(&server, &mut sockets, now);
    peer.write_all(&preface()).unwrap();
    let all = notices(&mut sockets, 1, now);
    assert!(matches!(all[..], [Notice::Greeted { socket, .. }] if socket == called), "{all:?}");
    // From now on a peer that hangs up is no matter of room.
    drop(peer);
    let all = notices(&mut sockets, 1, now);
    assert!(matches!(all[..], [Notice::Ended { end: StreamEnd::HungUp | StreamEnd::System(_), .. }]), "{all:?}");
}

#[test]
fn why_it_was_called_again_is_told_when_the_time_is_over() {
    let (server, address) = server();
    for busy in [true, false] {
        let mut sockets = Sockets::new(settings(), &context()).unwrap();
        sockets.call(to(&[address]), NOW);
        let mut peer = accept(&server, &mut sockets, NOW);
        if busy {
            peer.write_all(&Preface::busy(false, SECOND).encode()).unwrap();
        }
        drop(peer);
        rests(&mut sockets, NOW, NOW + 100 * SECOND);
        sockets.expire(NOW + 100 * SECOND);
        let all = std::mem::take(sockets.notices());
        let [Notice::Ended { end: StreamEnd::Call(error), .. }] = &all[..] else { panic!("{all:?}") };
        assert_eq!(matches!(error, CallError::Busy(_)), busy, "{error:?}");
        assert_eq!(matches!(error, CallError::HungUp(_)), !busy, "{error:?}");
        assert_eq!((sockets.is_brisk(NOW), sockets.next_deadline()), (false, None));
    }
}

#[test]
fn of_several_addresses_the_first_that_connects_is_taken() {
    let (server, address) = server();
    // Nobody is there, over either family.
    let port = address.port();
    let refusing = [SocketAddr::from(([127, 9, 8, 7], port)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))];
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    let called = sockets.call(to(&[refusing[0], refusing[1], address]), NOW);
    let mut peer = accept(&server, &mut sockets, NOW);
    peer.write_all(&preface()).unwrap();
    let all = notices(&mut sockets, 1, NOW);
    assert!(matches!(all[..], [Notice::Greeted { socket, peer }] if (socket, peer) == (called, address)), "{all:?}");
    sockets.call(to(&refusing), NOW);
    let all = notices(&mut sockets, 1, NOW);
    assert!(matches!(all[..], [Notice::Ended { end: StreamEnd::Call(_), .. }]), "{all:?}");
}

/// The one that was tried first does not answer: its backlog is full.
#[test]
fn an_address_that_does_not_answer_is_given_a_quarter_of_a_second() {
    let deaf = socket_that_does_not_answer();
    let (server, address) = server();
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    sockets.call(to(&[deaf.address, address]), NOW);
    look(&mut sockets, Duration::ZERO, NOW);
    let next = NOW + Duration::from_millis(250);
    assert_eq!(sockets.next_deadline(), Some(next));
    sockets.expire(next);
    let mut peer = accept(&server, &mut sockets, next);
    peer.write_all(&preface()).unwrap();
    let all = notices(&mut sockets, 1, next);
    assert!(matches!(all[..], [Notice::Greeted { peer, .. }] if peer == address), "{all:?}");
    sockets.call(to(&[deaf.address]), NOW);
    look(&mut sockets, Duration::ZERO, NOW);
    sockets.expire(NOW + 100 * SECOND);
    let all = std::mem::take(sockets.notices());
    assert!(
        all.iter().any(|notice| matches!(
            notice,
            Notice::Ended { end: StreamEnd::Call(CallError::TimedOut(address)), .. } if *address == deaf.address
        )),
        "{all:?}"
    );
}

/// A listener whose backlog of one is full, so that the system drops who comes.
struct Deaf {
    address: SocketAddr,
    _listener: rustix::fd::OwnedFd,
    _waiting: Vec<TcpStream>,
}

fn socket_that_does_not_answer() -> Deaf {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 0).unwrap();
    let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the backlog has an end");
    }
    Deaf { address, _listener: listener, _waiting: waiting }
}

/// Who sleeps on their descriptor is told of what comes, and not of what is left.
#[test]
fn events_that_are_left_are_looked_for() {
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    let mut pairs: Vec<_> = (0..300).map(|_| mio::net::UnixStream::pair().unwrap()).collect();
    for (one, other) in &mut pairs {
        sockets.register(one).unwrap();
        other.write_all(&[1]).unwrap();
    }
    look(&mut sockets, Duration::ZERO, NOW);
    assert!(sockets.has_chores());
    look(&mut sockets, Duration::ZERO, NOW);
    assert!(!sockets.has_chores(), "it took all");
}

/// So many are under way, and one more for each that is over or slow.
#[test]
fn calls_take_turns() {
    const ALL: usize = 300;
    let (server, address) = server();
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    let calls: Vec<_> = (0..ALL).map(|_| sockets.call(to(&[address]), NOW)).collect();
    let mut peers: Vec<_> = (0..128).map(|_| accept(&server, &mut sockets, NOW)).collect();
    let nobody_else = |sockets: &mut Sockets| {
        look(sockets, Duration::from_millis(2), NOW);
        server.accept().is_err()
    };
    assert!(nobody_else(&mut sockets) && !sockets.has_chores());
    sockets.close(calls[0]);
    sockets.close(calls[200]);
    assert!(sockets.has_chores(), "nothing else would tell");
    peers.push(accept(&server, &mut sockets, NOW));
    // The caller hears who took the call: its handshake takes a place until it is settled.
    peers[1].write_all(&preface()).unwrap();
    let all = notices(&mut sockets, 1, NOW);
    let [Notice::Greeted { socket, .. }] = all[..] else { panic!("{all:?}") };
    assert!(nobody_else(&mut sockets));
    sockets.settle(socket);
    peers.push(accept(&server, &mut sockets, NOW));
    assert!(nobody_else(&mut sockets));
    // The others answer late: they are waited for, and hold nobody up.
    let mut now = NOW;
    while peers.len() < ALL - 1 {
        now += Duration::from_millis(250);
        sockets.expire(now);
        for _ in 0..128.min(ALL - 1 - peers.len()) {
            peers.push(accept(&server, &mut sockets, now));
        }
    }
    for peer in &mut peers[2..] {
        peer.write_all(&preface()).unwrap();
    }
    let all = notices(&mut sockets, ALL - 3, now);
    assert!(all.len() == ALL - 3 && all.iter().all(|notice| matches!(notice, Notice::Greeted { .. })));
}

#[test]
fn names_are_looked_up_and_the_call_goes_on() {
    let (server, address) = server();
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    sockets.resolve_with(|host| match host {
        "here" => Ok(vec!["127.0.0.1:0".parse().unwrap()]),
        other => Err(std::io::Error::other(format!("who is {other}?"))),
    });
    let name = |host: &str| PeerAddress::Name { host: host.into(), port: address.port() };
    let nowhere = sockets.call(name("nowhere"), NOW);
    let all = notices(&mut sockets, 1, NOW);
    let [Notice::Ended { socket, end: StreamEnd::Call(CallError::Name { host, source }) }] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!((*socket, &**host, source.to_string()), (nowhere, "nowhere", "who is nowhere?".into()));
    let given_up = sockets.call(name("here"), NOW);
    let here = sockets.call(name("here"), NOW);
    sockets.close(given_up);
    let mut peer = accept(&server, &mut sockets, NOW);
    peer.write_all(&preface()).unwrap();
    let all = notices(&mut sockets, 1, NOW);
    assert!(matches!(all[..], [Notice::Greeted { socket, peer }] if (socket, peer) == (here, address)), "{all:?}");
}

#[test]
fn a_name_server_that_does_not_answer_is_waited_for_so_long() {
    let mut sockets = Sockets::new(settings(), &context()).unwrap();
    sockets.resolve_with(|_| {
        std::thread::park_timeout(PATIENCE);
        Ok(vec![])
    });
    sockets.call(PeerAddress::Name { host: "far".into(), port: 7 }, NOW);
    sockets.expire(NOW + 100 * SECOND);
    let all = std::mem::take(sockets.notices());
    let [Notice::Ended { end: StreamEnd::Call(CallError::Name { source, .. }), .. }] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
}
