//! The store, and visitors that are played by hand.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use super::message::{FromStore, Listening, PROTOCOL, ToStore, encode};
use super::server::{Server, listen};
use super::whereabouts::whereabouts;
use super::{Environment, Whereabouts};
use crate::ReduceOp;
use crate::communicator::Communicator;
use crate::error::BootstrapError;
use crate::fault::Fault;

const LIMIT: Duration = Duration::from_secs(60);

/// A store at a port that nobody else gets meanwhile.
fn start(size: u32, limit: Duration) -> (Server, SocketAddr) {
    let listener = listen(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = listener.local_addr().unwrap();
    (Server::start(listener, size, limit).unwrap(), address)
}

struct Guest(BufReader<TcpStream>);

impl Guest {
    fn new(address: SocketAddr) -> Guest {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Guest(BufReader::new(stream))
    }

    fn join(address: SocketAddr, rank: u32, size: u32) -> Guest {
        let mut guest = Guest::new(address);
        guest.say(&encode(&ToStore::Join { protocol: PROTOCOL, size, rank, whereabouts: whereabouts() }));
        guest
    }

    fn say(&mut self, line: &[u8]) {
        self.0.get_mut().write_all(line).unwrap();
    }

    /// True if something came within `limit`.
    fn has_answer(&mut self, limit: Duration) -> bool {
        self.0.get_ref().set_read_timeout(Some(limit)).unwrap();
        let came = self.0.fill_buf().is_ok();
        self.0.get_ref().set_read_timeout(Some(LIMIT)).unwrap();
        came
    }

    fn hear(&mut self) -> FromStore {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

#[test]
fn who_comes_after_the_others_gave_up_hears_that() {
    let (_server, address) = start(3, Duration::from_millis(50));
    let absent = FromStore::Absent { missing: vec![0, 2], limit: Duration::from_millis(50) };
    assert_eq!(Guest::join(address, 1, 3).hear(), absent);
    for late in [2, 1] {
        assert_eq!(Guest::join(address, late, 3).hear(), absent);
    }
}

#[test]
fn who_comes_after_a_rank_has_ended_hears_of_it() {
    let (_server, address) = start(3, LIMIT);
    let mut first = Guest::join(address, 0, 3);
    drop(Guest::join(address, 1, 3));
    let verdict = FromStore::Verdict(Fault::Gone { rank: 1 });
    assert_eq!(first.hear(), verdict);
    assert_eq!(Guest::join(address, 2, 3).hear(), verdict);
}

#[test]
fn a_store_that_ends_while_ranks_gather_says_so() {
    let (server, address) = start(3, LIMIT);
    let mut refused = Guest::join(address, 7, 3);
    assert!(matches!(refused.hear(), FromStore::Refused { .. }));
    // Two ranks of one number: that one is refused shows that the other was let in, whichever comes first.
    let mut twins = [Guest::join(address, 1, 3), Guest::join(address, 1, 3)];
    let refused = (0..).map(|turn| turn % 2).find(|&at| twins[at].has_answer(Duration::from_millis(5))).unwrap();
    assert!(matches!(twins[refused].hear(), FromStore::Refused { .. }));
    drop(server);
    assert_eq!(twins[1 - refused].hear(), FromStore::Verdict(Fault::Gone { rank: 0 }));
}

#[test]
fn a_visitor_that_talks_on_and_on_is_refused() {
    let (_server, address) = start(2, LIMIT);
    let mut talker = Guest::join(address, 1, 2);
    let report = encode(&ToStore::Report(Fault::Failed { rank: 1, reason: "once more".into() }));
    talker.say(&report.repeat(100));
    let mut heard = (0..100).map(|_| talker.hear());
    assert!(heard.any(|said| matches!(said, FromStore::Refused { .. })));
}

#[test]
fn a_port_that_is_taken_at_one_address_is_not_used_at_the_next() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = stranger.local_addr().unwrap();
    let next = SocketAddr::new("127.0.0.2".parse().unwrap(), taken.port());
    assert_eq!(listen(&[taken, next]).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    // An address that this host does not have is passed over.
    let foreign = SocketAddr::new("192.0.2.1".parse().unwrap(), taken.port());
    assert_eq!(listen(&[foreign, next]).unwrap().local_addr().unwrap(), next);
}

/// In a process of its own, since it uses up all descriptors.
#[test]
fn who_could_not_be_let_in_is_let_in_later() {
    if std::env::var_os("QPAIR_TEST_DESCRIPTORS").is_none() {
        let mut limited = Command::new("sh");
        limited.args([
            "-c",
            "ulimit -n 64; exec \"$0\" --exact bootstrap::tests::who_could_not_be_let_in_is_let_in_later",
        ]);
        let output = limited.arg(std::env::current_exe().unwrap()).env("QPAIR_TEST_DESCRIPTORS", "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let (_server, address) = start(1, LIMIT);
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(files.len() < 64);
    // Room for this side of the connection, and none for the other.
    files.pop();
    let mut guest = Guest::join(address, 0, 1);
    drop(files);
    assert!(matches!(guest.hear(), FromStore::Roster { .. }));
}

fn listening(device: &str) -> Listening {
    Listening { address: "127.0.0.1:9".parse().unwrap(), device: device.into(), is_on_infiniband: false }
}

#[test]
fn ranks_hear_how_the_others_are_reached_in_order_once_all_have_said_it() {
    let (_server, address) = start(3, LIMIT);
    let mut guests: Vec<_> = [2, 0, 1].into_iter().map(|rank| Guest::join(address, rank, 3)).collect();
    for guest in &mut guests {
        assert!(matches!(guest.hear(), FromStore::Roster { members, .. } if members.len() == 3));
    }
    let devices = ["of rank 2", "of rank 0", "of rank 1"];
    for (guest, device) in guests.iter_mut().zip(devices) {
        guest.say(&encode(&ToStore::Listening(listening(device))));
    }
    let all = FromStore::Listening(["of rank 0", "of rank 1", "of rank 2"].map(listening).to_vec());
    for guest in &mut guests {
        assert_eq!(guest.hear(), all);
    }
    // Whoever says it again says what it should not.
    guests[0].say(&encode(&ToStore::Listening(listening("another"))));
    assert!(matches!(guests[0].hear(), FromStore::Refused { .. }));
}

#[test]
fn who_listens_before_all_have_come_is_refused() {
    let (_server, address) = start(2, LIMIT);
    let mut hasty = Guest::join(address, 1, 2);
    hasty.say(&encode(&ToStore::Listening(listening("soft0"))));
    assert!(matches!(hasty.hear(), FromStore::Refused { .. }));
}

#[test]
fn ranks_that_are_not_set_up_in_time_are_named() {
    let (_server, address) = start(3, Duration::from_millis(100));
    let mut guests: Vec<_> = (0..3).map(|rank| Guest::join(address, rank, 3)).collect();
    guests.iter_mut().for_each(|guest| drop(guest.hear()));
    guests[1].say(&encode(&ToStore::Listening(listening("soft0"))));
    let absent = FromStore::Absent { missing: vec![0, 2], limit: Duration::from_millis(100) };
    guests.iter_mut().for_each(|guest| assert_eq!(guest.hear(), absent));
    // What it says then is too late, and no fault.
    guests[2].say(&encode(&ToStore::Listening(listening("soft0"))));
    guests[2].say(&encode(&ToStore::Leave));
    assert_eq!(guests[0].hear(), FromStore::Left { rank: 2 });
}

#[test]
fn a_rank_that_can_not_be_set_up_is_named_with_its_reason() {
    let (_server, address) = start(2, LIMIT);
    let mut guests: Vec<_> = (0..2).map(|rank| Guest::join(address, rank, 2)).collect();
    guests.iter_mut().for_each(|guest| drop(guest.hear()));
    let fault = Fault::Failed { rank: 1, reason: "no such device".into() };
    guests[1].say(&encode(&ToStore::Report(fault.clone())));
    guests.iter_mut().for_each(|guest| assert_eq!(guest.hear(), FromStore::Verdict(fault.clone())));
}

#[test]
fn who_leaves_before_all_are_set_up_ends_it() {
    let (_server, address) = start(2, LIMIT);
    let mut guests: Vec<_> = (0..2).map(|rank| Guest::join(address, rank, 2)).collect();
    guests.iter_mut().for_each(|guest| drop(guest.hear()));
    guests[1].say(&encode(&ToStore::Leave));
    assert_eq!(guests[0].hear(), FromStore::Verdict(Fault::Gone { rank: 1 }));
}

/// Ranks that each believe to be on that machine, and what their attempts came to.
fn meet(machines: &[&str], limit: Duration) -> Vec<Result<Communicator, BootstrapError>> {
    // Kept until rank 0 has it.
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    drop(held);
    let size = machines.len() as u32;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .zip(machines)
            .map(|(rank, machine)| {
                let host = "127.0.0.1".to_owned();
                let environment = Environment { rank, size, local_rank: 0, host, port, limit, near: None };
                let whereabouts = Whereabouts { machine: (*machine).to_owned(), ..whereabouts() };
                scope.spawn(move || environment.connect_from(whereabouts))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_on_several_hosts_are_where_topology_places_them_and_reach_each_other() {
    let ranks = meet(&["a", "a", "b"], LIMIT);
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let comm = comm.unwrap();
                let mut vector = comm.buffer::<i32>(5).unwrap();
                vector.fill(1 << comm.rank());
                comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                assert_eq!(vector[..], [7; 5]);
                let text = comm.explain().to_string();
                let place = text.lines().find(|line| line.starts_with("device ")).unwrap();
                assert!(std::env::var_os("QPAIR_DEVICE").is_some() || place.contains(": NUMA "), "{text}");
            });
        }
    });
}
