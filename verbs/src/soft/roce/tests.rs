//! The network as its device sees it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qpair_roce::wire::Addresses;

use super::Network;
use crate::sync::Ordering;
use crate::{
    Access, AsyncEvent, CompletionQueue, ConnectError, Context, ExposedRegion, Gid, QpAddress, QueuePair,
    RevokeBlocked, Rkey, WcOpcode, WcStatus,
};

/// The row of the GID table that is the loopback interface's.
fn loopback(ctx: &Context) -> u32 {
    let gid = Gid::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
    ctx.port(1).unwrap().gids.iter().find(|row| row.gid == gid).expect("loopback is up").index
}

/// A device with a datagram queue pair that is on the network.
fn datagrams(ctx: &Context, cq: &CompletionQueue) -> (crate::DatagramQueuePair, Arc<Network>) {
    let pd = ctx.alloc_pd().unwrap();
    let qp = pd.ud(cq).gid_index(loopback(ctx)).build().unwrap().activate().unwrap();
    let network = pd.node().network().unwrap();
    (qp, network)
}

/// Programs that keep to shared memory do not pay for the network with a system call per poll.
#[test]
fn a_network_that_is_not_used_is_not_polled() {
    let [near, far] = [(); 2].map(|()| Context::open("soft0").unwrap());
    let (near_cq, far_cq) = (near.create_cq(16).unwrap(), far.create_cq(16).unwrap());
    let ((mut a, here), (b, there)) = (datagrams(&near, &near_cq), datagrams(&far, &far_cq));
    assert!(!here.is_used() && !there.is_used());
    let to = a.address_handle(&QpAddress { soft: None, ..b.address() }).unwrap();
    a.send_inline(b"x", &to).post().unwrap();
    assert!(here.is_used());
    let start = Instant::now();
    while !there.is_used() {
        assert!(start.elapsed().as_secs() < 20, "nothing came");
        std::thread::yield_now();
    }
}

