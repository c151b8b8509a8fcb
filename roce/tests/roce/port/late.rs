//! What is done late, where more comes than is taken in at once.

use std::time::{Duration, Instant};

use qpair_roce::wire::{Extension, Opcode, Packet};

use super::{End, end};

/// Opcodes of what it sends now.
fn sent(end: &mut End, now: Instant) -> Vec<Opcode> {
    let (mut opcodes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while let Some(departure) = end.port.transmit(now, &mut buffer, 1, &mut end.side) {
        opcodes.push(Packet::parse(&buffer[..departure.len]).unwrap().headers.bth.opcode);
    }
    opcodes
}

/// The answer that is late may be there already, and all else is due.
#[test]
fn an_acknowledgment_goes_in_time_though_answers_are_not_missed_yet() {
    let (start, mut end) = (Instant::now(), end(0, None));
    end.side.patience = Duration::from_micros(100);
    end.write(1, vec![1; 100]);
    end.side.receive(0, 100);
    end.hears(start, Opcode::RC_SEND_ONLY, 2, Extension::None);
    assert_eq!(sent(&mut end, start), [Opcode::RC_WRITE_ONLY]);
    let late = start + Duration::from_millis(1);
    let until = late + Duration::from_micros(50);
    end.port.handle_timeout_but_of_answers(late, until, &mut end.side);
    assert_eq!(sent(&mut end, late), [Opcode::RC_ACKNOWLEDGE]);
    assert_eq!(end.port.counters().local_ack_timeout_err, 0);
    assert!(end.port.timeout().is_some_and(|due| due <= until), "it is missed then");
    end.port.handle_timeout(until, &mut end.side);
    assert_eq!(sent(&mut end, until), [Opcode::RC_WRITE_ONLY]);
    assert_eq!(end.port.counters().local_ack_timeout_err, 1);
}
