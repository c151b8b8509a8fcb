//! Ranks that say what they should not, played by hand against one that is real; and ranks with little room for messages.

#[cfg(feature = "cuda")]
mod staged;
mod straight;
mod strangers;
mod turns;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use bytes::Bytes;
use qpair_transport::{CloseReason, Config, EndpointId, Event, Message, Near, Unmatched, Worker};
use qpair_verbs::calc::{DataType, ReduceOp};
use qpair_verbs::{Access, Buffer, ExposedRegion, RemoteSlice, Rkey};

use super::compile::{Compiled, Key};
use super::net::{Net, NetSettings};
use super::reach::{REACH, Reach};
use super::tag::{Fields, Kind};
use crate::algorithms::Algorithm;
use crate::bootstrap::{Member, Shared, Watch, whereabouts};
use crate::communicator::Communicator;
use crate::cost::Seats;
use crate::error::CollectiveError;
use crate::machine::Known;
use crate::plan::{Collective, Elements, Ranks, Spec};
use crate::tune::{Tuner, Tuning};

const TOKEN: u64 = 42;
const LIMIT: Duration = Duration::from_secs(60);

fn members() -> Vec<Member> {
    vec![Member { whereabouts: whereabouts(), device: "soft0".into(), is_software: true, staging: None }; 2]
}

/// Rank 1 of two, and where it listens.
fn real() -> (Communicator, SocketAddr) {
    real_among(members())
}

fn real_among(members: Vec<Member>) -> (Communicator, SocketAddr) {
    real_with(members, NetSettings::default())
}

fn real_with(members: Vec<Member>, settings: NetSettings) -> (Communicator, SocketAddr) {
    let mut net = Net::new(1, 2, IpAddr::V4(Ipv4Addr::LOCALHOST), settings, Near::software()).unwrap();
    let address = net.address();
    // It never connects to rank 0, which is below it.
    net.meet([address; 2].into_iter(), TOKEN);
    let comm = Communicator::new(net, Watch::Shared(Shared::new(2)), 1, members, Known::default());
    comm.set_timeout(LIMIT);
    (comm, address)
}

/// Somebody who connects to a rank, and says what a test wants.
struct Forger {
    worker: Worker,
    ep: EndpointId,
    /// Who it says it is.
    rank: u32,
}

impl Forger {
    fn new(address: SocketAddr) -> Forger {
        Forger::saying(address, |_| {})
    }

    /// One that says something as soon as it is connected.
    fn saying(address: SocketAddr, say: impl FnOnce(&mut Forger)) -> Forger {
        let config =
            Config::default().eager_limit(NetSettings::default().eager).endpoints(2).unmatched(Unmatched::HoldLong);
        let mut worker = Worker::new(config).unwrap();
        let ep = worker.connect(address).unwrap();
        let mut forger = Forger { worker, ep, rank: 0 };
        say(&mut forger);
        forger.until(|event| matches!(event, Event::Connected { .. }).then_some(()));
        forger
    }

    /// One that has said that it is rank 0, and what it calls.
    fn rank_0(address: SocketAddr, key: Key) -> Forger {
        let mut forger = Forger::saying(address, |forger| forger.say(Kind::Hello, 0, &TOKEN.to_le_bytes()));
        forger.announce(key);
        forger
    }

    /// Its plan 0 is that for `key`.
    fn announce(&mut self, key: Key) {
        self.announce_as(0, key);
    }

    fn announce_as(&mut self, plan: u16, key: Key) {
        // All that is on GPUs goes by slots here.
        let seats = Seats { gpus_are_staged: true, ..Seats::default() };
        let compiled = Compiled::new(key, 0, &Tuner { seats, ..Tuner::default() }, &[]).unwrap();
        let tag = Fields { kind: Kind::Announce, rank: self.rank, plan, sequence: 0, message: 0 }.encode();
        self.worker.send(self.ep, tag, serde_json::to_vec(compiled.call()).unwrap()).unwrap();
    }

    fn say(&mut self, kind: Kind, message: u32, contents: &[u8]) {
        self.say_in(0, kind, message, contents);
    }

    fn say_in(&mut self, sequence: u16, kind: Kind, message: u32, contents: &[u8]) {
        let tag = Fields { kind, rank: self.rank, plan: 0, sequence, message }.encode();
        self.worker.send(self.ep, tag, Bytes::copy_from_slice(contents)).unwrap();
    }

