//! The store, and visitors that are played by hand.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use qpair_transport::{ClusterKey, Guarded};

mod hosts;
#[path = "../../../tests/communicator/port.rs"]
mod port;
mod shrink;

use port::Port;

use super::meeting::Hosting;
use super::message::{FromStore, Listeners, Listening, PROTOCOL, PURPOSE, ToStore, encode};
use super::place::listen;
use super::server::{Server, Terms};
use super::whereabouts::whereabouts;
use super::{Environment, Spot};
use crate::communicator::Communicator;
use crate::deadline::Deadline;
use crate::error::BootstrapError;
use crate::fault::Fault;

const LIMIT: Duration = Duration::from_secs(60);

/// What comes of the first of ever longer limits that is not too short for this machine, where an attempt gives `None`.
fn in_time<T>(attempt: impl Fn(Duration) -> Option<T>) -> T {
    let limits = [50, 500, 5_000, 50_000].map(Duration::from_millis);
    limits.into_iter().find_map(attempt).expect("nobody came in time, however long that was")
}

/// A store at a port that nobody else gets meanwhile.
fn start(size: u32, limit: Duration) -> (Server, SocketAddr) {
    start_with(Terms { size, limit, key: None, ticket: None, places: usize::MAX })
}

fn start_with(terms: Terms) -> (Server, SocketAddr) {
    let listener = listen(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = listener.local_addr().unwrap();
    (Server::start(Hosting { listener, published: None }, terms).unwrap(), address)
}

/// One without a key, and what it has still to hear before anything is said.
struct Guest(BufReader<TcpStream>, Vec<u8>);

impl Guest {
    fn new(address: SocketAddr) -> Guest {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let preface = std::mem::take(Guarded::caller(PURPOSE, None).output());
        let mut guest = Guest(BufReader::new(stream), preface.clone());
        guest.say(&preface);
        guest
    }

    fn join(address: SocketAddr, rank: u32, size: u32) -> Guest {
        Guest::join_with(address, rank, size, None)
    }

    fn join_with(address: SocketAddr, rank: u32, size: u32, ticket: Option<String>) -> Guest {
        let mut guest = Guest::new(address);
        guest.say(&encode(&ToStore::Join {
            protocol: PROTOCOL,
            size,
            rank,
            ticket,
            whereabouts: whereabouts(),
            cost: None,
        }));
        guest
    }

    fn say(&mut self, line: &[u8]) {
        self.0.get_mut().write_all(line).unwrap();
    }

    /// Hears how the other side begins, which is as this one does.
    fn greet(&mut self) {
        let mut theirs = vec![0; self.1.len()];
        self.0.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs, std::mem::take(&mut self.1));
    }

    /// True if something came within `limit`.
    fn has_answer(&mut self, limit: Duration) -> bool {
        self.greet();
        self.0.get_ref().set_read_timeout(Some(limit)).unwrap();
        let came = self.0.fill_buf().is_ok();
        self.0.get_ref().set_read_timeout(Some(LIMIT)).unwrap();
        came
    }

    fn hear(&mut self) -> FromStore {
        self.greet();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

/// Whether the store says that it misses that rank.
fn is_absent(rank: u32, said: &FromStore) -> bool {
    matches!(said, FromStore::Absent { missing, .. } if missing.contains(&rank))
}

#[test]
fn who_comes_after_the_others_gave_up_hears_that() {
    in_time(|limit| {
        let (_server, address) = start(3, limit);
        let absent = FromStore::Absent { missing: vec![0, 2], limit, turned_away: None };
        let heard = Guest::join(address, 1, 3).hear();
        if is_absent(1, &heard) {
            return None;
        }
        assert_eq!(heard, absent);
        for late in [2, 1] {
            assert_eq!(Guest::join(address, late, 3).hear(), absent);
        }
        Some(())
    });
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

/// As programs do that make one communicator after the other by the same environment: rank 0 may be the last to drop the first.
#[test]
fn ranks_meet_again_where_they_met_once_rank_0_is_done() {
    let port = Port::keep();
    let environment = |rank| Environment { limit: LIMIT, ..Environment::at(rank, 2, "127.0.0.1", port.number) };
    for has_failed in [false, true] {
        let mut both = connect([0, 1].map(environment).into());
        let (second, first) = (both.pop().unwrap().unwrap(), both.pop().unwrap().unwrap());
        if has_failed {
            second.abort("as a test wants it");
        }
        std::thread::scope(|scope| {
            let again = scope.spawn(|| {
                drop(second);
                environment(1).connect()
            });
            // It comes to the store of the first meeting meanwhile.
            std::thread::sleep(Duration::from_millis(300));
            assert!(!again.is_finished(), "{:?}", again.join());
            drop(first);
            let own = environment(0).connect().unwrap();
            assert_eq!((own.rank(), again.join().unwrap().unwrap().rank()), (0, 1));
        });
    }
}

#[test]
fn who_meets_again_and_waits_too_long_hears_who_has_to_be_done() {
    let port = Port::keep();
    let environment = |rank| Environment { limit: LIMIT, ..Environment::at(rank, 2, "127.0.0.1", port.number) };
    let mut both = connect([0, 1].map(environment).into());
    drop(both.pop());
    let again = Environment { limit: Duration::from_millis(200), ..environment(1) }.connect().unwrap_err();
    assert!(matches!(&again, BootstrapError::Refused { rank: 1, reason } if reason.contains("drop it")), "{again}");
}

#[test]
fn a_store_that_ends_while_ranks_gather_says_so() {
    let (server, address) = start(3, LIMIT);
    let mut refused = Guest::join(address, 7, 3);
    assert!(matches!(refused.hear(), FromStore::Refused { .. }));
    // Two ranks of one number: that one is refused shows that the other was let in, whichever comes first.
    let mut twins = [Guest::join(address, 1, 3), Guest::join(address, 1, 3)];
    let until = Deadline::after(LIMIT);
    let mut turns = (0..).map(|turn| turn % 2).take_while(|_| !until.is_over());
    let refused = turns.find(|&at| twins[at].has_answer(Duration::from_millis(5))).expect("neither was refused");
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

/// What came of ranks that connect at the same time.
fn connect(environments: Vec<Environment>) -> Vec<Result<Communicator, BootstrapError>> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = environments.iter().map(|each| scope.spawn(|| each.connect())).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn strangers_that_hold_connections_open_make_room_for_ranks() {
    let (_server, address) = start_with(Terms { size: 3, limit: LIMIT, key: None, ticket: None, places: 8 });
    // Without a word, with a beginning, and with half a line.
    let mut idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (at, stream) in idle.iter_mut().enumerate() {
        // Those that had to go can not be written to.
        let _ = stream.write_all([&b""[..], b"QP", b"QPTR\x02\x02\0\0\0\0\0\0{\"Join\":"][at % 3]);
    }
    let mut guests: Vec<_> = (0..3).map(|rank| Guest::join(address, rank, 3)).collect();
    for guest in &mut guests {
        assert!(matches!(guest.hear(), FromStore::Roster { .. }));
    }
    // None of them is sent home for who comes later.
    drop((0..20).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>());
    assert!(guests.iter_mut().all(|guest| !guest.has_answer(Duration::from_millis(20))));
}

#[test]
fn strangers_that_flood_the_store_cost_it_little_and_are_hung_up_on() {
    let (_server, address) = start(2, LIMIT);
    let mut first = Guest::join(address, 0, 2);
    std::thread::scope(|scope| {
        for flood in [&b"x"[..], b"QPTR\x02\x02\0\0\0\0\0\0", b"\n"] {
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.set_write_timeout(Some(LIMIT)).unwrap();
                    let mut sent = flood.len();
                    stream.write_all(flood).unwrap();
                    let end = loop {
                        match stream.write_all(&[b'x'; 1 << 12]) {
                            Ok(()) => sent += 1 << 12,
                            Err(error) => break error,
                        }
                        // What the system keeps, and no more.
                        assert!(sent < 64 << 20, "the store reads on and on");
                    };
                    assert_ne!(end.kind(), ErrorKind::WouldBlock, "the store neither reads on nor hangs up");
                }
            });
        }
    });
    let mut second = Guest::join(address, 1, 2);
    assert!(matches!(first.hear(), FromStore::Roster { .. }) && matches!(second.hear(), FromStore::Roster { .. }));
}

/// As on a node that two jobs share, whose ports are the same.
#[test]
fn ranks_of_another_job_at_the_same_port_are_refused() {
    let port = Port::keep();
    let environment = |rank, job: &str| Environment {
        job: Some(job.to_owned()),
        limit: LIMIT,
        ..Environment::at(rank, 2, "127.0.0.1", port.number)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| environment(0, "Slurm 7.31").connect());
        let refused = environment(1, "Slurm 8.0").connect().unwrap_err().to_string();
        assert!(refused.contains("another job"), "{refused}");
        let second = environment(1, "Slurm 7.31").connect();
        assert_eq!((first.join().unwrap().unwrap().size(), second.unwrap().size()), (2, 2));
    });
}

