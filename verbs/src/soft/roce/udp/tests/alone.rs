//! Who may have a slot or the port.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use super::ground::{LIMIT, TestPort, eventually};
use crate::error::NetworkError;
use crate::soft::roce::udp::group::Gate;
use crate::soft::roce::udp::{SLOTS, Slot, Wire};

#[test]
fn slots_run_out_and_come_back() {
    let port = TestPort::new();
    let claim = || Slot::claim_at(port.place).unwrap();
    let mut slots: Vec<_> = (0..SLOTS).map(|_| claim().expect("one is free")).collect();
    let mut numbers: Vec<_> = slots.iter().map(Slot::number).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..SLOTS), "each is claimed once");
    assert!(claim().is_none());
    let given_back = slots.swap_remove(17).number();
    assert_eq!(eventually(claim).number(), given_back);
}

#[test]
fn a_port_that_another_program_has_is_taken() {
    let port = TestPort::new();
    let _other = UdpSocket::bind((Ipv4Addr::LOCALHOST, port.place.port)).unwrap();
    let slot = Arc::new(Slot::claim_at(port.place).unwrap().unwrap());
    match Wire::open(slot.clone()).err() {
        Some(error @ NetworkError::PortTaken { .. }) => {
            let text = error.to_string();
            assert!(text.contains("rmmod rdma_rxe") && text.contains(&port.place.port.to_string()), "{text}");
        }
        other => panic!("{other:?}"),
    }
    drop(_other);
    assert!(Wire::open(slot).is_ok(), "it is free now");
}

#[test]
fn one_looks_for_the_sockets_at_a_time() {
    let port = TestPort::new();
    let gate = Gate::enter(port.place, Duration::ZERO).unwrap();
    let next = Gate::enter(port.place, Duration::from_millis(20));
    assert!(matches!(next, Err(NetworkError::Busy { .. })));
    drop(gate);
    assert!(Gate::enter(port.place, LIMIT).is_ok());
}

#[test]
fn devices_of_a_process_share_one_set_of_sockets() {
    let port = TestPort::new();
    let (a, b) = (port.wire(), port.wire());
    assert!(Arc::ptr_eq(a.group(), b.group()));
}

#[test]
fn the_port_of_roce_is_shared_with_whoever_has_it() {
    let Some(slot) = Slot::claim().unwrap() else { return println!("skipped: all slots are taken") };
    match Wire::open(Arc::new(slot)) {
        Ok(wire) => assert!(wire.segments() > 0),
        Err(error @ (NetworkError::PortTaken { .. } | NetworkError::OtherUser { .. })) => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}
