//! What is easily got wrong in a binding to libibverbs, and is not here.

use std::any::Any;

use qpair_fake_ibverbs::control::{About, Device};
use qpair_verbs::{
    Access, Arm, AsyncEvent, AtomicAbility, Buffer, Context, CreateError, GidKind, LinkLayer, Mtu, PhysicalState,
    PortState, WcOpcode, WcStatus,
};

use crate::ground::{Ground, NAME, connect, in_fake, places, settled, wait_until};

#[test]
fn objects_can_be_dropped_in_any_order() {
    in_fake(|| {
        let fake = Device::new(NAME).unwrap();
        for order in permutations(6) {
            let Ground { ctx, pd, cq, .. } = Ground::new();
            let (mut a, b) = connect(pd.rc(&cq).build().unwrap(), pd.rc(&cq).build().unwrap());
            let region = pd.expose(64, Access::REMOTE_ALL).unwrap();
            a.write(pd.alloc(64).unwrap(), region.remote(0..64)).signaled().post().unwrap();
            a.recv(pd.alloc(64).unwrap()).post().unwrap();
            a.recv(region.local(0..32)).post().unwrap();
            let mut objects: Vec<Option<Box<dyn Any>>> = vec![
                Some(Box::new(ctx)),
                Some(Box::new(pd)),
                Some(Box::new(cq)),
                Some(Box::new(a)),
                Some(Box::new(b)),
                Some(Box::new(region)),
            ];
            for place in &order {
                drop(objects[*place].take());
                assert_eq!(fake.violations(), "", "{order:?}");
            }
            assert_eq!(fake.live(), "", "{order:?}");
        }
    });
}

#[test]
fn every_object_that_is_made_is_destroyed() {
    in_fake(|| {
        let ground = Ground::new();
        let channel = ground.ctx.create_channel().unwrap();
        let on_channel = ground.ctx.create_cq_on(8, &channel).unwrap();
        let timed = ground.ctx.create_cq_with_timestamps(8, Some(&channel)).unwrap();
        let mut srq = ground.pd.create_srq(8).unwrap();
        srq.post(ground.filled(1), 1).unwrap();
        let shared = ground.pd.rc(&on_channel).srq(&srq).thread_domain().build().unwrap();
        let datagrams = ground.pd.ud(&timed).build().unwrap().activate().unwrap();
        let handle = datagrams.address_handle(&datagrams.address()).unwrap();
        let window = ground.pd.create_window().unwrap();
        let vector = ground.pd.register(vec![0; 64]).unwrap();
        drop((channel, on_channel, timed, srq, shared, datagrams, handle, window, vector));
        let fake = ground.close();
        for kind in ["context", "pd", "td", "mr", "mw", "channel", "cq", "srq", "qp", "ah"] {
            let [made, gone] = ["created", "destroyed"].map(|count| fake.get(&format!("{count}.{kind}")).unwrap());
            assert_eq!(made, gone, "{kind}");
            assert!(made > 0, "no {kind} was made");
        }
    });
}

#[test]
fn a_shared_receive_queue_outlives_its_queue_pairs() {
    in_fake(|| {
        let ground = Ground::new();
        let srq = ground.pd.create_srq(8).unwrap();
        let qp = ground.pd.rc(&ground.cq).srq(&srq).build().unwrap();
        let number = ground.fake.get("created.qp").unwrap();
        drop(srq);
        drop(qp);
        let calls = ground.fake.calls();
        let [qp, srq] = places(&calls, [&format!("ibv_destroy_qp qp{number}"), "ibv_destroy_srq srq1"]);
        assert!(qp < srq, "{calls}");
        ground.close();
    });
}