#[test]
fn who_has_no_ticket_of_the_job_is_refused() {
    let ticket = Some("sesame".to_owned());
    let (_server, address) = start_with(Terms { size: 1, limit: LIMIT, key: None, ticket: ticket.clone(), places: 64 });
    for wrong in [None, Some("barley".to_owned())] {
        let said = Guest::join_with(address, 0, 1, wrong).hear();
        assert!(matches!(&said, FromStore::Refused { reason } if reason.contains("another job")), "{said:?}");
    }
    assert!(matches!(Guest::join_with(address, 0, 1, ticket).hear(), FromStore::Roster { .. }));
}

/// Ranks with these keys at one port.
fn keyed(keys: &[Option<u8>], limit: Duration) -> Vec<Result<Communicator, BootstrapError>> {
    keyed_at(&Port::keep(), keys, limit)
}

fn keyed_at(port: &Port, keys: &[Option<u8>], limit: Duration) -> Vec<Result<Communicator, BootstrapError>> {
    let rank = |(rank, key): (u32, &Option<u8>)| Environment {
        limit,
        cluster_key: key.map(|byte| ClusterKey::from_bytes([byte; 32])),
        ..Environment::at(rank, keys.len() as u32, "127.0.0.1", port.number)
    };
    connect((0..).zip(keys).map(rank).collect())
}

