//! A process that dies in the middle of work on all layers: each layer of the other says so, in bounded time, and holds on
//! to nothing.

use std::env;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use qpair::collectives::{CollectiveError, Environment};
use qpair::transport::{CloseReason, EndpointId};
use qpair::verbs::{ExposedRegion, QpAddress, QpState, RemoteSlice};
use qpair::{Access, Communicator, CompletionQueue, Config, Context, Event, QueuePair, ReduceOp, Tag, Worker};

mod common;
#[path = "../collectives/tests/communicator/port.rs"]
mod port;

use common::{Holdings, LIMIT, done, next};
use port::Port;

#[test]
fn a_killed_process_is_reported_on_every_layer() {
    killed(); // what a process makes once and keeps
    let before = Holdings::now();
    killed();
    before.wait_for_again();
}

fn killed() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let kept = Port::keep();
    let port = kept.number;
    let mut peer = Peer::start(&listener.local_addr(), port);
    let Event::Accepted { ep, .. } = next(&mut worker) else { panic!("accepts first") };
    let Side { mut qp, mut cq, theirs, _ours } = Side::connect(&mut worker, ep);
    let mut comm = rank(0, port);

    let (busy, all_busy) = mpsc::sync_channel(3);
    let [for_transport, for_verbs, for_collectives] = [busy.clone(), busy.clone(), busy];
    let (closed, faulted, gone) = std::thread::scope(|scope| {
        let closed = scope.spawn(|| until_closed(&mut worker, ep, for_transport));
        let faulted = scope.spawn(|| until_faulted(&mut qp, &mut cq, theirs, for_verbs));
        let gone = scope.spawn(|| until_gone(&mut comm, for_collectives));
        let all_busy = (0..3).all(|_| all_busy.recv_timeout(LIMIT).is_ok());
        peer.0.kill().unwrap(); // which ends all of them, whatever happened before
        let killed = Instant::now();
        assert!(all_busy, "a layer came to no end of {ROUNDS} operations");
        [closed.join().unwrap(), faulted.join().unwrap(), gone.join().unwrap()].map(|end| end - killed).into()
    });
    for (layer, after) in [("transport", closed), ("verbs", faulted), ("collectives", gone)] {
        assert!(after < Duration::from_secs(2), "{layer} took {after:?}");
    }
    assert_eq!(qp.state(), QpState::Err);
}

/// Messages back and forth, until the connection is closed; when it was.
fn until_closed(worker: &mut Worker, ep: EndpointId, busy: SyncSender<()>) -> Instant {
    for round in 0.. {
        worker.send_copy(ep, Tag(round), &[1; 100]).ok();
        match next(worker) {
            Event::Received { .. } => {}
            Event::Closed { reason: CloseReason::PeerLost(_), .. } => break,
            other => panic!("{other:?}"),
        }
        if round == ROUNDS {
            busy.send(()).unwrap();
        }
    }
    Instant::now()
}

/// WRITEs, until one fails; when it did.
fn until_faulted(qp: &mut QueuePair, cq: &mut CompletionQueue, theirs: RemoteSlice, busy: SyncSender<()>) -> Instant {
    for round in 0.. {
        qp.write_inline(&[round as u8; 8], theirs).signaled().post().unwrap();
        if cq.wait_for(LIMIT).unwrap().ok().is_err() {
            break;
        }
        if round == ROUNDS {
            busy.send(()).unwrap();
        }
    }
    Instant::now()
}

/// All-reduces, until one fails; when it did.
fn until_gone(comm: &mut Communicator, busy: SyncSender<()>) -> Instant {
    let mut vector = comm.buffer::<f32>(10_000).unwrap();
    for round in 0.. {
        match comm.all_reduce(&mut vector, ReduceOp::Max) {
            Ok(()) => {}
            Err(CollectiveError::RankGone { rank: 1, .. }) => break,
            Err(other) => panic!("{other}"),
        }
        if round == ROUNDS {
            busy.send(()).unwrap();
        }
    }
    Instant::now()
}

/// The other process: this program again, started to run [`as_the_peer`]. It does not outlive the test.
struct Peer(Child);

impl Peer {
    fn start(address: &SocketAddr, port: u16) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "as_the_peer", "--include-ignored"]).stdout(Stdio::null());
        command.env(ADDRESS, address.to_string()).env(PORT, port.to_string());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
#[ignore = "needs the test above to start it, as its other process"]
fn as_the_peer() {
    let (Ok(address), Ok(port)) = (env::var(ADDRESS), env::var(PORT)) else { return };
    let mut worker = Worker::new(Config::default()).unwrap();
    let ep = worker.connect(address.as_str()).unwrap();
    assert!(matches!(next(&mut worker), Event::Connected { .. }));
    let side = Side::connect(&mut worker, ep);
    let comm = rank(1, port.parse().unwrap());
    std::thread::spawn(move || {
        while let Event::Received { ep, tag, message } = next(&mut worker) {
            worker.send_copy(ep, tag, &message).unwrap();
        }
    });
    let mut vector = comm.buffer::<f32>(10_000).unwrap();
    while comm.all_reduce(&mut vector, ReduceOp::Max).is_ok() {} // until it is killed, or the test is
    drop(side);
}

/// A queue pair to the other process, and memory that each may write.
struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    theirs: RemoteSlice,
    _ours: ExposedRegion,
}

impl Side {
    /// Sends what the other side needs as a message, takes the like, and connects.
    fn connect(worker: &mut Worker, ep: EndpointId) -> Self {
        let ctx = Context::open("soft0").unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let mut cq = ctx.create_cq(16).unwrap();
        let qp = pd.rc(&cq).build().unwrap();
        let ours = pd.expose(4096, Access::REMOTE_WRITE).unwrap();
        let offer = serde_json::to_vec(&(qp.address(), ours.remote(0..8))).unwrap();
        worker.send_copy(ep, Tag(0), &offer).unwrap();
        let Event::Received { message, .. } = next(worker) else { panic!("the other side's offer comes first") };
        let (address, theirs): (QpAddress, RemoteSlice) = serde_json::from_slice(&message).unwrap();
        let mut qp = qp.connect(&address).unwrap();
        qp.write_inline(&[1; 8], theirs).signaled().post().unwrap();
        done(&mut cq);
        Self { qp, cq, theirs, _ours: ours }
    }
}

fn rank(rank: u32, port: u16) -> Communicator {
    let mut environment = Environment::at(rank, 2, "127.0.0.1", port);
    environment.limit = LIMIT;
    environment.connect().unwrap()
}

const ADDRESS: &str = "QPAIR_TEST_ADDRESS";
const PORT: &str = "QPAIR_TEST_PORT";
/// Operations on each layer before the process is killed.
const ROUNDS: u64 = 50;
