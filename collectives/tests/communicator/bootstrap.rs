//! Meeting at a store: who is missing, who does not belong, and who listens there instead.

use std::io::Write;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use qpair_collectives::{BootstrapError, Communicator, Environment, Meeting, ReduceOp};

use qpair_transport::Guarded;

use crate::port::Port;

fn environment(rank: u32, size: u32, port: u16) -> Environment {
    let limit = Duration::from_secs(20);
    let mut environment = Environment::at(rank, size, "127.0.0.1", port);
    environment.limit = limit;
    environment
}

fn within(limit: Duration, mut environment: Environment) -> Environment {
    environment.limit = limit;
    environment
}

fn connect(environments: Vec<Environment>) -> Vec<Result<Communicator, BootstrapError>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = environments.iter().map(|each| scope.spawn(|| each.connect())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_meet_whoever_comes_first() {
    let port = Port::keep();
    let all = connect((0..4).rev().map(|rank| environment(rank, 4, port.number)).collect());
    std::thread::scope(|scope| {
        for comm in all {
            let comm = comm.unwrap();
            scope.spawn(move || {
                let mut vector = comm.buffer::<i32>(3).unwrap();
                vector.fill(1 << comm.rank());
                comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                assert_eq!(vector[..], [15; 3]);
            });
        }
    });
}

/// The address of this host that leads out of it, if it has one.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback())
}

#[test]
fn ranks_meet_beside_their_launcher_if_rank_0_is_there() {
    let beside = |rank, host: String, port| {
        let hosts = vec![host];
        within(Duration::from_secs(20), Environment::meeting(rank, 2, Meeting::BesideLauncher { hosts, port }))
    };
    let error = beside(0, "192.0.2.77".into(), 4242).connect().unwrap_err();
    assert!(matches!(error, BootstrapError::NotBesideLauncher { .. }), "{error}");
    assert!(error.to_string().contains("pass -x MASTER_ADDR=HOST"), "{error}");
    let Some(address) = outward() else { return println!("skipped: this host has loopback only") };
    let port = Port::keep_everywhere();
    // Rank 0 comes by loopback, and is reached where the other came.
    let all = connect((0..2).map(|rank| beside(rank, address.to_string(), port.number)).collect());
    std::thread::scope(|scope| {
        for comm in all {
            scope.spawn(|| comm.unwrap().barrier().unwrap());
        }
    });
}

#[test]
fn a_single_rank_needs_nobody() {
    let comm = environment(0, 1, Port::keep().number).connect().unwrap();
    comm.barrier().unwrap();
    assert_eq!((comm.rank(), comm.size(), comm.local_rank()), (0, 1, 0));
}

#[test]
fn missing_ranks_are_named_in_time() {
    let port = Port::keep();
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let some = [0, 2].map(|rank| within(limit, environment(rank, 4, port.number)));
    for error in connect(some.to_vec()).into_iter().map(Result::unwrap_err) {
        assert!(matches!(&error, BootstrapError::Absent { missing, size: 4, .. } if missing == &[1, 3]), "{error}");
        assert!(error.to_string().starts_with("ranks 1, 3 of 4 did not arrive within 300ms"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_what_to_do() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let error = environment(0, 2, port).connect().unwrap_err();
    assert!(matches!(&error, BootstrapError::PortTaken { port: taken, .. } if *taken == port), "{error}");
    assert!(error.to_string().contains("set MASTER_PORT to a free port"), "{error}");
}

#[test]
fn without_rank_0_the_others_give_up() {
    let limit = Duration::from_millis(200);
    let port = Port::keep();
    let error = within(limit, environment(1, 2, port.number)).connect().unwrap_err();
    assert!(matches!(error, BootstrapError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains("is it started"), "{error}");
}

#[test]
fn a_stranger_at_the_port_is_recognised() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = stranger.local_addr().unwrap().port();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| stranger.accept().unwrap().0.write_all(b"220 smtp ready\n").unwrap());
        environment(1, 2, port).connect().unwrap_err()
    });
    assert!(matches!(error, BootstrapError::Stranger { .. }), "{error}");
    assert!(error.to_string().contains("220 smtp ready"), "{error}");
}

