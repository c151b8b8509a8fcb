//! Queue pairs that are closed while somebody fills a receive of theirs, or looks at them.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::{OwnedQp, SoftQp};
use crate::memory::{ExposedRegion, Local};
use crate::qp::{Borrowed, Op, QpOptions, SendWr};
use crate::soft::QpSpec;
use crate::soft::ends::{Spoken, has_looked, wait_until};
use crate::soft::entry::{Entry, FLAG_IMM, KIND_SEND, KIND_WRITE_IMM};
use crate::soft::exec::taker;
use crate::soft::layout::{Identity, QpInfo};
use crate::soft::peer::{Gate, PeerView};
use crate::soft::ring::{Lines, Slot};
use crate::soft::visited::Member;
use crate::sync::Ordering;
use crate::types::{QpState, QpType};
use crate::{Access, CompletionQueue, Context, CreateError, NodeId, Prepared, ProtectionDomain, QueuePair};

/// By default its ring has room for all that may wait of the shared queue; where a thousand such rings leave no memory, for less.
#[test]
fn a_queue_pair_of_a_deep_shared_queue_makes_do_with_little_memory() {
    let ctx = Context::open("soft0").unwrap();
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
    let srq = pd.create_srq(4096).unwrap();
    let lines = |prepared: &Prepared| prepared.soft().unwrap().ring.count();
    let ample = pd.rc(&cq).srq(&srq).build().unwrap();
    assert_eq!(lines(&ample), 4096);
    let home = pd.node().home().clone();
    let line = size_of::<Slot>();
    let last = std::iter::from_fn(|| home.take_shared(4096 * line)).last().unwrap();
    while home.take_shared(256).is_some() {}
    // Memory for one of 1024 and two of 512, and no more.
    for offset in [0, 1024 + 256, 1024 + 1024] {
        home.give_shared(last + offset * line, if offset == 0 { 1024 } else { 512 } * line);
    }
    let error = pd.rc(&cq).srq(&srq).recv_depth(2048).build().unwrap_err();
    assert!(matches!(error, CreateError::Exhausted { .. }), "{error}");
    let made: Vec<_> = std::iter::repeat_with(|| pd.rc(&cq).srq(&srq).build()).map_while(Result::ok).collect();
    assert_eq!(made.iter().map(lines).collect::<Vec<_>>(), [1024, 512, 512]);
}

/// A datagram queue pair with two receives posted, of which a sender has claimed the first.
struct Claimed {
    qp: OwnedQp,
    cq: CompletionQueue,
    receives: [ExposedRegion; 2],
}

const SENDER: NodeId = NodeId([7; 16]);

impl Claimed {
    fn new() -> Claimed {
        Claimed::by(SENDER)
    }

    fn by(sender: NodeId) -> Claimed {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let handle = cq.handle();
        let options = QpOptions::new(QpType::Ud);
        let spec = QpSpec::new(pd.node(), pd.id(), &options, [&handle, &handle], None).unwrap();
        let qp = OwnedQp::new(SoftQp::new(spec).unwrap());
        qp.modify(QpState::Rtr).unwrap();
        let receives = [(); 2].map(|()| pd.expose(4096, Access::NONE).unwrap());
        for region in &receives {
            qp.post_recv(region.local(0..4096).into(), 0).unwrap();
        }
        let claimed = qp.claims.as_ref().unwrap().claims.claim(taker(sender), |index| (index < 2).then_some(()));
        assert_eq!(claimed, Ok((0, ())));
        Claimed { qp, cq, receives }
    }

    /// Closes the queue pair and lets its completion queue forget it; how long that took.
    fn close(mut self) -> (Duration, [ExposedRegion; 2]) {
        let start = Instant::now();
        drop(self.qp);
        while self.cq.poll().unwrap().is_some() {}
        (start.elapsed(), self.receives)
    }
}

/// Two queue pairs of one device, connected to each other.
struct Pair {
    pd: ProtectionDomain,
    qp: QueuePair,
    peer: QueuePair,
    soft: Arc<SoftQp>,
    soft_peer: Arc<SoftQp>,
}

impl Pair {
    fn new() -> Pair {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let (qp, peer) = (pd.rc(&cq).build().unwrap(), pd.rc(&cq).build().unwrap());
        let (soft, soft_peer) = (qp.soft().unwrap().clone(), peer.soft().unwrap().clone());
        let (at, at_peer) = (qp.address(), peer.address());
        let (qp, peer) = (qp.connect(&at_peer).unwrap(), peer.connect(&at).unwrap());
        Pair { pd, qp, peer, soft, soft_peer }
    }
}

fn lines(qp: &Arc<SoftQp>) -> Lines {
    let (info, home) = (qp.info(), qp.home());
    // SAFETY: the ring's protocol rules all access; its number of lines is a power of two.
    unsafe { Lines::new(home.shared().array::<Slot>(info.ring, info.ring_lines as usize).unwrap(), info.ring_lines) }
}

