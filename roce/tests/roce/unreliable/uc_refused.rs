//! What an unreliable connection does not take: from its own side with an error, from its peer without a word.

use qpair_roce::wire::{Bth, Extension, Headers, Opcode, Packet, Service};
use qpair_roce::{
    Cause, Completion, Counters, Extra, Op, Outcome, PostError, Psn, Qpn, Remote, Right, Rkey, Send, State,
    UnreliableConfig, UnreliableConnection,
};

use super::pair::{End, Pair, bytes};
use crate::side::{BASE, KEY, Side};

const HERE: Remote = Remote { va: BASE, rkey: KEY };
const NOTHING: Op = Op::Send(Extra::Nothing);

/// Numbers of the receives that an end has completed with success, and the first byte and length of what they got.
fn received(end: &End) -> Vec<(u64, u8, u32)> {
    let one = |completion: &Completion<usize>| match completion {
        Completion::Received { id, outcome: Outcome::Success, local, message } => {
            (*id, end.side.buffers[*local][0], message.len)
        }
        other => panic!("{other:?}"),
    };
    end.side.completions.iter().map(one).collect()
}

#[test]
fn what_the_service_does_not_have_is_not_posted() {
    let mut pair = Pair::perfect();
    let ops = [
        Op::Read(HERE),
        Op::CompareSwap { remote: HERE, compare: 1, swap: 2 },
        Op::FetchAdd { remote: HERE, add: 1 },
        Op::Send(Extra::Invalidate(KEY)),
    ];
    for op in ops {
        assert_eq!(pair.try_post(0, op, vec![0; 8]), Err(PostError::Unsupported), "{op:?}");
    }
    pair.drive();
    assert_eq!(pair.sent(0), []);
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let config = UnreliableConfig { send_depth: 2, ..UnreliableConfig::new(Qpn(1), Qpn(2), Psn::new(0), Psn::new(0)) };
    let (mut uc, mut side, mut counters) = (UnreliableConnection::new(config), Side::new(0), Counters::default());
    let local = side.buffer(vec![1; 1025]);
    let work = |id| Send { id, op: NOTHING, local, len: 1025, solicited: false, fence: false };
    let mut packet = vec![0; uc.config().longest_packet()];
    for id in [1, 2] {
        uc.post(work(id), &mut side).unwrap();
    }
    // The first is under way, and not done.
    assert!(uc.transmit(&mut packet, &mut side, &mut counters).is_some());
    assert_eq!(uc.post(work(3), &mut side), Err(PostError::SendQueueFull));
    assert_eq!(side.completions.len(), 0);
    assert!(uc.transmit(&mut packet, &mut side, &mut counters).is_some());
    assert_eq!(side.completions.len(), 1, "done with its last packet");
    uc.post(work(3), &mut side).unwrap();
}

#[test]
fn a_message_without_a_receive_is_dropped() {
    for op in [NOTHING, Op::Write(HERE, Some(9))] {
        for len in [1, 5000] {
            let mut pair = Pair::perfect();
            let id = pair.post(0, op, vec![1; len]);
            pair.drive();
            assert_eq!(pair.sent(0), [(id, Outcome::Success)], "nobody is told");
            assert_eq!((pair.ends[1].side.completions.len(), pair.ends[1].counters.out_of_buffer), (0, 1));
            pair.ends[1].side.receive(5, 5000);
            pair.post(0, NOTHING, vec![2; 5000]);
            pair.drive();
            assert_eq!(received(&pair.ends[1]), [(5, 2, 5000)], "the next one arrives");
        }
    }
}

#[test]
fn a_message_too_long_leaves_its_receive_to_the_next() {
    for (len, room) in [(10, 9), (5000, 4999), (5000, 10)] {
        let mut pair = Pair::perfect();
        pair.ends[1].side.receive(5, room);
        pair.ends[1].side.receive(6, 5000);
        for (byte, len) in [(1, len), (2, room as usize), (3, 5000)] {
            pair.post(0, NOTHING, vec![byte; len]);
        }
        pair.drive();
        assert_eq!(received(&pair.ends[1]), [(5, 2, room), (6, 3, 5000)]);
        assert_eq!(pair.ends[1].counters.resp_local_length_error, 1);
        assert_eq!(pair.ends[1].uc.state(), State::Ready);
    }
}

