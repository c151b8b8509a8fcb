//! Queue pairs that take receives from a shared queue are destroyed once the device has told that it has done with these, or
//! after a time.

use std::time::{Duration, Instant};

use qpair_fake_ibverbs::control::About;
use qpair_verbs::{CqError, QpState, QueuePair, SharedReceiveQueue};
use qpair_verbs_sys as sys;

use crate::ground::{Ground, connect, in_fake, places, wait_until};

/// How long a device is waited for.
const LIMIT: Duration = Duration::from_secs(1);
const LAST_WQE_REACHED: u32 = sys::IBV_EVENT_QP_LAST_WQE_REACHED;

/// A pair of which the second takes receives from a shared queue.
fn pair(ground: &Ground, srq: &SharedReceiveQueue) -> (QueuePair, QueuePair) {
    let shared = ground.pd.rc(&ground.cq).srq(srq).build().unwrap();
    connect(ground.pd.rc(&ground.cq).build().unwrap(), shared)
}

#[test]
fn the_device_tells_of_the_last_receive_before_the_queue_pair_goes() {
    in_fake(|| {
        let ground = Ground::new();
        let srq = ground.pd.create_srq(4).unwrap();
        for round in 0..20 {
            let (near, far) = pair(&ground, &srq);
            ground.fake.reset().unwrap();
            // The event is read late.
            ground.fake.fail_times("ibv_get_async_event", 1, 200, libc::EAGAIN).unwrap();
            drop(far);
            let calls = ground.fake.calls();
            let event = format!(" {LAST_WQE_REACHED}");
            let told = calls.lines().position(|call| call.starts_with("ibv_ack_async_event") && call.ends_with(&event));
            let [failed, gone] = places(&calls, ["ibv_modify_qp", "ibv_destroy_qp"]);
            assert!(told.is_some_and(|told| failed < told && told < gone), "round {round}:\n{calls}");
            drop(near);
        }
        drop(srq);
        ground.close();
    });
}

#[test]
fn a_device_that_never_tells_is_waited_for_once() {
    in_fake(|| {
        let ground = Ground::with(&[("last_wqe", 0)]);
        let srq = ground.pd.create_srq(4).unwrap();
        let begin = Instant::now();
        drop(pair(&ground, &srq));
        assert!(begin.elapsed() >= LIMIT, "it may tell late: {:?}", begin.elapsed());
        const MORE: u32 = 20;
        let begin = Instant::now();
        (0..MORE).for_each(|_| drop(pair(&ground, &srq)));
        assert!(begin.elapsed() < LIMIT * MORE / 2, "{:?}", begin.elapsed());
        drop(srq);
        ground.close();
    });
}

#[test]
fn a_queue_pair_is_settled_when_the_device_has_told() {
    in_fake(|| {
        let ground = Ground::with(&[("last_wqe", 0)]);
        let srq = ground.pd.create_srq(4).unwrap();
        let (near, mut far) = pair(&ground, &srq);
        assert!(!far.is_settled(), "it works");
        far.to_error().unwrap();
        let failed = Instant::now();
        assert!(!far.is_settled() || failed.elapsed() >= LIMIT);
        ground.fake.event(LAST_WQE_REACHED, About::Qp(far.number().0)).unwrap();
        assert!(wait_until(|| far.is_settled()));
        drop((near, far, srq));
        ground.close();
    });
}

#[test]
fn one_of_datagrams_is_settled_likewise() {
    in_fake(|| {
        let ground = Ground::with(&[("last_wqe", 0)]);
        let srq = ground.pd.create_srq(4).unwrap();
        let mut datagrams = ground.pd.ud(&ground.cq).srq(&srq).build().unwrap().activate().unwrap();
        assert!(!datagrams.is_settled(), "it works");
        datagrams.to_error().unwrap();
        let failed = Instant::now();
        assert!(!datagrams.is_settled() || failed.elapsed() >= LIMIT);
        ground.fake.event(LAST_WQE_REACHED, About::Qp(datagrams.number().0)).unwrap();
        assert!(wait_until(|| datagrams.is_settled()));
        drop((datagrams, srq));
        ground.close();
    });
}

