//! A peer that sends anything: no packet of it makes an engine panic, touch what it may not, or lose count of receives.

use proptest::prelude::*;
use qpair_roce::wire::{Bth, Deth, Extension, Headers, Opcode, Packet, Reth};
use qpair_roce::{Completion, Mtu, Psn, Qpn, Rkey};

use super::pair::Pair;
use super::ud::{End, QKEY, grh};
use crate::network::Faults;
use crate::side::{BASE, KEY, Side};

/// Any packet of unreliable service, more often than not one that could be right.
fn packet() -> impl Strategy<Value = (Headers, usize)> {
    let unreliable: Vec<_> = Opcode::ALL.iter().copied().filter(|code| (0x20..0x80).contains(&code.0)).collect();
    let psn = prop_oneof![4 => 0..8u32, 1 => any::<u32>()].prop_map(|step| Psn::new(0x00ff_fff0).advance(step));
    let len = prop_oneof![Just(256), Just(0), 0..600usize];
    let va = prop_oneof![BASE..BASE + 1000, any::<u64>()];
    let rkey = prop_oneof![4 => Just(KEY), 1 => Just(Rkey(0))];
    let whole = prop_oneof![0..1000u32, any::<u32>()];
    let qkey = prop_oneof![4 => Just(QKEY), 1 => any::<u32>()];
    (prop::sample::select(unreliable), psn, len, (va, rkey, whole), qkey).prop_map(
        |(opcode, psn, payload, (va, rkey, len), qkey)| {
            let (reth, deth) = (Reth { va, rkey, len }, Deth { qkey, source: Qpn(1) });
            let extensions = [
                Extension::None,
                Extension::Immediate(1),
                Extension::Remote(reth),
                Extension::RemoteImmediate(reth, 1),
                Extension::Datagram(deth),
                Extension::DatagramImmediate(deth, 1),
            ];
            let extension = extensions.into_iter().find(|extension| extension.goes_with(opcode)).unwrap();
            (Headers { bth: Bth::new(opcode, Qpn(0x12), psn), extension }, payload)
        },
    )
}

fn bytes((headers, payload): (Headers, usize)) -> Vec<u8> {
    let mut bytes = Vec::new();
    headers.emit_packet(&vec![7; payload], &mut bytes).unwrap();
    bytes.extend([0; 4]);
    bytes
}

/// Receives are used in order, each once, and the rest is still there.
fn receives_are_in_order(side: &Side, posted: u64) {
    let used = side.completions.iter().map(|completion| match completion {
        Completion::Received { id, message, local, .. } => {
            assert!(message.is_write || message.len as usize <= side.buffers[*local].len());
            *id
        }
        Completion::Sent { .. } => panic!("nothing was posted"),
    });
    let left = side.receives.iter().map(|receive| receive.id);
    assert!(used.chain(left).eq(0..posted));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_packets_leave_receives_in_order(
        packets in prop::collection::vec(packet(), 0..60),
        receives in prop::collection::vec(0..800u32, 0..20),
    ) {
        let mut pair = Pair::new(1, Faults::default(), Mtu::B256);
        let mut datagrams = End::new(0x12, QKEY);
        for (id, len) in receives.iter().enumerate() {
            pair.ends[1].side.receive(id as u64, *len);
            datagrams.side.receive(id as u64, *len);
        }
        for packet in packets {
            let bytes = bytes(packet);
            let packet = Packet::parse(&bytes).unwrap();
            pair.handle(1, &packet);
            datagrams.ud.handle(&packet, &grh(), &mut datagrams.side, &mut datagrams.counters);
        }
        pair.drive();
        prop_assert_eq!(datagrams.transmit(), []);
        let super::pair::End { uc, side, .. } = &mut pair.ends[1];
        uc.close(side);
        datagrams.ud.close(&mut datagrams.side);
        receives_are_in_order(side, receives.len() as u64);
        receives_are_in_order(&datagrams.side, receives.len() as u64);
    }
}
