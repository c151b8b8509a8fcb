//! What a connection says whose packets congestion holds up.

use std::time::Instant;

use qpair_roce::Psn;
use qpair_roce::congestion::{DcqcnParameters, Rate};
use qpair_roce::wire::{Bth, Extension, Flow, Headers, Opcode, PORT, Packet, Part, Reth};

use super::{End, connection, end};
use crate::side::{BASE, KEY};

impl End {
    /// The peer's packet of that operation.
    fn hears(&mut self, opcode: Opcode, psn: u32, extension: Extension) {
        let bth = Bth { ack_request: true, ..Bth::new(opcode, connection(2), Psn::new(psn)) };
        let mut bytes = Vec::new();
        Headers { bth, extension }.emit_packet(b"", &mut bytes).unwrap();
        let flow = Flow { addresses: self.addresses.reversed(), source_port: 50_000, destination_port: PORT };
        flow.seal(Part::WHOLE, &mut bytes);
        self.receives(&bytes, Some(Part::WHOLE));
    }

    /// The operations of all packets that go now.
    fn says(&mut self, now: Instant) -> Vec<Opcode> {
        let (mut buffer, mut said) = (vec![0; 1 << 16], Vec::new());
        while let Some(departure) = self.port.transmit(now, &mut buffer, 32, &mut self.side) {
            let packets = buffer[..departure.len].chunks(departure.segment);
            said.extend(packets.map(|packet| Packet::parse(packet).unwrap().headers.bth.opcode));
        }
        said
    }
}

#[test]
fn an_acknowledgment_does_not_wait_for_the_rate_of_what_is_sent_beside_it() {
    let mut end = end(0, Some(DcqcnParameters::new(Rate::from_gbps(1))));
    let now = Instant::now();
    (0..20).for_each(|_| end.hears(Opcode::CNP, 0, Extension::Congestion));
    end.write(2, vec![1; 1 << 14]);
    end.says(now);
    let write = Reth { va: BASE, rkey: KEY, len: 0 };
    end.hears(Opcode::RC_WRITE_ONLY, 2, Extension::Remote(write));
    assert_eq!(end.says(now), [Opcode::RC_ACKNOWLEDGE]);
    // The rest of the message comes at its rate all the same.
    let at = end.port.timeout().expect("there is more to come");
    assert!(at > now && end.side.failed.is_empty(), "it is held up");
}

/// An answer with what was read is no acknowledgment.
#[test]
fn what_is_read_waits_for_the_rate() {
    let mut end = end(0, Some(DcqcnParameters::new(Rate::from_gbps(1))));
    let now = Instant::now();
    (0..20).for_each(|_| end.hears(Opcode::CNP, 0, Extension::Congestion));
    end.write(2, vec![1; 1 << 14]);
    end.says(now);
    let read = Reth { va: BASE, rkey: KEY, len: 4096 };
    end.hears(Opcode::RC_READ_REQUEST, 2, Extension::Remote(read));
    assert_eq!(end.says(now), []);
}