#[test]
fn ranks_that_contradict_each_other_are_refused() {
    let port = Port::keep();
    let limit = Duration::from_secs(2);
    let ranks = [(0, 3), (1, 3), (1, 3), (2, 4)];
    let all = ranks.map(|(rank, size)| within(limit, environment(rank, size, port.number)));
    let errors: Vec<_> = connect(all.to_vec()).into_iter().map(|end| end.unwrap_err().to_string()).collect();
    assert!(errors[0].contains("rank 2 of 3 did not arrive"), "{errors:?}");
    let twice = errors[1..3].iter().filter(|words| words.contains("refused rank 1: there is another rank 1")).count();
    assert_eq!(twice, 1, "{errors:?}");
    assert!(errors[3].contains("the number of ranks is 3 at rank 0, and 4 at this rank"), "{errors:?}");
}

#[test]
fn a_host_that_does_not_exist_is_an_error() {
    let error = Environment::at(1, 2, "no-such-host.invalid", 4242).connect().unwrap_err();
    assert!(matches!(error, BootstrapError::Resolve { .. }), "{error}");
}

#[test]
fn garbage_does_not_disturb_the_store() {
    let port = Port::keep();
    std::thread::scope(|scope| {
        let rank0 = scope.spawn(|| environment(0, 2, port.number).connect().unwrap().barrier().unwrap());
        let mut strangers = Vec::new();
        while strangers.len() < 3 {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port.number)) {
                // It hangs up on what it does not understand; writing may then fail.
                let _ = stream.write_all(&[b'x'; 70_000]);
                let _ = stream.write_all(b"\n{}\n");
                strangers.push(stream);
            }
        }
        environment(1, 2, port.number).connect().unwrap().barrier().unwrap();
        rank0.join().unwrap();
    });
}

#[test]
fn a_failed_attempt_leaves_the_port_free_for_the_next() {
    let port = Port::keep();
    let attempt = || within(Duration::from_millis(100), environment(0, 2, port.number)).connect();
    for _ in 0..2 {
        let error = attempt().unwrap_err();
        assert!(matches!(&error, BootstrapError::Absent { missing, .. } if missing == &[1]), "{error}");
    }
    let listens = TcpStream::connect(("127.0.0.1", port.number));
    assert!(listens.is_err(), "the store still listens");
}

#[test]
fn ranks_may_wait_for_ever() {
    let port = Port::keep();
    let all = [1, 0].map(|rank| within(Duration::MAX, environment(rank, 2, port.number)));
    std::thread::scope(|scope| {
        for comm in connect(all.to_vec()) {
            scope.spawn(|| comm.unwrap().barrier().unwrap());
        }
    });
}

/// A rank that joins and does nothing more.
fn join(rank: u32, size: u32, port: &Port) -> TcpStream {
    let start = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port.number)) {
            Ok(stream) => break stream,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
        }
    };
    let whereabouts = r#"{"host":"h","machine":"m","node":"m","cores":"0"}"#;
    let line = format!(r#"{{"Join":{{"protocol":18,"size":{size},"rank":{rank},"whereabouts":{whereabouts}}}}}"#);
    let preface = std::mem::take(Guarded::caller(b"qpair store", None).output());
    stream.write_all(&[&preface, line.as_bytes(), b"\n"].concat()).unwrap();
    stream
}

#[test]
fn a_rank_that_ends_while_the_ranks_gather_is_named() {
    let port = Port::keep();
    std::thread::scope(|scope| {
        let rank0 = scope.spawn(|| environment(0, 3, port.number).connect().unwrap_err());
        drop(join(2, 3, &port));
        let error = rank0.join().unwrap();
        assert!(matches!(error, BootstrapError::RankGone { rank: 2 }), "{error}");
    });
}
