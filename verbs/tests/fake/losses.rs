//! Connections by rdma_cm of a host that loses its connection manager, or its device.

use std::time::Duration;

use mio::{Events, Interest, Poll, Token};
use qpair_fake_ibverbs::control::{Device, break_cm};
use qpair_verbs::{CmError, Ended, QpState};

use crate::connecting::{LIMIT, Listening, refused};
use crate::ground::{in_fake, wait_until};
use crate::panics::panic_where_events_are_read;

/// Who waits, whatever for, is told that the manager is gone, and so is who comes later.
fn all_are_told(lose: fn(&Device)) {
    let listening = Listening::new();
    let (near, far) = listening.connect();
    let mut asking = listening.ask(b"");
    let accepting = listening.listener.wait(LIMIT).unwrap().accept(listening.rc(), b"").unwrap();
    assert!(asking.poll().is_ok(), "it waits, or has been made");
    let fake = listening.ground.fake.clone();
    lose(&fake);
    for end in [&near, &far] {
        assert_eq!(end.connection.wait(LIMIT).unwrap(), Ended::Lost);
        assert!(wait_until(|| end.queue_pair.state() == QpState::Err));
    }
    let gone = |error: &CmError| matches!(error, CmError::ManagerGone { .. });
    let error = listening.listener.wait(LIMIT).unwrap_err();
    assert!(gone(&error) && error.to_string().contains("open the device again"), "{error}");
    assert!(listening.listener.poll().is_none());
    let error = listening.ground.ctx.listen(0).unwrap_err();
    assert!(gone(&error), "{error}");
    let error = listening.ground.ctx.connect_to(listening.peer(), listening.rc(), b"").unwrap_err();
    assert!(gone(&error), "{error}");
    drop((near, far, asking, accepting));
    listening.close();
}

#[test]
fn a_channel_that_breaks_ends_all_connections() {
    in_fake(|| all_are_told(|_| break_cm().unwrap()));
}

#[test]
fn an_event_that_can_not_be_read_ends_all_connections() {
    in_fake(|| {
        all_are_told(|fake| {
            fake.fail_times("rdma_get_cm_event", 1, 0, libc::EIO).unwrap();
            fake.cm_event(TIMEWAIT_EXIT, 0, 0).unwrap();
        })
    });
}

/// As of what listens to the log for a program. The event is acknowledged: nobody could close what it is about.
#[test]
fn a_thread_that_panics_over_an_event_ends_all_connections() {
    in_fake(|| {
        all_are_told(|fake| {
            panic_where_events_are_read();
            fake.cm_event(TIMEWAIT_EXIT, 0, 0).unwrap();
        })
    });
}

#[test]
fn who_asks_and_who_accepts_are_told_that_the_manager_is_gone() {
    in_fake(|| {
        let listening = Listening::new();
        let asking = listening.ask(b"");
        let request = listening.listener.wait(LIMIT).unwrap();
        break_cm().unwrap();
        let error = refused(asking);
        assert!(matches!(error, CmError::ManagerGone { .. }), "{error}");
        // Whoever asked has given up, since it was told, or this end is told first.
        let error = request.accept(listening.rc(), b"").map(|_| "it waits for nobody").unwrap_err();
        assert!(matches!(error, CmError::ManagerGone { .. } | CmError::Over), "{error}");
        listening.close();
    });
}

#[test]
fn a_device_opened_again_connects_by_a_manager_of_its_own() {
    in_fake(|| {
        let lost = Listening::new();
        break_cm().unwrap();
        assert!(matches!(lost.listener.wait(LIMIT), Err(CmError::ManagerGone { .. })));
        let again = Listening::new();
        drop(again.connect());
        drop(again.listener);
        drop((again.ground.cq, again.ground.pd, again.ground.ctx));
        lost.close();
    });
}

#[test]
fn a_listener_of_a_device_that_is_removed_is_told() {
    in_fake(|| {
        let listening = Listening::new();
        listening.ground.fake.cm_event(DEVICE_REMOVAL, 0, 0).unwrap();
        let error = listening.listener.wait(LIMIT).unwrap_err();
        assert!(matches!(error, CmError::DeviceGone { .. }), "{error}");
        listening.close();
    });
}

/// Also to who watches the descriptor.
#[test]
fn a_listener_that_is_watched_is_told_of_its_end() {
    in_fake(|| {
        let mut listening = Listening::new();
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(4));
        poll.registry().register(&mut listening.listener, Token(1), Interest::READABLE).unwrap();
        listening.ground.fake.cm_event(DEVICE_REMOVAL, 0, 0).unwrap();
        poll.poll(&mut events, Some(LIMIT)).unwrap();
        assert!(!events.is_empty(), "nothing tells of it");
        assert!(listening.listener.poll().is_none());
        assert!(matches!(listening.listener.wait(Duration::ZERO), Err(CmError::DeviceGone { .. })));
        listening.close();
    });
}

#[test]
fn a_connection_of_a_device_that_is_removed_ends_and_its_queue_pair_fails() {
    in_fake(|| {
        let listening = Listening::new();
        let (near, far) = listening.connect();
        let calls = listening.ground.fake.calls();
        let asked = calls.lines().find_map(|line| line.strip_prefix("rdma_connect cm_id")).unwrap();
        listening.ground.fake.cm_event(DEVICE_REMOVAL, 0, asked.parse().unwrap()).unwrap();
        assert_eq!(near.connection.wait(LIMIT).unwrap(), Ended::Lost);
        assert!(wait_until(|| near.queue_pair.state() == QpState::Err));
        assert_eq!(far.connection.poll(), None);
        drop((near, far));
        listening.close();
    });
}

#[test]
fn events_that_nobody_knows_change_nothing() {
    in_fake(|| {
        let listening = Listening::new();
        let (near, far) = listening.connect();
        let handles = listening.ground.fake.live();
        let ids = handles.lines().filter_map(|line| line.strip_prefix("cm_id")?.parse().ok());
        for id in ids {
            for event in [MULTICAST_JOIN, TIMEWAIT_EXIT, 16, 999, u32::MAX] {
                listening.ground.fake.cm_event(event, -1, id).unwrap();
            }
        }
        drop(listening.connect());
        assert_eq!((near.connection.poll(), far.connection.poll()), (None, None));
        drop((near, far));
        listening.close();
    });
}

const DEVICE_REMOVAL: u32 = 11;
const MULTICAST_JOIN: u32 = 12;
const TIMEWAIT_EXIT: u32 = 15;
