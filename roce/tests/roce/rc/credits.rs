//! Receives that the peer counts.

use qpair_roce::wire::{Aeth, Credits, Extension, Opcode, Syndrome};
use qpair_roce::{Msn, Op, ReliableConfig};

use super::lone::{AT, Lone, NOTHING};

fn counts(end: &mut Lone, psn: u32, msn: u32, credits: u32) {
    let syndrome = Syndrome::Ack(Credits::at_most(credits));
    end.hears(Opcode::RC_ACKNOWLEDGE, psn, Extension::Acknowledge(Aeth { syndrome, msn: Msn::new(msn) }), b"");
}

#[test]
fn without_credit_a_message_waits_for_an_answer() {
    let mut end = Lone::new(|config| config);
    (0..4).for_each(|_| end.post(NOTHING, 0));
    end.post(Op::Write(AT, None), 0);
    assert_eq!(end.sends().len(), 5, "until the peer counts");
    counts(&mut end, 104, 5, 1);
    (0..3).for_each(|_| end.post(NOTHING, 0));
    assert_eq!(end.sends(), [(Opcode::RC_SEND_ONLY, 105)]);
    counts(&mut end, 105, 6, 0);
    assert_eq!(end.sends(), [(Opcode::RC_SEND_ONLY, 106)], "one, to learn of new credit");
    assert_eq!(end.sends(), []);
}

/// The peer's only receive is taken by its first packet, and is not counted any more.
#[test]
fn a_message_that_has_begun_goes_on_without_credit() {
    let mut end = Lone::new(|config| ReliableConfig { window: 64, ..config });
    end.post(NOTHING, 100 * 1024);
    assert_eq!(end.sends().len(), 64);
    counts(&mut end, 115, 0, 0);
    assert_eq!(end.sends().len(), 16, "as many as were answered");
    end.post(NOTHING, 0);
    counts(&mut end, 163, 0, 0);
    assert_eq!(end.sends().len(), 20, "the rest, and not the next");
}

/// Nor does all of it go before it is known that there is a receive.
#[test]
fn a_message_without_credit_begins_with_one_packet() {
    let mut end = Lone::new(|config| config);
    end.post(NOTHING, 0);
    assert_eq!(end.sends().len(), 1);
    counts(&mut end, 100, 1, 0);
    end.post(NOTHING, 10 * 1024);
    assert_eq!(end.sends(), [(Opcode::RC_SEND_FIRST, 101)]);
    counts(&mut end, 101, 1, 0);
    assert_eq!(end.sends().len(), 9, "it has begun");
}

#[test]
fn an_older_count_takes_no_credit_back() {
    let mut end = Lone::new(|config| config);
    (0..2).for_each(|_| end.post(NOTHING, 0));
    assert_eq!(end.sends().len(), 2);
    counts(&mut end, 100, 1, 4);
    (0..3).for_each(|_| end.post(NOTHING, 0));
    counts(&mut end, 101, 0, 2);
    assert_eq!(end.sends().len(), 3);
}
