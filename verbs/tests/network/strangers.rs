//! Packets that nobody asked for, at full rate: dropped and counted, while connections go on.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use qpair_roce::wire::{Addresses, Aeth, Bth, Credits, Extension, Flow, Headers, Nak, Opcode, PORT, Part, Syndrome};
use qpair_roce::{Msn, Psn, Qpn};

use crate::ground::{Pair, eventually};

/// A socket that sends to the device's port.
struct Stranger {
    socket: UdpSocket,
    from: Ipv4Addr,
}

impl Stranger {
    fn new(from: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        Stranger { socket, from }
    }

    fn send(&self, bytes: &[u8]) {
        // A full queue drops, as networks do.
        let _ = self.socket.send_to(bytes, SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
    }

    /// A packet for a queue pair, with a right CRC as far as a stranger can make one.
    fn packet(&self, opcode: Opcode, to: Qpn, psn: u32, extension: Extension, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let headers = Headers { bth: Bth::new(opcode, to, Psn::new(psn)), extension };
        headers.emit_packet(payload, &mut bytes).unwrap();
        let source_port = self.socket.local_addr().unwrap().port();
        let addresses = Addresses::V4(self.from, Ipv4Addr::LOCALHOST);
        let flow = Flow { addresses, source_port, destination_port: PORT };
        let crc = flow.icrc(Part::WHOLE, &bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }
}

#[test]
fn strangers_at_full_rate_do_no_harm() {
    let mut pair = Pair::new(256 << 10);
    let (near, far) = (pair.qp.number(), pair.far_qp.number());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stranger = Stranger::new(Ipv4Addr::new(127, 0, 0, 66));
            let neighbour = Stranger::new(Ipv4Addr::LOCALHOST);
            let nak = Extension::Acknowledge(Aeth { syndrome: Syndrome::Nak(Nak::RemoteAccess), msn: Msn::new(0) });
            let mut state = 0x9e37_79b9_u32;
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state
            };
            while !over.load(Ordering::Relaxed) {
                let noise: Vec<u8> = (0..random() % 300).map(|_| random() as u8).collect();
                stranger.send(&noise);
                for to in [near, far] {
                    // Right but for the sender's address.
                    stranger.send(&stranger.packet(Opcode::RC_ACKNOWLEDGE, to, random() >> 8, nak, b""));
                    stranger.send(&stranger.packet(Opcode::RC_SEND_ONLY, to, random() >> 8, Extension::None, &noise));
                    // From the right address, and with a wrong CRC.
                    let mut wrong = neighbour.packet(Opcode::RC_ACKNOWLEDGE, to, random() >> 8, nak, b"");
                    let last = wrong.len() - 1;
                    wrong[last] ^= 1 | random() as u8;
                    wrong[last - 1] ^= random() as u8;
                    neighbour.send(&wrong);
                    neighbour.send(&wrong[..wrong.len() - 5]);
                }
                // To a queue pair that is not there.
                let nobody = Qpn(near.0 ^ 0x80_0000);
                stranger.send(&stranger.packet(Opcode::RC_SEND_ONLY, nobody, 1, Extension::None, b"hello"));
            }
        });
        (0..20).for_each(|seed| pair.works(seed));
        over.store(true, Ordering::Relaxed);
    });
    for name in ["wrong_address", "malformed_packets", "unknown_qp"] {
        eventually(name, || pair.near.counter(name) + pair.far.counter(name) > 0);
    }
    eventually("wrong CRCs", || pair.near.counter("rx_icrc_encapsulated") > 0);
    pair.works(99);
}

#[test]
fn what_a_peer_repeats_is_done_once() {
    let mut pair = Pair::new(64);
    pair.works(1);
    // A copy of an acknowledgment that came before, from the peer's own address.
    let ghost = Stranger::new(Ipv4Addr::LOCALHOST);
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: Msn::new(1) };
    let old = ghost.packet(Opcode::RC_ACKNOWLEDGE, pair.qp.number(), 0x12_3456, Extension::Acknowledge(aeth), b"");
    let before = pair.near.counter("unexpected_answer");
    (0..100).for_each(|_| ghost.send(&old));
    eventually("they are counted", || pair.near.counter("unexpected_answer") > before);
    (0..5).for_each(|seed| pair.works(seed));
}
