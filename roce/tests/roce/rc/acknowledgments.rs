//! When acknowledgments of messages go: at once, or with requests that they wait for.

use std::time::Duration;

use qpair_roce::ReliableConfig;
use qpair_roce::wire::{Extension, Opcode};

use super::lone::{FINE, Lone, NOTHING, reth};

/// A message comes that is acknowledged.
fn hears_message(end: &mut Lone, psn: u32) {
    end.side.receive(u64::from(psn), 100);
    end.hears(Opcode::RC_SEND_ONLY, psn, Extension::None, b"hello");
}

const PATIENCE: Duration = Duration::from_micros(100);
const ACKNOWLEDGED: Opcode = Opcode::RC_ACKNOWLEDGE;

#[test]
fn an_acknowledgment_waits_for_a_request_and_goes_behind_it() {
    let mut end = Lone::new(|config| config);
    end.side.patience = PATIENCE;
    for round in 0..100 {
        hears_message(&mut end, 200 + 2 * round);
        hears_message(&mut end, 201 + 2 * round);
        assert_eq!(end.sends(), []);
        assert!(end.rc.timeout().expect("it is looked at") <= end.now + PATIENCE);
        end.now += PATIENCE - Duration::from_micros(1);
        assert_eq!(end.sends(), []);
        end.post(NOTHING, 5);
        end.post(NOTHING, 5);
        let psn = 100 + 2 * round;
        let requests = [psn, psn + 1].map(|psn| (Opcode::RC_SEND_ONLY, psn));
        assert_eq!(end.sends(), [requests[0], requests[1], (ACKNOWLEDGED, 201 + 2 * round)]);
        end.is_answered(psn + 1, FINE);
    }
}

#[test]
fn an_acknowledgment_that_waited_in_vain_goes_and_the_next_ones_do_not_wait() {
    let mut end = Lone::new(|config| config);
    end.side.patience = PATIENCE;
    hears_message(&mut end, 200);
    assert_eq!(end.sends(), []);
    end.now += PATIENCE;
    assert_eq!(end.rc.timeout(), Some(end.now));
    end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    assert_eq!(end.rc.timeout(), None);
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 200)]);
    for psn in 201..328 {
        hears_message(&mut end, psn);
        assert_eq!(end.sends(), [(ACKNOWLEDGED, psn)]);
    }
    hears_message(&mut end, 328);
    assert_eq!(end.sends(), []);
}

/// A message of two packets goes, of which the last is short.
fn sends_two(end: &mut Lone) -> Vec<Opcode> {
    end.post(NOTHING, 1030);
    let seen = end.sends();
    let last = seen.iter().find(|(opcode, _)| *opcode == TWO[1]).expect("the last packet");
    end.is_answered(last.1, FINE);
    seen.into_iter().map(|(opcode, _)| opcode).collect()
}

const TWO: [Opcode; 2] = [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_LAST];

#[test]
fn an_acknowledgment_lets_requests_pass_behind_which_it_would_go_alone() {
    let mut end = Lone::new(|config| config);
    end.side.patience = PATIENCE;
    for round in 0..3 {
        for message in 0..7 {
            hears_message(&mut end, 200 + 8 * round + message);
            assert_eq!(sends_two(&mut end), TWO);
        }
        // Of so many it goes at once, behind what is to go.
        hears_message(&mut end, 207 + 8 * round);
        assert_eq!(sends_two(&mut end), [TWO[0], TWO[1], ACKNOWLEDGED]);
    }
    // Behind a packet as long as the first it goes with them.
    hears_message(&mut end, 224);
    end.post(NOTHING, 2048);
    assert_eq!(end.sends().into_iter().map(|(opcode, _)| opcode).collect::<Vec<_>>(), [TWO[0], TWO[1], ACKNOWLEDGED]);
}

/// Nothing goes behind it in a departure, since it is shorter than the requests.
#[test]
fn an_acknowledgment_goes_as_the_last_of_packets_that_go_together() {
    let mut end = Lone::new(|config| config);
    let opcodes = |end: &mut Lone| end.sends().into_iter().map(|(opcode, _)| opcode).collect::<Vec<_>>();
    let place = |seen: &[Opcode]| seen.iter().position(|opcode| *opcode == ACKNOWLEDGED);
    hears_message(&mut end, 200);
    end.post(NOTHING, 40 * 1024);
    assert_eq!(place(&opcodes(&mut end)), Some(16), "after as many as take turns");
    // Also where another went alone before, and whoever's turn it is.
    hears_message(&mut end, 201);
    assert_eq!(opcodes(&mut end), [ACKNOWLEDGED]);
    hears_message(&mut end, 202);
    end.post(NOTHING, 40 * 1024);
    assert_eq!(place(&opcodes(&mut end)), Some(16));
    // Where fewer have room, so that it still goes with them.
    hears_message(&mut end, 203);
    end.post(NOTHING, 40 * 1024);
    let mut to = vec![0; 5 * end.rc.config().longest_packet()];
    let mut room = &mut to[..];
    end.rc.begin_departure();
    let together = [(); 5].map(|()| {
        let len = end.transmits(room).expect("there is more");
        room = &mut std::mem::take(&mut room)[len + 4..];
        len
    });
    assert_eq!(together, [1036, 1036, 1036, 1036, 16]);
}

