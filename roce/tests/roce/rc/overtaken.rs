//! Requests that overtook another, or come twice.

use qpair_roce::wire::{Bth, Extension, Opcode, Packet, Syndrome};
use qpair_roce::{Psn, Qpn};

use super::lone::{FINE, Lone, SEQUENCE, reth};

impl Lone {
    /// One with receives.
    fn with_receives() -> Self {
        let mut end = Lone::new(|config| config);
        (0..8).for_each(|wr_id| end.side.receive(wr_id, 100));
        end
    }

    /// Hears messages of one packet each, which ask for an acknowledgment.
    fn hears_messages<const N: usize>(&mut self, numbers: [u32; N]) {
        numbers.into_iter().for_each(|psn| self.hears(Opcode::RC_SEND_ONLY, psn, Extension::None, b"hello"));
    }

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
    let mut end = Lone::with_receives();
    end.hears_messages([200]);
    assert_eq!(end.acknowledges(), (FINE, 200));
    end.hears_messages([202, 203, 201]);
    assert_eq!((end.acknowledges(), end.done()), ((SEQUENCE, 202), 2));
    // Once it was told, nothing more is asked for: it sends again.
    end.hears_messages([203, 202, 203]);
    assert_eq!((end.acknowledges(), end.done()), ((FINE, 203), 4));
    // Nothing is left behind the one that came late.
    end.hears_messages([205, 204, 205]);
    assert_eq!((end.acknowledges(), end.done()), ((FINE, 205), 6));
}

/// So do those behind a packet that asks for no acknowledgment, where one that comes twice does.
#[test]
fn what_overtook_a_packet_that_is_not_acknowledged_is_asked_for() {
    let mut end = Lone::with_receives();
    let hears_quietly = |end: &mut Lone, psn| {
        end.hears_packet(Bth::new(Opcode::RC_SEND_ONLY, Qpn(1), Psn::new(psn)), Extension::None, b"hello");
    };
    end.hears_messages([200]);
    assert_eq!(end.acknowledges(), (FINE, 200));
    end.hears_messages([204]);
    hears_quietly(&mut end, 201);
    end.hears_messages([203]);
    hears_quietly(&mut end, 202);
    end.hears_messages([200]);
    assert_eq!((end.acknowledges(), end.done()), ((SEQUENCE, 203), 3));
    hears_quietly(&mut end, 203);
    end.hears_messages([204]);
    assert_eq!((end.acknowledges(), end.done()), ((FINE, 204), 5));
}

/// Peers take an acknowledgment of a READ for its answer, and miss its bytes.
#[test]
fn a_message_that_comes_twice_acknowledges_no_read_behind_it() {
    let mut end = Lone::with_receives();
    end.hears_messages([200, 201]);
    end.hears(Opcode::RC_READ_REQUEST, 202, reth(10), b"");
    end.hears(Opcode::RC_READ_REQUEST, 203, reth(10), b"");
    end.hears_messages([204]);
    assert_eq!(end.sends().len(), 4, "two acknowledgments, and two answers");
    for (again, acknowledged) in [(200, 201), (201, 201), (204, 204)] {
        end.hears_messages([again]);
        assert_eq!(end.acknowledges(), (FINE, acknowledged), "{again} came twice");
    }
    // What is owed already says more.
    end.hears_messages([204, 200]);
    assert_eq!(end.acknowledges(), (FINE, 204));
}

/// Nor does one whose connection is closed, where a message behind the READ was to be sent again.
#[test]
fn a_connection_that_is_closed_acknowledges_no_read() {
    let mut end = Lone::new(|config| config);
    end.hears(Opcode::RC_READ_REQUEST, 200, reth(10), b"");
    assert_eq!(end.sends(), [(Opcode::RC_READ_RESPONSE_ONLY, 200)]);
    end.hears(Opcode::RC_SEND_ONLY, 202, Extension::None, b"hello");
    end.rc.close(&mut end.side);
    assert_eq!(end.sends(), []);
}
