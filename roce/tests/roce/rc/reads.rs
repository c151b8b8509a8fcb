//! READs: how many are under way, in which parts, and how they are answered.

use qpair_roce::wire::{Aeth, Extension, Opcode, Reth};
use qpair_roce::{Msn, Mtu, Op, ReliableConfig, State};

use super::lone::{AT, FINE, Lone, NOTHING, reth};
use crate::side::{BASE, KEY};

impl Lone {
    /// Sends so many packets, 64 at a time, which are answered.
    fn loses_nothing_of(&mut self, packets: u32) {
        for first in (100..100 + packets).step_by(64) {
            self.post(NOTHING, 64 * 1024);
            assert_eq!(self.sends().len(), 64);
            self.is_answered(first + 63, FINE);
        }
    }
}

#[test]
fn one_lost_answer_is_asked_for_once() {
    let mut end = Lone::new(|config| config);
    end.post(Op::Read(AT), 100 * 1024);
    // In two parts, each of which has a last packet.
    assert_eq!(end.sends(), [(Opcode::RC_READ_REQUEST, 100), (Opcode::RC_READ_REQUEST, 164)]);
    let answer = |end: &mut Lone, number: u32| {
        let is_last = number == 63 || number == 99;
        let opcode = if is_last { Opcode::RC_READ_RESPONSE_LAST } else { Opcode::RC_READ_RESPONSE_MIDDLE };
        let aeth = Extension::Acknowledge(Aeth { syndrome: FINE, msn: Msn::new(0) });
        let extension = if is_last { aeth } else { Extension::None };
        end.hears(opcode, 100 + number, extension, &[0; 1024]);
    };
    let mut asked = Vec::new();
    for number in (0..100).filter(|number| *number != 5) {
        answer(&mut end, number);
        asked.extend(end.sends());
    }
    // And what is behind it, which is nothing yet.
    assert_eq!(asked, [(Opcode::RC_READ_REQUEST, 105), (Opcode::RC_READ_REQUEST, 164)]);
    (5..100).for_each(|number| answer(&mut end, number));
    assert_eq!((end.done(), end.sends()), (1, vec![]));
}

#[test]
fn a_peer_that_is_busy_with_later_reads_is_waited_for() {
    let mut end = Lone::new(|config| ReliableConfig { retry_count: Some(1), ..config });
    (0..3).for_each(|_| end.post(Op::Read(AT), 40 * 1024));
    assert_eq!(end.sends().len(), 3);
    let timeout = end.rc.config().ack_timeout.expect("it has one");
    // The first is lost; the answers to the others take four times the timeout.
    let mut asked = Vec::new();
    for number in 0..80 {
        end.now += timeout / 20;
        let position = number % 40;
        let opcode = if position == 39 { Opcode::RC_READ_RESPONSE_LAST } else { Opcode::RC_READ_RESPONSE_MIDDLE };
        let aeth = Extension::Acknowledge(Aeth { syndrome: FINE, msn: Msn::new(0) });
        end.hears(opcode, 140 + number, if position == 39 { aeth } else { Extension::None }, &[0; 1024]);
        asked.extend(end.sends());
        if end.rc.timeout().is_some_and(|due| due <= end.now) {
            end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
        }
    }
    assert_eq!((end.counters.local_ack_timeout_err, asked.len()), (0, 2), "half are asked for again, once");
    // Then nothing comes any more.
    end.now += timeout;
    end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    assert_eq!((end.counters.local_ack_timeout_err, end.rc.state()), (1, State::Failed));
}

