//! Requests that overtook another.

use qpair_roce::wire::{Bth, Extension, Opcode, Packet, Syndrome};
use qpair_roce::{Psn, Qpn};

use super::lone::{Lone, SEQUENCE};

impl Lone {
    /// The next acknowledgment that it sends, with its sequence number, and that it sends nothing else.
    fn acknowledges(&mut self) -> (Syndrome, u32) {
        let mut to = vec![0; 8192];
        let len = self.transmits(&mut to).expect("a packet");
        let packet = Packet::parse(&to[..len + 4]).expect("a packet");
        assert_eq!((packet.headers.bth.opcode, self.sends()), (Opcode::RC_ACKNOWLEDGE, vec![]));
        let Extension::Acknowledge(aeth) = packet.headers.extension else { panic!("no acknowledgment") };
        (aeth.syndrome, packet.headers.bth.psn.get())
    }
}

/// Packets that overtook another are passed over. That one comes before the peer was told so: it is to send them again, and not to
/// take all for well, and wait for its timeout.
#[test]
fn what_overtook_another_packet_is_asked_for() {
    let mut end = Lone::new(|config| config);
    (0..8).for_each(|wr_id| end.side.receive(wr_id, 100));
    let send = |end: &mut Lone, psn: u32| end.hears(Opcode::RC_SEND_ONLY, psn, Extension::None, b"hello");
    send(&mut end, 200);
    assert_eq!(end.acknowledges().1, 200);
    [202, 203, 201].into_iter().for_each(|psn| send(&mut end, psn));
    assert_eq!((end.acknowledges(), end.done()), ((SEQUENCE, 202), 2));
    // Once it was told, nothing more is asked for: it sends again.
    [203, 202, 203].into_iter().for_each(|psn| send(&mut end, psn));
    let (syndrome, psn) = end.acknowledges();
    assert_eq!((matches!(syndrome, Syndrome::Ack(_)), psn, end.done()), (true, 203, 4));
    // Nothing is left behind the one that came late.
    [205, 204, 205].into_iter().for_each(|psn| send(&mut end, psn));
    let (syndrome, psn) = end.acknowledges();
    assert_eq!((matches!(syndrome, Syndrome::Ack(_)), psn, end.done()), (true, 205, 6));
}

/// So do those behind a packet that asks for no acknowledgment, where one that comes twice does.
#[test]
fn what_overtook_a_packet_that_is_not_acknowledged_is_asked_for() {
    let mut end = Lone::new(|config| config);
    (0..8).for_each(|wr_id| end.side.receive(wr_id, 100));
    let send = |end: &mut Lone, psn: u32, ack_request| {
        let bth = Bth { ack_request, ..Bth::new(Opcode::RC_SEND_ONLY, Qpn(1), Psn::new(psn)) };
        end.hears_packet(bth, Extension::None, b"hello");
    };
    send(&mut end, 200, true);
    assert_eq!(end.acknowledges().1, 200);
    for (psn, ack_request) in [(204, true), (201, false), (203, true), (202, false), (200, true)] {
        send(&mut end, psn, ack_request);
    }
    assert_eq!((end.acknowledges(), end.done()), ((SEQUENCE, 203), 3));
    [(203, false), (204, true)].into_iter().for_each(|(psn, ack_request)| send(&mut end, psn, ack_request));
    let (syndrome, psn) = end.acknowledges();
    assert_eq!((matches!(syndrome, Syndrome::Ack(_)), psn, end.done()), (true, 204, 5));
}
