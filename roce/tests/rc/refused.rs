//! What a peer may not do, and what it learns of it.

use std::time::Duration;

use qpair_roce::{Completion, Extra, Op, Outcome, ReliableConfig, Remote, Right, Rkey, State};

use crate::network::Faults;
use crate::pair::Pair;
use crate::side::{BASE, KEY};

fn fails_as(op: Op, len: usize, forbidden: Option<Right>, outcome: Outcome) {
    let mut pair = Pair::new(1, Faults::default());
    pair.ends[1].side.forbidden = forbidden;
    let good = pair.post(0, Op::Write(Remote { va: BASE, rkey: KEY }, None), vec![1; 10]).0;
    if forbidden == Some(Right::Write) {
        pair.ends[1].side.forbidden = None;
        pair.drive();
        pair.ends[1].side.forbidden = forbidden;
    }
    let bad = pair.post(0, op, vec![0; len]).0;
    let behind = pair.post(0, Op::Send(Extra::Nothing), vec![0; 5000]).0;
    pair.drive();
    let expected = [(good, Outcome::Success), (bad, outcome), (behind, Outcome::Flushed)];
    assert_eq!(pair.sent(0), expected, "{op:?}");
    assert_eq!(pair.ends.each_ref().map(|end| end.rc.state()), [State::Failed; 2]);
    let late = pair.post(0, Op::Send(Extra::Nothing), vec![]).0;
    assert_eq!(pair.sent(0), [(late, Outcome::Flushed)]);
}

#[test]
fn a_wrong_key_range_or_right_is_refused() {
    let (good, wrong) = (Remote { va: BASE, rkey: KEY }, Remote { va: BASE, rkey: Rkey(1) });
    let beyond = Remote { va: BASE + (1 << 16), rkey: KEY };
    for (remote, forbids) in [(wrong, false), (beyond, false), (good, true)] {
        let forbid = |right| forbids.then_some(right);
        fails_as(Op::Write(remote, None), 5000, forbid(Right::Write), Outcome::RemoteAccess);
        fails_as(Op::Read(remote), 5000, forbid(Right::Read), Outcome::RemoteAccess);
        fails_as(Op::FetchAdd { remote, add: 1 }, 8, forbid(Right::Atomic), Outcome::RemoteAccess);
    }
    let odd = Remote { va: BASE + 4, rkey: KEY };
    fails_as(Op::FetchAdd { remote: odd, add: 1 }, 8, None, Outcome::RemoteInvalidRequest);
}

#[test]
fn a_key_is_not_asked_for_where_nothing_is_accessed() {
    let mut pair = Pair::new(1, Faults::default());
    let wrong = Remote { va: 0, rkey: Rkey(1) };
    let ids = [Op::Write(wrong, None), Op::Read(wrong)].map(|op| pair.post(0, op, vec![]).0);
    pair.drive();
    assert_eq!(pair.sent(0), ids.map(|id| (id, Outcome::Success)));
}

#[test]
fn a_message_that_is_too_long_fails_both() {
    for (len, room) in [(10, 9), (5000, 4999), (5000, 10)] {
        let mut pair = Pair::new(1, Faults::default());
        pair.ends[1].side.receive(5, room);
        let id = pair.post(0, Op::Send(Extra::Nothing), vec![1; len]).0;
        pair.drive();
        assert_eq!(pair.sent(0), [(id, Outcome::RemoteInvalidRequest)]);
        let completions = &pair.ends[1].side.completions;
        assert!(
            matches!(completions[..], [Completion::Received { id: 5, outcome: Outcome::LocalLength, .. }]),
            "{completions:?}"
        );
    }
}

#[test]
fn a_message_without_a_receive_waits_for_one() {
    let mut pair = Pair::with(1, Faults::default(), |config| ReliableConfig { rnr_retry: 3, ..config });
    let id = pair.post(0, Op::Send(Extra::Nothing), vec![1; 5000]).0;
    let start = pair.now;
    pair.drive();
    assert_eq!(pair.sent(0), [(id, Outcome::RnrRetriesExceeded)]);
    let wait = pair.ends[1].rc.config().rnr_timer.wait();
    assert!((3 * wait..4 * wait).contains(&(pair.now - start)), "{:?}", pair.now - start);
    assert_eq!((pair.ends[1].counters.send_rnr_err, pair.ends[0].counters.rnr_nak_retry_err), (4, 1));
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let change = |config| ReliableConfig { retry_count: 3, ack_timeout: Some(Duration::from_millis(1)), ..config };
    let mut pair = Pair::with(1, Faults { loss: 1.0, ..Faults::default() }, change);
    let ids = [(); 2].map(|()| pair.post(0, Op::Send(Extra::Nothing), vec![1; 5000]).0);
    let start = pair.now;
    pair.drive();
    assert_eq!(pair.sent(0), [(ids[0], Outcome::RetriesExceeded), (ids[1], Outcome::Flushed)]);
    assert_eq!(pair.now - start, Duration::from_millis(4));
}