#[test]
fn half_of_the_reads_are_asked_for_after_a_loss_and_those_of_a_silent_peer_one_by_one() {
    let mut end = Lone::new(|config| config);
    (0..8).for_each(|_| end.post(Op::Read(AT), 10));
    let answer = |end: &mut Lone, psn: u32| {
        let aeth = Extension::Acknowledge(Aeth { syndrome: FINE, msn: Msn::new(0) });
        end.hears(Opcode::RC_READ_RESPONSE_ONLY, psn, aeth, &[0; 10]);
    };
    let asked = |end: &mut Lone| end.sends().iter().map(|(_, psn)| *psn).collect::<Vec<_>>();
    assert_eq!(asked(&mut end), [100, 101, 102, 103]);
    // The first answer is lost.
    (101..104).for_each(|psn| answer(&mut end, psn));
    assert_eq!((asked(&mut end), end.counters.implied_nak_seq_err), (vec![100, 101], 1));
    // And then all.
    end.now = end.rc.timeout().expect("an answer is due");
    end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    assert_eq!(asked(&mut end), [100]);
    answer(&mut end, 100);
    assert_eq!(asked(&mut end), [101, 102]);
    answer(&mut end, 101);
    assert_eq!(asked(&mut end), [103, 104]);
    (102..105).for_each(|psn| answer(&mut end, psn));
    assert_eq!(asked(&mut end), [105, 106, 107]);
    (105..108).for_each(|psn| answer(&mut end, psn));
    assert_eq!((end.done(), end.sends()), (8, vec![]));
}

#[test]
fn the_longest_read_is_asked_for_in_parts_that_there_is_room_for() {
    let mut end = Lone::new(|config| ReliableConfig { mtu: Mtu::B256, ..config });
    end.post(NOTHING, 0);
    end.post(Op::Read(AT), 1 << 31);
    assert_eq!(end.sends(), [(Opcode::RC_SEND_ONLY, 100), (Opcode::RC_READ_REQUEST, 101)], "half of the window each");
    end.is_answered(100, FINE);
    assert_eq!(end.sends(), [(Opcode::RC_READ_REQUEST, 165)]);
    let answer = |end: &mut Lone, numbers| end.hears_read(101, 64, numbers);
    answer(&mut end, 0..63);
    assert_eq!(end.sends(), []);
    answer(&mut end, 63..64);
    assert_eq!(end.sends(), [(Opcode::RC_READ_REQUEST, 229)], "there is room for another part");
    assert_eq!((end.counters.unexpected_answer, end.rc.state()), (0, State::Ready));
    assert!(end.rc.timeout().is_some());
}

/// As long as the network has lost nothing for some time.
#[test]
fn parts_of_a_read_are_longer_where_the_window_has_grown() {
    let asks = |psn| (Opcode::RC_READ_REQUEST, psn);
    for (answered, seen) in [(0, [asks(100), asks(164)]), (1024, [asks(1124), asks(1252)])] {
        let mut end = Lone::new(|config| ReliableConfig { window: 256, ..config });
        end.loses_nothing_of(answered);
        end.post(Op::Read(AT), 200 * 1024);
        assert_eq!(end.sends()[..2], seen);
    }
}

/// Whose parts are as long as the window then.
#[test]
fn the_next_part_of_a_read_does_not_wait_for_all_of_the_one_before_where_the_window_has_shrunk() {
    let mut end = Lone::new(|config| ReliableConfig { window: 256, ..config });
    end.loses_nothing_of(1024);
    end.post(Op::Read(AT), 512 * 1024);
    let asks = |psn| (Opcode::RC_READ_REQUEST, psn);
    assert_eq!(end.sends(), [asks(1124), asks(1252)]);
    let answer = |end: &mut Lone, numbers| end.hears_read(1124, 128, numbers);
    answer(&mut end, 5..6);
    assert_eq!(end.sends(), [asks(1124)], "what was lost is asked for again");
    answer(&mut end, 0..128);
    assert_eq!(end.sends(), [asks(1252)]);
    answer(&mut end, 128..191);
    assert_eq!(end.sends(), []);
    answer(&mut end, 191..192);
    assert_eq!(end.sends(), [asks(1380)], "there is room for another part and a half");
}

