//! Meeting at a store: who is missing, who does not belong, and who listens there instead.

use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use qpair_collectives::{BootstrapError, Communicator, Environment, ReduceOp};

fn environment(rank: u32, size: u32, port: u16) -> Environment {
    let limit = Duration::from_secs(20);
    Environment { rank, size, local_rank: rank, host: "127.0.0.1".into(), port, limit }
}

/// A port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connect(environments: Vec<Environment>) -> Vec<Result<Communicator, BootstrapError>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = environments.iter().map(|each| scope.spawn(|| each.connect())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_meet_whoever_comes_first() {
    let port = port();
    let all = connect((0..4).rev().map(|rank| environment(rank, 4, port)).collect());
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

#[test]
fn a_single_rank_needs_nobody() {
    let comm = environment(0, 1, port()).connect().unwrap();
    comm.barrier().unwrap();
    assert_eq!((comm.rank(), comm.size(), comm.local_rank()), (0, 1, 0));
}

#[test]
fn missing_ranks_are_named_in_time() {
    let port = port();
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let some = [0, 2].map(|rank| Environment { limit, ..environment(rank, 4, port) });
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
    let error = Environment { limit, ..environment(1, 2, port()) }.connect().unwrap_err();
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
    let port = port();
    let limit = Duration::from_secs(2);
    let ranks = [(0, 3), (1, 3), (1, 3), (2, 4)];
    let all = ranks.map(|(rank, size)| Environment { limit, ..environment(rank, size, port) });
    let errors: Vec<_> = connect(all.to_vec()).into_iter().map(|end| end.unwrap_err().to_string()).collect();
    assert!(errors[0].contains("rank 2 of 3 did not arrive"), "{errors:?}");
    let twice = errors[1..3].iter().filter(|words| words.contains("there is another rank 1")).count();
    assert_eq!(twice, 1, "{errors:?}");
    assert!(errors[3].contains("WORLD_SIZE is 3 at rank 0, and 4 at this rank"), "{errors:?}");
}

#[test]
fn a_host_that_does_not_exist_is_an_error() {
    let host = "no-such-host.invalid".to_owned();
    let error = Environment { host, ..environment(1, 2, 4242) }.connect().unwrap_err();
    assert!(matches!(error, BootstrapError::Resolve { .. }), "{error}");
}

#[test]
fn garbage_does_not_disturb_the_store() {
    let port = port();
    std::thread::scope(|scope| {
        let rank0 = scope.spawn(move || environment(0, 2, port).connect().unwrap().barrier().unwrap());
        let mut strangers = Vec::new();
        while strangers.len() < 3 {
            if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
                // It hangs up on what it does not understand; writing may then fail.
                let _ = stream.write_all(&[b'x'; 70_000]);
                let _ = stream.write_all(b"\n{}\n");
                strangers.push(stream);
            }
        }
        environment(1, 2, port).connect().unwrap().barrier().unwrap();
        rank0.join().unwrap();
    });
}
