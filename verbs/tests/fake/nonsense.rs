//! Devices that talk nonsense: nothing panics, no memory comes back before its request is done, and what can go on does.

use qpair_fake_ibverbs::control::{About, Completion};
use qpair_verbs::{AsyncEvent, CqError, PostError, QpState, QueuePair, RemoteSlice, WcStatus};
use qpair_verbs_sys as sys;

use crate::ground::{Ground, connect, in_fake, wait_until};

/// Posts a WRITE and polls for it: the queue pair and its queue work.
#[track_caller]
fn works(ground: &mut Ground, qp: &mut QueuePair, remote: RemoteSlice) {
    qp.write(ground.filled(0x5a), remote).id(77).signaled().post().unwrap();
    let done = ground.cq.poll().unwrap().expect("a completion");
    assert_eq!((done.wr_id(), done.status()), (77, WcStatus::SUCCESS));
    assert_eq!(done.into_buffer().unwrap()[..], [0x5a; 64]);
}

#[test]
fn completions_of_requests_that_were_never_posted_are_passed_over() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        works(&mut ground, &mut a, region.remote(0..64));
        let receive = 1 << 63;
        let none_such =
            [u64::MAX, 0, 1, 2, 127, 128, 0xffff_ffff, 1 << 32, 1 << 43, 7 << 43, receive, receive | 1 << 16];
        for wr_id in none_such.into_iter().chain((0..64).map(|bit| (1 << bit) | 1 << 20)) {
            for status in [sys::IBV_WC_SUCCESS, sys::IBV_WC_WR_FLUSH_ERR, 999] {
                let said = Completion::new().wr_id(wr_id).status(status).byte_len(u32::MAX).qp_num(a.number().0);
                ground.fake.inject(0, said).unwrap();
            }
            ground.nothing();
        }
        works(&mut ground, &mut a, region.remote(0..64));
        drop((a, b, region));
        ground.close();
    });
}

#[test]
fn a_completion_that_comes_twice_counts_once() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, mut b) = ground.pair();
        let region = ground.exposed(64);
        ground.fake.forge(1, Completion::new().twice()).unwrap();
        works(&mut ground, &mut a, region.remote(0..64));
        ground.nothing();
        // The receive's, which comes first.
        ground.fake.forge(1, Completion::new().twice()).unwrap();
        b.recv(ground.filled(0)).id(1).post().unwrap();
        a.send(ground.filled(9)).id(2).signaled().post().unwrap();
        let ids = [ground.done().wr_id, ground.done().wr_id];
        assert!(ids == [1, 2] || ids == [2, 1], "{ids:?}");
        ground.nothing();
        works(&mut ground, &mut a, region.remote(0..64));
        drop((a, b, region));
        ground.close();
    });
}

#[test]
fn a_completion_that_never_comes_keeps_its_memory_until_the_next() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        ground.fake.forge(1, Completion::new().dropped()).unwrap();
        a.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
        ground.nothing();
        a.write(ground.filled(2), region.remote(0..64)).id(2).signaled().post().unwrap();
        let mut done = ground.cq.poll().unwrap().unwrap();
        let qpair_verbs::Local::Buffer(first) = done.next_retired().unwrap() else { panic!("a buffer") };
        assert_eq!((done.wr_id(), &first[..]), (2, &[1; 64][..]));
        drop((done, first, a, b, region));
        ground.close();
    });
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_are_passed_over() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, mut b) = ground.pair();
        let region = ground.exposed(64);
        a.recv(ground.filled(1)).post().unwrap();
        a.write(ground.filled(2), region.remote(0..64)).signaled().post().unwrap();
        let ids = posted(&ground);
        assert_eq!(ids.len(), 2);
        drop(a);
        // Its own are flushed into the queue when it closes; the device says them again, and after other ones were made.
        let (mut c, d) = ground.pair();
        for round in 0..2 {
            for (wr_id, status) in ids.iter().flat_map(|id| [(*id, sys::IBV_WC_SUCCESS), (*id, 5)]) {
                ground.fake.inject(0, Completion::new().wr_id(wr_id).status(status).byte_len(64)).unwrap();
            }
            ground.nothing();
            works(&mut ground, &mut c, region.remote(0..64));
            b.recv(ground.filled(round)).post().unwrap();
        }
        drop((b, c, d, region));
        ground.close();
    });
}

