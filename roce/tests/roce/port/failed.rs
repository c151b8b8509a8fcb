//! What a connection that has failed says still.

use std::time::Instant;

use qpair_roce::Mtu;
use qpair_roce::congestion::{DcqcnParameters, Rate};
use qpair_roce::wire::{Extension, Opcode, Packet, Reth};

use super::{End, connection, end};
use crate::side::{BASE, KEY};

/// Whatever waits, and though congestion holds the connection up.
#[test]
fn what_a_closed_queue_pair_owes_goes_first() {
    for congestion in [None, Some(DcqcnParameters::new(Rate::from_gbps(1)))] {
        let mut end = end(0, congestion);
        let (now, mut buffer) = (Instant::now(), vec![0; 1 << 16]);
        // All it saved up is gone, and its rate is low.
        (0..20).for_each(|_| end.hears(Instant::now(), Opcode::CNP, 0, Extension::Congestion));
        end.write(2, vec![1; 1 << 14]);
        while end.port.transmit(now, &mut buffer, 1, &mut end.side).is_some() {}
        for other in 0..2 {
            end.write(other, vec![1; 3000]);
        }
        let write = Reth { va: BASE, rkey: KEY, len: 0 };
        end.hears(Instant::now(), Opcode::RC_WRITE_ONLY, 2, Extension::Remote(write));
        end.port.close(connection(2), &mut end.side);
        let departure = end.port.transmit(now, &mut buffer, 32, &mut end.side).expect("the acknowledgment");
        let first = Packet::parse(&buffer[..departure.segment]).unwrap().headers;
        assert_eq!((first.bth.opcode, first.bth.destination), (Opcode::RC_ACKNOWLEDGE, connection(2)));
    }
}

/// The answer to a READ is long: congestion holds it up whatever becomes of the connection, and a way out without room.
#[test]
fn a_read_is_answered_in_time_though_the_next_request_is_a_fault() {
    for congestion in [None, Some(DcqcnParameters::new(Rate::from_gbps(1)))] {
        let mut end = end(0, congestion);
        let (mut now, mut buffer) = (Instant::now(), vec![0; 1 << 16]);
        let hear = |end: &mut End, opcode, psn, extension| end.hears(Instant::now(), opcode, psn, extension);
        (0..20).for_each(|_| hear(&mut end, Opcode::CNP, 0, Extension::Congestion));
        let len = 60_000;
        let read = Extension::Remote(Reth { va: BASE, rkey: KEY, len });
        hear(&mut end, Opcode::RC_READ_REQUEST, 2, read);
        let next = 2 + len.div_ceil(Mtu::B1024.bytes());
        hear(&mut end, Opcode::RC_WRITE_ONLY, next, Extension::Remote(Reth { va: 0, rkey: KEY, len: 1 }));
        assert_eq!(end.side.failed.len(), 1, "the fault");
        assert_eq!(
            end.port.transmit_where(now, &mut buffer, 32, &mut end.side, |_| false),
            None,
            "a way out without room"
        );
        end.port.resume();
        let (start, mut sent, mut last) = (now, 0, None);
        for round in 0.. {
            while let Some(departure) = end.port.transmit(now, &mut buffer, 32, &mut end.side) {
                sent += departure.len;
                let packet = buffer[..departure.len].chunks(departure.segment).last().unwrap();
                last = Some(Packet::parse(packet).unwrap().headers.bth.opcode);
            }
            if last == Some(Opcode::RC_ACKNOWLEDGE) {
                break;
            }
            assert!(round < 10_000, "{sent} bytes");
            now = end.port.timeout().expect("there is more to come").max(now);
            end.port.handle_timeout(now, &mut end.side);
        }
        assert!(sent > len as usize, "{sent} bytes");
        // 480 us at the rate of the link.
        let took = (now - start).as_micros();
        assert_eq!(took > 480, congestion.is_some(), "{took} us");
    }
}
