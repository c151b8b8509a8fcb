//! Connections by rdma_cm: how they are made, carry data, and end.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{CmError, Ended, Mtu, QpState, RejectReason};

use crate::connecting::{LIMIT, Listening, at, rc, refused};
use crate::ground::{Ground, NAME, in_fake, wait_until};

#[test]
fn both_ends_carry_data_and_are_told_what_the_other_says() {
    in_fake(|| {
        let mut listening = Listening::new();
        let mut asking = listening.ask(b"may I?");
        let request = listening.listener.wait(LIMIT).unwrap();
        assert_eq!((request.peer().ip(), request.local()), (listening.peer().ip(), listening.peer().ip()));
        assert_eq!((&request.private_data()[..7], request.private_data().len()), (&b"may I?\0"[..], 56));
        let mut answer = listening.rc();
        answer.recv(listening.ground.filled(0)).post().unwrap();
        let mut accepting = request.accept(answer, b"you may").unwrap();
        let mut near = asking.wait(LIMIT).unwrap();
        let mut far = accepting.wait(LIMIT).unwrap();
        assert!(near.private_data.starts_with(b"you may\0") && near.private_data.len() == 196);
        assert!(far.private_data.starts_with(b"may I?\0"));

        near.queue_pair.send_inline(b"there").signaled().post().unwrap();
        for _ in 0..2 {
            assert!(listening.ground.done().status.is_success());
        }
        near.queue_pair.recv(listening.ground.filled(0)).post().unwrap();
        far.queue_pair.send_inline(b"back").signaled().post().unwrap();
        for _ in 0..2 {
            assert!(listening.ground.done().status.is_success());
        }
        drop((near, far, asking, accepting));
        listening.close();
    });
}

#[test]
fn what_a_builder_chose_counts_at_its_own_end() {
    in_fake(|| {
        let listening = Listening::new();
        let Ground { pd, cq, fake, ctx, .. } = &listening.ground;
        let chosen = |index| {
            let way = pd.rc(cq).gid_index(index).service_level(3).traffic_class(0x68).hop_limit(5);
            way.ack_timeout(Duration::from_millis(1)).build().unwrap()
        };
        // Another address of the device's, from which the system would not go by itself.
        let own = Ipv4Addr::new(10, 77, 3, 3);
        fake.set_gid(4, own.to_ipv6_mapped().octets(), 2, 1).unwrap();
        let (prepared, near_name) = (chosen(4), last_made(fake));
        let mut asking = ctx.connect_to(listening.peer(), prepared, b"").unwrap();
        let request = listening.listener.wait(LIMIT).unwrap();
        assert_eq!(request.peer().ip(), IpAddr::from(own));
        let (prepared, far_name) = (listening.rc(), last_made(fake));
        let mut accepting = request.accept(prepared, b"").unwrap();
        let near = asking.wait(LIMIT).unwrap();
        let far = accepting.wait(LIMIT).unwrap();
        let set = |which: &str, parts: &str| {
            let name = format!("ibv_modify_qp {which} ");
            let calls = fake.calls();
            let found = calls.lines().any(|line| line.starts_with(&name) && line.ends_with(parts));
            assert!(found, "{name}: {parts} is not in\n{calls}");
        };
        set(&near_name, "1->2 sl=3 gid=4 class=104 hops=5");
        // 1 ms is less than 4.096 us x 2^8; 500 ms less than x 2^17.
        set(&near_name, "timeout=8");
        set(&far_name, "1->2 sl=0 gid=3 class=0 hops=64");
        set(&far_name, "timeout=17");
        drop((near, far));
        // The same address by the other version of RoCE.
        let mut asking = ctx.connect_to(listening.peer(), chosen(2), b"").unwrap();
        let accepting = listening.listener.wait(LIMIT).unwrap().accept(listening.rc(), b"").unwrap();
        let error = asking.wait(LIMIT).map(|_| "a connection").unwrap_err();
        assert!(matches!(error, CmError::OtherRow { row: 3, chosen: 2 }), "{error}");
        drop((asking, accepting));
        // A row by which the system finds no way: it goes from another, and is told so.
        let mut asking = ctx.connect_to(listening.peer(), chosen(1), b"").unwrap();
        let _accepting = listening.listener.wait(LIMIT).unwrap().accept(listening.rc(), b"").unwrap();
        let error = asking.wait(LIMIT).map(|_| "a connection").unwrap_err();
        assert!(matches!(error, CmError::OtherAddress { .. }), "{error}");
        drop(_accepting);
        // The same of who is asked.
        let mut asking = listening.ask(b"");
        let error = listening.listener.wait(LIMIT).unwrap().accept(chosen(4), b"").map(|_| "a connection").unwrap_err();
        assert!(matches!(error, CmError::OtherAddress { own: at, .. } if at == IpAddr::from(own)), "{error}");
        assert!(asking.wait(LIMIT).is_err());
        // Shorter packets than those of the way.
        let short = || pd.rc(cq).mtu(Mtu::B1024).build().unwrap();
        let mut asking = ctx.connect_to(listening.peer(), short(), b"").unwrap();
        let accepting = listening.listener.wait(LIMIT).unwrap().accept(listening.rc(), b"").unwrap();
        let error = asking.wait(LIMIT).map(|_| "a connection").unwrap_err();
        assert!(matches!(error, CmError::MtuTooLong { asked: Mtu::B4096, limit: Mtu::B1024 }), "{error}");
        drop((asking, accepting));
        let mut asking = listening.ask(b"");
        let error = listening.listener.wait(LIMIT).unwrap().accept(short(), b"").map(|_| "a connection").unwrap_err();
        assert!(matches!(error, CmError::MtuTooLong { .. }), "{error}");
        assert!(asking.wait(LIMIT).is_err());
        drop(asking);
        listening.close();
    });
}

