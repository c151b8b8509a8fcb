//! Those who are called.

use super::*;

/// A peer that said hello, and its end.
fn guest(sockets: &mut Sockets, address: SocketAddr) -> (SocketId, TcpStream) {
    let mut peer = connect(address);
    let socket = incoming(sockets);
    peer.write_all(&first_words()).unwrap();
    let said = notices(sockets, 1, NOW);
    assert!(matches!(&said[..], [Notice::Message { message: Message::Hello(_), .. }]), "{said:?}");
    assert_eq!(read_preface(&mut peer), Preface::ours(false));
    (socket, peer)
}

/// The same, accepted and ready, which is not heard yet.
fn accepted() -> (Sockets, SocketId, TcpStream) {
    let (mut sockets, _, address) = listening();
    let (socket, mut peer) = guest(&mut sockets, address);
    sockets.send(socket, &Message::Accept(hello()));
    peer.write_all(&record(&Message::Ready)).unwrap();
    (sockets, socket, peer)
}

#[test]
fn a_hello_that_is_read_late_has_a_while_still() {
    let (mut sockets, _, address) = listening();
    let late = NOW + 5 * SECOND;
    let (socket, mut peer) = guest(&mut sockets, address);
    sockets.hold(socket, late);
    assert!(sockets.is_brisk(late));
    for now in [late, late + SECOND / 2] {
        sockets.expire(now);
        assert!(sockets.notices().is_empty(), "{:?}", sockets.notices());
    }
    // Nothing more is read until it is released.
    peer.write_all(&record(&Message::Ready)).unwrap();
    look(&mut sockets, Duration::from_millis(50), late);
    assert!(sockets.notices().is_empty());
    sockets.release(socket, late);
    assert!(
        matches!(&sockets.notices()[..], [Notice::Ended { socket: ended, .. }] if *ended == socket),
        "it was not due"
    );
    sockets.notices().clear();
    let (socket, _peer) = guest(&mut sockets, address);
    sockets.hold(socket, late);
    sockets.expire(late + SECOND);
    assert!(matches!(&sockets.notices()[..], [Notice::TimedOut { socket: late }] if *late == socket));
    assert!(!sockets.is_brisk(late), "nothing is held any more");
}

#[test]
fn what_is_said_of_a_stream_that_ended_is_meant_for_no_other() {
    let (mut sockets, _, address) = listening();
    let mut first = connect(address);
    let old = incoming(&mut sockets);
    first.write_all(&first_words()).unwrap();
    drop(first);
    let second = connect(address);
    let all = notices(&mut sockets, 3, NOW);
    assert!(matches!(&all[0], Notice::Message { socket, message: Message::Hello(_) } if *socket == old), "{all:?}");
    // By hanging up, or since it can not be answered.
    assert!(matches!(&all[1], Notice::Ended { socket, .. } if *socket == old), "{all:?}");
    let Notice::Incoming { socket: new, .. } = all[2] else { panic!("{all:?}") };
    assert_ne!(old, new);
    // What a driver does that learns of the message only now.
    sockets.greeted(old, NOW);
    sockets.settle(old);
    sockets.close(old);
    sockets.send(old, &Message::Reject("late".into()));
    assert!(sockets.notices().is_empty());
    assert_eq!(sockets.next_deadline(), Some(NOW + SECOND), "the new one still has to say hello");
    second.set_nonblocking(true).unwrap();
    let read = Read::read(&mut &second, &mut [0; 8]).unwrap_err();
    assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock, "it is open, and nothing was said to it");
}

#[test]
fn a_stranger_has_a_second_to_say_hello_and_costs_no_haste() {
    for words in [0, 1, 12, 13, 14, 20, first_words().len() - 1] {
        let (mut sockets, _, address) = listening();
        let mut stranger = connect(address);
        let socket = incoming(&mut sockets);
        stranger.write_all(&first_words()[..words]).unwrap();
        // It is read, and not enough.
        look(&mut sockets, Duration::ZERO, NOW);
        assert!(!sockets.is_brisk(NOW));
        sockets.expire(NOW + SECOND - Duration::from_millis(1));
        assert!(sockets.notices().is_empty());
        sockets.expire(NOW + SECOND);
        assert!(matches!(sockets.notices()[..], [Notice::TimedOut { socket: late }] if late == socket), "{words}");
    }
}

#[test]
fn who_has_said_hello_has_a_time_of_its_own_and_haste_while_young() {
    let (mut sockets, _, address) = listening();
    let (socket, _peer) = guest(&mut sockets, address);
    sockets.greeted(socket, NOW);
    assert!(sockets.is_brisk(NOW));
    assert!(!sockets.is_brisk(NOW + SECOND), "not young any more");
    sockets.expire(NOW + 49 * SECOND);
    assert!(sockets.notices().is_empty());
    sockets.settle(socket);
    assert!(!sockets.is_brisk(NOW), "over");
    assert_eq!(sockets.next_deadline(), None);
    sockets.expire(NOW + 1000 * SECOND);
    assert!(sockets.notices().is_empty());
    let (slow, _peer) = guest(&mut sockets, address);
    sockets.greeted(slow, NOW);
    sockets.expire(NOW + 50 * SECOND);
    assert!(matches!(sockets.notices()[..], [Notice::TimedOut { socket: late }] if late == slow));
}

