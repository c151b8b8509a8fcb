//! Requests at a listener: refused, too many, given up.

use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{CmError, Connecting, Context, RejectReason};

use crate::connecting::{LIMIT, Listening, at, refused};
use crate::ground::{in_fake, settled, wait_until};

#[test]
fn a_refusal_comes_with_what_the_application_says() {
    in_fake(|| {
        let listening = Listening::new();
        let asking = listening.ask(b"");
        listening.listener.wait(LIMIT).unwrap().reject(b"not today").unwrap();
        let error = refused(asking);
        let CmError::Rejected { peer, reason: RejectReason::CONSUMER, private } = error else { panic!("{error}") };
        assert!(peer == listening.peer() && private.starts_with(b"not today\0"), "{private:?}");
        listening.close();
    });
}

#[test]
fn a_request_that_is_dropped_is_refused() {
    in_fake(|| {
        let listening = Listening::new();
        let asking = listening.ask(b"");
        drop(listening.listener.wait(LIMIT).unwrap());
        let error = refused(asking);
        assert!(matches!(error, CmError::Rejected { reason: RejectReason::CONSUMER, .. }), "{error}");
        listening.close();
    });
}

#[test]
fn a_listener_that_is_dropped_refuses_those_who_wait() {
    in_fake(|| {
        let listening = Listening::new();
        let asking: Vec<_> = (0..8).map(|_| listening.ask(b"")).collect();
        let Listening { ground, listener } = listening;
        drop(listener);
        for asking in asking {
            let error = refused(asking);
            assert!(matches!(error, CmError::Rejected { .. }), "{error}");
        }
        ground.close();
    });
}

#[test]
fn a_request_more_than_there_is_room_for_is_refused() {
    in_fake(|| {
        let listening = Listening::new();
        let waiting: Vec<_> = (0..ROOM).map(|_| listening.ask(b"")).collect();
        let error = refused(listening.ask(b""));
        assert!(matches!(error, CmError::Rejected { reason: RejectReason::CONSUMER, .. }), "{error}");
        // One that is answered makes room for another.
        drop(listening.listener.wait(LIMIT).unwrap());
        let last = listening.ask(b"last");
        let answered = std::iter::from_fn(|| listening.listener.wait(LIMIT).ok()).take(ROOM);
        let last_heard = answered.last().map(|request| request.private_data()[..4].to_vec());
        assert_eq!(last_heard.as_deref(), Some(&b"last"[..]));
        drop((waiting, last));
        listening.close();
    });
}

#[test]
fn a_full_listener_forgets_those_who_gave_up_for_those_who_come() {
    in_fake(|| {
        let listening = Listening::new();
        let mut waiting: Vec<_> = (0..ROOM).map(|_| listening.ask(b"")).collect();
        // Refused: that all others are in is known by that.
        refused(listening.ask(b""));
        // Among the next that a look takes in.
        waiting.drain(32..40);
        let mut newcomer = listening.ask(b"new");
        let mut served: Vec<Connecting> = Vec::new();
        for _ in 0..ROOM - 7 {
            let request = listening.listener.wait(LIMIT).unwrap();
            if request.private_data().starts_with(b"new") {
                served.push(request.accept(listening.rc(), b"").unwrap());
            }
        }
        let near = newcomer.wait(LIMIT).unwrap();
        assert_eq!(served.len(), 1);
        let far = served[0].wait(LIMIT).unwrap();
        drop((near, far, waiting));
        listening.close();
    });
}

#[test]
fn a_peer_that_gave_up_while_it_waited_is_passed_over() {
    in_fake(|| {
        let listening = Listening::new();
        let gone = listening.ask(b"gone");
        let stays = listening.ask(b"stays");
        let fake = &listening.ground.fake;
        assert!(wait_until(|| fake.calls().matches("rdma_connect cm_id").count() == 2));
        drop(gone);
        let next = listening.listener.wait(LIMIT).unwrap();
        assert!(next.private_data().starts_with(b"stays\0"));
        assert!(listening.listener.poll().is_none());
        drop((next, stays));
        listening.close();
    });
}

#[test]
fn a_request_that_comes_by_another_device_is_told_that_the_listener_is_elsewhere() {
    in_fake(|| {
        let listening = Listening::new();
        let other = Device::new("other0").unwrap();
        let ctx = Context::open("other0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let peer = at(&ctx, listening.listener.port());
        let error = refused(ctx.connect_to(peer, pd.rc(&cq).build().unwrap(), b"").unwrap());
        assert!(matches!(error, CmError::ListensElsewhere { peer: asked } if asked == peer), "{error}");
        assert!(listening.listener.poll().is_none());
        // The listener goes on.
        drop(listening.connect());
        drop((cq, pd, ctx));
        listening.close();
        settled(&other);
        other.assert_clean();
    });
}

#[test]
fn a_request_whose_peer_gave_up_before_it_is_answered_is_over() {
    in_fake(|| {
        let listening = Listening::new();
        for accepts in [true, false] {
            let asking = listening.ask(b"");
            let request = listening.listener.wait(LIMIT).unwrap();
            drop(asking);
            let error = match accepts {
                true => request.accept(listening.rc(), b"").map(drop).unwrap_err(),
                false => request.reject(b"").unwrap_err(),
            };
            assert!(matches!(error, CmError::Over) && error.to_string().contains("next request"), "{error}");
        }
        listening.close();
    });
}

#[test]
fn a_request_that_the_system_does_not_let_be_accepted_says_where_to_look() {
    in_fake(|| {
        let listening = Listening::new();
        let asking = listening.ask(b"");
        listening.ground.fake.fail("rdma_accept", 1, libc::ENOMEM).unwrap();
        let error = listening.listener.wait(LIMIT).unwrap().accept(listening.rc(), b"").map(drop).unwrap_err();
        assert!(matches!(error, CmError::System { .. }) && error.to_string().contains("dmesg"), "{error}");
        let error = refused(asking);
        assert!(matches!(error, CmError::Rejected { reason: RejectReason::CONSUMER, .. }), "{error}");
        listening.close();
    });
}

/// Requests that wait at a listener.
const ROOM: usize = 1024;