#[test]
fn memory_stays_registered_until_its_queue_pair_is_gone() {
    in_fake(|| {
        let ground = Ground::new();
        let (mut a, b) = ground.pair();
        let vector = ground.pd.register(vec![7; 64]).unwrap();
        a.recv(vector).post().unwrap();
        let region = ground.exposed(64);
        a.recv(region.local(0..64)).post().unwrap();
        drop(region);
        assert!(!ground.fake.calls().contains("ibv_dereg_mr"), "{}", ground.fake.calls());
        let fake = ground.fake.clone();
        drop((ground.pd, ground.ctx, ground.cq));
        assert!(!fake.calls().contains("ibv_dereg_mr"), "{}", fake.calls());
        drop((a, b));
        settled(&fake);
        fake.assert_clean();
        let calls = fake.calls();
        // The first one was made to find out how much inline data the device takes.
        let [gone, dereg] = places(&calls, ["ibv_destroy_qp qp2", "ibv_dereg_mr"]);
        assert!(gone < dereg, "{calls}");
    });
}

#[test]
fn a_key_is_valid_exactly_as_long_as_its_region() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        let remote = region.remote(0..64);
        a.write(ground.filled(3), remote).signaled().post().unwrap();
        assert!(ground.done().status.is_success());
        let revoked = region.revoke().unwrap();
        assert_eq!(revoked[..], [3; 64]);
        a.write(ground.filled(4), remote).signaled().post().unwrap();
        assert_eq!(ground.done().status, WcStatus::REM_ACCESS_ERR);
        assert_eq!(revoked[..], [3; 64], "ordinary memory again");
        let calls = ground.fake.calls();
        let dereg = places(&calls, ["ibv_dereg_mr mr2"])[0];
        let writes: Vec<_> =
            calls.lines().enumerate().filter(|(_, line)| line.starts_with("ibv_post_send")).map(|(at, _)| at).collect();
        assert!(writes[0] < dereg && dereg < writes[1], "{calls}");
        drop((a, b, revoked));
        ground.close();
    });
}

#[test]
fn codes_that_nobody_knows_are_kept_and_printed() {
    in_fake(|| {
        let odd = [
            ("port_state", 99),
            ("phys_state", 77),
            ("link_layer", 55),
            ("max_mtu", 44),
            ("active_mtu", 33),
            ("active_width", 3),
            ("active_speed", 3),
            ("atomic_cap", 66),
        ];
        let fake = Device::new(NAME).unwrap();
        fake.set_gid(5, [9; 16], 1234, 0).unwrap();
        for (setting, value) in odd {
            fake.set(setting, value).unwrap();
        }
        let ctx = Context::open(NAME).unwrap();
        let port = ctx.port(1).unwrap();
        assert_eq!(port.state, PortState::Unknown(99));
        assert_eq!(port.physical_state, PhysicalState::Unknown(77));
        assert_eq!(port.link_layer, LinkLayer::Unknown(55));
        assert_eq!((port.max_mtu, port.active_mtu), (Mtu::B1024, Mtu::B1024));
        assert_eq!(ctx.attributes().atomics, AtomicAbility::Unknown(66));
        let row = port.gids.iter().find(|row| row.index == 5).unwrap();
        assert_eq!(row.kind, GidKind::Unknown(1234));
        let text = format!("{port:?} {:?}", ctx.attributes());
        for code in ["Unknown(99)", "Unknown(77)", "Unknown(55)", "Unknown(66)", "Unknown(1234)"] {
            assert!(text.contains(code), "{code} in {text}");
        }
        drop(ctx);
        settled(&fake);
        fake.assert_clean();
    });
}

#[test]
fn events_that_nobody_knows_are_kept() {
    in_fake(|| {
        let ground = Ground::new();
        let mut events = ground.ctx.events().unwrap();
        ground.fake.event(815, About::Port(1)).unwrap();
        let mut raised = None;
        assert!(wait_until(|| {
            raised = events.next_event();
            raised.is_some()
        }));
        assert_eq!(raised, Some(AsyncEvent::Unknown(815)));
        drop(events);
        ground.close();
    });
}

