//! Which wire is chosen, what it says of itself, and peers that are not there.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use qpair_verbs::{Access, ConnectError, CreateError, GRH_BYTES, Gid, QpAddress, QpState, RemoteSlice, Rkey, WcStatus};

use crate::ground::{Device, LIMIT, Pair, afar, eventually};

#[test]
fn packets_of_the_peer_are_counted() {
    let mut pair = Pair::new(4096);
    let before = pair.qp.arrivals().expect("it is on the network");
    pair.works(1);
    assert!(pair.qp.arrivals().unwrap() >= before + 2, "an acknowledgment, and the answer to a READ");
}

#[test]
fn the_wire_is_chosen_by_where_the_peer_is() {
    let pair = Pair::new(64);
    let text = pair.qp.explain();
    assert!(text.starts_with("roce wire to ") && text.contains("127.0.0.1") && text.contains("4096"), "{text}");
    let (near, far) = (Device::open(), Device::open());
    let (a, b) = (near.prepare(), far.prepare());
    let qp = a.connect(&b.address()).unwrap();
    assert!(qp.explain().starts_with("shm wire to "), "{}", qp.explain());
}

#[test]
fn what_is_written_is_read() {
    let mut pair = Pair::new(3 << 20);
    (0..3).for_each(|seed| pair.works(seed));
    assert!(pair.near.counter("sent_pkts") > 768 * 3 && pair.far.counter("rcvd_pkts") > 768 * 3);
}

#[test]
fn a_peer_that_goes_is_noticed_by_who_waits_for_it() {
    let mut pair = Pair::new(64);
    pair.works(1);
    let remote = pair.region.remote(0..8);
    drop((pair.far_qp, pair.region, pair.far));
    let start = Instant::now();
    pair.qp.write_inline(&[1; 8], remote).id(7).signaled().post().unwrap();
    assert_eq!(pair.near.status(), WcStatus::RETRY_EXC_ERR);
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
    assert_eq!(pair.qp.state(), QpState::Err);
    assert_eq!(pair.near.counter("retry_exceeded_err"), 1);
}

/// The acknowledgment waits for what the peer may post next to go with it.
#[test]
fn a_peer_that_goes_with_the_message_that_it_waited_for_acknowledges_it() {
    let mut pair = Pair::new(64);
    let region = pair.region.remote(0..8);
    for abandons in [false, true] {
        pair.far_qp.recv(pair.far.pd.alloc(8).unwrap()).post().unwrap();
        // Long enough for the device's thread to leave the rest to who polls.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            assert!(pair.far.cq.poll().unwrap().is_none());
        }
        pair.qp.write_inline(&[1; 8], region).post().unwrap();
        pair.qp.send_inline(b"the last").signaled().post().unwrap();
        // By polling: who sleeps leaves all to the thread.
        eventually("the last message", || pair.far.cq.poll().unwrap().is_some());
        if abandons {
            pair.far_qp.to_error().unwrap();
        } else {
            let again = pair.far.prepare();
            let near = pair.near.prepare();
            let (to_far, to_near) = (afar(again.address()), afar(near.address()));
            let qp = std::mem::replace(&mut pair.qp, near.connect(&to_far).unwrap());
            drop(std::mem::replace(&mut pair.far_qp, again.connect(&to_near).unwrap()));
            assert_eq!(pair.near.status(), WcStatus::SUCCESS, "dropped");
            drop(qp);
        }
    }
    assert_eq!(pair.near.status(), WcStatus::SUCCESS, "in error");
}

#[test]
fn an_address_that_leads_nowhere_ends_in_time() {
    let mut near = Device::open();
    let prepared = near.prepare();
    // A network for documentation (RFC 5737): nothing routes there from loopback.
    let gid = Gid::from(IpAddr::from([203, 0, 113, 1]));
    let mut qp = prepared.connect(&QpAddress { gid, ..afar(near.prepare().address()) }).unwrap();
    qp.send_inline(b"hello").signaled().post().unwrap();
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
}

#[test]
fn what_can_not_be_connected_says_why() {
    let near = Device::open();
    let far = near.prepare().address();
    let error = |gid: Gid| near.prepare().connect(&QpAddress { gid, ..afar(far) }).unwrap_err();
    let family = error(Gid(std::net::Ipv6Addr::LOCALHOST.octets()));
    assert!(matches!(&family, ConnectError::NoRoute { why } if why.contains("gid_index")), "{family}");
    let nothing = error(Gid([0; 16]));
    assert!(matches!(nothing, ConnectError::NoRoute { .. }), "{nothing}");
    let shared = near.pd.rc(&near.cq).gid_index(0).build().unwrap();
    let of_memory = shared.connect(&afar(far)).unwrap_err();
    assert!(matches!(&of_memory, ConnectError::NoRoute { why } if why.contains("devices -v")), "{of_memory}");
    let rows = near.ctx.port(1).unwrap().gids.len() as u32;
    let none = near.pd.rc(&near.cq).gid_index(rows).build().unwrap_err();
    assert!(
        matches!(&none, CreateError::EmptyGid { index, rows: used, .. } if *index == rows && used.len() as u32 == rows),
        "{none}"
    );
}

