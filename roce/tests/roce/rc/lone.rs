//! One end, whose peer is the test: it sees each packet, and says what it likes.

use std::time::{Duration, Instant};

use qpair_roce::wire::{Aeth, Bth, Credits, Extension, Headers, Nak, Opcode, Packet, Reth, RnrTimer, Syndrome};
use qpair_roce::{
    Cause, Counters, Extra, Msn, Mtu, Op, Psn, Qpn, ReliableConfig, ReliableConnection, Remote, Send, State,
};

use crate::side::{BASE, KEY, Side};

pub(super) struct Lone {
    pub(super) rc: ReliableConnection<usize>,
    pub(super) side: Side,
    pub(super) counters: Counters,
    pub(super) now: Instant,
}

/// What a packet that the end sends is, and its sequence number.
pub(super) type Seen = (Opcode, u32);

impl Lone {
    pub(super) fn new(change: impl Fn(ReliableConfig) -> ReliableConfig) -> Self {
        let config =
            ReliableConfig { max_reads: 4, ..ReliableConfig::new(Qpn(1), Qpn(2), Psn::new(100), Psn::new(200)) };
        Lone {
            rc: ReliableConnection::new(change(config)),
            side: Side::new(1 << 16),
            counters: Counters::default(),
            now: Instant::now(),
        }
    }

    pub(super) fn post(&mut self, op: Op, len: u32) {
        let local = self.side.buffer(vec![0; len.min(1 << 20) as usize]);
        let work = Send { id: 0, op, local, len, solicited: false, fence: false };
        self.rc.post(work, &mut self.side).expect("it is taken");
    }

    /// All that it sends now, in one departure.
    pub(super) fn sends(&mut self) -> Vec<Seen> {
        self.rc.begin_departure();
        let (mut to, mut seen) = (vec![0; 8192], Vec::new());
        while let Some(len) = self.transmits(&mut to) {
            to[len..len + 4].fill(0);
            let packet = Packet::parse(&to[..len + 4]).expect("a packet");
            seen.push((packet.headers.bth.opcode, packet.headers.bth.psn.get()));
        }
        seen
    }

    /// Its next packet, but for the CRC.
    pub(super) fn transmits(&mut self, to: &mut [u8]) -> Option<usize> {
        self.rc.transmit(self.now, to, &mut self.side, &mut self.counters)
    }

    pub(super) fn hears(&mut self, opcode: Opcode, psn: u32, extension: Extension, payload: &[u8]) {
        self.hears_packet(Bth { ack_request: true, ..Bth::new(opcode, Qpn(1), Psn::new(psn)) }, extension, payload);
    }

    pub(super) fn hears_packet(&mut self, bth: Bth, extension: Extension, payload: &[u8]) {
        let mut bytes = Vec::new();
        Headers { bth, extension }.emit_packet(payload, &mut bytes).expect("headers that go together");
        bytes.extend_from_slice(&[0; 4]);
        let packet = Packet::parse(&bytes).expect("a packet");
        self.rc.handle(self.now, &packet, &mut self.side, &mut self.counters);
    }

    pub(super) fn is_answered(&mut self, psn: u32, syndrome: Syndrome) {
        self.hears(Opcode::RC_ACKNOWLEDGE, psn, Extension::Acknowledge(Aeth { syndrome, msn: Msn::new(0) }), b"");
    }

    /// Hears packets of the answer to a READ that begins with `first`, asked for in parts of so many.
    fn hears_read(&mut self, first: u32, part: u32, numbers: std::ops::Range<u32>) {
        let aeth = Extension::Acknowledge(Aeth { syndrome: FINE, msn: Msn::new(0) });
        let payload = vec![0; self.rc.config().mtu.bytes() as usize];
        for number in numbers {
            let (opcode, extension) = match number % part {
                0 => (Opcode::RC_READ_RESPONSE_FIRST, aeth),
                place if place + 1 == part => (Opcode::RC_READ_RESPONSE_LAST, aeth),
                _ => (Opcode::RC_READ_RESPONSE_MIDDLE, Extension::None),
            };
            self.hears(opcode, first + number, extension, &payload);
        }
    }

    /// Sends so many packets, 64 at a time, which are answered.
    fn loses_nothing_of(&mut self, packets: u32) {
        for first in (100..100 + packets).step_by(64) {
            self.post(NOTHING, 64 * 1024);
            assert_eq!(self.sends().len(), 64);
            self.is_answered(first + 63, FINE);
        }
    }

    pub(super) fn done(&self) -> usize {
        self.side.completions.len()
    }
}

pub(super) const FINE: Syndrome = Syndrome::Ack(Credits::UNLIMITED);
pub(super) const SEQUENCE: Syndrome = Syndrome::Nak(Nak::Sequence);
pub(super) const AT: Remote = Remote { va: BASE, rkey: KEY };
pub(super) const NOTHING: Op = Op::Send(Extra::Nothing);