/// The numbers of the requests posted so far, as the device has them.
fn posted(ground: &Ground) -> Vec<u64> {
    let calls = ground.fake.calls();
    let posts = calls.lines().filter(|line| line.starts_with("ibv_post"));
    posts.filter_map(|line| u64::from_str_radix(line.split("wr_id=0x").nth(1)?.split(' ').next()?, 16).ok()).collect()
}

/// Handles of the completion queues that were made.
fn made_queues(ground: &Ground) -> Vec<u32> {
    let calls = ground.fake.calls();
    let made = calls.lines().filter_map(|line| line.strip_prefix("ibv_create_cq cq"));
    made.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn a_receive_is_never_longer_than_its_memory() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, mut b) = ground.pair();
        for said in [65, 4096, u32::MAX] {
            ground.fake.forge(1, Completion::new().byte_len(said)).unwrap();
            b.recv(ground.filled(0)).id(1).post().unwrap();
            a.send_inline(b"abc").signaled().id(2).post().unwrap();
            for _ in 0..2 {
                let done = ground.cq.poll().unwrap().unwrap();
                let len = done.byte_len();
                assert!(len <= 64, "{len}");
                if done.wr_id() == 1 {
                    assert_eq!(done.into_buffer().unwrap()[..3], *b"abc");
                }
            }
        }
        drop((a, b));
        ground.close();
    });
}

#[test]
fn a_poll_that_fails_is_an_error_and_the_next_goes_on() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        a.write(ground.filled(1), region.remote(0..64)).id(3).signaled().post().unwrap();
        ground.fake.fail("ibv_poll_cq", 1, libc::EIO).unwrap();
        let error = ground.cq.poll().unwrap_err();
        assert!(matches!(error, CqError::Device { code } if code == -libc::EIO), "{error}");
        assert_eq!(ground.done().wr_id, 3);
        works(&mut ground, &mut a, region.remote(0..64));
        drop((a, b, region));
        ground.close();
    });
}

#[test]
fn a_poll_that_finds_more_than_it_was_asked_for_is_not_believed() {
    in_fake(|| {
        for said in [17, 1000, i32::MAX] {
            let mut ground = Ground::new();
            let (mut a, b) = ground.pair();
            let region = ground.exposed(64);
            ground.fake.poll_returns(said).unwrap();
            a.write(ground.filled(1), region.remote(0..64)).id(3).signaled().post().unwrap();
            let error = ground.cq.poll().unwrap_err();
            assert!(matches!(error, CqError::Device { code } if code == said), "{error}");
            // What was lost with it retires with the next.
            a.write(ground.filled(2), region.remote(0..64)).id(4).signaled().post().unwrap();
            let mut done = ground.cq.poll().unwrap().unwrap();
            assert_eq!(done.wr_id(), 4);
            assert!(done.next_retired().is_some());
            drop((done, a, b, region));
            ground.close();
        }
    });
}

#[test]
fn a_poll_that_exaggerates_within_its_room_gives_nothing_twice() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        for _ in 0..20 {
            ground.fake.poll_returns(16).unwrap();
            works(&mut ground, &mut a, region.remote(0..64));
            ground.nothing();
        }
        drop((a, b, region));
        ground.close();
    });
}

