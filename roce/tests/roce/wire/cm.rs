//! Messages of the connection manager.

use proptest::prelude::*;
use qpair_roce::wire::cm::{CmError, IpHeader, LEN, Message, Packet, QKEY, Reply, Request, SERVICE_TCP, Transport};
use qpair_roce::wire::{self, Extension};
use qpair_roce::{Psn, Qpn};

use crate::pcap;

/// What `rping` on two hosts with rdma_rxe said to each other, in order.
fn exchanged() -> Vec<(Vec<u8>, Packet)> {
    let mut found = Vec::new();
    for datagram in pcap::read("rxe_rdmacm.pcap") {
        let Ok(packet) = wire::Packet::parse(&datagram.payload) else { continue };
        if packet.headers.bth.destination == Qpn(1)
            && let Extension::Datagram(deth) = packet.headers.extension
        {
            assert_eq!((deth.qkey, deth.source), (QKEY, Qpn(1)));
            found.push((packet.payload.to_vec(), Packet::parse(packet.payload).expect("a message")));
        }
    }
    found
}

#[test]
fn messages_of_linux_come_out_the_same() {
    let exchanged = exchanged();
    assert!(exchanged.len() >= 5);
    for (bytes, packet) in exchanged {
        assert_eq!(packet.emit(), bytes[..], "{packet:?}");
    }
}

#[test]
fn a_connection_of_linux_is_understood() {
    let exchanged = exchanged();
    let messages: Vec<_> = exchanged.iter().map(|(_, packet)| packet.message).collect();
    let (Message::Request(request), Message::Reply(reply), Message::ReadyToUse { ids, .. }) =
        (messages[0], messages[1], messages[2])
    else {
        panic!("{messages:?}")
    };
    assert_eq!(request.transport, Transport::Rc);
    assert_eq!(request.service_id & !0xffff, SERVICE_TCP);
    assert_eq!((reply.ids.remote, ids.local, ids.remote), (request.local_id, request.local_id, reply.ids.local));
    let header = IpHeader::parse(&request.private).expect("addresses");
    let mapped = |gid: [u8; 16]| std::net::Ipv6Addr::from(gid).to_ipv4_mapped().map(std::net::IpAddr::V4);
    assert_eq!(Some(header.source.ip()), mapped(request.primary.gids[0]));
    assert_eq!(Some(header.destination), mapped(request.primary.gids[1]));
    assert_eq!(header.emit(), request.private[..36]);
    let ends: Vec<_> = messages.iter().filter(|message| matches!(message, Message::Disconnect { .. })).collect();
    assert!(!ends.is_empty(), "nobody ended the connection");
}

fn private<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    prop::collection::vec(any::<u8>(), N).prop_map(|bytes| bytes.try_into().expect("as many"))
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), LEN), attribute in 0x0fu8..0x18) {
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        match Packet::parse(&bytes) {
            Ok(packet) => prop_assert_eq!(Packet::parse(&packet.emit()), Ok(packet)),
            Err(error) => prop_assert_eq!(error, CmError::Attribute { attribute: attribute.into() }),
        }
    }

    #[test]
    fn numbers_stay_in_their_fields(qpn in 0..1u32 << 24, psn in 0..1u32 << 24, data in private::<{ Reply::PRIVATE }>()) {
        let zero = Packet::parse(&{
            let mut bytes = [0; LEN];
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[17] = 0x13;
            bytes
        });
        let Ok(Packet { message: Message::Reply(zero), .. }) = zero else { panic!("{zero:?}") };
        let reply = Reply { qpn: Qpn(qpn), starting_psn: Psn::new(psn), private: data, ..zero };
        let packet = Packet { transaction: u64::MAX, message: Message::Reply(reply) };
        prop_assert_eq!(Packet::parse(&packet.emit()), Ok(packet));
    }
}

#[test]
fn other_management_is_an_error() {
    assert_eq!(Packet::parse(&[0; 255]), Err(CmError::Length { len: 255 }));
    assert!(matches!(Packet::parse(&[0; LEN]), Err(CmError::Class { .. })));
    assert_eq!(Request::PRIVATE + 24 + 140, LEN);
}