#[test]
fn one_that_fails_by_itself_is_settled_no_sooner() {
    fn by_event(ground: &mut Ground, qp: &mut QueuePair) {
        ground.fake.event(sys::IBV_EVENT_QP_FATAL, About::Qp(qp.number().0)).unwrap();
    }
    fn by_completion(ground: &mut Ground, qp: &mut QueuePair) {
        let region = ground.exposed(64);
        let gone = region.remote(0..64);
        drop(region);
        qp.write(ground.filled(1), gone).signaled().post().unwrap();
        assert!(!ground.done().status.is_success());
    }
    in_fake(|| {
        let mut ground = Ground::with(&[("last_wqe", 0)]);
        let srq = ground.pd.create_srq(4).unwrap();
        for fail in [by_event, by_completion] {
            let (near, mut far) = pair(&ground, &srq);
            fail(&mut ground, &mut far);
            assert!(wait_until(|| far.known_state() == QpState::Err));
            let seen = Instant::now();
            assert!(!far.is_settled() || seen.elapsed() >= LIMIT);
            ground.fake.event(LAST_WQE_REACHED, About::Qp(far.number().0)).unwrap();
            assert!(wait_until(|| far.is_settled()));
            drop((near, far));
        }
        drop(srq);
        ground.close();
    });
}

#[test]
fn a_device_that_is_gone_is_not_waited_for() {
    in_fake(|| {
        let mut ground = Ground::new();
        let srq = ground.pd.create_srq(4).unwrap();
        // It is known to tell.
        drop(pair(&ground, &srq));
        ground.fake.set("last_wqe", 0).unwrap();
        const PAIRS: u32 = 20;
        let pairs: Vec<_> = (0..PAIRS).map(|_| pair(&ground, &srq)).collect();
        ground.fake.event(sys::IBV_EVENT_DEVICE_FATAL, About::Port(1)).unwrap();
        assert!(wait_until(|| matches!(ground.cq.poll(), Err(CqError::DeviceGone))));
        assert!(pairs.iter().all(|(_, far)| far.is_settled()));
        let begin = Instant::now();
        drop(pairs);
        assert!(begin.elapsed() < LIMIT * PAIRS / 2, "{:?}", begin.elapsed());
        drop(srq);
        ground.close();
    });
}

#[test]
fn a_queue_pair_that_was_never_connected_took_nothing_and_waits_for_nothing() {
    in_fake(|| {
        let ground = Ground::with(&[("last_wqe", 0)]);
        let srq = ground.pd.create_srq(4).unwrap();
        drop(ground.pd.rc(&ground.cq).srq(&srq).build().unwrap());
        // Had it been waited for in vain, no other would be.
        let begin = Instant::now();
        drop(pair(&ground, &srq));
        assert!(begin.elapsed() >= LIMIT, "{:?}", begin.elapsed());
        drop(srq);
        ground.close();
    });
}

#[test]
fn what_was_received_is_polled_for_after_the_queue_pair_has_gone() {
    in_fake(|| {
        let mut ground = Ground::new();
        let mut srq = ground.pd.create_srq(4).unwrap();
        for round in 0..12 {
            srq.post(ground.filled(0), round).unwrap();
            let (mut near, far) = pair(&ground, &srq);
            near.send(ground.filled(7)).post().unwrap();
            drop((near, far));
            let done = ground.cq.poll().unwrap().expect("the receive");
            assert_eq!(done.wr_id(), round);
            assert_eq!(done.into_buffer().unwrap()[..], [7; 64]);
            assert_eq!(srq.available(), 0);
        }
        drop(srq);
        ground.close();
    });
}
