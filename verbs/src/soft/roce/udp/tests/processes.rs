//! Several processes at one port, which come, end, and stop as they like. Each is this program, run for one test.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use qpair_roce::wire::{Addresses, Flow, Packet, Part};

use super::ground::{TestPort, packet, qpn, turn};
use crate::companion::Companion;
use crate::error::NetworkError;
use crate::soft::roce::udp::place::Place;
use crate::soft::roce::udp::{Slot, Wire, place_of};

/// What such a process does: it says which slot it has, and then what comes, until nobody listens.
#[test]
#[ignore = "needs another test to start it, as its other process"]
fn process() {
    let Ok(port) = std::env::var(PORT_VARIABLE) else { return };
    let slot = Slot::claim_at(Place { port: port.parse().unwrap() }).unwrap().expect("a slot is free");
    let number = slot.number();
    let mut wire = match Wire::open(Arc::new(slot)) {
        Ok(wire) => wire,
        Err(error) => return println!("\n!error {error:?}"),
    };
    println!("\n!slot {number}");
    std::thread::spawn(|| {
        // Ends with the test that started it, however that ends.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        turn(&mut wire, |arrival| {
            let packet = Packet::parse(arrival.bytes).unwrap();
            assert_eq!(place_of(arrival.bytes), Some(number));
            println!("\n!got {}", u32::from_be_bytes(packet.payload.try_into().unwrap()));
        });
    }
}

/// Such a process.
struct Process {
    companion: Companion,
    slot: u32,
}

impl Process {
    fn start(port: &TestPort) -> Self {
        Process::starting(port).up().unwrap()
    }

    /// One that has not yet said its slot.
    fn starting(port: &TestPort) -> Self {
        Process::starting_as(port, Command::new(std::env::current_exe().unwrap()))
    }

    fn starting_as(port: &TestPort, mut command: Command) -> Self {
        command.env(PORT_VARIABLE, port.place.port.to_string());
        Process { companion: Companion::start(command, "soft::roce::udp::tests::processes::process"), slot: 0 }
    }

    fn up(mut self) -> Result<Self, String> {
        let line = self.line();
        self.slot = line.strip_prefix("slot ").ok_or(line.clone())?.parse().unwrap();
        Ok(self)
    }

    fn line(&self) -> String {
        self.companion.line()
    }

    /// The numbers of the next packets.
    fn numbers(&self, count: usize) -> BTreeSet<u32> {
        let number = |line: String| line.strip_prefix("got ").unwrap().parse().unwrap();
        (0..count).map(|_| number(self.line())).collect()
    }
}

/// Sends packets of these numbers to a slot.
fn send_numbers(port: &TestPort, slot: u32, numbers: &BTreeSet<u32>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addresses = Addresses::V4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
    let source_port = socket.local_addr().unwrap().port();
    let flow = Flow { addresses, source_port, destination_port: port.place.port };
    for &number in numbers {
        let bytes = packet(&flow, Part::WHOLE, qpn(slot, number % 1000), &number.to_be_bytes());
        socket.send_to(&bytes, (Ipv4Addr::LOCALHOST, port.place.port)).unwrap();
    }
}

fn assert_gets(port: &TestPort, process: &Process, numbers: BTreeSet<u32>) {
    send_numbers(port, process.slot, &numbers);
    assert_eq!(process.numbers(numbers.len()), numbers);
}

#[test]
fn each_process_gets_what_is_for_it_whoever_comes_and_goes() {
    let port = TestPort::new();
    // All at once: one makes the sockets, the others ask.
    let starting: Vec<_> = (0..8).map(|_| Process::starting(&port)).collect();
    let mut processes: Vec<_> = starting.into_iter().map(|process| process.up().unwrap()).collect();
    for round in 0..8 {
        let slots: BTreeSet<_> = processes.iter().map(|process| process.slot).collect();
        assert_eq!(slots.len(), 8);
        let numbers = |index: u32| (0..20).map(|step| round * 1000 + index * 20 + step).collect::<BTreeSet<_>>();
        for (index, process) in (0..).zip(&processes) {
            send_numbers(&port, process.slot, &numbers(index));
        }
        for (index, process) in (0..).zip(&processes) {
            assert_eq!(process.numbers(20), numbers(index), "round {round}, process {index}");
        }
        // In the end each of the first ones was killed, the one that made the sockets among them.
        drop(processes.remove(0));
        processes.push(Process::start(&port));
    }
}

#[test]
fn the_port_outlives_who_opened_it() {
    let port = TestPort::new();
    let first = Process::start(&port);
    let second = Process::start(&port);
    drop(first);
    assert_gets(&port, &second, (1..50).collect());
    let third = Process::start(&port);
    drop(second);
    assert_gets(&port, &third, (50..100).collect());
    drop(third);
    let fourth = Process::start(&port);
    assert_gets(&port, &fourth, (100..150).collect());
}

#[test]
fn a_process_that_is_stopped_is_passed_over() {
    let port = TestPort::new();
    let (first, second) = (Process::start(&port), Process::start(&port));
    first.companion.stop();
    let third = Process::start(&port);
    assert_gets(&port, &third, (0..10).collect());
    second.companion.stop();
    third.companion.stop();
    let slot = Arc::new(Slot::claim_at(port.place).unwrap().unwrap());
    let error = Wire::open(slot).err();
    assert!(matches!(error, Some(NetworkError::NoAnswer { .. })), "{error:?}");
    first.companion.go_on();
    assert!(Process::starting(&port).up().is_ok());
}

#[test]
fn another_user_is_not_given_the_sockets() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be another user");
    }
    let port = TestPort::new();
    let first = Process::start(&port);
    // Not by its path, which that user may not be allowed to walk.
    let mut command = Command::new("/proc/self/exe");
    command.uid(65534);
    let error = Process::starting_as(&port, command).up().err().expect("it is refused");
    assert!(error.contains("OtherUser"), "{error}");
    assert_gets(&port, &first, (0..10).collect());
}

const PORT_VARIABLE: &str = "QPAIR_TEST_UDP_PORT";
