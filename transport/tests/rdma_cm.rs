//! Workers that find each other by rdma_cm instead of TCP.

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use qpair_transport::{
    CloseReason, ClusterKey, Config, ConnectFailure, EndpointId, Event, HandshakeError, ListenError, Listener, RdmaCm,
    RdmaCmError, Tag, Worker,
};
use qpair_verbs::{CmError, Connecting, Context};
use support::*;

fn worker(key: Option<u8>) -> Worker {
    with(key, Config::default())
}

fn with(key: Option<u8>, config: Config) -> Worker {
    let config = match key {
        Some(byte) => config.cluster_key(ClusterKey::from_bytes([byte; 32])),
        None => config,
    };
    Worker::new(config).unwrap()
}

/// Listens; `None` where the network can not be used here.
fn listen(worker: &mut Worker) -> Option<Listener> {
    match worker.listen_rdma_cm(0) {
        Err(ListenError::RdmaCm(error))
            if matches!(*error, RdmaCmError::Manager(CmError::Network(_) | CmError::NotSupported { .. })) =>
        {
            println!("skipped: {error}");
            None
        }
        listener => Some(listener.unwrap()),
    }
}

/// Where the worker is reached that listens: at its device's address, or the loopback.
fn at(worker: &Worker, listener: &Listener) -> SocketAddr {
    let port = worker.context().port(1).unwrap();
    let mut mapped = port.gids.iter().filter_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    let address = if worker.context().name() == "soft0" { None } else { mapped.next() };
    (address.unwrap_or(Ipv4Addr::LOCALHOST), listener.local_addr().port()).into()
}

