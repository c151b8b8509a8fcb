//! What `rping` on two hosts with rdma_rxe said to each other, with a manager in the place of either.

use std::net::IpAddr;
use std::time::Instant;

use qpair_roce::cm::{Accept, CmConfig, CmState, Connect, ConnectionManager, Event, Offered, Timeout};
use qpair_roce::wire::cm::{LEN, Message, Packet, Request, SERVICE_TCP};
use qpair_roce::wire::{self, Action, Addresses, Extension};
use qpair_roce::{Psn, Qpn};

use crate::pcap;

/// A message: who sent it, its bytes, and what it says.
struct Said {
    from: IpAddr,
    bytes: [u8; LEN],
    packet: Packet,
}

/// REQ, REP, RTU, DREQ, DREP, in that order; and the first sequence numbers of the data: of the client's, the server's.
fn capture() -> (Vec<Said>, [Psn; 2]) {
    let (mut said, mut psns) = (Vec::<Said>::new(), [None, None]);
    for datagram in pcap::read("rxe_rdmacm.pcap") {
        let Ok(packet) = wire::Packet::parse(&datagram.payload) else { continue };
        assert!(datagram.flow.verifies(datagram.part, &packet));
        let Addresses::V4(from, _) = datagram.flow.addresses else { panic!("IPv4") };
        if let Extension::Datagram(_) = packet.headers.extension {
            let bytes: [u8; LEN] = packet.payload.try_into().expect("a message");
            said.push(Said { from: from.into(), bytes, packet: Packet::parse(&bytes).expect("a message") });
        } else if let Some(Action::Send | Action::Write | Action::ReadRequest) =
            packet.headers.bth.opcode.meaning().map(|meaning| meaning.action)
        {
            let is_server = usize::from(said[0].from != from);
            psns[is_server].get_or_insert(packet.headers.bth.psn);
        }
    }
    assert_eq!(said.len(), 5);
    (said, psns.map(|psn| psn.expect("both sent")))
}

fn drawn(numbers: Vec<u64>) -> impl FnMut() -> u64 {
    let mut numbers = numbers.into_iter();
    move || numbers.next().expect("no more numbers were needed")
}

fn request(said: &[Said]) -> Request {
    let Message::Request(request) = said[0].packet.message else { panic!("REQ comes first") };
    request
}

fn sends(cm: &mut ConnectionManager, to: IpAddr, like: &Said) {
    let transmit = cm.poll_transmit().expect("something to send");
    assert_eq!((transmit.to, Packet::parse(&transmit.bytes)), (to, Ok(like.packet)));
    assert!(transmit.bytes == like.bytes);
    assert_eq!(cm.poll_transmit(), None);
}

#[test]
fn a_manager_serves_the_client_of_linux() {
    let (said, [client_psn, server_psn]) = capture();
    let Message::Reply(reply) = said[1].packet.message else { panic!("REP comes second") };
    let (client, server) = (said[0].from, said[1].from);
    let now = Instant::now();
    let mut cm = ConnectionManager::new(CmConfig::new(server, reply.ca_guid));
    cm.listen(request(&said).service_id).unwrap();

    // The numbers that Linux drew.
    let mut entropy = drawn(vec![reply.ids.local.into(), reply.starting_psn.get().into()]);
    cm.handle(now, client, &said[0].bytes, &mut entropy);
    let Some(Event::Requested { id, offer }) = cm.poll_event() else { panic!("a request") };
    assert_eq!(offer.service_id & !0xffff, SERVICE_TCP);
    assert_eq!(offer.private, request(&said).private);
    let offered = Offered { flow_control: false, ..Offered::new(reply.qpn) };
    let accept = Accept { ack_delay: Timeout::from_code(15), ..Accept::new(offered) };
    let terms = cm.accept(now, id, &accept).unwrap();
    assert_eq!((terms.send_psn, terms.receive_psn), (server_psn, client_psn), "as the data has them");
    assert_eq!((terms.peer, terms.mtu.bytes(), terms.max_reads, terms.reads_answered), (Qpn(0x18), 1024, 1, 1));
    sends(&mut cm, client, &said[1]);

    cm.handle(now, client, &said[2].bytes, &mut entropy);
    assert_eq!(cm.poll_event(), Some(Event::Established { id }));
    cm.handle(now, client, &said[3].bytes, &mut entropy);
    assert_eq!(cm.poll_event(), Some(Event::Disconnected { id }));
    sends(&mut cm, client, &said[4]);
    assert_eq!((cm.state(id), cm.poll_event()), (Some(CmState::TimeWait), None));
}

#[test]
fn a_manager_connects_to_the_server_of_linux() {
    let (said, [client_psn, server_psn]) = capture();
    let request = request(&said);
    let (client, server) = (said[0].from, said[1].from);
    let now = Instant::now();
    let mut cm = ConnectionManager::new(CmConfig::new(client, request.ca_guid));

    let starting = request.starting_psn.get().into();
    let mut entropy = drawn(vec![request.local_id.into(), said[0].packet.transaction, starting]);
    let offered = Offered { flow_control: false, max_reads: 1, reads_answered: 1, ..Offered::new(request.qpn) };
    let connect = Connect {
        flow_label: request.primary.flow_label,
        private: request.private,
        ..Connect::new(server, request.service_id, offered)
    };
    let id = cm.connect(now, &connect, &mut entropy).unwrap();
    sends(&mut cm, server, &said[0]);

    cm.handle(now, server, &said[1].bytes, &mut entropy);
    let Some(Event::Accepted { id: accepted, terms, .. }) = cm.poll_event() else { panic!("accepted") };
    assert_eq!(accepted, id);
    assert_eq!((terms.send_psn, terms.receive_psn), (client_psn, server_psn), "as the data has them");
    let config = terms.reliable(request.qpn);
    assert_eq!((config.send_psn, config.receive_psn, config.peer), (client_psn, server_psn, Qpn(0x18)));
    cm.ready(id, &[0; 224]).unwrap();
    sends(&mut cm, server, &said[2]);
    assert_eq!(cm.state(id), Some(CmState::Established));

    cm.disconnect(now, id, &[0; 220]).unwrap();
    sends(&mut cm, server, &said[3]);
    cm.handle(now, server, &said[4].bytes, &mut entropy);
    assert_eq!(cm.poll_event(), Some(Event::Disconnected { id }));
    assert_eq!(cm.state(id), Some(CmState::TimeWait));
}
