//! Packets that two hosts with rdma_rxe exchanged: `ibv_rc_pingpong`, perftest and `rping` between them.

use std::collections::BTreeMap;

use qpair_roce::wire::{Addresses, Identifier, Opcode, PORT, Packet};

use crate::pcap::{self, Datagram};

const FILES: [&str; 5] = ["rxe_rc.pcap", "rxe_rdmacm.pcap", "rxe_uc.pcap", "rxe_ud.pcap", "rxe_v6.pcap"];

fn packets(name: &str) -> Vec<Datagram> {
    let found: Vec<_> =
        pcap::read(name).into_iter().filter(|datagram| datagram.flow.destination_port == PORT).collect();
    assert!(!found.is_empty(), "{name} has no packet");
    found
}

#[test]
fn every_packet_parses_verifies_and_comes_out_the_same() {
    for name in FILES {
        for (number, Datagram { flow, part, payload }) in packets(name).into_iter().enumerate() {
            let packet = Packet::parse(&payload).unwrap_or_else(|error| panic!("{name}, packet {number}: {error}"));
            assert!(flow.verifies(part, &packet), "{name}, packet {number}: {packet:?}");
            let mut again = Vec::new();
            packet.headers.emit_packet(packet.payload, &mut again).unwrap();
            flow.seal(part, &mut again);
            assert_eq!(again, payload, "{name}, packet {number}: {packet:?}");
        }
    }
}

#[test]
fn an_identification_that_is_hidden_is_found() {
    let mut found = 0;
    for name in FILES {
        let mut identifier = Identifier::new();
        for Datagram { flow, part, payload } in packets(name) {
            let packet = Packet::parse(&payload).unwrap();
            match flow.addresses {
                Addresses::V4(..) => {
                    assert_eq!(identifier.find(&flow, &packet), Some(part), "{name}: {packet:?}");
                    found += u32::from(part.id != 0);
                }
                Addresses::V6(..) => assert_eq!(identifier.find(&flow, &packet), None),
            }
        }
    }
    assert!(found > 100, "{found} identifications that are not 0");
}

#[test]
fn a_flipped_bit_is_noticed() {
    let Datagram { flow, part, payload } = packets("rxe_rc.pcap").swap_remove(0);
    for bit in 0..payload.len() * 8 {
        let mut damaged = payload.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        // Marks of congestion may be set on the way.
        let passes = Packet::parse(&damaged).is_ok_and(|packet| flow.verifies(part, &packet));
        assert_eq!(passes, bit / 8 == 4, "bit {bit}");
    }
}

#[test]
fn the_captures_have_what_they_are_said_to_have() {
    let mut counts: BTreeMap<u8, u32> = BTreeMap::new();
    for name in FILES {
        for Datagram { payload, .. } in packets(name) {
            *counts.entry(payload[0]).or_default() += 1;
        }
    }
    let wanted = [
        Opcode::RC_SEND_FIRST,
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_READ_REQUEST,
        Opcode::RC_READ_RESPONSE_MIDDLE,
        Opcode::RC_ACKNOWLEDGE,
        Opcode::RC_FETCH_ADD,
        Opcode::RC_ATOMIC_ACKNOWLEDGE,
        Opcode::UD_SEND_ONLY,
    ];
    for opcode in wanted {
        assert!(counts.contains_key(&opcode.0), "no {opcode} in {counts:?}");
    }
}