#[test]
fn an_unknown_status_fails_the_queue_pair_and_gives_the_memory_back() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        let odd = qpair_fake_ibverbs::control::Completion::new().status(4711).opcode(0xdead).vendor_err(42);
        ground.fake.forge(1, odd).unwrap();
        a.write(ground.filled(6), region.remote(0..64)).id(8).signaled().post().unwrap();
        let done = ground.cq.poll().unwrap().unwrap();
        let values = done.values();
        assert_eq!((values.wr_id, values.status, values.vendor_err), (8, WcStatus(4711), 42));
        assert_eq!((values.opcode, values.byte_len), (WcOpcode::RDMA_WRITE, 0), "those of the request");
        assert!(format!("{}", done.ok().unwrap_err()).contains("4711"), "{}", done.ok().unwrap_err());
        assert_eq!(done.into_buffer().unwrap()[..], [6; 64]);
        assert_eq!(a.state(), qpair_verbs::QpState::Err);
        drop((a, b, region));
        ground.close();
    });
}

#[test]
fn an_empty_list_posts_no_dangling_pointer() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, mut b) = ground.pair();
        b.recv(Vec::<Buffer>::new()).post().unwrap();
        a.send(Vec::<Buffer>::new()).signaled().post().unwrap();
        let (one, two) = (ground.done(), ground.done());
        assert!(one.status.is_success() && two.status.is_success(), "{one:?} {two:?}");
        assert_eq!(one.byte_len + two.byte_len, 0);
        drop((a, b));
        ground.close();
    });
}

#[test]
fn a_request_that_is_dropped_posts_nothing() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, mut b) = ground.pair();
        let region = ground.exposed(64);
        let window = ground.pd.create_window().unwrap();
        drop(a.write(ground.filled(1), region.remote(0..64)).signaled());
        drop(a.send_inline(b"x").signaled());
        drop(a.bind(&window, &region, 0..64, Access::REMOTE_READ).signaled());
        drop(a.invalidate(qpair_verbs::Rkey(1)));
        drop(b.recv(ground.filled(2)));
        ground.nothing();
        let calls = ground.fake.calls();
        assert!(!calls.contains("ibv_post"), "{calls}");
        a.write(ground.filled(3), region.remote(0..64)).signaled().post().unwrap();
        assert!(ground.done().status.is_success(), "nothing of them is left in the queue pair");
        drop((a, b, window));
        assert_eq!(region.revoke().unwrap()[..], [3; 64]);
        ground.close();
    });
}

#[test]
fn a_completion_between_the_last_poll_and_the_sleep_is_not_missed() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        ground.fake.set("defer", 1).unwrap();
        let fake = ground.fake.clone();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The other side of the race: it completes what is held back at any moment.
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    fake.run().unwrap();
                }
            });
            for turn in 0..300 {
                a.write(ground.filled(1), region.remote(0..64)).id(turn).signaled().post().unwrap();
                let done = ground.cq.wait_for(std::time::Duration::from_secs(20)).unwrap();
                assert_eq!(done.wr_id(), turn);
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        drop((a, b, region));
        ground.close();
    });
}

#[test]
fn a_queue_that_can_not_be_armed_is_polled() {
    in_fake(|| {
        let mut ground = Ground::new();
        let channel = ground.ctx.create_channel().unwrap();
        let mut shared = ground.ctx.create_cq_on(8, &channel).unwrap();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        ground.fake.set("defer", 1).unwrap();
        ground.fake.fail_times("ibv_req_notify_cq", 1, 0, libc::EIO).unwrap();
        for arm in [Arm::Any, Arm::Solicited] {
            shared.arm(arm);
            assert!(channel.wait(Some(std::time::Duration::ZERO)).unwrap(), "its owner is woken to poll");
            channel.clear();
        }
        a.write(ground.filled(1), region.remote(0..64)).id(7).signaled().post().unwrap();
        let (fake, before) = (ground.fake.clone(), ground.fake.calls().len());
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            sender.send(ground.cq.wait().map(|done| done.wr_id())).unwrap();
            ground
        });
        let asked = || fake.calls()[before..].contains("ibv_req_notify_cq");
        assert!(wait_until(asked), "it sleeps, or is about to");
        fake.run().unwrap();
        assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(20)).expect("it wakes").unwrap(), 7);
        drop((a, b, region, shared, channel));
        waiting.join().unwrap().close();
    });
}

