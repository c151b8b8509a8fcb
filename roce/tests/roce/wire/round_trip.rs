//! All that can be said survives the wire, and nothing on the wire makes the parser fail.

use proptest::prelude::*;
use qpair_roce::wire::{
    Addresses, Aeth, AtomicEth, Bth, Deth, Extension, Flow, Headers, Identifier, Opcode, Packet, Part, Reth, Syndrome,
    WireError,
};
use qpair_roce::{Msn, Psn, Qpn, Rkey};

fn reth() -> impl Strategy<Value = Reth> {
    (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(va, rkey, len)| Reth { va, rkey: Rkey(rkey), len })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>(), 0..1u32 << 24)
        .prop_map(|(code, msn)| Aeth { syndrome: Syndrome::from_code(code), msn: Msn::new(msn) })
}

fn atomic() -> impl Strategy<Value = AtomicEth> {
    (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(va, rkey, swap_or_add, compare)| AtomicEth {
        va,
        rkey: Rkey(rkey),
        swap_or_add,
        compare,
    })
}

fn deth() -> impl Strategy<Value = Deth> {
    (any::<u32>(), 0..1u32 << 24).prop_map(|(qkey, source)| Deth { qkey, source: Qpn(source) })
}

fn extension() -> impl Strategy<Value = Extension> {
    prop_oneof![
        Just(Extension::None),
        Just(Extension::Congestion),
        any::<u32>().prop_map(Extension::Immediate),
        any::<u32>().prop_map(|rkey| Extension::Invalidate(Rkey(rkey))),
        reth().prop_map(Extension::Remote),
        (reth(), any::<u32>()).prop_map(|(reth, immediate)| Extension::RemoteImmediate(reth, immediate)),
        aeth().prop_map(Extension::Acknowledge),
        (aeth(), any::<u64>()).prop_map(|(aeth, original)| Extension::AtomicAcknowledge(aeth, original)),
        atomic().prop_map(Extension::Atomic),
        deth().prop_map(Extension::Datagram),
        (deth(), any::<u32>()).prop_map(|(deth, immediate)| Extension::DatagramImmediate(deth, immediate)),
    ]
}

/// Any headers that go together.
fn headers() -> impl Strategy<Value = Headers> {
    let flags = any::<[bool; 5]>();
    (extension(), any::<prop::sample::Index>(), flags, any::<u16>(), 0..1u32 << 24, 0..1u32 << 24).prop_map(
        |(extension, which, [solicited, migration, forward, backward, ack_request], pkey, qpn, psn)| {
            let fitting: Vec<_> = Opcode::ALL.iter().filter(|opcode| extension.goes_with(**opcode)).collect();
            let bth = Bth {
                solicited,
                migration,
                pkey,
                forward_congestion: forward,
                backward_congestion: backward,
                ack_request,
                ..Bth::new(**which.get(&fitting), Qpn(qpn), Psn::new(psn))
            };
            Headers { bth, extension }
        },
    )
}

fn flow() -> impl Strategy<Value = Flow> {
    let v4 = any::<[[u8; 4]; 2]>().prop_map(|[a, b]| Addresses::V4(a.into(), b.into()));
    let v6 = any::<[[u8; 16]; 2]>().prop_map(|[a, b]| Addresses::V6(a.into(), b.into()));
    (prop_oneof![v4, v6], any::<u16>(), any::<u16>()).prop_map(|(addresses, source_port, destination_port)| Flow {
        addresses,
        source_port,
        destination_port,
    })
}

fn part() -> impl Strategy<Value = Part> {
    // With and without the flag against fragments, and as a fragment.
    let fragment = prop_oneof![Just(Part::WHOLE.fragment), Just(0), any::<u16>()];
    (any::<u16>(), fragment).prop_map(|(id, fragment)| Part { id, fragment })
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        headers in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        flow in flow(),
        part in part(),
    ) {
        let mut bytes = Vec::new();
        headers.emit_packet(&payload, &mut bytes).unwrap();
        flow.seal(part, &mut bytes);
        prop_assert_eq!(bytes.len() % 4, 0);
        let packet = Packet::parse(&bytes).unwrap();
        let pad = (payload.len().wrapping_neg() % 4) as u8;
        prop_assert_eq!(packet.headers, Headers { bth: Bth { pad, ..headers.bth }, ..headers });
        prop_assert_eq!(packet.payload, &payload[..]);
        prop_assert!(flow.verifies(part, &packet));
        if let Addresses::V4(..) = flow.addresses {
            let is_whole = part.fragment & !Part::WHOLE.fragment == 0;
            prop_assert_eq!(Identifier::new().find(&flow, &packet), is_whole.then_some(part));
        }
    }

    #[test]
    fn any_bytes_are_a_packet_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut again = Vec::new();
            packet.headers.emit_packet(packet.payload, &mut again).unwrap();
            prop_assert_eq!(again.len(), packet.covered.len());
            prop_assert_eq!(Packet::parse(&[&again[..], &bytes[again.len()..]].concat()).unwrap().headers, packet.headers);
        }
    }

    #[test]
    fn a_packet_that_is_cut_short_is_an_error(headers in headers(), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        headers.emit_packet(b"", &mut bytes).unwrap();
        bytes.extend_from_slice(&[0; 4]);
        let len = cut.index(bytes.len());
        let is_truncated = matches!(Packet::parse(&bytes[..len]), Err(WireError::Truncated { .. }));
        prop_assert!(is_truncated);
    }

    #[test]
    fn headers_of_another_operation_are_refused(extension in extension(), opcode in any::<u8>()) {
        let opcode = Opcode(opcode);
        let headers = Headers { bth: Bth::new(opcode, Qpn(1), Psn::new(0)), extension };
        let result = headers.emit_packet(b"", &mut Vec::new());
        prop_assert_eq!(result.is_ok(), extension.goes_with(opcode));
    }
}

#[test]
fn another_version_is_an_error() {
    let mut bytes = Vec::new();
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn(1), Psn::new(0));
    Headers { bth, extension: Extension::None }.emit_packet(b"", &mut bytes).unwrap();
    bytes.extend_from_slice(&[0; 4]);
    bytes[1] |= 1;
    assert_eq!(Packet::parse(&bytes), Err(WireError::Version { version: 1 }));
}
