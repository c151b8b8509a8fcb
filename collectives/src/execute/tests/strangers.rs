//! Who is no rank, and connects all the same.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Whether a rank waits in vain for as long as `flood` goes on.
fn waits_as_long_as(flood: impl Fn(SocketAddr) + Sync) -> bool {
    let (comm, address) = real();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            let start = Instant::now();
            while !is_over.load(Ordering::Acquire) && start.elapsed() < LIMIT / 6 {
                flood(address);
                // Far more often than the limit, and not so often that the system has no ports left.
                std::thread::sleep(Duration::from_millis(2));
            }
            !is_over.load(Ordering::Acquire)
        });
        comm.set_timeout(Duration::from_millis(200));
        let error = comm.barrier().unwrap_err();
        is_over.store(true, Ordering::Release);
        assert!(matches!(error, CollectiveError::TimedOut { by: 1, .. }), "{error}");
        flooding.join().unwrap()
    })
}

#[test]
fn connections_of_strangers_put_no_limit_off() {
    assert!(!waits_as_long_as(|address| {
        // Words that are none, for it to be refused.
        let _ = TcpStream::connect(address).and_then(|mut stream| stream.write_all(&[7; 64]));
    }));
}

#[test]
fn who_does_not_say_which_rank_it_is_is_turned_away() {
    let settings = NetSettings { hello: Duration::from_millis(300), ..NetSettings::default() };
    let (comm, address) = real_with(members(), settings);
    let key = key(Algorithm::RecursiveDoubling, 2);
    std::thread::scope(|scope| {
        let rank = scope.spawn(move || {
            comm.set_algorithm(Algorithm::RecursiveDoubling);
            let mut vector = comm.buffer::<f32>(2).unwrap();
            comm.all_reduce(&mut vector, ReduceOp::Sum).map(|()| vector.to_vec())
        });
        // More than there are places for, if they were kept.
        for _ in 0..10 {
            let reason = Forger::new(address).is_closed();
            assert!(matches!(reason, CloseReason::Remote | CloseReason::PeerLost(_)), "{reason}");
        }
        let mut forger = Forger::rank_0(address, key);
        forger.say(Kind::Data, 0, &[0; 8]);
        let start = Instant::now();
        while !rank.is_finished() {
            assert!(start.elapsed() < LIMIT, "the rank waits on");
            forger.worker.poll().unwrap();
        }
        assert_eq!(rank.join().unwrap().unwrap(), [0.0; 2]);
    });
}