/// Whoever posts sees requests that wait, and goes on after they are done, and after the control thread has stopped trying.
#[test]
fn what_is_posted_behind_requests_that_are_done_meanwhile_is_tried_by_somebody() {
    let mut pair = Pair::new();
    let mut wr = SendWr {
        op: Op::Send,
        local: Local::None,
        range: None,
        imm: None,
        invalidate: None,
        wr_id: 0,
        signaled: true,
        solicited: false,
        fenced: false,
    };
    pair.soft.post_behind(0, &mut wr, &Borrowed { inline: None, to: None, bind: None });
    assert!(pair.soft.is_stalled(), "there is no receive");
    pair.peer.recv(Local::None).post().unwrap();
    wait_until("it is sent, though nobody polls", || !pair.soft.is_stalled());
}

#[test]
fn a_receive_that_a_sender_is_filling_is_not_freed() {
    let (took, receives) = Claimed::new().close();
    assert!(took < Duration::from_secs(10), "closing took {took:?}");
    // The sender may write the first. The second can not be told from it.
    let blocked = receives.into_iter().next().unwrap().revoke().expect_err("the sender is not done");
    assert!(matches!(blocked.why, crate::RevokeBlocked::PostedWork), "{:?}", blocked.why);
}

#[test]
fn closing_waits_until_a_sender_is_done() {
    let claimed = Claimed::new();
    let (qp, lines) = (claimed.qp.clone(), lines(&claimed.qp));
    let sender = std::thread::spawn(move || {
        while qp.claims.as_ref().unwrap().claims.claim(taker(SENDER), |_| None::<()>)
            != Err(crate::soft::claims::NoClaim::Closed)
        {
            std::thread::yield_now();
        }
        drop(qp);
        lines.place(0, Entry { kind: KIND_SEND, ..Entry::default() });
    });
    let (_, receives) = claimed.close();
    sender.join().unwrap();
    for region in receives {
        assert_eq!(region.revoke().expect("nobody is left").len(), 4096);
    }
}

#[test]
fn datagrams_are_sends_alone() {
    let mut claimed = Claimed::new();
    let write = Entry { kind: KIND_WRITE_IMM, flags: FLAG_IMM, lines: 1, byte_len: u32::MAX - 10, ..Entry::default() };
    lines(&claimed.qp).place(0, write);
    while let Some(done) = claimed.cq.poll().unwrap() {
        assert!(!done.status().is_success(), "{done:?}");
    }
    assert_eq!(claimed.qp.state(), QpState::Err);
    claimed.qp.link_lost(u64::MAX, SENDER, true);
    claimed.close();
}

#[test]
fn a_sender_that_died_holds_nothing_up() {
    let claimed = Claimed::new();
    claimed.qp.link_lost(u64::MAX, SENDER, true);
    let (_, receives) = claimed.close();
    for region in receives {
        assert_eq!(region.revoke().expect("nobody is left").len(), 4096);
    }
}

/// Whoever waits for it would not sleep until the other sender has gone.
#[test]
fn a_failed_queue_pair_has_nothing_to_give_before_all_senders_are_done() {
    let other = NodeId([8; 16]);
    let claimed = Claimed::new();
    let claims = &claimed.qp.claims.as_ref().unwrap().claims;
    assert_eq!(claims.claim(taker(other), |index| (index < 2).then_some(())), Ok((1, ())));
    claimed.qp.link_lost(u64::MAX, SENDER, true);
    assert!(claimed.qp.has_receive(), "nobody will fill it");
    claimed.qp.modify(QpState::Err).unwrap();
    assert!(!claimed.qp.has_receive());
    claimed.qp.link_lost(u64::MAX, other, true);
    wait_until("both receives are flushed", || claimed.qp.has_receive());
    claimed.close();
}

/// Two devices that link to each other at once have two links.
#[test]
fn a_sender_is_gone_with_the_last_of_its_links() {
    let sender = Spoken::new();
    let claimed = Claimed::by(sender.id());
    let node = claimed.qp.spec.node.clone();
    let [first, second] = [(); 2].map(|()| sender.link_to(&node));
    drop(first);
    has_looked(&node);
    assert!(!claimed.qp.receiver.is_void(0), "it may fill what it claimed");
    drop(second);
    wait_until("its claim is void", || claimed.qp.receiver.is_void(0));
    claimed.close();
}

#[test]
fn closing_waits_until_nobody_looks_at_the_queue_pair() {
    let ctx = Context::open("soft0").unwrap();
    let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
    let mut qp = pd.rc(&cq).build().unwrap();
    let region = pd.expose(4096, Access::NONE).unwrap();
    qp.recv(region.local(0..4096)).post().unwrap();
    let (home, looks) = (pd.node().home().clone(), Arc::new(Barrier::new(2)));
    let visitor = std::thread::spawn({
        let looks = looks.clone();
        move || {
            home.visit(|_| {
                looks.wait();
                std::thread::sleep(Duration::from_millis(50));
            });
        }
    });
    looks.wait();
    drop(qp);
    while cq.poll().unwrap().is_some() {}
    assert_eq!(region.revoke().expect("nobody is left").len(), 4096);
    visitor.join().unwrap();
}

