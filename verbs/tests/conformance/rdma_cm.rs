//! Connections by rdma_cm: what each device's manager does alike. Both ends are of one process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use qpair_verbs::{
    Access, CmError, CompletionQueue, Connecting, Context, Ended, Established, Listener, Prepared, ProtectionDomain,
    QpState, QpType, RejectReason, WcOpcode, WcStatus,
};

use crate::harness::{LIMIT, is_ours};

/// An opened device and where it is reached.
struct Side {
    ctx: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    address: IpAddr,
}

impl Side {
    fn new() -> Side {
        let name = std::env::var("QPAIR_TEST_DEVICE").unwrap_or_else(|_| "soft0".to_owned());
        let ctx = Context::open(&name).unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(1024).unwrap());
        let address = if name == "soft0" { Ipv4Addr::LOCALHOST.into() } else { address_of(&ctx) };
        Side { ctx, pd, cq, address }
    }

    fn rc(&self) -> Prepared {
        self.pd.rc(&self.cq).send_depth(16).recv_depth(16).build().unwrap()
    }

    fn ask(&self, peer: SocketAddr, private: &[u8]) -> Connecting {
        self.ctx.connect_to(peer, self.rc(), private).unwrap()
    }

    fn at(&self, listener: &Listener) -> SocketAddr {
        SocketAddr::new(self.address, listener.port())
    }

    /// A connection of the device to itself: the end that asked, and the other.
    fn connect(&self, listener: &Listener) -> (Established, Established) {
        let mut asking = self.ask(self.at(listener), b"");
        let mut accepting = listener.wait(LIMIT).unwrap().accept(self.rc(), b"").unwrap();
        let near = asking.wait(LIMIT).unwrap();
        (near, accepting.wait(LIMIT).unwrap())
    }
}

/// The IPv4 address of a device by its table of GIDs.
fn address_of(ctx: &Context) -> IpAddr {
    let port = ctx.port(1).unwrap();
    let mut mapped = port.gids.iter().filter_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    mapped.next().expect("an IPv4 address").into()
}