#[test]
fn ranks_that_have_the_same_key_meet() {
    let mut ranks = keyed(&[Some(7); 3], LIMIT).into_iter().map(Result::unwrap);
    let [first, second, third] = [(); 3].map(|()| ranks.next().unwrap());
    std::thread::scope(|scope| {
        for comm in [second, third] {
            scope.spawn(move || comm.barrier().unwrap());
        }
        first.barrier().unwrap();
    });
}

#[test]
fn strangers_that_claim_to_have_the_key_do_not_keep_ranks_out() {
    let (port, is_over) = (Port::keep(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stranger = || {
            // Right up to what only the key gives.
            let key = Some((ClusterKey::from_bytes([9; 32]), [3; 32]));
            let preface = std::mem::take(Guarded::caller(PURPOSE, key).output());
            let claim = [&preface[..], &[48, 0], &[b'x'; 48]].concat();
            let (mut turned_away, until) = (0, Deadline::after(LIMIT));
            while (turned_away == 0 || !is_over.load(Ordering::Relaxed)) && !until.is_over() {
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port.number)) else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                let sent = stream.write_all(&claim);
                turned_away += u32::from(sent.is_ok() && stream.read_to_end(&mut Vec::new()).is_ok());
            }
            turned_away
        };
        let strangers = [(); 2].map(|()| scope.spawn(stranger));
        let ranks = keyed_at(&port, &[Some(7); 4], LIMIT);
        is_over.store(true, Ordering::Relaxed);
        // The store is there as long as its rank.
        let turned_away = strangers.map(|stranger| stranger.join().unwrap());
        assert_eq!(ranks.into_iter().map(Result::unwrap).count(), 4);
        assert!(!turned_away.contains(&0));
    });
}