/// The name of the last queue pair.
fn last_made(fake: &Device) -> String {
    let calls = fake.calls();
    let made = calls.lines().rev().find_map(|line| line.strip_prefix("ibv_create_qp")?.split(' ').nth(1));
    made.expect("a queue pair").to_owned()
}

#[test]
fn whoever_ends_a_connection_both_are_told_and_both_queue_pairs_fail() {
    in_fake(|| {
        let listening = Listening::new();
        for asker_ends in [true, false] {
            let (near, far) = listening.connect();
            let (first, second) = if asker_ends { (near, far) } else { (far, near) };
            first.connection.disconnect();
            assert_eq!(second.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
            assert_eq!(first.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
            assert!(wait_until(|| first.queue_pair.state() == QpState::Err));
            assert!(wait_until(|| second.queue_pair.state() == QpState::Err));
        }
        listening.close();
    });
}

/// On Linux' rdma_rxe 7 tries are tries without end, and the peer's wish counts too.
#[test]
fn a_peer_on_rxe_that_does_not_answer_is_given_up() {
    in_fake(|| {
        let listening = Listening::on(Ground::with(&[("vendor_id", 0x00ff_ffff)]));
        drop(listening.connect());
        let calls = listening.close().calls();
        let tries = |count: u32| calls.matches(&format!("retry_cnt={count} timeout")).count();
        assert_eq!((tries(6), tries(7)), (2, 0), "{calls}");
    });
}

#[test]
fn an_end_that_is_dropped_ends_the_other() {
    in_fake(|| {
        let listening = Listening::new();
        let (near, far) = listening.connect();
        drop(near);
        assert_eq!(far.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
        drop(far);
        listening.close();
    });
}

#[test]
fn nobody_who_listens_is_told_by_the_reason() {
    in_fake(|| {
        let ground = Ground::new();
        let asking = ground.ctx.connect_to(at(&ground.ctx, 9), rc(&ground), b"").unwrap();
        let error = refused(asking);
        assert!(matches!(error, CmError::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. }), "{error}");
        ground.close();
    });
}

#[test]
fn an_address_that_no_device_has_is_unreachable() {
    in_fake(|| {
        let ground = Ground::new();
        let nowhere = "192.0.2.1:7".parse().unwrap();
        let error = refused(ground.ctx.connect_to(nowhere, rc(&ground), b"").unwrap());
        assert!(matches!(error, CmError::Unreachable { peer, .. } if peer == nowhere), "{error}");
        ground.close();
    });
}

#[test]
fn a_way_that_begins_at_another_device_is_told_by_its_name() {
    in_fake(|| {
        Device::new("other0").unwrap();
        let other = qpair_verbs::Context::open("other0").unwrap();
        let ground = Ground::new();
        let error = refused(ground.ctx.connect_to(at(&other, 7), rc(&ground), b"").unwrap());
        let is_told = matches!(&error, CmError::OtherDevice { device, own, .. } if device == "other0" && own == NAME);
        assert!(is_told, "{error}");
        ground.close();
    });
}

#[test]
fn an_iwarp_device_says_that_it_is_not_supported() {
    in_fake(|| {
        let ground = Ground::with(&[("transport_type", IWARP)]);
        let error = ground.ctx.listen(0).unwrap_err();
        assert!(matches!(error, CmError::NotSupported { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("iWARP") && text.contains("RoCE") && !text.contains("install"), "{text}");
        let error = ground.ctx.connect_to(at(&ground.ctx, 7), rc(&ground), b"").unwrap_err();
        assert!(matches!(error, CmError::NotSupported { .. }), "{error}");
        let calls = ground.close().calls();
        assert!(!calls.contains("rdma_"), "{calls}");
    });
}

#[test]
fn a_step_that_the_system_refuses_ends_the_attempt_and_leaves_nothing() {
    in_fake(|| {
        let mut listening = Listening::new();
        let fake = listening.ground.fake.clone();
        for step in ["rdma_create_id", "rdma_resolve_addr"] {
            fake.fail(step, 1, libc::ENOMEM).unwrap();
            assert!(listening.ground.ctx.connect_to(listening.peer(), listening.rc(), b"").is_err(), "{step}");
        }
        for step in ["rdma_resolve_route", "rdma_connect"] {
            fake.fail(step, 1, libc::ENOMEM).unwrap();
            let error = refused(listening.ask(b""));
            assert!(matches!(error, CmError::System { .. } | CmError::Unreachable { .. }), "{step}: {error}");
        }
        for step in ["rdma_init_qp_attr", "rdma_establish"] {
            let mut asking = listening.ask(b"");
            let accepting = listening.listener.wait(LIMIT).unwrap().accept(listening.rc(), b"").unwrap();
            assert!(wait_until(|| fake.calls().lines().last().is_some_and(|line| line.starts_with("rdma_accept"))));
            fake.fail(step, 1, libc::ENOMEM).unwrap();
            assert!(matches!(asking.wait(LIMIT), Err(CmError::System { .. })), "{step}");
            let error = refused(accepting);
            assert!(matches!(error, CmError::Rejected { .. }), "{step}: {error}");
        }
        listening.ground.nothing();
        listening.close();
    });
}

const IWARP: u64 = 1;
