//! What a peer may not do, and what it learns of it.

use std::time::Duration;

use qpair_roce::wire::{Aeth, Extension, ICRC_LEN, Nak, Opcode, Packet, Service, Syndrome};
use qpair_roce::{Cause, Completion, Extra, Op, Outcome, PostError, ReliableConfig, Remote, Right, Rkey, Send, State};

use super::pair::{End, Pair};
use crate::network::Faults;
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
    let cause = if outcome == Outcome::RemoteAccess { Cause::PeerAccess } else { Cause::PeerRequest };
    assert_eq!(pair.ends.each_ref().map(|end| &end.side.failed[..]), [&[Cause::Request][..], &[cause]]);
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
    let mut pair = Pair::with(1, Faults::default(), |config| ReliableConfig { rnr_retry: Some(3), ..config });
    let id = pair.post(0, Op::Send(Extra::Nothing), vec![1; 5000]).0;
    let start = pair.now;
    pair.drive();
    assert_eq!(pair.sent(0), [(id, Outcome::RnrRetriesExceeded)]);
    let wait = pair.ends[1].rc.config().rnr_timer.wait();
    assert!((3 * wait..4 * wait).contains(&(pair.now - start)), "{:?}", pair.now - start);
    assert_eq!((pair.ends[1].counters.send_rnr_err, pair.ends[0].counters.rnr_nak_retry_err), (4, 1));
}

#[test]
fn packets_of_other_services_are_dropped_and_counted() {
    let mut pair = Pair::new(1, Faults::default());
    pair.ends[1].side.receive(5, 5000);
    let mut dropped = 0;
    for opcode in Opcode::ALL {
        if opcode.meaning().is_some_and(|meaning| meaning.service != Service::Rc) {
            // With the number that is expected.
            let mut packet = [0; 64];
            packet[0] = opcode.0;
            packet[9..12].copy_from_slice(&[0xff, 0xff, 0xf0]);
            let End { rc, side, counters, .. } = &mut pair.ends[1];
            rc.handle(pair.now, &Packet::parse(&packet).unwrap(), side, counters);
            dropped += 1;
        }
    }
    assert_eq!((pair.ends[1].counters.unsupported_opcode, pair.ends[1].counters.rcvd_pkts), (dropped, 0));
    let id = pair.post(0, Op::Send(Extra::Nothing), vec![1; 10]).0;
    pair.drive();
    assert_eq!(pair.sent(0), [(id, Outcome::Success)]);
}

/// Such as a peer may ask for that counts on newer devices.
#[test]
fn what_nobody_does_here_is_refused_and_not_asked_for_again() {
    for opcode in [0x15, 0x18, 0x1b, 0x1c, 0x1d, 0x1f].map(Opcode) {
        let mut pair = Pair::new(1, Faults::default());
        let End { rc, side, counters, .. } = &mut pair.ends[1];
        let mut packet = [0; 64];
        packet[0] = opcode.0;
        packet[9..12].copy_from_slice(&[0xff, 0xff, 0xf0]);
        rc.handle(pair.now, &Packet::parse(&packet).unwrap(), side, counters);
        let mut answer = [0; 4096];
        let len = rc.transmit(pair.now, &mut answer, side, counters).expect("an answer");
        let said = Packet::parse(&answer[..len + ICRC_LEN]).unwrap().headers.extension;
        let Extension::Acknowledge(Aeth { syndrome, .. }) = said else { panic!("{said:?}") };
        assert_eq!(syndrome, Syndrome::Nak(Nak::InvalidRequest), "{opcode}");
        assert_eq!((rc.state(), &side.failed[..]), (State::Failed, &[Cause::PeerRequest][..]));
    }
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let change =
        |config| ReliableConfig { retry_count: Some(3), ack_timeout: Some(Duration::from_millis(1)), ..config };
    let mut pair = Pair::with(1, Faults { loss: 1.0, ..Faults::default() }, change);
    let ids = [(); 2].map(|()| pair.post(0, Op::Send(Extra::Nothing), vec![1; 5000]).0);
    let start = pair.now;
    pair.drive();
    assert_eq!(pair.sent(0), [(ids[0], Outcome::RetriesExceeded), (ids[1], Outcome::Flushed)]);
    assert_eq!(pair.now - start, Duration::from_millis(4));
}

