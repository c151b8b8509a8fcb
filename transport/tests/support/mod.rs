//! Two workers of one thread, polled in turn; and this program again, as another process.
#![allow(dead_code, reason = "each test program uses a part of it")]

mod fake;
#[cfg(feature = "cuda")]
mod gpu;

use std::env;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use qpair_transport::{CloseReason, Config, EndpointId, Event, Message, OpId, Payload, Tag, Worker};

#[allow(unused_imports, reason = "as above")]
pub use fake::*;
#[cfg(feature = "cuda")]
#[allow(unused_imports, reason = "as above")]
pub use gpu::*;

/// No test waits longer.
pub const LIMIT: Duration = Duration::from_secs(20);

/// The same where thousands of packets are to come, which an emulated host takes long for: as QPAIR_PATIENCE says.
pub fn patient_limit() -> Duration {
    let factor = env::var("QPAIR_PATIENCE").ok().and_then(|text| text.parse::<u32>().ok());
    LIMIT * factor.unwrap_or(1)
}

/// Two connected workers.
pub struct Pair {
    pub a: Worker,
    pub b: Worker,
    /// `a`'s end.
    pub ep_a: EndpointId,
    /// `b`'s end.
    pub ep_b: EndpointId,
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with(Config::default(), Config::default())
    }

    pub fn with(config_a: Config, config_b: Config) -> Pair {
        let mut a = Worker::new(config_a).unwrap();
        let mut b = Worker::new(config_b).unwrap();
        let (ep_a, ep_b) = Pair::connect(&mut a, &mut b);
        Pair { a, b, ep_a, ep_b }
    }

    /// Connects two workers that have nothing else to do.
    pub fn connect(a: &mut Worker, b: &mut Worker) -> (EndpointId, EndpointId) {
        let listener = b.listen("127.0.0.1:0").unwrap();
        let ep_a = a.connect(listener.local_addr()).unwrap();
        let (mut connected, mut accepted) = (false, None);
        let start = Instant::now();
        while !connected || accepted.is_none() {
            match a.poll().unwrap() {
                Some(Event::Connected { ep }) => {
                    assert_eq!(ep, ep_a);
                    connected = true;
                }
                Some(other) => panic!("{}", brief(&other)),
                None => {}
            }
            match b.poll().unwrap() {
                Some(Event::Accepted { ep, listener: by }) => {
                    assert_eq!(by, listener.id());
                    accepted = Some(ep);
                }
                Some(other) => panic!("{}", brief(&other)),
                None => {}
            }
            assert!(start.elapsed() < LIMIT, "no connection");
        }
        (ep_a, accepted.unwrap())
    }

    /// Polls both until `done` of all events so far, of `a` and of `b`.
    pub fn until(&mut self, mut done: impl FnMut(&[Event], &[Event]) -> bool) -> (Vec<Event>, Vec<Event>) {
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while !done(&of_a, &of_b) {
            of_a.extend(self.a.poll().unwrap());
            of_b.extend(self.b.poll().unwrap());
            if start.elapsed() > LIMIT {
                let show = |events: &[Event]| events.iter().map(brief).collect::<Vec<_>>();
                panic!("too long; a: {:?}, b: {:?}", show(&of_a), show(&of_b));
            }
        }
        (of_a, of_b)
    }
}

const PEER: &str = "QPAIR_TEST_PEER";
const ROLE: &str = "QPAIR_TEST_ROLE";

/// Another process of this test program; killed when dropped.
pub struct Process(pub Child);

impl Process {
    /// Starts this program's test `as_a_peer`, which finds out by [`role`] what to do. It connects to `worker`.
    pub fn start(role: &str, worker: &mut Worker) -> Process {
        let listener = worker.listen("127.0.0.1:0").unwrap();
        Process::start_at(role, listener.local_addr())
    }

    /// The same with another address.
    pub fn start_at(role: &str, address: SocketAddr) -> Process {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "as_a_peer", "--nocapture", "--include-ignored"])
            .env(PEER, address.to_string())
            .env(ROLE, role)
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end, which must be a good one.
    pub fn finish(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of this machine that nobody else listens or calls at, with any port: whoever listens there again and again finds
/// the port free. Each process has four of them.
pub fn own_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < 4, "the next would be another process's");
    // Process ids have 22 bits at most.
    let [high, a, b, c] = (std::process::id() << 2 | number).to_be_bytes();
    assert_eq!(high, 0);
    format!("127.{a}.{b}.{c}:0")
}

/// What this process is to do, and the address of the worker that started it; `None` if no test has.
pub fn role() -> Option<(String, String)> {
    Some((env::var(ROLE).ok()?, env::var(PEER).ok()?))
}

/// The connection that comes up.
pub fn connected(worker: &mut Worker) -> EndpointId {
    match next(worker) {
        Event::Connected { ep } | Event::Accepted { ep, .. } => ep,
        other => panic!("{}", brief(&other)),
    }
}

/// The next event of `worker`.
pub fn next(worker: &mut Worker) -> Event {
    worker.wait(Some(LIMIT)).unwrap().expect("an event in time")
}

/// Bytes that differ by length and seed.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// An event in few words.
pub fn brief(event: &Event) -> String {
    match event {
        Event::Received { tag, message, .. } => format!("Received tag {tag}, {} bytes", message.len()),
        Event::ReceivedInto { op, tag, len, .. } => format!("ReceivedInto {op}, tag {tag}, {len} bytes"),
        Event::Sent { op, .. } => format!("Sent {op}"),
        Event::Failed { op, error, .. } => format!("Failed {op}: {error}"),
        Event::Closed { reason, .. } => format!("Closed: {reason}"),
        Event::Rejected { error, .. } => format!("Rejected: {error}"),
        Event::Offered { tag, len, .. } => format!("Offered tag {tag}, {len} bytes"),
        Event::Connected { .. } => "Connected".into(),
        Event::Accepted { .. } => "Accepted".into(),
        _ => "another event".into(),
    }
}

pub fn received(events: &[Event]) -> Vec<(Tag, &Message)> {
    let pick = |event| match event {
        &Event::Received { tag, ref message, .. } => Some((tag, message)),
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}

pub fn sent(events: &[Event]) -> Vec<(OpId, &Payload)> {
    let pick = |event| match event {
        &Event::Sent { op, ref payload } => Some((op, payload)),
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}

pub fn count(events: &[Event], which: impl Fn(&Event) -> bool) -> usize {
    events.iter().filter(|event| which(event)).count()
}

/// Why the connection ended that `event` tells of.
pub fn closed(event: Event) -> CloseReason {
    match event {
        Event::Closed { reason, .. } => reason,
        other => panic!("{}", brief(&other)),
    }
}

pub fn is_closed(event: &Event) -> bool {
    matches!(event, Event::Closed { .. })
}
