//! What two hosts with rdma_rxe said to each other by `ibv_uc_pingpong` and `ibv_ud_pingpong`: the engines say the same,
//! byte for byte, and take it.

use qpair_roce::wire::{Extension, ICRC_LEN, PORT, Packet};
use qpair_roce::{
    Completion, Counters, Datagram, DatagramConfig, Datagrams, Extra, Outcome, Psn, Qpn, Send, Target,
    UnreliableConfig, UnreliableConnection,
};

use super::ud::grh;
use crate::pcap;
use crate::side::Side;

/// UDP payloads of a capture, by direction: those of the host that speaks first, then those of the other.
fn directions(name: &str) -> [Vec<Vec<u8>>; 2] {
    let all: Vec<_> = pcap::read(name).into_iter().filter(|datagram| datagram.flow.destination_port == PORT).collect();
    for pcap::Datagram { flow, part, payload } in &all {
        assert!(flow.verifies(*part, &Packet::parse(payload).unwrap()));
    }
    let first = all[0].flow.addresses;
    let (mine, theirs): (Vec<_>, Vec<_>) = all.into_iter().partition(|datagram| datagram.flow.addresses == first);
    [mine, theirs].map(|packets| packets.into_iter().map(|packet| packet.payload).collect())
}

/// What the packets carry, by messages of so many packets.
fn messages(packets: &[Vec<u8>], each: usize) -> Vec<Vec<u8>> {
    let payload = |bytes: &Vec<u8>| Packet::parse(bytes).unwrap().payload.to_vec();
    packets.chunks(each).map(|message| message.iter().flat_map(payload).collect()).collect()
}

fn received(side: &Side) -> Vec<Vec<u8>> {
    let one = |completion: &Completion<usize>| match completion {
        Completion::Received { outcome: Outcome::Success, local, message, .. } => {
            side.buffers[*local][..message.len as usize].to_vec()
        }
        other => panic!("{other:?}"),
    };
    side.completions.iter().map(one).collect()
}

#[test]
fn an_unreliable_connection_is_as_linux_has_it() {
    for packets in directions("rxe_uc.pcap") {
        assert_eq!(packets.len(), 6);
        let sent = messages(&packets, 2);
        let first = Packet::parse(&packets[0]).unwrap().headers.bth;
        let config = UnreliableConfig::new(Qpn(0x16), first.destination, first.psn, first.psn);
        let (mut near, mut far) = (UnreliableConnection::new(config), UnreliableConnection::new(config));
        let (mut side, mut counters) = (Side::new(0), Counters::default());
        let mut made = vec![0; config.longest_packet()];
        for contents in &sent {
            let (op, len) = (qpair_roce::Op::Send(Extra::Nothing), contents.len() as u32);
            let local = side.buffer(contents.clone());
            near.post(Send { id: 0, op, local, len, solicited: false, fence: false }, &mut side).unwrap();
        }
        for packet in &packets {
            let len = near.transmit(&mut made, &mut side, &mut counters).unwrap();
            // But for MigReq, which rdma_rxe leaves clear.
            made[1] &= !0x40;
            assert!(made[..len] == packet[..packet.len() - ICRC_LEN]);
        }
        assert_eq!(near.transmit(&mut made, &mut side, &mut counters), None);
        let mut side = Side::new(0);
        for id in 0..3 {
            side.receive(id, 4096);
        }
        for packet in &packets {
            far.handle(&Packet::parse(packet).unwrap(), &mut side, &mut counters);
        }
        assert!(received(&side) == sent);
    }
}

#[test]
fn datagrams_are_as_linux_has_them() {
    for packets in directions("rxe_ud.pcap") {
        assert_eq!(packets.len(), 3);
        let sent = messages(&packets, 1);
        let headers = Packet::parse(&packets[0]).unwrap().headers;
        let Extension::Datagram(deth) = headers.extension else { panic!("{headers:?}") };
        let config = DatagramConfig { send_psn: headers.bth.psn, ..DatagramConfig::new(deth.source, deth.qkey) };
        let (mut side, mut counters) = (Side::new(0), Counters::default());
        let mut near = Datagrams::new(config);
        let mut made = vec![0; config.longest_packet()];
        for contents in &sent {
            let local = side.buffer(contents.clone());
            let target = Target { qpn: headers.bth.destination, qkey: deth.qkey, path: () };
            let len = contents.len() as u32;
            near.post(Datagram { id: 0, local, len, immediate: None, solicited: false, target }, &mut side).unwrap();
        }
        for packet in &packets {
            let (len, ()) = near.transmit(&mut made, &mut side, &mut counters).unwrap();
            // But for MigReq, which rdma_rxe leaves clear.
            made[1] &= !0x40;
            assert!(made[..len] == packet[..packet.len() - ICRC_LEN]);
        }
        let mut side = Side::new(0);
        let config =
            DatagramConfig { send_psn: Psn::new(0), ..DatagramConfig::new(headers.bth.destination, deth.qkey) };
        let mut far = Datagrams::<_, ()>::new(config);
        for packet in &packets {
            side.receive(0, config.longest_receive() as u32);
            far.handle(&Packet::parse(packet).unwrap(), &grh(), &mut side, &mut counters);
        }
        let wanted: Vec<_> = sent.iter().map(|contents| [&grh().bytes()[..], contents].concat()).collect();
        assert!(received(&side) == wanted);
    }
}