#[test]
fn an_acknowledgment_or_a_refusal_waits_for_two_departures_at_most() {
    for psn in [200, 205] {
        let mut end = Lone::new(|config| config);
        hears_message(&mut end, psn);
        end.post(NOTHING, 40 * 1024);
        let (mut to, mut lens) = (vec![0; 8192], Vec::new());
        for _ in 0..4 {
            end.rc.begin_departure();
            lens.extend(end.transmits(&mut to));
        }
        assert_eq!(lens, [1036, 1036, 16, 1036], "{psn}");
    }
}

#[test]
fn requests_that_go_before_acknowledgments_are_of_their_turns() {
    let mut end = Lone::new(|config| ReliableConfig { max_reads: 16, ..config });
    end.post(NOTHING, 100 * 1024);
    for round in 0..8 {
        hears_message(&mut end, 200 + 5 * round);
        end.hears(Opcode::RC_READ_REQUEST, 201 + 5 * round, reth(4 * 1024), b"");
    }
    let seen = end.sends();
    // 32 packets of answers, and 8 acknowledgments.
    let last = seen.iter().rposition(|(opcode, _)| *opcode == Opcode::RC_READ_RESPONSE_LAST).expect("answers");
    let requests = seen[..last].iter().filter(|(opcode, _)| [TWO[0], Opcode::RC_SEND_MIDDLE].contains(opcode)).count();
    assert!((32..=64).contains(&requests), "{requests} before {last}");
    assert_eq!(seen.len(), 8 + 32 + 100);
}

#[test]
fn requests_go_on_where_no_answer_is_owed_any_more() {
    let mut end = Lone::new(|config| config);
    end.post(NOTHING, 40 * 1024);
    hears_message(&mut end, 200);
    end.hears(Opcode::RC_READ_REQUEST, 201, reth(1024), b"");
    assert_eq!(end.sends().len(), 40 + 2);
}

#[test]
fn an_acknowledgment_that_was_waited_for_lets_fewer_requests_pass() {
    let mut end = Lone::new(|config| config);
    end.side.patience = PATIENCE;
    hears_message(&mut end, 200);
    (0..2).for_each(|_| assert_eq!(sends_two(&mut end), TWO));
    // Nothing comes any more.
    end.now += PATIENCE;
    end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 200)]);
    for psn in 201..328 {
        hears_message(&mut end, psn);
        assert_eq!(sends_two(&mut end), TWO);
        assert_eq!(sends_two(&mut end), [TWO[0], TWO[1], ACKNOWLEDGED], "{psn}");
    }
    // After some that were not waited for it is tried again.
    hears_message(&mut end, 328);
    (0..2).for_each(|_| assert_eq!(sends_two(&mut end), TWO));
    assert_eq!(sends_two(&mut end), [TWO[0], TWO[1], ACKNOWLEDGED]);
}

#[test]
fn a_peer_that_goes_on_does_not_wait_for_acknowledgments() {
    let mut end = Lone::new(|config| config);
    end.side.patience = PATIENCE;
    for round in 0..10 {
        hears_message(&mut end, 200 + 2 * round);
        end.now += 3 * PATIENCE / 5;
        hears_message(&mut end, 201 + 2 * round);
        assert_eq!(end.sends(), []);
        end.now += 2 * PATIENCE / 5;
        end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
        assert_eq!(end.sends(), [(ACKNOWLEDGED, 201 + 2 * round)]);
    }
}

#[test]
fn what_else_a_peer_waits_for_goes_at_once() {
    let patient = || {
        let mut end = Lone::new(|config| config);
        end.side.patience = PATIENCE;
        end
    };
    // Where the application does not look, nothing is to come that it could go with.
    let mut end = patient();
    hears_message(&mut end, 200);
    end.side.patience = Duration::ZERO;
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 200)]);
    // A WRITE, of which the application here may not know.
    let mut end = patient();
    end.hears(Opcode::RC_WRITE_ONLY, 200, reth(5), b"hello");
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 200)]);
    // Also behind a message.
    hears_message(&mut end, 201);
    end.hears(Opcode::RC_WRITE_ONLY, 202, reth(5), b"hello");
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 202)]);
    // A READ, with what came before.
    let mut end = patient();
    hears_message(&mut end, 200);
    end.hears(Opcode::RC_READ_REQUEST, 201, reth(5), b"");
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 200), (Opcode::RC_READ_RESPONSE_ONLY, 201)]);
    // A message that comes again: its acknowledgment is lost, or late.
    let mut end = patient();
    hears_message(&mut end, 200);
    assert_eq!(end.sends(), []);
    hears_message(&mut end, 200);
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 200)]);
    // So for those after it: the peer waits less long.
    hears_message(&mut end, 201);
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 201)]);
    // Many messages.
    let mut end = patient();
    (200..207).for_each(|psn| hears_message(&mut end, psn));
    assert_eq!(end.sends(), []);
    hears_message(&mut end, 207);
    assert_eq!(end.sends(), [(ACKNOWLEDGED, 207)]);
}

#[test]
fn what_is_done_is_told_when_a_connection_is_closed_also_where_it_waits() {
    let mut end = Lone::new(|config| config);
    end.side.patience = PATIENCE;
    hears_message(&mut end, 200);
    assert_eq!(end.sends(), []);
    end.rc.close(&mut end.side);
    assert_eq!((end.sends(), end.rc.timeout()), (vec![(ACKNOWLEDGED, 200)], None));
}
