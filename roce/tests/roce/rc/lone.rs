//! One end, whose peer is the test: it sees each packet, and says what it likes.

use std::time::{Duration, Instant};

use qpair_roce::wire::{Aeth, Bth, Credits, Extension, Headers, Nak, Opcode, Packet, Reth, RnrTimer, Syndrome};
use qpair_roce::{Cause, Counters, Extra, Msn, Op, Psn, Qpn, ReliableConfig, ReliableConnection, Remote, Send, State};

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
    pub(super) fn hears_read(&mut self, first: u32, part: u32, numbers: std::ops::Range<u32>) {
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
fn a_message_longer_than_any_is_refused() {
    for (opcode, payload) in [(Opcode::RC_WRITE_FIRST, &[0; 1024][..]), (Opcode::RC_READ_REQUEST, b"")] {
        let mut end = Lone::new(|config| config);
        end.hears(opcode, 200, reth(1 << 31 | 1), payload);
        assert_eq!((end.rc.state(), end.sends()), (State::Failed, vec![(Opcode::RC_ACKNOWLEDGE, 200)]));
    }
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