/// Such a key is used by way of the engine alone. A peer in shared memory may be stopped, in an access to something else.
#[test]
fn keys_of_windows_are_withdrawn_whatever_peers_in_shared_memory_do() {
    let [near, far] = [(); 2].map(|()| Context::open("soft0").unwrap());
    let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
    let (mut near_cq, mut far_cq) = (near.create_cq(16).unwrap(), far.create_cq(16).unwrap());
    let a = near_pd.rc(&near_cq).gid_index(loopback(&near)).build().unwrap();
    let b = far_pd.rc(&far_cq).gid_index(loopback(&far)).build().unwrap();
    let [at_a, at_b] = [a.address(), b.address()].map(|at| QpAddress { soft: None, ..at });
    let (mut a, mut b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());

    let (other, peer) = (near_pd.rc(&near_cq).build().unwrap(), near_pd.rc(&near_cq).build().unwrap());
    let (soft_peer, at_other, at_peer) = (peer.soft().unwrap().clone(), other.address(), peer.address());
    let (_other, _peer) = (other.connect(&at_peer).unwrap(), peer.connect(&at_other).unwrap());
    soft_peer.hazard_word().store(1, Ordering::SeqCst);

    let region = near_pd.expose(100, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
    let window = near_pd.create_window().unwrap();
    let bind = |a: &mut QueuePair, cq: &mut CompletionQueue| {
        a.bind(&window, &region, 0..50, Access::REMOTE_WRITE).signaled().post().unwrap();
        assert_eq!(ended(cq), (WcOpcode::BIND_MW, WcStatus::SUCCESS, None));
        window.remote().expect("it is bound")
    };
    let former = bind(&mut a, &mut near_cq).rkey;
    let now = bind(&mut a, &mut near_cq);
    assert_ne!(former, now.rkey);
    b.write_inline(b"came", now.slice(0..4)).signaled().post().unwrap();
    assert_eq!(ended(&mut far_cq), (WcOpcode::RDMA_WRITE, WcStatus::SUCCESS, None));

    a.recv(near_pd.alloc(8).unwrap()).post().unwrap();
    b.send_inline(b"done").invalidating(now.rkey).signaled().post().unwrap();
    assert_eq!(ended(&mut near_cq), (WcOpcode::RECV, WcStatus::SUCCESS, Some(now.rkey)));
    assert_eq!(ended(&mut far_cq), (WcOpcode::SEND, WcStatus::SUCCESS, None));
    assert_eq!(window.remote(), None);
    let last = bind(&mut a, &mut near_cq).rkey;
    a.invalidate(last).signaled().post().unwrap();
    assert_eq!(ended(&mut near_cq), (WcOpcode::LOCAL_INV, WcStatus::SUCCESS, None));

    // Memory is its owner's again only once all have left.
    let failed = region.try_revoke().expect_err("a peer is inside");
    assert_eq!(failed.why, RevokeBlocked::PeerAccess);
    soft_peer.hazard_word().store(2, Ordering::SeqCst);
    failed.region.try_revoke().expect("the peer has left");
}

/// Whoever binds the window next, or drops it.
#[test]
fn windows_of_the_network_end_whatever_peers_in_shared_memory_do() {
    let [near, far] = [(); 2].map(|()| Context::open("soft0").unwrap());
    let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
    let (mut near_cq, mut far_cq) = (near.create_cq(16).unwrap(), far.create_cq(16).unwrap());
    let connect = || {
        let a = near_pd.rc(&near_cq).gid_index(loopback(&near)).build().unwrap();
        let b = far_pd.rc(&far_cq).gid_index(loopback(&far)).build().unwrap();
        let [at_a, at_b] = [a.address(), b.address()].map(|at| QpAddress { soft: None, ..at });
        (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap())
    };
    let [(mut first, mut first_peer), (mut second, _second_peer)] = [connect(), connect()];
    let (shared, peer) = (near_pd.rc(&near_cq).build().unwrap(), near_pd.rc(&near_cq).build().unwrap());
    let (soft_peer, at_shared, at_peer) = (peer.soft().unwrap().clone(), shared.address(), peer.address());
    let (mut shared, _peer) = (shared.connect(&at_peer).unwrap(), peer.connect(&at_shared).unwrap());
    soft_peer.hazard_word().store(1, Ordering::SeqCst);

    let region = near_pd.expose(100, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
    let window = near_pd.create_window().unwrap();
    let mut bind = |qp: &mut QueuePair, window| {
        qp.bind(window, &region, 0..50, Access::REMOTE_WRITE).signaled().post().unwrap();
        assert_eq!(ended(&mut near_cq), (WcOpcode::BIND_MW, WcStatus::SUCCESS, None));
        window.remote().expect("it is bound")
    };
    // One that waits for the peer fails.
    bind(&mut first, &window);
    bind(&mut second, &window);
    bind(&mut shared, &window);

    let window = near_pd.create_window().unwrap();
    let remote = bind(&mut first, &window);
    drop(window);
    first_peer.write_inline(b"late", remote.slice(0..4)).signaled().post().unwrap();
    assert_eq!(ended(&mut far_cq), (WcOpcode::RDMA_WRITE, WcStatus::REM_ACCESS_ERR, None));
    soft_peer.hazard_word().store(2, Ordering::SeqCst);
}

/// Connections on the loopback that share no socket, with no retry.
struct Ways {
    network: Arc<Network>,
    addresses: Addresses,
    ends: [End; 2],
    /// Their peers, and what else is connected.
    _others: Vec<QueuePair>,
}

struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    region: ExposedRegion,
    peer: qpair_roce::Qpn,
    port: u16,
}

impl Ways {
    /// An answer may take so long.
    fn new(ack_timeout: Duration) -> Self {
        let near = Context::open("soft0").unwrap();
        let near_pd = near.alloc_pd().unwrap();
        let network = near_pd.node().network().unwrap();
        let addresses = Addresses::V4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
        let (mut ends, mut others): (Vec<End>, _) = (Vec::new(), Vec::new());
        // Which socket packets go by, the peer's device says, by its slot.
        while ends.len() < 2 {
            let far = Context::open("soft0").unwrap();
            let (far_pd, far_cq) = (far.alloc_pd().unwrap(), far.create_cq(16).unwrap());
            let cq = near.create_cq(16).unwrap();
            let a = near_pd.rc(&cq).gid_index(loopback(&near)).retry_count(0).ack_timeout(ack_timeout);
            let a = a.build().unwrap();
            let b = far_pd.rc(&far_cq).gid_index(loopback(&far)).build().unwrap();
            let [at_a, at_b] = [a.address(), b.address()].map(|at| QpAddress { soft: None, ..at });
            let (qp, b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
            let peer = qpair_roce::Qpn(at_b.qpn.0);
            let port = network.source_port(&addresses, peer);
            let region = far_pd.expose(100, Access::REMOTE_WRITE).unwrap();
            others.push(b);
            if ends.iter().all(|other| other.port != port) {
                ends.push(End { qp, cq, region, peer, port });
            } else {
                others.push(qp);
            }
        }
        let Ok(ends) = ends.try_into() else { unreachable!("there are two") };
        Ways { network, addresses, ends, _others: others }
    }

    /// Has the socket of the first take so many departures more; or as many as the system does.
    fn leave_room(&self, departures: Option<usize>) {
        self.network.leave_room(&self.addresses, self.ends[0].peer, departures);
    }
}

impl End {
    fn write(&mut self) {
        self.qp.write_inline(b"came", self.region.remote(0..4)).signaled().post().unwrap();
    }
}

/// One that can send nothing fails no sooner for that, however few its retries are, and holds up no other.
#[test]
fn a_full_socket_stops_only_those_that_send_by_it() {
    let mut ways = Ways::new(TIMEOUT);
    ways.leave_room(Some(0));
    let [full, free] = &mut ways.ends;
    full.write();
    let start = Instant::now();
    while start.elapsed() < 2 * TIMEOUT {
        free.write();
        assert_eq!(ended(&mut free.cq), (WcOpcode::RDMA_WRITE, WcStatus::SUCCESS, None));
        assert!(full.cq.poll().unwrap().is_none());
    }
    ways.leave_room(None);
    assert_eq!(ended(&mut ways.ends[0].cq), (WcOpcode::RDMA_WRITE, WcStatus::SUCCESS, None));
}

/// Also where answers are due sooner than a full socket is looked at again.
#[test]
fn what_waits_at_a_full_socket_is_not_late() {
    let mut ways = Ways::new(Duration::from_micros(131));
    ways.leave_room(Some(0));
    let [full, _] = &mut ways.ends;
    let start = Instant::now();
    full.write();
    // The device's thread alone looks after it, for much longer than anything is kept.
    while start.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
        assert!(full.cq.poll().unwrap().is_none());
    }
}

/// What panics there is not of this library: a subscriber of its log, for one.
#[test]
fn a_device_whose_network_thread_ends_fails() {
    let [near, far] = [(); 2].map(|()| Context::open("soft0").unwrap());
    let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
    let (mut near_cq, mut far_cq) = (near.create_cq(16).unwrap(), far.create_cq(16).unwrap());
    let mut events = near.events().unwrap();
    let a = near_pd.rc(&near_cq).gid_index(loopback(&near)).build().unwrap();
    let b = far_pd.rc(&far_cq).gid_index(loopback(&far)).retry_count(1).ack_timeout(Duration::from_millis(20));
    let b = b.build().unwrap();
    let [at_a, at_b] = [a.address(), b.address()].map(|at| QpAddress { soft: None, ..at });
    let (mut a, mut b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
    a.recv(near_pd.alloc(8).unwrap()).post().unwrap();

    near_pd.node().network().unwrap().mine();
    // Nobody polls, which would let the thread sleep.
    let start = Instant::now();
    let mut raised = Vec::new();
    while raised.len() < 2 {
        raised.extend(events.next_event());
        std::thread::yield_now();
        assert!(start.elapsed().as_secs() < 20, "{raised:?}");
    }
    assert_eq!(raised, [AsyncEvent::DeviceFatal, AsyncEvent::QpFatal(a.number())]);
    assert_eq!(ended(&mut near_cq).1, WcStatus::WR_FLUSH_ERR);
    let again = near_pd.rc(&near_cq).gid_index(loopback(&near)).build().unwrap();
    let refused = again.connect(&at_b).unwrap_err();
    assert!(matches!(refused, ConnectError::DeviceFailed), "{refused}");
    // Its peer hears nothing more, and says so in its time.
    b.send_inline(b"x").signaled().post().unwrap();
    assert_eq!(ended(&mut far_cq), (WcOpcode::SEND, WcStatus::RETRY_EXC_ERR, None));
}

/// After it nobody waits for what came before, and the memory may be another's.
#[cfg(feature = "cuda")]
#[test]
fn what_came_for_a_gpu_is_there_before_a_panic_over_what_came_next_goes_on() {
    let fake = qpair_fake_cuda::control::add_device().unwrap();
    let gpu = crate::Gpu::open(fake.ordinal() as usize).unwrap();
    let start = Instant::now();
    // What comes in several rounds does not show it.
    let panics = || {
        let [near, far] = [(); 2].map(|()| Context::open("soft0").unwrap());
        let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
        let (near_cq, far_cq) = (near.create_cq(16).unwrap(), far.create_cq(16).unwrap());
        let connect = || {
            let a = near_pd.rc(&near_cq).gid_index(loopback(&near)).build().unwrap();
            let b = far_pd.rc(&far_cq).gid_index(loopback(&far)).build().unwrap();
            let [at_a, at_b] = [a.address(), b.address()].map(|at| QpAddress { soft: None, ..at });
            (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap())
        };
        let [(mut first, _first_peer), (mut second, _second_peer)] = [connect(), connect()];
        let region = far_pd.register_gpu(gpu.alloc(4096).unwrap(), Access::REMOTE_WRITE).unwrap();
        region.write(0, &[0; 4096]).unwrap();
        let other = far_pd.expose(8, Access::REMOTE_WRITE).unwrap();
        far_pd.node().network().unwrap().with(|engine| {
            // A round takes twice as many as the one before, at most.
            for _ in 0..1 + 2 {
                first.write_inline(b"more", other.remote(0..4)).post().unwrap();
            }
            first.write_inline(b"came", region.remote(0..4)).post().unwrap();
            second.write_inline(b"lost", region.remote(1000..1004)).post().unwrap();
            // Not behind the one before, which goes now.
            second.write_inline(b"next", region.remote(3000..3004)).post().unwrap();
            fake.fail("cuMemcpyAsync", 1, qpair_fake_cuda::code::ECC_UNCORRECTABLE).unwrap();
            let mut rounds = 0;
            while rounds < 6 {
                assert!(start.elapsed().as_secs() < 20, "nothing comes, or nothing fails");
                match crate::bomb::where_errors_panic(|| engine.receive(Instant::now())) {
                    Ok(came) => rounds += u32::from(came),
                    Err(_) => {
                        let mut found = [0; 4];
                        region.read(0, &mut found).unwrap();
                        assert_eq!(&found, b"came");
                        return true;
                    }
                }
            }
            false
        })
    };
    while !panics() {}
}

/// For answers: longer than what waits at a full socket is kept, and than a busy machine leaves a peer without a core.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Operation, status, and the key that was withdrawn, of the next completion.
fn ended(cq: &mut CompletionQueue) -> (WcOpcode, WcStatus, Option<Rkey>) {
    let start = Instant::now();
    loop {
        if let Some(done) = cq.poll().unwrap() {
            return (done.opcode(), done.status(), done.values().invalidated);
        }
        assert!(start.elapsed().as_secs() < 20, "nothing ended");
        std::thread::yield_now();
    }
}