/// An opened device that listens, where there is a connection manager.
fn listening() -> Option<(Side, Listener)> {
    let side = Side::new();
    match side.ctx.listen(0) {
        Err(error @ (CmError::Network(_) | CmError::NotSupported { .. })) => {
            println!("skipped: {error}");
            None
        }
        listener => Some((side, listener.unwrap())),
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn both_are_told_what_the_other_says_and_offers() {
    let Some((mut side, listener)) = listening() else { return };
    let asks = side.pd.rc(&side.cq).max_rd_atomic(3).retry_count(5).rnr_retry(4).build().unwrap();
    let qpn = asks.number();
    let mut asking = side.ctx.connect_to(side.at(&listener), asks, b"may I?").unwrap();
    let request = listener.wait(LIMIT).unwrap();
    assert_eq!((request.peer().ip(), request.local()), (side.address, side.address));
    assert_eq!((&request.private_data()[..7], request.private_data().len()), (&b"may I?\0"[..], 56));
    let offer = request.offer();
    assert_eq!((offer.qp_type, offer.qpn, offer.max_reads, offer.reads_answered), (QpType::Rc, qpn, 3, 3));
    assert_eq!((offer.retry_count, offer.rnr_retry, offer.shared_receives), (5, 4, false));
    assert!(asking.poll().unwrap().is_none());
    let mut answer = side.rc();
    answer.recv(side.pd.alloc(64).unwrap()).post().unwrap();
    let mut accepting = request.accept(answer, b"you may").unwrap();
    let mut near = asking.wait(LIMIT).unwrap();
    let mut far = accepting.wait(LIMIT).unwrap();
    assert!(near.private_data.starts_with(b"you may\0") && near.private_data.len() == 196);
    assert!(far.private_data.starts_with(b"may I?\0"));
    assert_eq!((near.connection.peer(), far.connection.local()), (side.at(&listener), side.address));
    assert!(matches!(asking.poll(), Err(CmError::Over)));

    near.queue_pair.send_inline(b"there").post().unwrap();
    let done = side.cq.wait_for(LIMIT).unwrap();
    assert_eq!(done.into_buffer().unwrap()[..5], *b"there");
    let region = side.pd.expose(4096, Access::REMOTE_ALL).unwrap();
    let mut memory = side.pd.alloc(4096).unwrap();
    memory.fill(7);
    far.queue_pair.write(memory, region.remote(0..4096)).signaled().post().unwrap();
    assert!(side.cq.wait_for(LIMIT).unwrap().status().is_success());
    far.queue_pair.read(side.pd.alloc(4096).unwrap(), region.remote(0..4096)).signaled().post().unwrap();
    let read = side.cq.wait_for(LIMIT).unwrap().into_buffer().unwrap();
    assert!(read.iter().all(|&byte| byte == 7));
    assert_eq!((near.connection.poll(), far.connection.poll()), (None, None));
    assert_eq!((near.queue_pair.state(), far.queue_pair.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn whoever_ends_a_connection_both_queue_pairs_fail() {
    let Some((side, listener)) = listening() else { return };
    for end in ["near disconnects", "far disconnects", "near is dropped", "far is dropped"] {
        let (near, far) = side.connect(&listener);
        let (first, second) = if end.starts_with("near") { (near, far) } else { (far, near) };
        if end.ends_with("disconnects") {
            first.connection.disconnect();
            assert_eq!(second.connection.wait(LIMIT).unwrap(), Ended::Disconnected, "{end}");
            assert_eq!(first.connection.wait(LIMIT).unwrap(), Ended::Disconnected, "{end}");
            wait_until(end, || first.queue_pair.state() == QpState::Err);
        } else {
            drop(first);
            assert_eq!(second.connection.wait(LIMIT).unwrap(), Ended::Disconnected, "{end}");
        }
        wait_until(end, || second.queue_pair.state() == QpState::Err);
    }
}

/// What the peer has seen is acknowledged, however soon it goes then.
#[test]
fn a_message_that_the_peer_took_is_sent_though_it_disconnects_at_once() {
    let Some((mut far, listener)) = listening() else { return };
    let mut near = Side::new();
    for turn in 0..60 {
        let mut asking = near.ask(far.at(&listener), b"");
        let mut accepting = listener.wait(LIMIT).unwrap().accept(far.rc(), b"").unwrap();
        let mut here = asking.wait(LIMIT).unwrap();
        let mut there = accepting.wait(LIMIT).unwrap();
        there.queue_pair.recv(far.pd.alloc(64).unwrap()).post().unwrap();
        here.queue_pair.send_inline(b"the last").signaled().post().unwrap();
        let start = Instant::now();
        loop {
            match far.cq.poll().unwrap() {
                Some(done) => break assert_eq!(done.status(), WcStatus::SUCCESS),
                None => assert!(start.elapsed() < LIMIT, "it has not come"),
            }
        }
        if turn % 2 == 0 {
            there.connection.disconnect();
        } else {
            drop(there);
        }
        let done = near.cq.wait_for(LIMIT).unwrap();
        // Of other devices the acknowledgment and the end may come by different ways, of which either may be the faster.
        let is_late = !is_ours() && done.status() == WcStatus::WR_FLUSH_ERR;
        assert!(
            done.opcode() == WcOpcode::SEND && (done.status().is_success() || is_late),
            "{turn}: {:?}",
            done.status()
        );
    }
}

#[test]
fn what_is_posted_is_flushed_when_the_peer_goes() {
    let Some((mut side, listener)) = listening() else { return };
    let (mut near, far) = side.connect(&listener);
    near.queue_pair.recv(side.pd.alloc(64).unwrap()).id(7).post().unwrap();
    drop(far);
    let done = side.cq.wait_for(LIMIT).unwrap();
    assert_eq!((done.wr_id(), done.status().is_success()), (7, false));
}

#[test]
fn refusals_are_told_with_their_reasons() {
    let Some((side, listener)) = listening() else { return };
    // By the application.
    let mut asking = side.ask(side.at(&listener), b"");
    listener.wait(LIMIT).unwrap().reject(b"not today").unwrap();
    match asking.wait(LIMIT).unwrap_err() {
        CmError::Rejected { peer, reason: RejectReason::CONSUMER, private } => {
            assert!(peer == side.at(&listener) && private.starts_with(b"not today"), "{peer}, {private:?}");
        }
        other => panic!("{other}"),
    }
    assert!(matches!(asking.poll(), Err(CmError::Over)));
    // By dropping the request.
    let mut asking = side.ask(side.at(&listener), b"");
    drop(listener.wait(LIMIT).unwrap());
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { reason: RejectReason::CONSUMER, .. })));
    // By dropping the listener, with a request that waits.
    let peer = side.at(&listener);
    let mut asking = side.ask(peer, b"");
    let (mut poll, mut events) = (mio::Poll::new().unwrap(), mio::Events::with_capacity(4));
    let mut listener = listener;
    poll.registry().register(&mut listener, mio::Token(0), mio::Interest::READABLE).unwrap();
    poll.poll(&mut events, Some(LIMIT)).unwrap();
    assert!(!events.is_empty(), "the listener is readable");
    drop(listener);
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { .. })));
    // Since nobody listens there.
    let error = side.ask(peer, b"").wait(LIMIT).unwrap_err();
    assert!(matches!(error, CmError::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }), "{error}");
}