#[test]
fn a_rank_with_another_key_or_none_is_not_let_in_and_named_to_the_others() {
    for wrong in [Some(8), None] {
        let (zero, one) = in_time(|limit| {
            let ends = keyed(&[Some(7), wrong], limit).into_iter().map(Result::unwrap_err);
            let [zero, one]: [BootstrapError; 2] = ends.collect::<Vec<_>>().try_into().unwrap();
            let came = matches!(&zero, BootstrapError::Absent { turned_away: Some(_), .. })
                && !matches!(one, BootstrapError::NoAnswer { .. });
            came.then(|| (zero.to_string(), one.to_string()))
        });
        assert!(one.starts_with("rank 0 does not answer this rank") && one.contains("key"), "{one}");
        assert!(zero.contains("rank 1 of 2 did not arrive") && zero.contains("turned away"), "{zero}");
    }
}

fn listening(device: &str) -> Listening {
    Listening {
        address: "127.0.0.1:9".parse().unwrap(),
        device: device.into(),
        is_on_infiniband: false,
        is_software: true,
        staging: None,
        rate_mbps: None,
        stand_in_port: None,
    }
}

#[test]
fn ranks_hear_how_the_others_are_reached_in_order_once_all_have_said_it() {
    let (_server, address) = start(3, LIMIT);
    let mut guests: Vec<_> = [2, 0, 1].into_iter().map(|rank| Guest::join(address, rank, 3)).collect();
    for guest in &mut guests {
        assert!(matches!(guest.hear(), FromStore::Roster { members, .. } if members.clone().unpack(3).is_some()));
    }
    let devices = ["of rank 2", "of rank 0", "of rank 1"];
    for (guest, device) in guests.iter_mut().zip(devices) {
        guest.say(&encode(&ToStore::Listening(listening(device))));
    }
    let all = FromStore::Listening(Listeners::pack(&["of rank 0", "of rank 1", "of rank 2"].map(listening)));
    for guest in &mut guests {
        assert_eq!(guest.hear(), all);
    }
    // Whoever says it again says what it should not.
    guests[0].say(&encode(&ToStore::Listening(listening("another"))));
    assert!(matches!(guests[0].hear(), FromStore::Refused { .. }));
}

#[test]
fn who_listens_or_asks_who_is_left_before_all_have_come_is_refused() {
    let spot = Spot { address: "127.0.0.1:9".parse().unwrap(), ticket: 0 };
    for hasty in [ToStore::Listening(listening("soft0")), ToStore::Shrink { spot, limit: LIMIT }] {
        let (_server, address) = start(2, LIMIT);
        let mut guest = Guest::join(address, 1, 2);
        guest.say(&encode(&hasty));
        assert!(matches!(guest.hear(), FromStore::Refused { .. }));
    }
}

#[test]
fn ranks_that_are_not_set_up_in_time_are_named() {
    in_time(|limit| {
        let (_server, address) = start(3, limit);
        let mut guests: Vec<_> = (0..3).map(|rank| Guest::join(address, rank, 3)).collect();
        if guests.iter_mut().any(|guest| !matches!(guest.hear(), FromStore::Roster { .. })) {
            return None;
        }
        guests[1].say(&encode(&ToStore::Listening(listening("soft0"))));
        let absent = FromStore::Absent { missing: vec![0, 2], limit, turned_away: None };
        for guest in &mut guests {
            let heard = guest.hear();
            if is_absent(1, &heard) {
                return None;
            }
            assert_eq!(heard, absent);
        }
        // What it says then is too late, and no fault.
        guests[2].say(&encode(&ToStore::Listening(listening("soft0"))));
        guests[2].say(&encode(&ToStore::Leave { goes_on: true }));
        assert_eq!(guests[0].hear(), FromStore::Left { ranks: vec![2] });
        Some(())
    });
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
    guests[1].say(&encode(&ToStore::Leave { goes_on: true }));
    assert_eq!(guests[0].hear(), FromStore::Verdict(Fault::Gone { rank: 1 }));
}