#[test]
fn a_completion_that_came_before_arming_is_found_by_polling_again() {
    in_fake(|| {
        let mut ground = Ground::new();
        let channel = ground.ctx.create_channel().unwrap();
        let mut cq = ground.ctx.create_cq_on(8, &channel).unwrap();
        let (mut a, b) = connect(ground.pd.rc(&cq).build().unwrap(), ground.pd.rc(&ground.cq).build().unwrap());
        let region = ground.exposed(64);
        a.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
        cq.arm(Arm::Any);
        assert!(!channel.wait(Some(std::time::Duration::ZERO)).unwrap(), "it does not ring for what was there");
        assert!(cq.poll().unwrap().is_some(), "but a poll finds it");
        a.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
        assert!(channel.wait(Some(std::time::Duration::ZERO)).unwrap());
        channel.clear();
        assert!(cq.poll().unwrap().is_some());
        ground.nothing();
        drop((a, b, region, cq, channel));
        ground.close();
    });
}

#[test]
fn a_channel_is_destroyed_once_after_its_queues() {
    in_fake(|| {
        for channel_first in [true, false] {
            let ground = Ground::new();
            ground.fake.reset().unwrap();
            let channel = ground.ctx.create_channel().unwrap();
            let queues = [8, 8].map(|depth| ground.ctx.create_cq_on(depth, &channel).unwrap());
            if channel_first {
                drop(channel);
                drop(queues);
            } else {
                drop(queues);
                drop(channel);
            }
            let calls = ground.fake.calls();
            let destroyed: Vec<_> = calls.lines().filter(|line| line.starts_with("ibv_destroy")).collect();
            assert_eq!(destroyed.len(), 3, "{calls}");
            assert!(destroyed[2].starts_with("ibv_destroy_comp_channel"), "{calls}");
            ground.close();
        }
    });
}

#[test]
fn times_are_told_by_queues_made_for_it_alone() {
    in_fake(|| {
        let mut ground = Ground::new();
        let mut timed = ground.ctx.create_cq_with_timestamps(8, None).unwrap();
        let region = ground.exposed(64);
        let (mut a, b) = ground.pair();
        a.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
        assert_eq!(ground.cq.poll().unwrap().unwrap().timestamp(), None);
        let (mut c, d) = connect(ground.pd.rc(&timed).build().unwrap(), ground.pd.rc(&ground.cq).build().unwrap());
        let mut before = None;
        for _ in 0..40 {
            c.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
            let done = timed.poll().unwrap().unwrap();
            assert!(done.timestamp().is_some() && done.timestamp() >= before, "{before:?} {:?}", done.timestamp());
            before = done.timestamp();
        }
        drop((a, b, c, d, region, timed));
        ground.close();
    });
}

#[test]
fn a_device_without_times_makes_no_queue_that_would_tell_them() {
    in_fake(|| {
        for (setting, value) in [("cq_ex", 0), ("timestamp_mask", 0), ("extended", 0)] {
            let ground = Ground::with(&[(setting, value)]);
            let error = ground.ctx.create_cq_with_timestamps(8, None).unwrap_err();
            assert!(matches!(error, CreateError::NoTimestamps { .. } | CreateError::System { .. }), "{error}");
            ground.close().reset().unwrap();
        }
    });
}

/// All orders of so many, by Heap's algorithm.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<_> = (0..count).collect();
    let (mut all, mut turns, mut at) = (vec![order.clone()], vec![0; count], 0);
    while at < count {
        if turns[at] < at {
            order.swap(if at % 2 == 0 { 0 } else { turns[at] }, at);
            all.push(order.clone());
            turns[at] += 1;
            at = 0;
        } else {
            turns[at] = 0;
            at += 1;
        }
    }
    assert_eq!(all.len(), (1..=count).product::<usize>());
    all
}
