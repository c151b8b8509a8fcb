//! Races between a side that withdraws its memory and a peer in full flight.

use std::time::{Duration, Instant};

use qpair_verbs::Access;

use crate::harness::{Command, CqId, Env, LIMIT, Mem, Pair, QpId, QpSpec, Region, Side, is_soft};

two_sided! {
    revoked_memory_does_not_change_any_more,
    receives_of_a_dropped_queue_pair_do_not_change_any_more,
    failing_in_full_flight_gives_every_receive_back,
    many_threads_share_a_device,
}

two_processes! {
    a_peer_stopped_in_full_flight_does_not_touch_revoked_memory,
}

/// Runs `act` while the far side streams into `target`; gives the failure that ended the stream.
fn while_streaming<T>(pair: &mut Pair, target: &Region, sends: bool, act: impl FnOnce(&mut Side) -> T) -> (T, String) {
    let Pair { near, far } = pair;
    let stream = Command::Stream { qp: QpId(0), remote: target.remote, sends };
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| far.ask::<String>(stream));
        let start = Instant::now();
        while near.look_at(target, 0, 1).head == [0] {
            assert!(start.elapsed() < LIMIT, "the stream does not begin");
        }
        (act(near), stream.join().expect("the stream"))
    })
}

fn revoked_memory_does_not_change_any_more(env: &Env) {
    for len in [8, 4096, 1 << 20, 1 << 20] {
        let mut pair = env.rc();
        let target = pair.near.expose(len, Access::REMOTE_WRITE);
        let ((), failure) = while_streaming(&mut pair, &target, false, |near| {
            let start = Instant::now();
            while let Err(why) = near.revoke_and_watch(&target, Duration::from_millis(5)) {
                assert_eq!(why, "PeerAccess");
                assert!(start.elapsed() < LIMIT, "the region stays in use");
            }
        });
        assert_eq!(failure, "remote access error");
    }
}

fn receives_of_a_dropped_queue_pair_do_not_change_any_more(env: &Env) {
    for len in [200, 1 << 20] {
        let mut pair = env.pair(&QpSpec::rc(), &QpSpec::rc().impatient());
        let target = pair.near.expose(len, Access::REMOTE_WRITE);
        let landing = pair.near.expose(len, Access::NONE);
        for wr_id in 0..100 {
            // All into the same memory: the last message wins, as long as there are messages.
            pair.near.recv(Mem::Region { region: landing.id, start: 0, end: len }, wr_id);
        }
        let ((), failure) = while_streaming(&mut pair, &target, true, |near| {
            near.drop_qp(QpId(0));
            near.revoke_and_watch(&landing, Duration::from_millis(5)).expect("no receive is posted any more");
            near.revoke_and_watch(&target, Duration::from_millis(5)).expect("nobody reaches it any more");
        });
        assert!(["transport retries exceeded", "work request flushed"].contains(&failure.as_str()), "{failure}");
    }
}

fn failing_in_full_flight_gives_every_receive_back(env: &Env) {
    for _ in 0..5 {
        let mut pair = env.pair(&QpSpec::rc(), &QpSpec::rc().impatient());
        let target = pair.near.expose(64 << 10, Access::REMOTE_WRITE);
        for wr_id in 0..100 {
            pair.near.recv(Mem::blank(64 << 10), wr_id);
        }
        let (ids, _) = while_streaming(&mut pair, &target, true, |near| {
            near.fail_qp(QpId(0));
            (0..100).map(|_| near.done().wr_id).collect::<Vec<_>>()
        });
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
        assert!(pair.near.try_done(CqId(0), Duration::ZERO).is_none());
    }
}

fn many_threads_share_a_device(env: &Env) {
    std::thread::scope(|scope| {
        for thread in 0..6 {
            scope.spawn(move || {
                let mut pair = env.rc();
                let target = pair.far.expose(10_000, Access::REMOTE_ALL);
                for turn in 0..60 {
                    let (seed, len) = (1000 * thread + turn, [8, 300, 10_000][turn as usize % 3]);
                    pair.far.recv(Mem::blank(len), seed);
                    pair.near.post(crate::harness::Work::send(Mem::seeded(len, seed)));
                    let write = crate::harness::Work::write(Mem::seeded(len, seed), target.part(0, len as u64));
                    pair.near.post(write.signaled());
                    let bytes = crate::harness::Fill::Seed(seed).bytes(len);
                    pair.far.done().memory.assert_is(&bytes);
                    pair.near.done().memory.assert_is(&bytes);
                    pair.far.look_at(&target, 0, len).assert_is(&bytes);
                }
            });
        }
    });
}

fn a_peer_stopped_in_full_flight_does_not_touch_revoked_memory(env: &Env) {
    if !env.far_is_near() {
        return;
    }
    for _ in 0..4 {
        let mut pair = env.rc();
        let target = pair.near.expose(if is_soft() { 32 << 20 } else { 1 << 20 }, Access::REMOTE_WRITE);
        let Pair { near, far } = &mut pair;
        let peer = far.peer().expect("a process");
        peer.tell(&Command::Stream { qp: QpId(0), remote: target.remote, sends: false });
        let start = Instant::now();
        while near.look_at(&target, 0, 1).head == [0] {
            assert!(start.elapsed() < LIMIT, "the stream does not begin");
        }
        peer.stop(true);
        let first = near.revoke_and_watch(&target, Duration::from_millis(5));
        assert!(start.elapsed() < LIMIT, "revoking waits for ever");
        peer.stop(false);
        if let Err(why) = first {
            // It was stopped in the middle of an access: the memory comes free once it goes on.
            assert_eq!(why, "PeerAccess");
            near.revoke_and_watch(&target, Duration::from_millis(5)).expect("the peer has left");
        }
    }
}
