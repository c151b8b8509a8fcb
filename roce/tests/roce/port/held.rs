//! What a connection says whose packets congestion holds up.

use std::time::{Duration, Instant};

use qpair_roce::congestion::{DcqcnParameters, Rate};
use qpair_roce::wire::{Extension, Opcode, Packet, Reth};

use super::{End, end};
use crate::side::{BASE, KEY};

/// An end, in virtual time.
struct Held {
    end: End,
    now: Instant,
}

impl Held {
    /// One that has sent part of a message, and may send little more.
    fn new() -> Held {
        let mut held = Held { end: end(0, Some(DcqcnParameters::new(Rate::from_gbps(1)))), now: Instant::now() };
        for _ in 0..20 {
            held.hears(Opcode::CNP, 0, Extension::Congestion);
            held.now += Duration::from_micros(5);
        }
        held.end.write(2, vec![1; LEN]);
        let said = held.says();
        assert!(said.len() < LEN / 1024, "not all of the message: {said:?}");
        held
    }

    /// The peer's packet of that operation.
    fn hears(&mut self, opcode: Opcode, psn: u32, extension: Extension) {
        self.end.hears(self.now, opcode, psn, extension);
    }

    /// The operations of all packets that go now.
    fn says(&mut self) -> Vec<Opcode> {
        let (mut buffer, mut said) = (vec![0; 1 << 16], Vec::new());
        while let Some(departure) = self.end.port.transmit(self.now, &mut buffer, 32, &mut self.end.side) {
            let packets = buffer[..departure.len].chunks(departure.segment);
            said.extend(packets.map(|packet| Packet::parse(packet).unwrap().headers.bth.opcode));
        }
        said
    }

    /// Time goes by until something is to be said.
    fn says_next(&mut self) -> Vec<Opcode> {
        loop {
            self.now = self.now.max(self.end.port.timeout().expect("there is more to come"));
            self.end.port.handle_timeout(self.now, &mut self.end.side);
            let said = self.says();
            if !said.is_empty() {
                return said;
            }
        }
    }
}

#[test]
fn an_acknowledgment_does_not_wait_for_the_rate_of_what_is_sent_beside_it() {
    let mut held = Held::new();
    for psn in 2..1000 {
        let write = Reth { va: BASE, rkey: KEY, len: 0 };
        held.hears(Opcode::RC_WRITE_ONLY, psn, Extension::Remote(write));
        assert_eq!(held.says(), [Opcode::RC_ACKNOWLEDGE]);
    }
    // Nor does what is sent wait for so many acknowledgments: a packet takes 67 ms at the least rate.
    let since = held.now;
    let said = held.says_next();
    assert!(said.iter().all(|said| *said != Opcode::RC_ACKNOWLEDGE), "{said:?}");
    let waited = held.now - since;
    assert!(waited > Duration::ZERO && waited < Duration::from_millis(70), "{waited:?}");
}

/// An answer with what was read is no acknowledgment.
#[test]
fn what_is_read_waits_for_the_rate() {
    let mut held = Held::new();
    let read = Reth { va: BASE, rkey: KEY, len: 4096 };
    held.hears(Opcode::RC_READ_REQUEST, 2, Extension::Remote(read));
    assert_eq!(held.says(), []);
    let since = held.now;
    held.says_next();
    assert!(held.now > since);
}

const LEN: usize = 1 << 16;
