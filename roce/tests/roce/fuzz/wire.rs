//! Any bytes are a packet or an error, and what was read is written and read as the same.

use qpair_roce::wire::{Addresses, Flow, Identifier, PORT, Packet, Part, cm};

/// Reads the input as a packet and as messages of the connection manager.
pub fn wire(input: &[u8]) {
    packet(input);
    message(input);
    // Hardly any input has the length and the header of a message by itself.
    let mut bytes = [0; cm::LEN];
    bytes.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    (bytes[16], bytes[17]) = (0, 0x10 | bytes[17] & 7);
    message(&bytes);
}

fn packet(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut again = Vec::new();
    packet.headers.emit_packet(packet.payload, &mut again).expect("headers that came together go together");
    assert_eq!(again.len(), packet.covered.len());
    for (source, destination) in [([10, 0, 0, 1], [10, 0, 0, 2]), ([0; 4], [255; 4])] {
        let addresses = Addresses::V4(source.into(), destination.into());
        let flow = Flow { addresses, source_port: packet.icrc as u16, destination_port: PORT };
        let part = Part { id: (packet.icrc >> 16) as u16, ..Part::WHOLE };
        let mut identifier = Identifier::new();
        // What is found is right; what is sealed is found.
        assert!(identifier.find(&flow, &packet).is_none_or(|part| flow.verifies(part, &packet)));
        let mut sealed = again.clone();
        flow.seal(part, &mut sealed);
        let sealed = Packet::parse(&sealed).expect("what is written can be read");
        assert_eq!((sealed.headers, sealed.payload), (packet.headers, packet.payload));
        assert!(flow.verifies(part, &sealed));
        assert_eq!(identifier.find(&flow, &sealed), Some(part));
    }
}

fn message(bytes: &[u8]) {
    let Ok(packet) = cm::Packet::parse(bytes) else { return };
    let again = packet.emit();
    assert_eq!(cm::Packet::parse(&again), Ok(packet));
    if let cm::Message::Request(request) = packet.message
        && let Some(header) = cm::IpHeader::parse(&request.private)
    {
        assert_eq!(cm::IpHeader::parse(&header.emit()), Some(header));
    }
}