#[test]
fn a_write_beyond_its_rights_is_dropped() {
    let (wrong, beyond) = (Remote { va: BASE, rkey: Rkey(1) }, Remote { va: BASE + (1 << 18) - 100, rkey: KEY });
    for (remote, forbidden) in [(wrong, None), (beyond, None), (HERE, Some(Right::Write))] {
        for immediate in [None, Some(7)] {
            let mut pair = Pair::perfect();
            pair.ends[1].side.forbidden = forbidden;
            pair.ends[1].side.receive(5, 5000);
            pair.post(0, Op::Write(remote, immediate), vec![1; 5000]);
            pair.post(0, NOTHING, vec![2; 5000]);
            pair.drive();
            assert!(pair.ends[1].side.memory.iter().all(|byte| *byte == 0));
            assert_eq!(received(&pair.ends[1]), [(5, 2, 5000)], "the next one arrives");
            assert_eq!(pair.ends[1].counters.resp_remote_access_errors, 1);
        }
    }
}

#[test]
fn a_right_withdrawn_during_a_write_leaves_the_receive_to_the_next() {
    let mut pair = Pair::perfect();
    pair.ends[1].side.receive(5, 5000);
    pair.try_post(0, Op::Write(HERE, Some(7)), vec![1; 2000]).unwrap();
    hand_over_next(&mut pair, None);
    hand_over_next(&mut pair, Some(Right::Write));
    assert_eq!(pair.ends[1].counters.resp_remote_access_errors, 1);
    assert_eq!((pair.ends[1].side.receives.len(), pair.ends[1].side.completions.len()), (0, 0));
    let mut only = vec![2; 12 + 8 + 4];
    only[..12].copy_from_slice(&[Opcode::UC_SEND_ONLY.0, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0xff, 0xff, 0xf2]);
    pair.handle(1, &Packet::parse(&only).unwrap());
    assert_eq!(received(&pair.ends[1]), [(5, 2, 8)]);
}

/// Hands the next packet of the first end to the second, which forbids what is said.
fn hand_over_next(pair: &mut Pair, forbidden: Option<Right>) {
    let End { uc, side, counters, .. } = &mut pair.ends[0];
    let mut packet = vec![0; uc.config().longest_packet()];
    let len = uc.transmit(&mut packet, side, counters).unwrap();
    pair.ends[1].side.forbidden = forbidden;
    pair.handle(1, &Packet::parse(&packet[..len + 4]).unwrap());
}

/// The end of a message is lost; of the WRITE behind it, which takes no receive, the right is withdrawn half way.
#[test]
fn a_write_that_fails_leaves_the_receive_of_a_lost_message_to_the_next() {
    for is_closed in [false, true] {
        let mut pair = Pair::perfect();
        pair.ends[1].side.receive(5, 5000);
        pair.try_post(0, NOTHING, vec![1; 2000]).unwrap();
        pair.try_post(0, Op::Write(HERE, None), vec![1; 2000]).unwrap();
        hand_over_next(&mut pair, None);
        let End { uc, side, counters, .. } = &mut pair.ends[0];
        let lost = uc.transmit(&mut vec![0; uc.config().longest_packet()], side, counters);
        assert!(lost.is_some());
        hand_over_next(&mut pair, None);
        hand_over_next(&mut pair, Some(Right::Write));
        assert_eq!(pair.ends[1].counters.resp_remote_access_errors, 1);
        if is_closed {
            let End { uc, side, .. } = &mut pair.ends[1];
            uc.close(side);
            let flushed = |completion: &Completion<usize>| {
                matches!(completion, Completion::Received { id: 5, outcome: Outcome::Flushed, .. })
            };
            assert!(side.completions.iter().any(flushed), "{:?}", side.completions);
        } else {
            hand_over(&mut pair, Psn::new(0x00ff_fff4));
            assert_eq!(received(&pair.ends[1]), [(5, 1, 4)]);
        }
    }
}