#[test]
fn a_refused_request_gives_its_memory_back_though_it_completes_nevertheless() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, mut b) = ground.pair();
        let region = ground.exposed(64);
        works(&mut ground, &mut a, region.remote(0..64));
        ground.fake.fail("ibv_wr_complete", 1, libc::ENOMEM).unwrap();
        let refused = a.write(ground.filled(8), region.remote(0..64)).signaled().post().unwrap_err();
        assert!(matches!(refused.error, PostError::Refused { .. } | PostError::SendQueueFull { .. }), "{refused}");
        let qpair_verbs::Local::Buffer(buffer) = refused.memory else { panic!("a buffer") };
        let next = posted(&ground).last().unwrap() + 1;
        ground.fake.inject(0, Completion::new().wr_id(next).status(0)).unwrap();
        ground.nothing();
        assert_eq!(buffer[..], [8; 64]);
        ground.fake.fail("post_recv_wr", 1, libc::EINVAL).unwrap();
        let refused = b.recv(buffer).post().unwrap_err();
        assert_eq!(refused.error, PostError::Refused { errno: libc::EINVAL });
        let qpair_verbs::Local::Buffer(buffer) = refused.memory else { panic!("a buffer") };
        for index in 0..4 {
            ground.fake.inject(0, Completion::new().wr_id(1 << 63 | 1 << 43 | index).status(0)).unwrap();
        }
        ground.nothing();
        assert_eq!(buffer[..], [8; 64]);
        works(&mut ground, &mut a, region.remote(0..64));
        drop((a, b, region, buffer));
        ground.close();
    });
}

#[test]
fn each_kind_of_request_comes_back_when_it_is_refused() {
    in_fake(|| {
        for extended in [1, 0] {
            let mut ground = Ground::with(&[("qp_ex", extended)]);
            let (mut a, b) = ground.pair();
            let region = ground.exposed(64);
            let window = ground.pd.create_window().unwrap();
            let remote = region.remote(0..64);
            let symbol = if extended == 1 { "ibv_wr_complete" } else { "post_send_wr" };
            ground.fake.fail_times(symbol, 1, 0, libc::EIO).unwrap();
            let form = |refused: Result<(), qpair_verbs::Rejected>| {
                let refused = refused.unwrap_err();
                assert_eq!(refused.error, PostError::Refused { errno: libc::EIO });
                (refused.memory.form(), refused.memory.len())
            };
            assert_eq!(form(a.send(ground.filled(1)).post()), ("a buffer", 64));
            assert_eq!(form(a.read(ground.filled(1), remote).post()), ("a buffer", 64));
            assert_eq!(form(a.write(ground.filled(1).into_slab(), remote).post()), ("a slab", 64));
            assert_eq!(form(a.send(vec![ground.filled(1), ground.filled(2)]).post()), ("a list of buffers", 128));
            assert_eq!(form(a.send(ground.filled(1)).imm(1).post()), ("a buffer", 64));
            assert_eq!(form(a.send_inline(b"x").post()), ("no memory", 0));
            let word = |ground: &Ground| ground.pd.alloc(8).unwrap();
            assert_eq!(form(a.fetch_add(word(&ground), region.remote(0..8), 1).post()), ("a buffer", 8));
            assert_eq!(form(a.compare_swap(word(&ground), region.remote(0..8), 0, 1).post()), ("a buffer", 8));
            let bound = a.bind(&window, &region, 0..64, qpair_verbs::Access::REMOTE_READ).post();
            assert_eq!(form(bound), ("no memory", 0));
            assert_eq!(window.remote(), None, "it is not bound");
            assert_eq!(form(a.invalidate(qpair_verbs::Rkey(5)).post()), ("no memory", 0));
            ground.nothing();
            drop((a, b, window, region));
            ground.close().reset().unwrap();
        }
    });
}

#[test]
fn events_of_objects_that_are_not_there_touch_nothing() {
    in_fake(|| {
        let mut ground = Ground::new();
        let mut events = ground.ctx.events().unwrap();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        let of_queue_pairs = [sys::IBV_EVENT_QP_FATAL, sys::IBV_EVENT_QP_REQ_ERR, sys::IBV_EVENT_COMM_EST];
        for event in of_queue_pairs.into_iter().chain([sys::IBV_EVENT_CQ_ERR]) {
            // The port's number stands where the object's address would.
            ground.fake.event(event, About::Port(0xdead_bee0)).unwrap();
        }
        ground.fake.event(sys::IBV_EVENT_PORT_ERR, About::Port(1)).unwrap();
        let mut seen = Vec::new();
        assert!(wait_until(|| {
            seen.extend(events.next_event());
            seen.contains(&AsyncEvent::PortDown(1))
        }));
        assert_eq!(seen, [AsyncEvent::CqError, AsyncEvent::PortDown(1)], "those of unknown queue pairs are dropped");
        assert_eq!(a.state(), QpState::Rts);
        works(&mut ground, &mut a, region.remote(0..64));
        drop((a, b, region, events));
        ground.close();
    });
}

