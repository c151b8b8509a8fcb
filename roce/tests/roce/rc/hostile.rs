//! A peer that says anything: nothing panics, what it is owed stays short, and each request completes once.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use qpair_roce::wire::{Aeth, AtomicEth, Bth, Deth, Extension, Headers, Opcode, Packet, Reth, Syndrome};
use qpair_roce::{
    Completion, Counters, Extra, Msn, Mtu, Op, Psn, Qpn, ReliableConfig, ReliableConnection, Remote, Rkey, Send,
};

use crate::side::{BASE, KEY, Side};

/// What happens to the end.
#[derive(Clone, Debug)]
enum Event {
    Post(Op, u32),
    /// A packet: its operation, how far its number is from one that would be right, and what else it says.
    Packet(u8, i32, Said),
    Send(u8),
    Wait(u16),
    Receive(u16),
}

#[derive(Clone, Debug)]
struct Said {
    va: u64,
    rkey: u32,
    len: u32,
    code: u8,
    msn: u32,
    payload: usize,
    answers: bool,
}

const MTU: usize = 256;

fn event() -> impl Strategy<Value = Event> {
    let remote = Remote { va: BASE, rkey: KEY };
    let op = prop_oneof![
        Just(Op::Send(Extra::Nothing)),
        Just(Op::Send(Extra::Invalidate(Rkey(1)))),
        Just(Op::Write(remote, None)),
        Just(Op::Write(remote, Some(1))),
        Just(Op::Read(remote)),
        Just(Op::FetchAdd { remote, add: 1 }),
    ];
    let len = prop_oneof![Just(0), Just(8), 0..2000u32];
    prop_oneof![
        2 => (op, len).prop_map(|(op, len)| Event::Post(op, len)),
        8 => (any::<prop::sample::Index>(), number_near(), said())
            .prop_map(|(which, number, said)| Event::Packet(which.get(Opcode::ALL).0, number, said)),
        1 => (0..0x20u8, number_near(), said()).prop_map(|(code, number, said)| Event::Packet(code, number, said)),
        3 => any::<u8>().prop_map(Event::Send),
        1 => any::<u16>().prop_map(Event::Wait),
        1 => (0..1000u16).prop_map(Event::Receive),
    ]
}

/// How far from the number that is expected.
fn number_near() -> impl Strategy<Value = i32> {
    prop_oneof![5 => -3..6i32, 1 => any::<i32>()]
}

fn said() -> impl Strategy<Value = Said> {
    let va = prop_oneof![3 => Just(BASE), 1 => any::<u64>(), 1 => (0..70_000u64).prop_map(|at| BASE + at)];
    let rkey = prop_oneof![4 => Just(KEY.0), 1 => any::<u32>()];
    let len = prop_oneof![Just(0), Just(MTU as u32), 0..3000u32, any::<u32>()];
    let code = prop_oneof![3 => Just(0x1f), 1 => Just(0x60), 1 => Just(0x21), 1 => any::<u8>()];
    let payload = prop_oneof![Just(0), Just(MTU), 0..MTU * 2];
    (va, rkey, len, code, 0..1u32 << 24, payload, any::<bool>())
        .prop_map(|(va, rkey, len, code, msn, payload, answers)| Said { va, rkey, len, code, msn, payload, answers })
}

/// The headers that an operation has, with what is said.
fn extension(opcode: Opcode, said: &Said) -> Extension {
    let reth = Reth { va: said.va, rkey: Rkey(said.rkey), len: said.len };
    let aeth = Aeth { syndrome: Syndrome::from_code(said.code), msn: Msn::new(said.msn) };
    let deth = Deth { qkey: said.rkey, source: Qpn(said.msn) };
    let atomic = AtomicEth { va: said.va & !7, rkey: Rkey(said.rkey), swap_or_add: said.va, compare: 0 };
    let all = [
        Extension::None,
        Extension::Immediate(said.rkey),
        Extension::Invalidate(Rkey(said.rkey)),
        Extension::Remote(reth),
        Extension::RemoteImmediate(reth, said.msn),
        Extension::Acknowledge(aeth),
        Extension::AtomicAcknowledge(aeth, said.va),
        Extension::Atomic(atomic),
        Extension::Datagram(deth),
        Extension::DatagramImmediate(deth, said.msn),
        Extension::Congestion,
    ];
    all.into_iter().find(|extension| extension.goes_with(opcode)).expect("each operation has one")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_peer_that_says_anything_does_no_harm(events in prop::collection::vec(event(), 0..200)) {
        let first = Psn::new(0x00ff_fffe);
        let config = ReliableConfig { mtu: Mtu::B256, send_depth: 16, ..ReliableConfig::new(Qpn(1), Qpn(2), first, first) };
        let mut rc = ReliableConnection::new(config);
        let (mut side, mut counters, mut now) = (Side::new(1 << 16), Counters::default(), Instant::now());
        let mut to = vec![0; 4 * config.longest_packet()];
        let (mut posted, mut sent, mut heard) = (0u64, first, first);
        for event in events {
            match event {
                Event::Post(op, len) => {
                    let local = side.buffer(vec![1; len as usize]);
                    let work = Send { id: posted, op, local, len, solicited: false, fence: len % 2 == 1 };
                    posted += u64::from(rc.post(work, &mut side).is_ok());
                }
                Event::Packet(opcode, number, said) => {
                    let near = if said.answers { sent } else { heard };
                    let psn = near.advance(number.cast_unsigned());
                    let bth = Bth { ack_request: said.answers, ..Bth::new(Opcode(opcode), Qpn(1), psn) };
                    let mut bytes = Vec::new();
                    let headers = Headers { bth, extension: extension(Opcode(opcode), &said) };
                    headers.emit_packet(&vec![7; said.payload], &mut bytes).unwrap();
                    bytes.extend_from_slice(&[0; 4]);
                    let before = counters.rcvd_pkts;
                    rc.handle(now, &Packet::parse(&bytes).unwrap(), &mut side, &mut counters);
                    if !said.answers && counters.rcvd_pkts != before && number == 0 {
                        heard = heard.advance(1);
                    }
                }
                Event::Send(most) => {
                    rc.begin_departure();
                    for _ in 0..most {
                        let Some(len) = rc.transmit(now, &mut to, &mut side, &mut counters) else { break };
                        let mut bytes = to[..len].to_vec();
                        bytes.extend_from_slice(&[0; 4]);
                        let packet = Packet::parse(&bytes).unwrap();
                        sent = packet.headers.bth.psn;
                    }
                }
                Event::Wait(micros) => {
                    now += Duration::from_micros(u64::from(micros) * 10);
                    if rc.timeout().is_some_and(|due| due <= now) {
                        rc.handle_timeout(now, &mut side, &mut counters);
                    }
                }
                Event::Receive(len) => side.receive(0, len.into()),
            }
        }
        rc.close(&mut side);
        // What it owed and needs no memory for, and nothing else.
        while rc.transmit(now, &mut to, &mut side, &mut counters).is_some() {
            prop_assert!([Opcode::RC_ACKNOWLEDGE, Opcode::RC_ATOMIC_ACKNOWLEDGE].contains(&Opcode(to[0])));
        }
        prop_assert_eq!(rc.timeout(), None);
        let ids: Vec<_> = side.completions.iter().filter_map(|completion| match completion {
            Completion::Sent { id, .. } => Some(*id),
            Completion::Received { .. } => None,
        }).collect();
        prop_assert_eq!(ids, (0..posted).collect::<Vec<_>>(), "each once, in order");
        prop_assert!(side.failed.len() == 1);
    }
}