/// Gives the second end a packet that is a message, with that number.
fn hand_over(pair: &mut Pair, psn: Psn) {
    let bth = Bth::new(Opcode::UC_SEND_ONLY, Qpn(0x12), psn);
    let mut packet = Vec::new();
    Headers { bth, extension: Extension::None }.emit_packet(&[1; 4], &mut packet).unwrap();
    packet.extend([0; 4]);
    pair.handle(1, &Packet::parse(&packet).unwrap());
}

#[test]
fn one_packet_with_a_number_far_ahead_silences_no_connection() {
    let mut pair = Pair::perfect();
    for id in 0..200 {
        pair.ends[1].side.receive(id, 100);
    }
    let first = Psn::new(0x00ff_fff0);
    let taken = |pair: &Pair| pair.ends[1].side.completions.len();
    hand_over(&mut pair, first);
    // It is taken, as it may be behind a gap. Those that go on from before it are late, until it is clear that there is none.
    hand_over(&mut pair, first.advance(50_000));
    (1..=16).for_each(|ahead| hand_over(&mut pair, first.advance(ahead)));
    assert_eq!(taken(&pair), 2);
    (17..100).for_each(|ahead| hand_over(&mut pair, first.advance(ahead)));
    assert_eq!(taken(&pair), 2 + 83);
    // Behind a gap that another packet confirms, the late ones are late for good, however many come.
    (200..202).for_each(|ahead| hand_over(&mut pair, first.advance(ahead)));
    (100..150).for_each(|ahead| hand_over(&mut pair, first.advance(ahead)));
    assert_eq!(taken(&pair), 2 + 83 + 2);
}

#[test]
fn what_is_a_little_behind_is_late_and_what_is_far_behind_is_new() {
    let mut pair = Pair::perfect();
    for id in 0..4 {
        pair.ends[1].side.receive(id, 100);
    }
    let first = Psn::new(0x00ff_fff0);
    // A packet in its turn, then such: how far ahead of the first, and whether it is taken.
    let steps = [(0, true), (0, false), (1, true), (0x00ff_0002, false), (0x00ff_0001, true), (0x00ff_0003, true)];
    let mut taken = 0;
    for (ahead, is_taken) in steps {
        hand_over(&mut pair, first.advance(ahead));
        taken += usize::from(is_taken);
        assert_eq!(pair.ends[1].side.completions.len(), taken, "{ahead:#x}");
    }
    let counters = pair.ends[1].counters;
    assert_eq!((counters.duplicate_request, counters.out_of_sequence, counters.rcvd_pkts), (2, 2, 6));
}

#[test]
fn a_key_is_not_asked_for_where_nothing_is_written() {
    let mut pair = Pair::perfect();
    pair.ends[1].side.receive(5, 1);
    pair.post(0, Op::Write(Remote { va: 0, rkey: Rkey(1) }, Some(7)), vec![]);
    pair.drive();
    assert_eq!(received(&pair.ends[1]), [(5, 0xee, 0)]);
}

#[test]
fn a_receive_of_a_message_cut_short_is_flushed_by_closing() {
    let mut pair = Pair::perfect();
    pair.ends[1].side.receive(5, 5000);
    pair.lost = vec![false, false, true];
    pair.post(0, NOTHING, vec![1; 5000]);
    pair.drive();
    assert_eq!(pair.ends[1].side.completions, []);
    let waiting = pair.try_post(1, NOTHING, vec![1]).unwrap();
    let End { uc, side, .. } = &mut pair.ends[1];
    uc.close(side);
    assert_eq!(uc.state(), State::Failed);
    assert_eq!(pair.sent(1), [(waiting, Outcome::Flushed)]);
    let completions = &pair.ends[1].side.completions;
    assert!(
        matches!(completions[..], [Completion::Received { id: 5, outcome: Outcome::Flushed, .. }]),
        "{completions:?}"
    );
    let late = pair.try_post(1, NOTHING, vec![1]).unwrap();
    assert_eq!(pair.sent(1), [(late, Outcome::Flushed)]);
    // What comes now is ignored.
    pair.ends[1].side.receive(6, 5000);
    pair.post(0, NOTHING, bytes(10));
    pair.drive();
    assert_eq!(pair.ends[1].side.completions.len(), 1);
}