#[test]
fn what_the_queue_pair_does_not_allow_is_no_request() {
    let remote = Remote { va: BASE, rkey: KEY };
    for len in [0, 10] {
        for (op, right) in [(Op::Write(remote, None), Right::Write), (Op::Read(remote), Right::Read)] {
            let mut pair = Pair::new(1, Faults::default());
            pair.ends[1].side.refused = Some(right);
            let id = pair.post(0, op, vec![0; len]).0;
            pair.drive();
            assert_eq!(pair.sent(0), [(id, Outcome::RemoteInvalidRequest)]);
        }
    }
}

#[test]
fn memory_that_is_gone_fails_what_needs_it() {
    let remote = Remote { va: BASE, rkey: KEY };
    for op in [Op::Send(Extra::Nothing), Op::Write(remote, None), Op::Read(remote), Op::FetchAdd { remote, add: 1 }] {
        let mut pair = Pair::new(1, Faults::default());
        pair.ends[1].side.receive(5, 8);
        let (id, local) = pair.post(0, op, vec![0; 8]);
        pair.ends[0].side.gone.push(local);
        pair.drive();
        assert_eq!(pair.sent(0), [(id, Outcome::LocalProtection)], "{op:?}");
    }
    let mut pair = Pair::new(1, Faults::default());
    pair.ends[1].side.receive(5, 8);
    pair.ends[1].side.gone.push(0);
    let id = pair.post(0, Op::Send(Extra::Nothing), vec![0; 8]).0;
    pair.drive();
    assert_eq!(pair.sent(0), [(id, Outcome::RemoteOperation)]);
    assert_eq!(pair.ends[1].side.failed, [Cause::Memory]);
    let completions = &pair.ends[1].side.completions;
    assert!(
        matches!(completions[..], [Completion::Received { outcome: Outcome::LocalProtection, .. }]),
        "{completions:?}"
    );
}

#[test]
fn memory_that_does_not_work_is_told_as_of_the_side_whose_it_is() {
    let remote = Remote { va: BASE, rkey: KEY };
    for op in [Op::Send(Extra::Nothing), Op::Write(remote, None), Op::Read(remote), Op::FetchAdd { remote, add: 1 }] {
        for (broken, expected) in [Outcome::LocalOperation, Outcome::RemoteOperation].into_iter().enumerate() {
            let mut pair = Pair::new(64, Faults::default());
            pair.ends[1].side.receive(5, 8);
            pair.ends[broken].side.is_broken = true;
            let id = pair.post(0, op, vec![0; 8]).0;
            pair.drive();
            assert_eq!(pair.sent(0), [(id, expected)], "{op:?}");
            assert_eq!(pair.ends[1].counters.resp_remote_access_errors, 0, "{op:?}");
        }
    }
}

#[test]
fn what_can_not_be_done_is_not_taken() {
    let change = |config| ReliableConfig { max_reads: 0, send_depth: 1, ..config };
    let mut pair = Pair::with(1, Faults::default(), change);
    let remote = Remote { va: BASE, rkey: KEY };
    let mut post = |op, len| {
        let end = &mut pair.ends[0];
        end.rc.post(Send { id: 1, op, local: 0, len, solicited: false, fence: false }, &mut end.side)
    };
    assert_eq!(post(Op::Read(remote), 8), Err(PostError::Unsupported));
    assert_eq!(post(Op::FetchAdd { remote, add: 1 }, 4), Err(PostError::AtomicLength { len: 4 }));
    assert_eq!(
        post(Op::Write(remote, None), 1 << 31 | 1),
        Err(PostError::TooLong { len: 1 << 31 | 1, limit: 1 << 31 })
    );
    assert_eq!(post(Op::Send(Extra::Nothing), 0), Ok(()));
    assert_eq!(post(Op::Send(Extra::Nothing), 0), Err(PostError::SendQueueFull));
}