    /// Polls until an event that `wanted` takes.
    fn until<R>(&mut self, wanted: impl Fn(Event) -> Option<R>) -> R {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LIMIT, "it did not come");
            if let Some(found) = self.worker.poll().unwrap().and_then(&wanted) {
                return found;
            }
            std::thread::yield_now();
        }
    }

    /// The first word of that kind.
    fn hear(&mut self, kind: Kind) -> Message {
        self.until(|event| match event {
            Event::Received { tag, message, .. } => {
                Fields::decode(tag).filter(|fields| fields.kind == kind).map(|_| message)
            }
            _ => None,
        })
    }

    fn is_closed(&mut self) -> CloseReason {
        self.until(|event| if let Event::Closed { reason, .. } = event { Some(reason) } else { None })
    }

    fn expose(&self, len: usize) -> ExposedRegion {
        let buffer: Buffer = self.worker.domain().alloc(len).unwrap();
        buffer.expose(Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap()
    }
}

fn key(wish: Algorithm, elements: u64) -> Key {
    let (data_type, op) = (Some(DataType::F32), Some(ReduceOp::Sum));
    Key { spec: Spec::all_reduce(Ranks(2), Elements(elements), 4), data_type, op, wish, lenient: false, on_gpu: false }
}

type Reduced = Result<Vec<f32>, CollectiveError>;

/// Rank 1 reduces a vector of ones, while `script` plays rank 0, which has said hello.
fn play(key: Key, script: impl FnOnce(&mut Forger, SocketAddr)) -> Reduced {
    play_times(1, key, script)
}

/// The same, several times.
fn play_times(times: u32, key: Key, script: impl FnOnce(&mut Forger, SocketAddr)) -> Reduced {
    play_and(times, key, script, |_| ()).0
}

/// The same, and what `see` sees of the communicator then.
fn play_and<R: Send>(
    times: u32,
    key: Key,
    script: impl FnOnce(&mut Forger, SocketAddr),
    see: fn(&Communicator) -> R,
) -> (Reduced, R) {
    let (comm, address) = real();
    std::thread::scope(|scope| {
        let (wish, elements) = (key.wish, key.spec.total() as usize);
        let rank = scope.spawn(move || {
            comm.set_algorithm(wish);
            let mut vector = comm.buffer::<f32>(elements).unwrap();
            vector.fill(1.0);
            let result = (0..times).try_for_each(|_| comm.all_reduce(&mut vector, ReduceOp::Sum));
            (result.map(|()| vector.to_vec()), see(&comm))
        });
        let mut forger = Forger::rank_0(address, key);
        script(&mut forger, address);
        let start = Instant::now();
        while !rank.is_finished() && start.elapsed() < LIMIT {
            forger.worker.poll().unwrap();
            std::thread::yield_now();
        }
        rank.join().unwrap()
    })
}

/// It is named, and not the rank that hears it.
#[test]
fn a_rank_that_says_it_is_another_is_the_one_that_failed() {
    let key = key(Algorithm::RecursiveDoubling, 10);
    let named = |script: fn(&mut Forger)| {
        let error = play(key.clone(), |forger, _| script(forger)).unwrap_err();
        assert!(matches!(error, CollectiveError::RankFailed { rank: 0, .. }), "{error}");
    };
    named(|forger| {
        forger.rank = 4000;
        forger.say(Kind::Data, 0, &[0; 40]);
    });
    named(|forger| {
        forger.rank = 4000;
        forger.say(Kind::Announce, 0, b"{}");
    });
    named(|forger| forger.say(Kind::Hello, 0, &TOKEN.to_le_bytes()));
}

/// What a rank is told of memory that `data` names.
fn reach(data: RemoteSlice) -> Vec<u8> {
    let mut bytes = [0; REACH];
    Reach { input: None, data: Some(data), scratch: Some(data) }.encode(&mut bytes).to_vec()
}

const LONG: u64 = 5000;
const BYTES: usize = 4 * LONG as usize;

#[test]
fn a_word_that_is_not_due_ends_it_on_both_sides() {
    // By recursive doubling each side reads a message of the other's once it is told; directly, without a word.
    let (doubling, direct) = (Algorithm::RecursiveDoubling, Algorithm::Direct);
    let (begin, data, read, end) = (Kind::Begin, Kind::Data, Kind::Read, Kind::End);
    type Case<'a> = (&'a str, Algorithm, u64, &'a [(Kind, u32)]);
    let cases: [Case<'_>; 9] = [
        ("begun twice", doubling, LONG, &[(begin, 0), (begin, 0)]),
        ("a message before the memory", doubling, LONG, &[(data, 0)]),
        ("the same message twice", doubling, LONG, &[(begin, 0), (data, 0), (data, 0)]),
        ("a message that there is not", doubling, LONG, &[(begin, 0), (data, 7)]),
        ("a message that needs no word", direct, LONG, &[(begin, 0), (data, 0)]),
        ("a word of reading that nobody waits for", direct, LONG, &[(begin, 0), (read, 0)]),
        ("ended twice", doubling, LONG, &[(begin, 0), (end, 0), (end, 0)]),
        ("memory in a short operation", doubling, 4, &[(begin, 0)]),
        ("an end in a short operation", doubling, 4, &[(end, 0)]),
    ];
    for (what, wish, elements, words) in cases {
        let error = play(key(wish, elements), |forger, _| {
            let region = forger.expose(BYTES);
            for &(kind, message) in words {
                let contents = if kind == begin { reach(region.remote(0..BYTES)) } else { Vec::new() };
                forger.say(kind, message, &contents);
            }
            forger.is_closed();
        });
        let error = error.expect_err(what);
        assert!(matches!(error, CollectiveError::RankFailed { rank: 0, .. }), "{what}: {error}");
        assert!(error.to_string().contains("has no use for"), "{what}: {error}");
    }
}