#[test]
fn what_came_in_time_counts_however_late_it_is_read() {
    let (mut sockets, _, address) = listening();
    let mut slow = connect(address);
    let socket = incoming(&mut sockets);
    slow.write_all(&first_words()).unwrap();
    // The loopback delivers at once; nothing polls in between.
    sockets.expire(NOW + 10 * SECOND);
    assert!(matches!(&sockets.notices()[..], [Notice::Message { socket: by, .. }] if *by == socket));
    sockets.notices().clear();
    sockets.expire(NOW + 10 * SECOND);
    assert!(matches!(&sockets.notices()[..], [Notice::TimedOut { .. }]), "and then no more");
}

/// Also where it was told something that it has not read.
#[test]
fn who_parts_says_farewell_before_it_hangs_up() {
    let (mut sockets, socket, mut peer) = accepted();
    sockets.part(socket);
    assert_eq!(read_record(&mut peer), Message::Accept(hello()));
    assert_eq!(read_record(&mut peer), Message::Farewell);
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "and hangs up");
    // Once more it does nothing.
    sockets.part(socket);
}

#[test]
fn what_a_peer_said_before_it_hung_up_is_heard_by_who_finds_out_when_speaking() {
    let (mut sockets, socket, mut peer) = accepted();
    notices(&mut sockets, 1, NOW);
    peer.write_all(&record(&Message::Farewell)).unwrap();
    // What it has not read has the system refuse whatever follows.
    drop(peer);
    let start = Instant::now();
    while sockets.notices().is_empty() {
        sockets.send(socket, &Message::Ready);
        assert!(start.elapsed() < PATIENCE);
    }
    let all = std::mem::take(sockets.notices());
    let [Notice::Message { message: Message::Farewell, .. }, Notice::Ended { socket: by, .. }] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!(*by, socket);
}

#[test]
fn a_flood_of_messages_is_cut_off() {
    let (mut sockets, _, address) = listening();
    let (socket, mut flood) = guest(&mut sockets, address);
    sockets.send(socket, &Message::Accept(hello()));
    // Less than the kernel buffers, more than a connection has.
    flood.write_all(&record(&Message::Ready).repeat(1000)).unwrap();
    let all = notices(&mut sockets, 2, NOW);
    let [Notice::Message { message: Message::Ready, .. }, Notice::Ended { socket: by, end }] = &all[..] else {
        panic!("{all:?}")
    };
    assert!(matches!(end, StreamEnd::Handshake(HandshakeError::Unexpected(3))), "{all:?}");
    assert_eq!(*by, socket);
}

#[test]
fn a_listener_that_is_stopped_twice_leaves_others_alone() {
    let (mut sockets, first, _) = listening();
    sockets.stop_listening(first);
    let (second, address) = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    sockets.stop_listening(first);
    assert_ne!(first, second);
    let _peer = connect(address);
    assert!(matches!(notices(&mut sockets, 1, NOW)[..], [Notice::Incoming { listener, .. }] if listener == second));
}

/// Strangers take the places; who comes then is told when to come back, and costs nothing.
#[test]
fn who_comes_when_all_places_are_taken_is_told_to_come_back() {
    let (mut sockets, _, address) = listening();
    let strangers: Vec<_> = (0..256)
        .map(|_| {
            let stranger = connect(address);
            incoming(&mut sockets);
            stranger
        })
        .collect();
    for _ in 0..3 {
        let mut late = connect(address);
        late.write_all(&first_words()).unwrap();
        let start = Instant::now();
        late.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut answer = Vec::new();
        while late.read_to_end(&mut answer).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            look(&mut sockets, Duration::ZERO, NOW);
            assert!(start.elapsed() < PATIENCE);
        }
        let told = Preface::decode(&answer).unwrap().unwrap();
        assert_eq!(told, Preface::busy(false, Duration::from_millis(50)));
        assert!(sockets.notices().is_empty());
    }
    drop(strangers);
    let ended = notices(&mut sockets, 256, NOW);
    assert!(ended.iter().all(|notice| matches!(notice, Notice::Ended { end: StreamEnd::HungUp, .. })));
    let _peer = connect(address);
    incoming(&mut sockets);
}

/// A stranger without the key, or with a recording of one who has it, never comes as far as a hello.
#[test]
fn who_has_no_key_gets_no_further_than_the_door() {
    let key = ClusterKey::from_bytes([5; 32]);
    let mut sockets = Sockets::new(Settings { key: Some(key), ..settings() }, &context()).unwrap();
    let (_, address) = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let keyed = Preface::ours(true).encode();
    let garbage = [&keyed[..], &48u16.to_le_bytes(), &[9; 48], &record(&Message::Hello(hello()))].concat();
    for (words, expected) in [
        (first_words(), HandshakeError::PeerHasNoKey),
        (garbage, HandshakeError::WrongKey),
        ([&keyed[..], &[0, 0]].concat(), HandshakeError::WrongKey),
        ([&keyed[..], &[1, 1]].concat(), HandshakeError::TooLong { len: 257, limit: 48 }),
    ] {
        let mut stranger = connect(address);
        let socket = incoming(&mut sockets);
        stranger.write_all(&words).unwrap();
        let all = notices(&mut sockets, 1, NOW);
        let [Notice::Ended { socket: by, end: StreamEnd::Handshake(error) }] = &all[..] else { panic!("{all:?}") };
        assert_eq!((*by, error), (socket, &expected));
        assert_eq!(read_preface(&mut stranger), Preface::ours(true), "it is told that a key is needed");
    }
}