/// Another thread has begun to fail a queue pair, and does not get on, while its owner closes it.
#[test]
fn a_peer_of_one_that_closes_while_it_is_made_to_fail_is_waited_for() {
    let Pair { pd, qp, peer: _peer, soft, soft_peer } = Pair::new();
    let region = pd.expose(4096, Access::REMOTE_WRITE).unwrap();
    soft_peer.hazard().store(1, Ordering::SeqCst);
    soft.state.store(QpState::Err.code(), Ordering::SeqCst);
    drop(qp);
    let failed = region.try_revoke().expect_err("the peer is inside");
    assert!(matches!(failed.why, crate::RevokeBlocked::PeerAccess), "{:?}", failed.why);
    soft_peer.hazard().store(2, Ordering::SeqCst);
    failed.region.try_revoke().expect("the peer has left");
}

/// Numbers are given anew: a queue pair that has that of a former peer is not its peer.
#[test]
fn another_queue_pair_of_the_same_number_is_no_peer() {
    let Pair { pd, qp: _qp, peer: _peer, soft, soft_peer } = Pair::new();
    let link = pd.node().link_to(&pd.node().home().address()).unwrap();
    let is_open = |me: Identity, who: Identity| {
        let info = QpInfo { who, ..soft_peer.info() };
        let mut view = PeerView::new(link.clone(), Some(me), &info, soft_peer.rope().clone(), None).unwrap();
        matches!(view.gate(&soft.state), Gate::Open(_))
    };
    let later = |who: Identity| Identity { life: who.life ^ 1, ..who };
    let (me, who) = (soft.who, soft_peer.who);
    assert!(is_open(me, who));
    assert!(!is_open(me, later(who)), "another was meant");
    assert!(!is_open(later(me), who), "another was let in");
    // A link of which the peer is told nothing more is hung up once those have left who were inside: nobody comes after them.
    soft.state.store(QpState::Err.code(), Ordering::SeqCst);
    assert!(!is_open(me, who), "who has failed is let in");
}

/// A peer was seen inside an access, left it and was closed; what it showed belongs to another then.
#[test]
fn a_peer_that_was_closed_is_outside_whoever_has_its_memory() {
    let Pair { qp: _qp, peer, soft, soft_peer, .. } = Pair::new();
    soft_peer.hazard().store(1, Ordering::SeqCst);
    let seen = soft.sight_peer().expect("it is connected");
    assert!(!seen.is_over());
    drop(peer);
    // As it is when the next one there is in its first access.
    soft_peer.hazard().store(1, Ordering::SeqCst);
    assert!(seen.is_over(), "a peer that is gone is waited for");
    assert!(soft.sight_peer().expect("it was connected").is_over());
}

#[test]
fn receives_of_a_shared_queue_that_a_queue_pair_took_are_free_once_it_is_gone() {
    let ctx = Context::open("soft0").unwrap();
    let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
    let mut srq = pd.create_srq(4).unwrap();
    for round in 0..3 {
        for id in 0..4 {
            srq.post(pd.alloc(8).unwrap(), id).unwrap_or_else(|refused| panic!("round {round}: {refused:?}"));
        }
        let (a, b) = (pd.rc(&cq).build().unwrap(), pd.rc(&cq).srq(&srq).build().unwrap());
        let (at_a, at_b) = (a.address(), b.address());
        let (mut a, b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
        for _ in 0..4 {
            a.send_inline(b"unseen").post().unwrap();
        }
        drop((a, b));
        // The queue lets go of those that are gone.
        while cq.poll().unwrap().is_some() {}
        assert_eq!(srq.available(), 0, "round {round}");
    }
}

#[test]
fn the_header_of_a_datagram_says_how_long_all_behind_it_is() {
    let ctx = Context::open("soft0").unwrap();
    let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
    let [mut a, mut b] = [(); 2].map(|()| pd.ud(&cq).build().unwrap().activate().unwrap());
    let to = a.address_handle(&b.address()).unwrap();
    for (imm, behind) in [(None, 12 + 8 + 8 + 4), (Some(7), 12 + 8 + 4 + 8 + 4)] {
        b.recv(pd.alloc(100).unwrap()).post().unwrap();
        let request = a.send_inline(b"hello", &to);
        let request = if let Some(imm) = imm { request.imm(imm) } else { request };
        request.post().unwrap();
        let got = loop {
            if let Some(done) = cq.poll().unwrap() {
                break done.into_buffer().unwrap();
            }
        };
        assert_eq!(u16::from_be_bytes([got[4], got[5]]), behind);
    }
}
