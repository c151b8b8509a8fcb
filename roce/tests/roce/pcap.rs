//! Packets from files of tcpdump: Ethernet, IPv4 or IPv6, UDP.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use qpair_roce::wire::{Addresses, Flow, Part};

/// A UDP datagram, and what its IP header says.
pub struct Datagram {
    pub flow: Flow,
    pub part: Part,
    pub payload: Vec<u8>,
}

/// All UDP datagrams of a file.
pub fn read(name: &str) -> Vec<Datagram> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name);
    let bytes = std::fs::read(path).expect("the capture is there");
    let (header, mut rest) = bytes.split_at(24);
    assert_eq!(header[..4], [0xd4, 0xc3, 0xb2, 0xa1], "little-endian, microseconds");
    assert_eq!(header[20..], [1, 0, 0, 0], "Ethernet");
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (record, after) = rest.split_at(16);
        let len = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
        assert_eq!(record[8..12], record[12..16], "cut short");
        let (frame, after) = after.split_at(len);
        found.extend(datagram(frame));
        rest = after;
    }
    found
}

fn datagram(frame: &[u8]) -> Option<Datagram> {
    let (ethernet, ip) = frame.split_at(14);
    let short = |bytes: &[u8], at| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (addresses, part, udp) = match short(ethernet, 12) {
        0x0800 if ip[9] == 17 => {
            let address = |at| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            let part = Part { id: short(ip, 4), fragment: short(ip, 6) };
            (Addresses::V4(address(12), address(16)), part, &ip[20..usize::from(short(ip, 2))])
        }
        0x86dd if ip[6] == 17 => {
            let address = |at| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
            (Addresses::V6(address(8), address(24)), Part::WHOLE, &ip[40..40 + usize::from(short(ip, 4))])
        }
        _ => return None,
    };
    let flow = Flow { addresses, source_port: short(udp, 0), destination_port: short(udp, 2) };
    Some(Datagram { flow, part, payload: udp[8..].to_vec() })
}