/// Connects two workers that have nothing else to do.
fn pair(
    mut a: Worker,
    mut b: Worker,
    call: impl FnOnce(&mut Worker, RdmaCm<SocketAddr>) -> EndpointId,
) -> Option<Pair> {
    let listener = listen(&mut b)?;
    let ep_a = call(&mut a, RdmaCm(at(&b, &listener)));
    let mut pair = Pair { a, b, ep_a, ep_b: ep_a };
    let (of_a, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    assert!(matches!(of_a[..], [Event::Connected { ep }] if ep == ep_a), "{of_a:?}");
    let [Event::Accepted { ep, listener: by }] = of_b[..] else { panic!("{of_b:?}") };
    assert_eq!(by, listener.id());
    pair.ep_b = ep;
    Some(pair)
}

/// Messages each way, and an end that both agree on.
fn talk_and_part(mut pair: Pair, len: usize) {
    pair.a.send(pair.ep_a, Tag(1), pattern(len, 1)).unwrap();
    pair.b.send_copy(pair.ep_b, Tag(2), b"hello").unwrap();
    let (of_a, of_b) = pair.until(|a, b| received(a).len() == 1 && received(b).len() == 1);
    assert!(received(&of_a)[0].1 == b"hello" && received(&of_b)[0].1 == &pattern(len, 1));
    drop((of_a, of_b));
    pair.a.close(pair.ep_a);
    let (of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    assert!(matches!(of_a.last(), Some(Event::Closed { reason: CloseReason::Local, .. })), "{of_a:?}");
    assert!(matches!(of_b.last(), Some(Event::Closed { reason: CloseReason::Remote, .. })), "{of_b:?}");
}

#[test]
fn workers_connect_talk_and_part_with_a_key_or_without() {
    for key in [None, Some(7)] {
        let Some(pair) = pair(worker(key), worker(key), |a, peer| a.connect(peer).unwrap()) else { return };
        talk_and_part(pair, 300_000);
    }
}

#[test]
fn connections_over_datagrams_are_set_up_so_too() {
    let datagrams = || with(None, Config::default().datagram_endpoints(4));
    let Some(pair) = pair(datagrams(), datagrams(), |a, peer| a.connect_datagram(peer).unwrap()) else { return };
    talk_and_part(pair, 500);
}

#[test]
fn a_name_is_looked_up_and_a_worker_connects_to_itself() {
    let mut worker = worker(None);
    let Some(listener) = listen(&mut worker) else { return };
    let address = at(&worker, &listener);
    let name = if address.ip().is_loopback() { "localhost".to_owned() } else { address.ip().to_string() };
    let ep = worker.connect(RdmaCm((name, address.port()))).unwrap();
    let (mut connected, mut accepted) = (false, false);
    while !(connected && accepted) {
        match next(&mut worker) {
            Event::Connected { ep: of } => connected = of == ep,
            Event::Accepted { .. } => accepted = true,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn nobody_and_ports_that_are_taken_are_told() {
    let mut worker = worker(None);
    let Some(listener) = listen(&mut worker) else { return };
    let port = listener.local_addr().port();
    let error = worker.listen_rdma_cm(port).unwrap_err();
    assert!(error.to_string().contains(&format!("port {port} has a listener")), "{error}");
    let address = at(&worker, &listener);
    worker.stop_listening(listener);
    worker.connect(RdmaCm(address)).unwrap();
    let reason = closed(next(&mut worker));
    assert!(matches!(reason, CloseReason::Failed(ConnectFailure::Refused(peer)) if peer == address), "{reason}");
}

#[test]
fn another_key_is_refused_on_both_sides() {
    let (mut a, mut b) = (worker(Some(1)), worker(Some(2)));
    let Some(listener) = listen(&mut b) else { return };
    a.connect(RdmaCm(at(&b, &listener))).unwrap();
    let (mut of_a, mut of_b) = (None, None);
    let start = Instant::now();
    while of_a.is_none() || of_b.is_none() {
        match a.poll().unwrap() {
            Some(Event::Closed { reason: CloseReason::Failed(ConnectFailure::Handshake { error, .. }), .. }) => {
                of_a = Some(error)
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        match b.poll().unwrap() {
            Some(Event::Rejected { error, .. }) => of_b = Some(error),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        assert!(start.elapsed() < LIMIT, "{of_a:?}, {of_b:?}");
    }
    assert_eq!((of_a, of_b), (Some(HandshakeError::WrongKey), Some(HandshakeError::WrongKey)));
}

/// A peer that speaks to the connection manager, and then as it likes.
struct Stranger {
    context: Context,
    cq: qpair_verbs::CompletionQueue,
    connecting: Connecting,
}

impl Stranger {
    fn new(server: &Worker, peer: SocketAddr) -> Stranger {
        let context = Context::open(server.context().name()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let prepared = pd.rc(&cq).build().unwrap();
        let connecting = context.connect_to(peer, prepared, b"").unwrap();
        Stranger { context, cq, connecting }
    }

    /// Polls until `worker` has something to say.
    fn until_told(&mut self, worker: &mut Worker) -> Event {
        let start = Instant::now();
        loop {
            let _ = self.cq.poll().unwrap();
            if let Some(event) = worker.poll().unwrap() {
                return event;
            }
            assert!(start.elapsed() < LIMIT, "{:?} says nothing", self.context);
        }
    }

    fn established(&mut self, worker: &mut Worker) -> qpair_verbs::Established {
        let start = Instant::now();
        loop {
            if let Some(established) = self.connecting.poll().unwrap() {
                return established;
            }
            assert!(worker.poll().unwrap().is_none());
            assert!(start.elapsed() < LIMIT);
        }
    }
}

#[test]
fn strangers_who_say_nothing_or_nonsense_or_go_are_turned_away() {
    let mut server = with(None, Config::default().hello_timeout(Duration::from_millis(300)));
    let Some(listener) = listen(&mut server) else { return };
    for (says, expected) in [
        (&b""[..], HandshakeError::TimedOut),
        (b"GET / HTTP/1.1\r\n\r\n", HandshakeError::Magic),
        (b"QPTR\x03\x03", HandshakeError::TimedOut),
    ] {
        let mut stranger = Stranger::new(&server, at(&server, &listener));
        let mut established = stranger.established(&mut server);
        if !says.is_empty() {
            established.queue_pair.send_inline(says).signaled().post().unwrap();
        }
        let told = stranger.until_told(&mut server);
        assert!(matches!(&told, Event::Rejected { error, .. } if *error == expected), "{told:?}");
    }
    let mut stranger = Stranger::new(&server, at(&server, &listener));
    drop(stranger.established(&mut server));
    let told = stranger.until_told(&mut server);
    assert!(matches!(&told, Event::Rejected { error: HandshakeError::HungUp, .. }), "{told:?}");
    // And who behaves is let in.
    let mut peer = worker(None);
    let ep_a = peer.connect(RdmaCm(at(&server, &listener))).unwrap();
    let mut pair = Pair { a: peer, b: server, ep_a, ep_b: ep_a };
    let (of_a, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    assert!(matches!((&of_a[..], &of_b[..]), ([Event::Connected { .. }], [Event::Accepted { .. }])));
}

#[test]
fn many_connect_at_once_and_part() {
    const COUNT: usize = 150;
    let few = || with(None, Config::default().endpoints(COUNT).window(4).send_depth(16).eager_limit(512));
    let (mut a, mut b) = (few(), few());
    let Some(listener) = listen(&mut b) else { return };
    let eps: Vec<_> = (0..COUNT).map(|_| a.connect(RdmaCm(at(&b, &listener))).unwrap()).collect();
    let mut pair = Pair { a, b, ep_a: eps[0], ep_b: eps[0] };
    let (of_a, _) = pair.until(|a, b| a.len() == COUNT && b.len() == COUNT);
    assert!(of_a.iter().all(|event| matches!(event, Event::Connected { .. })));
    eps.into_iter().for_each(|ep| pair.a.close(ep));
    let (of_a, of_b) = pair.until(|a, b| a.len() == COUNT && b.len() == COUNT);
    assert!(of_a.iter().all(|event| matches!(event, Event::Closed { reason: CloseReason::Local, .. })));
    assert!(of_b.iter().all(|event| matches!(event, Event::Closed { reason: CloseReason::Remote, .. })));
}

#[test]
fn a_worker_that_goes_away_is_noticed() {
    let Some(pair) = pair(worker(None), worker(None), |a, peer| a.connect(peer).unwrap()) else { return };
    let Pair { a, mut b, .. } = pair;
    drop(a);
    let reason = closed(next(&mut b));
    assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
}

#[test]
fn a_process_that_is_killed_is_noticed() {
    let mut worker = worker(None);
    let Some(listener) = listen(&mut worker) else { return };
    let mut process = Process::start_at("connect and wait", at(&worker, &listener));
    assert!(matches!(next(&mut worker), Event::Accepted { .. }));
    process.kill();
    let reason = closed(next(&mut worker));
    assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
}

#[test]
#[ignore = "needs a test above to start it, as its other process"]
fn as_a_peer() {
    let Some((_, address)) = role() else { return };
    let mut worker = worker(None);
    worker.connect(RdmaCm(address)).unwrap();
    loop {
        worker.wait(None).unwrap();
    }
}