#[test]
fn a_copied_message_that_comes_twice_ends_it() {
    let error = play(key(Algorithm::Ring, 2), |forger, _| {
        // The second of two; the first keeps the operation open.
        forger.say(Kind::Data, 1, &[0; 4]);
        forger.say(Kind::Data, 1, &[0; 4]);
        forger.is_closed();
    });
    let error = error.unwrap_err();
    assert!(error.to_string().contains("has no use for"), "{error}");
}

#[test]
fn memory_that_can_not_be_is_refused() {
    for (addr, len) in [(u64::MAX - 10, 1 << 20), (64, u64::MAX)] {
        let error = play(key(Algorithm::Direct, LONG), |forger, _| {
            forger.say(Kind::Begin, 0, &reach(RemoteSlice { addr, len, rkey: Rkey(7) }));
            forger.is_closed();
        });
        let error = error.unwrap_err();
        assert!(matches!(error, CollectiveError::RankFailed { rank: 0, .. }), "{error}");
        assert!(error.to_string().contains("told of its memory"), "{error}");
    }
}

#[test]
fn memory_that_is_not_the_peers_is_an_error() {
    let wrong_key = |mut slice: RemoteSlice| {
        slice.rkey.0 ^= 0x5a5a_5a5a;
        slice
    };
    let too_long = |slice: RemoteSlice| RemoteSlice { len: 2 * slice.len, addr: slice.addr + slice.len, ..slice };
    let too_short = |slice: RemoteSlice| RemoteSlice { len: 4, ..slice };
    type Change = dyn Fn(RemoteSlice) -> RemoteSlice;
    let cases: [(&Change, u32, &str); 3] =
        [(&wrong_key, 1, "rank 0"), (&too_long, 1, "rank 0"), (&too_short, 0, "what it gave rank 1")];
    for (change, culprit, words) in cases {
        let error = play(key(Algorithm::Direct, LONG), |forger, _| {
            let region = forger.expose(BYTES);
            forger.say(Kind::Begin, 0, &reach(change(region.remote(0..BYTES))));
            forger.is_closed();
        });
        let error = error.unwrap_err();
        assert!(matches!(error, CollectiveError::RankFailed { rank, .. } if rank == culprit), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn who_does_not_know_the_token_is_turned_away() {
    let (comm, address) = real();
    std::thread::scope(|scope| {
        let rank = scope.spawn(move || comm.barrier());
        let mut stranger = Forger::new(address);
        stranger.say(Kind::Hello, 0, &(TOKEN + 1).to_le_bytes());
        stranger.is_closed();
        // The place is still free for the right one.
        let barrier = Key {
            spec: Spec::new(Collective::Barrier, Ranks(2), Elements(0), 1),
            data_type: None,
            op: None,
            wish: Algorithm::Auto,
            lenient: false,
            on_gpu: false,
        };
        let mut right = Forger::rank_0(address, barrier);
        right.hear(Kind::Data);
        right.say(Kind::Data, 0, &[]);
        while !rank.is_finished() {
            right.worker.poll().unwrap();
            std::thread::yield_now();
        }
        rank.join().unwrap().unwrap();
    });
}

#[test]
fn why_a_connection_did_not_come_up_is_told() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut net = Net::new(0, 2, IpAddr::V4(Ipv4Addr::LOCALHOST), NetSettings::default(), Near::software()).unwrap();
    net.meet([net.address(), stranger.local_addr().unwrap()].into_iter(), TOKEN);
    let comm = Communicator::new(net, Watch::Shared(Shared::new(2)), 0, members(), Known::default());
    comm.set_timeout(LIMIT);
    std::thread::scope(|scope| {
        let rank = scope.spawn(move || comm.barrier().unwrap_err());
        let mut stream = stranger.accept().unwrap().0;
        stream.write_all(b"220 smtp ready, and waiting for what you have to say\r\n").unwrap();
        let error = rank.join().unwrap();
        assert!(matches!(error, CollectiveError::RankFailed { rank: 0, .. }), "{error}");
        assert!(error.to_string().contains("its connection to rank 1 did not come up"), "{error}");
        assert!(error.to_string().contains("does not speak this protocol"), "{error}");
    });
}

#[test]
fn a_message_of_a_stranger_is_no_part_of_the_result() {
    let bytes = |value: f32| value.to_le_bytes().repeat(2);
    let vector = play(key(Algorithm::RecursiveDoubling, 2), |forger, address| {
        // The operation runs.
        forger.hear(Kind::Data);
        for rank in [0, 1, 4000] {
            let mut stranger = Forger::new(address);
            stranger.rank = rank;
            stranger.say(Kind::Data, 0, &bytes(100.0));
            stranger.is_closed();
        }
        forger.say(Kind::Data, 0, &bytes(2.0));
    });
    assert_eq!(vector.unwrap(), [3.0; 2]);
}

#[test]
fn a_plan_number_with_another_meaning_is_no_longer_the_same_plan() {
    let key = |elements| key(Algorithm::RecursiveDoubling, elements);
    let error = play_times(2, key(2), |forger, _| {
        forger.say(Kind::Data, 0, &[0; 8]);
        forger.announce(key(3));
        forger.say_in(1, Kind::Data, 0, &[0; 8]);
    });
    let error = error.unwrap_err();
    assert!(matches!(error, CollectiveError::Mismatch(_)), "{error}");
    assert!(error.to_string().contains("of 3 f32"), "{error}");
}

#[test]
fn words_that_wait_for_room_keep_their_order() {
    for window in [1, 2, 5] {
        let settings = NetSettings { window, ..NetSettings::default() };
        let group = Communicator::group_knowing(4, settings, &Known::default()).unwrap();
        std::thread::scope(|scope| {
            for comm in group {
                scope.spawn(move || broadcasts_and_rings(&comm, u64::from(window)));
            }
        });
    }
}

/// Short broadcasts, whose root never waits, so that it uses up the room at its peers, in turn with long all-reduces.
fn broadcasts_and_rings(comm: &Communicator, seed: u64) {
    comm.set_timeout(LIMIT);
    comm.set_tuning(Tuning { eager: Some(64), segment: 512, ..Tuning::default() });
    comm.set_algorithm(Algorithm::Flat);
    let (mut short, mut long) = (comm.buffer::<f32>(4).unwrap(), comm.buffer::<f32>(2000).unwrap());
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..120 {
        let (root, slow) = (draw(4), draw(4));
        for _ in 0..draw(12) {
            short.fill(if comm.rank() == root { round as f32 } else { -1.0 });
            comm.broadcast(&mut short, root).unwrap();
            assert_eq!(short[..], [round as f32; 4]);
        }
        if comm.rank() == slow {
            for _ in 0..50 {
                std::thread::yield_now();
            }
        }
        comm.set_algorithm([Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Direct][round % 3]);
        long.fill(1.0 + comm.rank() as f32);
        comm.all_reduce(&mut long, ReduceOp::Sum).unwrap();
        assert_eq!(long[..], [10.0; 2000]);
    }
}

/// Reads and writes, with reductions and without, and each way that a message can be told of.
#[test]
fn long_messages_go_in_pieces() {
    let settings = NetSettings { piece: 808, ..NetSettings::default() };
    let group = Communicator::group_knowing(3, settings, &Known::default()).unwrap();
    std::thread::scope(|scope| {
        for comm in group {
            scope.spawn(move || {
                let (me, tuning) = (comm.rank(), Tuning { eager: Some(0), segment: u64::MAX, ..Tuning::default() });
                comm.set_tuning(tuning);
                for (algorithm, len) in
                    [Algorithm::Direct, Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Chain]
                        .into_iter()
                        .flat_map(|algorithm| [1, 100, 101, 102, 5000].map(|len| (algorithm, len)))
                {
                    comm.set_algorithm(algorithm);
                    let mut vector = comm.buffer::<f64>(len).unwrap();
                    for round in 1..3 {
                        (0..len).for_each(|at| vector[at] = (round * (me + 1) * at) as f64);
                        comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
                        let right = |at: usize| vector[at] == (round * 6 * at) as f64;
                        assert!((0..len).all(right), "{algorithm} of {len}");
                    }
                }
                let (mut input, mut output) = (comm.buffer::<i64>(3003).unwrap(), comm.buffer::<i64>(3003).unwrap());
                (0..3003).for_each(|at| input[at] = (me * 3003 + at) as i64);
                comm.all_to_all_v(&mut input, &[1001; 3], &mut output, &[1001; 3]).unwrap();
                let given = |at: usize| ((at / 1001) * 3003 + me * 1001 + at % 1001) as i64;
                assert!((0..3003).all(|at| output[at] == given(at)));
                comm.barrier().unwrap();
            });
        }
    });
}