pub(super) fn reth(len: u32) -> Extension {
    Extension::Remote(Reth { va: BASE, rkey: KEY, len })
}

#[test]
fn packets_of_other_services_change_nothing() {
    for (expected, psn) in [(200, 200), (0, 0), (0, 5), (0x00ff_fff0, 0)] {
        let mut end = Lone::new(|config| ReliableConfig { receive_psn: Psn::new(expected), ..config });
        end.side.receive(1, 100);
        end.hears(Opcode::CNP, psn, Extension::Congestion, b"");
        end.hears(Opcode::UC_SEND_ONLY, psn, Extension::None, b"hello");
        assert_eq!((end.sends(), end.rc.state(), end.side.receives.len()), (vec![], State::Ready, 1));
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
fn one_loss_costs_one_retry() {
    let mut end = Lone::new(|config| ReliableConfig { retry_count: Some(1), ..config });
    end.post(Op::Read(AT), 10);
    (0..4).for_each(|_| end.post(NOTHING, 0));
    end.sends();
    // The answer to the READ was lost; those of the others are not.
    (101..105).for_each(|psn| end.is_answered(psn, FINE));
    assert_eq!(end.rc.state(), State::Ready);
    let mut end = Lone::new(|config| ReliableConfig { retry_count: Some(1), ..config });
    (0..4).for_each(|_| end.post(NOTHING, 0));
    end.sends();
    (0..5).for_each(|_| end.is_answered(100, SEQUENCE));
    assert_eq!((end.rc.state(), end.sends().len()), (State::Ready, 4));
    // Now that nothing comes, the second is one too many.
    end.now += Duration::from_secs(1);
    end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    assert_eq!(end.rc.state(), State::Failed);
}

#[test]
fn an_answer_that_tells_of_a_loss_behind_it_is_progress() {
    let sends = [NOTHING, NOTHING];
    let around_a_read = [NOTHING, Op::Read(AT), NOTHING];
    for (ops, answered, syndrome) in [(&sends[..], 101, SEQUENCE), (&around_a_read[..], 102, FINE)] {
        let mut end = Lone::new(|config| ReliableConfig { retry_count: Some(1), ..config });
        ops.iter().for_each(|op| end.post(*op, 0));
        assert_eq!(end.sends().len(), ops.len());
        // Nothing comes, and all goes once more: there is no retry left.
        end.now = end.rc.timeout().expect("an answer is due");
        end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
        assert_eq!(end.sends().len(), ops.len());
        // The first is answered, and what is behind it is not.
        end.is_answered(answered, syndrome);
        assert_eq!((end.rc.state(), end.done()), (State::Ready, 1), "{ops:?}");
        assert_eq!(end.sends().first().map(|(_, psn)| *psn), Some(101), "{ops:?}");
    }
}

#[test]
fn waiting_for_the_network_costs_no_retry() {
    for op in [NOTHING, Op::Read(AT)] {
        let mut end = Lone::new(|config| config);
        end.post(op, 3000);
        let timeout = end.rc.config().ack_timeout.expect("it has one");
        let waits_for = |end: &mut Lone, psn: u32| {
            let first = end.sends().first().map(|(_, psn)| *psn);
            assert_eq!((first, end.rc.timeout()), (Some(psn), Some(end.now + timeout)));
        };
        waits_for(&mut end, 100);
        // It has no room for what is to be sent again.
        let is_held_up = |end: &mut Lone| {
            for _ in 0..9 {
                end.now += timeout;
                end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
            }
            assert_eq!((end.rc.state(), end.rc.timeout()), (State::Ready, None));
        };
        is_held_up(&mut end);
        assert_eq!(end.counters.local_ack_timeout_err, 1);
        waits_for(&mut end, 100);
        is_held_up(&mut end);
        // A late answer to some of it changes nothing.
        if let Op::Read(_) = op {
            end.hears_read(100, 3, 0..1)
        } else {
            end.is_answered(100, FINE)
        }
        is_held_up(&mut end);
        assert_eq!(end.counters.local_ack_timeout_err, 2);
        waits_for(&mut end, 101);
    }
}

#[test]
fn what_is_sent_again_in_vain_costs_a_retry_each_time() {
    let mut end = Lone::new(|config| config);
    end.post(NOTHING, 0);
    for tries in 1..=8 {
        assert_eq!((end.sends().len(), end.rc.state()), (1, State::Ready), "{tries}");
        end.now = end.rc.timeout().expect("an answer is due");
        end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    }
    assert_eq!(end.rc.state(), State::Failed);
}

#[test]
fn a_peer_without_a_receive_is_there() {
    let mut end = Lone::new(|config| config);
    end.post(NOTHING, 0);
    let is_due = |end: &mut Lone| {
        end.now = end.rc.timeout().expect("something is due");
        end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    };
    // Each other time it is not heard.
    for tries in 0..9 {
        assert_eq!((end.sends().len(), end.rc.state()), (1, State::Ready), "{tries}");
        is_due(&mut end);
        assert_eq!((end.sends().len(), end.rc.state()), (1, State::Ready), "{tries}");
        end.is_answered(100, Syndrome::ReceiverNotReady(RnrTimer::from_code(1)));
        is_due(&mut end);
    }
    assert_eq!((end.counters.local_ack_timeout_err, end.counters.rcvd_rnr_err), (9, 9));
    // Then it is gone.
    for tries in 0..8 {
        assert_eq!((end.sends().len(), end.rc.state()), (1, State::Ready), "{tries}");
        is_due(&mut end);
    }
    assert_eq!(end.rc.state(), State::Failed);
}

#[test]
fn waiting_for_a_receive_costs_no_retry() {
    let later = Syndrome::ReceiverNotReady(RnrTimer::from_code(1));
    let mut end = Lone::new(|config| ReliableConfig { retry_count: Some(0), rnr_retry: Some(1), ..config });
    (0..3).for_each(|_| end.post(NOTHING, 0));
    assert_eq!(end.sends().len(), 3);
    end.is_answered(100, later);
    end.is_answered(100, later);
    // Linux' rdma_rxe tells of what it passed over, too.
    end.is_answered(100, SEQUENCE);
    assert_eq!((end.rc.state(), end.sends()), (State::Ready, vec![]), "before its time");
    end.now += Duration::from_micros(10);
    assert_eq!(end.sends().len(), 3);
    // The next has another try: this one tells that the one before is done.
    end.is_answered(101, later);
    assert_eq!((end.rc.state(), end.done()), (State::Ready, 1));
    end.now += Duration::from_micros(10);
    assert_eq!(end.sends().len(), 2);
    end.is_answered(101, later);
    assert_eq!(end.rc.state(), State::Failed);
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
fn a_message_longer_than_any_is_refused() {
    for (opcode, payload) in [(Opcode::RC_WRITE_FIRST, &[0; 1024][..]), (Opcode::RC_READ_REQUEST, b"")] {
        let mut end = Lone::new(|config| config);
        end.hears(opcode, 200, reth(1 << 31 | 1), payload);
        assert_eq!((end.rc.state(), end.sends()), (State::Failed, vec![(Opcode::RC_ACKNOWLEDGE, 200)]));
    }
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
fn what_is_lost_after_it_was_taken_is_not_acknowledged() {
    let mut end = Lone::new(|config| config);
    end.post(Op::Send(Extra::Nothing), 10);
    end.hears(Opcode::RC_WRITE_ONLY, 200, reth(4), b"four");
    end.hears(Opcode::RC_READ_REQUEST, 201, reth(3000), b"");
    end.rc.lose(&mut end.side);
    assert_eq!((end.sends(), end.rc.state()), (vec![], State::Failed));
    assert_eq!((&end.side.failed[..], end.side.completions.len()), (&[Cause::Memory][..], 1));
    // What the peer sends again has no answer either.
    end.hears(Opcode::RC_WRITE_ONLY, 200, reth(4), b"four");
    assert_eq!(end.sends(), []);
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

#[test]
fn a_connection_that_is_closed_answers_no_more() {
    let mut end = Lone::new(|config| config);
    end.hears(Opcode::RC_READ_REQUEST, 200, reth(3000), b"");
    end.hears(Opcode::RC_WRITE_ONLY, 203, reth(5), b"four");
    assert_eq!(end.rc.state(), State::Failed);
    end.rc.close(&mut end.side);
    assert_eq!((end.sends(), end.side.failed.len()), (vec![], 1));
}

#[test]
fn what_was_done_before_a_connection_is_closed_is_acknowledged_still() {
    let mut end = Lone::new(|config| config);
    end.hears(Opcode::RC_WRITE_ONLY, 200, reth(4), b"four");
    end.hears(Opcode::RC_READ_REQUEST, 201, reth(3000), b"");
    end.rc.close(&mut end.side);
    assert_eq!(end.sends(), [(Opcode::RC_ACKNOWLEDGE, 200)], "and no memory is read");
}

#[test]
fn what_was_done_before_a_refusal_is_acknowledged_still() {
    let closed = |opcode, psn, extension| {
        let mut end = Lone::new(|config| config);
        end.hears(Opcode::RC_WRITE_ONLY, 200, reth(4), b"four");
        end.hears(opcode, psn, extension, b"more");
        end.rc.close(&mut end.side);
        end.sends()
    };
    let done = [(Opcode::RC_ACKNOWLEDGE, 200)];
    assert_eq!(closed(Opcode::RC_SEND_ONLY, 201, Extension::None), done, "no receive");
    assert_eq!(closed(Opcode::RC_WRITE_ONLY, 202, reth(4)), done, "a gap");
    // One that fails the connection is told of itself.
    assert_eq!(closed(Opcode::RC_WRITE_ONLY, 201, reth(5)), [(Opcode::RC_ACKNOWLEDGE, 201)]);
}