#[test]
fn what_can_not_be_is_refused_at_once() {
    let Some((side, listener)) = listening() else { return };
    let port = listener.port();
    let taken = side.ctx.listen(port).map(|listener| listener.port());
    assert!(matches!(taken, Err(CmError::AddressInUse { port: of }) if of == port), "{taken:?}");
    let peer = side.at(&listener);
    let long = side.ctx.connect_to(peer, side.rc(), &[0; 57]).unwrap_err();
    assert!(matches!(long, CmError::PrivateTooLong { len: 57, limit: 56 }), "{long}");
    let ud = side.pd.ud(&side.cq).build().unwrap();
    let error = side.ctx.connect_to(peer, ud, b"").unwrap_err();
    assert!(matches!(error, CmError::NotConnected), "{error}");
    let other = Side::new();
    let error = side.ctx.connect_to(peer, other.rc(), b"").unwrap_err();
    assert!(matches!(error, CmError::ForeignObject), "{error}");
    let error = side.ctx.connect_to((Ipv4Addr::UNSPECIFIED, port).into(), side.rc(), b"").unwrap_err();
    assert!(matches!(error, CmError::Unreachable { .. }), "{error}");
    // A request that is too much to accept is refused.
    let mut asking = side.ask(peer, b"");
    let request = listener.wait(LIMIT).unwrap();
    assert!(matches!(request.accept(side.rc(), &[0; 197]), Err(CmError::PrivateTooLong { len: 197, limit: 196 })));
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { .. })));
    assert!(matches!(listener.wait(Duration::from_millis(1)), Err(CmError::TimedOut { .. })));
}

#[test]
fn many_connect_at_once() {
    const COUNT: usize = 32;
    let Some((side, listener)) = listening() else { return };
    let mut asking: Vec<_> = (0..COUNT).map(|number| side.ask(side.at(&listener), &[number as u8])).collect();
    let mut accepting: Vec<_> = (0..COUNT)
        .map(|_| {
            let request = listener.wait(LIMIT).unwrap();
            let number = request.private_data()[0];
            request.accept(side.rc(), &[number]).unwrap()
        })
        .collect();
    let near: Vec<_> = asking.iter_mut().map(|asking| asking.wait(LIMIT).unwrap()).collect();
    let far: Vec<_> = accepting.iter_mut().map(|accepting| accepting.wait(LIMIT).unwrap()).collect();
    for (number, end) in near.iter().enumerate() {
        assert_eq!(end.private_data[0], number as u8);
    }
    drop(near);
    for end in far {
        end.connection.wait(LIMIT).unwrap();
    }
}