#[test]
fn datagrams_bring_the_header_that_they_came_under() {
    let (mut near, mut far) = (Device::open(), Device::open());
    let datagrams = |device: &Device| {
        let row = device.row([127, 0, 0, 1]);
        device.pd.ud(&device.cq).qkey(0x1111).gid_index(row).build().unwrap().activate().unwrap()
    };
    let (mut a, mut b) = (datagrams(&near), datagrams(&far));
    b.recv(far.pd.alloc(GRH_BYTES + 100).unwrap()).id(3).post().unwrap();
    let to = a.address_handle(&afar(b.address())).unwrap();
    a.send_inline(b"over the network", &to).imm(9).signaled().post().unwrap();
    assert_eq!(near.status(), WcStatus::SUCCESS);
    let done = far.cq.wait_for(LIMIT).unwrap();
    assert_eq!((done.wr_id(), done.status(), done.imm()), (3, WcStatus::SUCCESS, Some(9)));
    assert_eq!((done.values().src_qpn, done.byte_len()), (Some(a.number()), GRH_BYTES + 16));
    let bytes = done.into_buffer().unwrap();
    assert_eq!(bytes[..20], [0; 20], "the header of IPv4 stands behind as many zeros");
    assert_eq!((bytes[20], bytes[29], &bytes[32..40]), (0x45, 17, &[127, 0, 0, 1, 127, 0, 0, 1][..]));
    assert_eq!(&bytes[GRH_BYTES..GRH_BYTES + 16], b"over the network");
    // One with another key is dropped and counted.
    let wrong = a.address_handle(&QpAddress { qkey: 5, ..afar(b.address()) }).unwrap();
    a.send_inline(b"x", &wrong).signaled().post().unwrap();
    assert_eq!(near.status(), WcStatus::SUCCESS);
    eventually("the violation is counted", || far.counter("qkey_viol_cntr") == 1);
}

#[test]
fn a_target_that_polls_refuses_before_it_is_gone() {
    let mut pair = Pair::new(64);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let far = &mut pair.far.cq;
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = far.poll().unwrap();
            }
        });
        let wrong = RemoteSlice { rkey: Rkey(pair.region.rkey().0 ^ 1), ..pair.region.remote(0..8) };
        pair.qp.write_inline(&[1; 8], wrong).signaled().post().unwrap();
        let status = pair.near.status();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(status, WcStatus::REM_ACCESS_ERR);
    });
    eventually("the target has failed too", || pair.far_qp.state() == QpState::Err);
}

#[test]
fn a_request_that_can_not_be_made_waits_for_those_before_it() {
    let (mut near, mut far) = (Device::open(), Device::open());
    let row = near.row([127, 0, 0, 1]);
    let without = |device: &Device| device.pd.rc(&device.cq).gid_index(row).max_rd_atomic(0).build().unwrap();
    let (a, b) = (without(&near), without(&far));
    let (to_a, to_b) = (afar(a.address()), afar(b.address()));
    let (mut qp, mut far_qp) = (a.connect(&to_b).unwrap(), b.connect(&to_a).unwrap());
    let region = far.pd.expose(8, Access::REMOTE_ALL).unwrap();
    // There is no receive for it yet.
    qp.send(near.pd.alloc(1000).unwrap()).id(1).signaled().post().unwrap();
    qp.read(near.pd.alloc(8).unwrap(), region.remote(0..8)).id(2).signaled().post().unwrap();
    assert!(near.cq.wait_for(Duration::from_millis(20)).is_err(), "the first is not done");
    far_qp.recv(far.pd.alloc(1000).unwrap()).post().unwrap();
    for expected in [(1, WcStatus::SUCCESS), (2, WcStatus::LOC_QP_OP_ERR)] {
        let done = near.cq.wait_for(LIMIT).unwrap();
        assert_eq!((done.wr_id(), done.status()), expected);
    }
    assert_eq!(far.status(), WcStatus::SUCCESS);
}

#[test]
fn a_request_that_can_not_be_made_is_flushed_behind_one_that_fails() {
    let (mut near, far) = (Device::open(), Device::open());
    let row = near.row([127, 0, 0, 1]);
    let without =
        |device: &Device| device.pd.rc(&device.cq).gid_index(row).max_rd_atomic(0).rnr_retry(0).build().unwrap();
    let (a, b) = (without(&near), without(&far));
    let (to_a, to_b) = (afar(a.address()), afar(b.address()));
    let (mut qp, _far_qp) = (a.connect(&to_b).unwrap(), b.connect(&to_a).unwrap());
    let region = far.pd.expose(8, Access::REMOTE_ALL).unwrap();
    // There is no receive for it.
    qp.send(near.pd.alloc(1000).unwrap()).id(1).signaled().post().unwrap();
    qp.read(near.pd.alloc(8).unwrap(), region.remote(0..8)).id(2).signaled().post().unwrap();
    for expected in [(1, WcStatus::RNR_RETRY_EXC_ERR), (2, WcStatus::WR_FLUSH_ERR)] {
        let done = near.cq.wait_for(LIMIT).unwrap();
        assert_eq!((done.wr_id(), done.status()), expected);
    }
}

#[test]
fn the_device_drives_itself_while_nobody_polls() {
    let mut pair = Pair::new(1 << 20);
    pair.works(3);
    // Neither side polls while this goes on, but for the one who waits.
    let remote = pair.region.remote(0..1 << 20);
    for _ in 0..4 {
        pair.qp.write(pair.near.pd.alloc(1 << 20).unwrap(), remote).signaled().post().unwrap();
    }
    let region = &pair.region;
    region.write(0, &[1; 8]).unwrap();
    pair.qp.write_inline(&[2; 8], pair.region.remote(0..8)).post().unwrap();
    eventually("the last WRITE is there", || region.load(0).unwrap() == u64::from_ne_bytes([2; 8]));
    for _ in 0..4 {
        assert_eq!(pair.near.status(), WcStatus::SUCCESS);
    }
    assert!(pair.near.cq.wait_for(Duration::from_millis(1)).is_err(), "the fifth was not signaled");
}