#[test]
fn receives_of_a_shared_queue_survive_nonsense() {
    in_fake(|| {
        let mut ground = Ground::new();
        let mut srq = ground.pd.create_srq(4).unwrap();
        let b = ground.pd.rc(&ground.cq).srq(&srq).build().unwrap();
        let (mut a, b) = connect(ground.pd.rc(&ground.cq).build().unwrap(), b);
        for id in 0..4 {
            srq.post(ground.filled(0), id).unwrap();
        }
        for wr_id in posted(&ground) {
            for other in [wr_id ^ 1 << 16, wr_id | 8, wr_id ^ 1 << 32, wr_id ^ 1 << 63] {
                ground.fake.inject(0, Completion::new().wr_id(other).byte_len(9)).unwrap();
            }
        }
        ground.nothing();
        for id in 0..4 {
            ground.fake.forge(1, Completion::new().twice()).unwrap();
            a.send_inline(b"hello").post().unwrap();
            assert_eq!(ground.done().wr_id, id);
            ground.nothing();
        }
        assert_eq!(srq.available(), 0);
        drop((a, b, srq));
        ground.close();
    });
}

/// The sends of a queue pair are taken by whoever polls for them, one alone; a device that tells of them to another has told
/// nobody.
#[test]
fn sends_that_complete_where_receives_do_are_passed_over() {
    in_fake(|| {
        let mut ground = Ground::new();
        let mut receives = ground.ctx.create_cq(64).unwrap();
        let [.., of_sends, of_receives] = made_queues(&ground)[..] else { panic!("there are two") };
        let divided = ground.pd.rc(&ground.cq).recv_cq(&receives).build().unwrap();
        let (mut a, b) = connect(divided, ground.pd.rc(&ground.cq).build().unwrap());
        let region = ground.exposed(64);
        ground.fake.forge(1, Completion::new().dropped()).unwrap();
        a.write(ground.filled(3), region.remote(0..64)).id(1).signaled().post().unwrap();
        let [wr_id] = posted(&ground)[..] else { panic!("one is under way") };
        for status in [sys::IBV_WC_SUCCESS, sys::IBV_WC_WR_FLUSH_ERR] {
            let said = Completion::new().wr_id(wr_id).status(status).qp_num(a.number().0);
            ground.fake.inject(of_receives, said).unwrap();
            assert!(receives.poll().unwrap().is_none());
        }
        ground.fake.inject(of_sends, Completion::new().wr_id(wr_id).qp_num(a.number().0)).unwrap();
        assert_eq!(ground.done().wr_id, 1);
        drop((a, b, region, receives));
        ground.close();
    });
}

/// The thread that takes events may have the last hold on the queue that one is about, and destroying a queue waits until
/// its events are acknowledged.
#[test]
fn queues_go_while_an_event_of_theirs_is_taken() {
    in_fake(|| {
        let ground = Ground::new();
        for _ in 0..300 {
            let queue = ground.ctx.create_cq(4).unwrap();
            let handle = *made_queues(&ground).last().unwrap();
            ground.fake.event(sys::IBV_EVENT_CQ_ERR, About::Cq(handle)).unwrap();
            drop(queue);
        }
        ground.close();
    });
}

#[test]
fn a_device_that_goes_ends_every_wait() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        ground.fake.forge(1, Completion::new().dropped()).unwrap();
        a.write(ground.filled(3), region.remote(0..64)).signaled().post().unwrap();
        let fake = ground.fake.clone();
        let event = std::thread::spawn(move || fake.event(sys::IBV_EVENT_DEVICE_FATAL, About::Port(1)).unwrap());
        assert!(matches!(ground.cq.wait(), Err(CqError::DeviceGone)));
        event.join().unwrap();
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
        drop((a, b, region));
        ground.close();
    });
}