#[test]
fn a_peer_has_no_more_reads_under_way_than_agreed() {
    let mut end = Lone::new(|config| ReliableConfig { reads_answered: 2, ..config });
    (200..202).for_each(|psn| end.hears(Opcode::RC_READ_REQUEST, psn, reth(10), b""));
    assert_eq!(end.rc.state(), State::Ready);
    end.hears(Opcode::RC_READ_REQUEST, 202, reth(10), b"");
    let answer = Opcode::RC_READ_RESPONSE_ONLY;
    assert_eq!(end.sends(), [(answer, 200), (answer, 201), (Opcode::RC_ACKNOWLEDGE, 202)]);
    assert_eq!(end.rc.state(), State::Failed);
}

#[test]
fn a_read_that_is_repeated_is_answered_where_it_stands() {
    let mut end = Lone::new(|config| config);
    for _ in 0..100 {
        end.hears(Opcode::RC_READ_REQUEST, 200, reth(3000), b"");
    }
    let opcodes = [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE, Opcode::RC_READ_RESPONSE_LAST];
    let once: Vec<_> = opcodes.into_iter().zip(200..).collect();
    assert_eq!(end.sends(), once);
}

#[test]
fn what_an_answer_reads_is_told_ahead() {
    let mut end = Lone::new(|config| config);
    end.hears(Opcode::RC_READ_REQUEST, 200, reth(3000), b"");
    end.hears(Opcode::RC_READ_REQUEST, 203, reth(0), b"");
    assert_eq!((end.side.begun.len(), end.sends().len()), (0, 4));
    // The whole, and of what is asked for again the rest.
    let left = Reth { va: BASE + 2048, rkey: KEY, len: 952 };
    end.hears(Opcode::RC_READ_REQUEST, 202, Extension::Remote(left), b"");
    assert_eq!(end.sends(), [(Opcode::RC_READ_RESPONSE_ONLY, 202)]);
    assert_eq!(end.side.begun, [(0, 3000), (2048, 952)]);
}

/// The peer misses the end of an answer while the next is being given.
#[test]
fn an_answer_goes_on_behind_one_that_is_asked_for_again() {
    let mut end = Lone::new(|config| config);
    for psn in [200, 203] {
        end.hears(Opcode::RC_READ_REQUEST, psn, reth(3000), b"");
    }
    let mut buffer = vec![0; 8192];
    (0..4).for_each(|_| assert!(end.transmits(&mut buffer).is_some()));
    end.hears(Opcode::RC_WRITE_ONLY, 206, reth(0), b"");
    let left = Reth { va: BASE + 2048, rkey: KEY, len: 952 };
    end.hears(Opcode::RC_READ_REQUEST, 202, Extension::Remote(left), b"");
    let seen = [
        (Opcode::RC_READ_RESPONSE_ONLY, 202),
        (Opcode::RC_READ_RESPONSE_MIDDLE, 204),
        (Opcode::RC_READ_RESPONSE_LAST, 205),
        (Opcode::RC_ACKNOWLEDGE, 206),
    ];
    assert_eq!(end.sends(), seen);
    assert_eq!(end.side.begun, [(0, 3000), (0, 3000), (2048, 952), (1024, 1976)]);
}

#[test]
fn a_read_that_is_repeated_too_late_is_refused_and_nothing_else() {
    let mut end = Lone::new(|config| config);
    end.hears(Opcode::RC_READ_REQUEST, 200, reth(3000), b"");
    assert_eq!(end.sends().len(), 3);
    // Its key is withdrawn, and the answer was lost. Who has it passes the refusal over.
    end.side.memory.clear();
    end.hears(Opcode::RC_READ_REQUEST, 200, reth(3000), b"");
    assert_eq!((end.sends(), end.rc.state()), (vec![(Opcode::RC_ACKNOWLEDGE, 200)], State::Ready));
    end.hears(Opcode::RC_WRITE_ONLY, 203, reth(0), b"");
    assert_eq!((end.sends(), end.rc.state()), (vec![(Opcode::RC_ACKNOWLEDGE, 203)], State::Ready));
}