#[test]
fn packets_of_other_services_are_dropped_and_counted() {
    let mut pair = Pair::perfect();
    pair.ends[1].side.receive(5, 5000);
    let mut dropped = 0;
    for opcode in Opcode::ALL {
        if opcode.meaning().is_some_and(|meaning| meaning.service != Service::Uc) {
            // With the number that is expected.
            let mut packet = [0; 64];
            packet[0] = opcode.0;
            packet[9..12].copy_from_slice(&[0xff, 0xff, 0xf0]);
            pair.handle(1, &Packet::parse(&packet).unwrap());
            dropped += 1;
        }
    }
    assert_eq!((pair.ends[1].counters.unsupported_opcode, pair.ends[1].counters.rcvd_pkts), (dropped, 0));
    pair.post(0, NOTHING, vec![2; 10]);
    pair.drive();
    assert_eq!(received(&pair.ends[1]), [(5, 2, 10)]);
    assert_eq!(pair.ends[1].counters.out_of_sequence, 0);
}

#[test]
fn a_message_without_an_end_gives_way_to_the_next() {
    let mut pair = Pair::perfect();
    pair.ends[1].side.receive(5, 5000);
    // The first packet of a SEND, in the right order and size.
    let mut first = vec![1; 12 + 1024 + 4];
    first[..12].copy_from_slice(&[Opcode::UC_SEND_FIRST.0, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0xff, 0xff, 0xef]);
    pair.handle(1, &Packet::parse(&first).unwrap());
    assert_eq!((pair.ends[1].counters.duplicate_request, pair.ends[1].side.receives.len()), (1, 1), "a late one");
    first[11] = 0xf0;
    pair.handle(1, &Packet::parse(&first).unwrap());
    assert_eq!(pair.ends[1].side.receives.len(), 0);
    first[11] = 0xf1;
    pair.handle(1, &Packet::parse(&first).unwrap());
    let mut last = first[..12 + 4 + 4].to_vec();
    (last[0], last[11]) = (Opcode::UC_SEND_LAST.0, 0xf2);
    pair.handle(1, &Packet::parse(&last).unwrap());
    assert_eq!(received(&pair.ends[1]), [(5, 1, 1028)]);
    assert_eq!(pair.ends[1].counters.resp_local_length_error, 1);
}

#[test]
fn memory_that_is_gone_fails_the_connection() {
    let mut pair = Pair::perfect();
    let ids = [(); 2].map(|()| pair.post(0, NOTHING, vec![1; 10]));
    let End { uc, side, counters, .. } = &mut pair.ends[0];
    side.gone.push(0);
    assert_eq!(uc.transmit(&mut vec![0; uc.config().longest_packet()], side, counters), None);
    assert_eq!(pair.sent(0), [(ids[0], Outcome::LocalProtection), (ids[1], Outcome::Flushed)]);
    let End { uc, side, .. } = &pair.ends[0];
    assert_eq!((uc.state(), &side.failed[..]), (State::Failed, &[Cause::Request][..]));

    let mut pair = Pair::perfect();
    pair.ends[1].side.receive(5, 10);
    pair.ends[1].side.gone.push(0);
    pair.post(0, NOTHING, vec![1; 10]);
    pair.drive();
    let End { uc, side, .. } = &pair.ends[1];
    assert!(matches!(side.completions[..], [Completion::Received { id: 5, outcome: Outcome::LocalProtection, .. }]));
    assert_eq!((uc.state(), &side.failed[..]), (State::Failed, &[Cause::Memory][..]));
}
