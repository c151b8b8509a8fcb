//! Two hosts with a bad network between them: packets get lost, come twice, overtake each other; the cable is pulled, for a
//! moment or for good, or one of two. The hosts are network namespaces, which takes root, `ip` and Python; without, the tests say so.

mod support;

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use qpair_transport::{CloseReason, Config, EndpointId, Event, Rail, Tag, Worker};
use support::*;

/// Messages that each side sends.
const MESSAGES: u64 = 240;
/// Every so many is a long one.
const LONG_EVERY: u64 = 20;
const LONG: usize = 100_000;
const SHORT: usize = 3000;
/// Longest message that is one packet.
const DATAGRAM: usize = 900;
/// So long are they where there are rails, which short ones are not worth while for.
const LONG_ON_RAILS: usize = 600_000;
/// Messages of this side that may be under way.
const AHEAD: u64 = 50;

const SERVER: &str = "10.77.0.1:4300";
/// The same by the other link.
const SERVER_BESIDE: &str = "10.78.0.1:4300";
const SEED: &str = "QPAIR_SEED";

/// The link, and where its hosts are.
struct Link {
    relay: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    hosts: Vec<String>,
}

impl Link {
    /// `None` where there can be none.
    fn new() -> Option<Link> {
        Link::of(1)
    }

    /// So many of them, beside each other.
    fn of(links: usize) -> Option<Link> {
        let seed = env::var(SEED).unwrap_or_else(|_| (std::process::id() % 10_000).to_string());
        eprintln!("{SEED}={seed}");
        let relay = Command::new("python3")
            .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apart/link.py"), &seed, &links.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut relay) = relay else {
            eprintln!("skipped: no python3");
            return None;
        };
        let (input, output) = (relay.stdin.take().unwrap(), relay.stdout.take().unwrap());
        let mut link = Link { relay, input, output: BufReader::new(output), hosts: Vec::new() };
        let line = link.line();
        link.hosts = line.split_whitespace().map(str::to_owned).collect();
        if link.hosts.len() != 2 {
            eprintln!("skipped: no network namespaces of its own; as root it would have them");
            return None;
        }
        Some(link)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn set(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
        assert_eq!(self.line(), "done\n");
    }

    /// Starts this program's test `as_a_host` on one of the hosts.
    fn start(&self, host: usize, role: &str) -> Host {
        let mut process = Command::new("nsenter")
            .args(["-t", &self.hosts[host], "-n"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "as_a_host", "--nocapture", "--include-ignored"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Host { process: Process(process), output }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Its namespaces go with the processes in them, which it ends.
        let _ = self.relay.kill();
        let _ = self.relay.wait();
    }
}

const ROLE: &str = "QPAIR_TEST_HOST";

/// A process on one of the hosts, and what it says.
struct Host {
    process: Process,
    output: BufReader<ChildStdout>,
}

impl Host {
    /// Waits until it says so.
    fn says(&mut self, what: &str) {
        let mut all = String::new();
        loop {
            let from = all.len();
            let read = self.output.read_line(&mut all).unwrap();
            assert!(read > 0, "it ended without saying {what:?}: {all}");
            if all[from..].trim_end().ends_with(what) {
                return;
            }
        }
    }

    fn finish(self) {
        let Host { process, mut output } = self;
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        process.finish();
    }
}

/// What was seen of a connection.
#[derive(Default)]
struct Seen {
    recovers: bool,
    /// All rails were used.
    all_up: bool,
    /// A rail was left out, and all were used after that.
    left_out: bool,
    is_back: bool,
}

impl Seen {
    /// Says each thing once.
    fn look(&mut self, worker: &Worker, ep: EndpointId) {
        let Some(now) = worker.explain(ep) else { return };
        if now.stage == "recovering" && !std::mem::replace(&mut self.recovers, true) {
            println!("recovering");
        }
        if now.rails.iter().any(|rail| rail.stage == "left out") && !std::mem::replace(&mut self.left_out, true) {
            println!("left out");
        }
        if now.rails.iter().all(|rail| rail.stage == "up") {
            self.all_up = true;
            self.is_back = self.left_out;
        }
    }
}

/// How an exchange went.
#[derive(Default)]
struct Exchange {
    seen: Seen,
    /// Length of long messages, and greatest of others.
    long: usize,
    short: usize,
    /// Long messages that did not come.
    lost: u64,
    sent: u64,
    ended: u64,
    came: u64,
}

impl Exchange {
    /// What is sent as number `number`.
    fn contents(&self, number: u64) -> Vec<u8> {
        let len =
            if number % LONG_EVERY == LONG_EVERY - 1 { self.long } else { 8 + (number as usize * 37) % self.short };
        pattern(len, number as usize)
    }

    /// Sends and receives until `messages` each way are done, or the connection is lost.
    fn run(&mut self, worker: &mut Worker, ep: EndpointId, messages: u64) -> Option<CloseReason> {
        let start = Instant::now();
        let mut reason = None;
        while reason.is_none() && (self.ended < messages || self.came < messages) {
            while self.seen.all_up && self.sent < messages && self.sent - self.ended < AHEAD {
                match worker.send(ep, Tag(1), self.contents(self.sent)) {
                    Ok(_) => self.sent += 1,
                    // It is lost, and says so next.
                    Err(_) => break,
                }
            }
            let event = worker.wait(Some(LIMIT / 1000)).unwrap();
            self.seen.look(worker, ep);
            let stuck = start.elapsed() >= 3 * LIMIT;
            assert!(!stuck, "{} sent, {} ended, {} came: {:?}", self.sent, self.ended, self.came, worker.explain(ep));
            let Some(event) = event else { continue };
            match event {
                Event::Sent { .. } | Event::Failed { .. } => self.ended += 1,
                Event::Received { message, .. } => {
                    // When the connection breaks, short messages that came behind a long one come without it.
                    if self.came % LONG_EVERY == LONG_EVERY - 1 && message.len() < self.long {
                        self.lost += 1;
                        self.came += 1;
                    }
                    assert!(message == self.contents(self.came), "message {} comes next", self.came);
                    self.came += 1;
                    if self.came == MESSAGES / 4 {
                        println!("begun");
                    }
                }
                Event::Closed { reason: why, .. } => reason = Some(why),
                other => panic!("{}", brief(&other)),
            }
        }
        reason
    }
}

#[test]
#[ignore = "needs a test below to start it, on one of two hosts"]
fn as_a_host() {
    let Ok(role) = env::var(ROLE) else { return };
    let cut = role.ends_with("cut");
    let config = Config::default().in_place(0);
    let (serves, recovers, rails) = (role.starts_with("serve"), role.ends_with("recover"), role.contains("rails"));
    let datagrams = role.contains("datagrams");
    let config = if recovers { config.recovery(LIMIT) } else { config };
    let number = if serves { 1 } else { 2 };
    let addresses = [77, 78].map(|network| Rail::address([10, network, 0, number].into()));
    let config = if rails { config.rails(addresses) } else { config };
    let mut worker = Worker::new(config).unwrap();
    // Beside the rail that is to fail.
    let server = if rails && recovers { SERVER_BESIDE } else { SERVER };
    if serves {
        worker.listen(server).unwrap();
        println!("listening");
    } else if datagrams {
        worker.connect_datagram(server).unwrap();
    } else {
        worker.connect(server).unwrap();
    }
    let ep = connected(&mut worker);
    let (short, long) = match () {
        () if datagrams => (DATAGRAM - 8, DATAGRAM),
        () if rails => (SHORT, LONG_ON_RAILS),
        () => (SHORT, LONG),
    };
    let mut exchange = Exchange { short, long, ..Exchange::default() };
    let reason = exchange.run(&mut worker, ep, if cut { u64::MAX } else { MESSAGES });
    if cut {
        // Each operation has ended, once, and the reason says that the peer is gone.
        assert_eq!(exchange.ended, exchange.sent);
        match reason.expect("the cable is pulled") {
            CloseReason::PeerLost(_) | CloseReason::Completion(_) => println!("lost"),
            other => panic!("{other}"),
        }
        return;
    }
    assert!(reason.is_none() && exchange.lost == 0, "{} lost: {reason:?}", exchange.lost);
    assert_eq!(worker.counters().recovered > 0, recovers);
    if rails && !recovers {
        println!("all came");
        let bytes: Vec<_> = worker.explain(ep).unwrap().rails.iter().map(|rail| rail.bytes).collect();
        assert!(bytes.iter().all(|&bytes| bytes > 0), "{bytes:?}");
        let start = Instant::now();
        while !exchange.seen.is_back {
            match worker.wait(Some(LIMIT / 1000)).unwrap() {
                None => {}
                // The peer saw it first.
                Some(Event::Closed { reason: CloseReason::Remote, .. }) => return,
                Some(other) => panic!("{}", brief(&other)),
            }
            exchange.seen.look(&worker, ep);
            assert!(start.elapsed() < 2 * LIMIT, "{:?}", worker.explain(ep));
        }
    }
    worker.close(ep);
    match closed(next(&mut worker)) {
        CloseReason::Local | CloseReason::Remote => {}
        other => panic!("{other}"),
    }
}

fn both(link: &Link, how: &str) -> (Host, Host) {
    let mut server = link.start(0, &format!("serve {how}"));
    server.says("listening");
    let client = link.start(1, &format!("call {how}"));
    (server, client)
}

#[test]
fn everything_arrives_once_and_in_order_over_a_bad_network() {
    over_a_bad_network("all");
}

#[test]
fn datagrams_arrive_once_and_in_order_over_a_bad_network() {
    over_a_bad_network("datagrams all");
}

fn over_a_bad_network(what: &str) {
    let Some(mut link) = Link::new() else { return };
    for faults in ["faults 50 0 0", "faults 10 20 100", "faults 0 0 300"] {
        link.set(faults);
        let (server, client) = both(&link, what);
        client.finish();
        server.finish();
    }
}

#[test]
fn a_cable_that_is_pulled_for_a_moment_loses_nothing() {
    let Some(mut link) = Link::new() else { return };
    let (mut server, client) = both(&link, "all");
    server.says("begun");
    link.set("down");
    // No longer than a device tries again, nor than the keepalive waits.
    std::thread::sleep(Duration::from_millis(100));
    link.set("up");
    client.finish();
    server.finish();
}

#[test]
fn a_connection_that_recovers_outlives_a_cable_that_is_pulled_for_longer() {
    outlives_a_cable_that_is_pulled(Duration::ZERO);
}

#[test]
fn a_connection_that_recovers_is_not_given_up_by_its_socket() {
    // With the time until they see it, longer than the 9 s that a host may leave a socket without an answer where nothing
    // recovers; and TCP, which waits twice as long each time, tries again before the connection is given up.
    outlives_a_cable_that_is_pulled(LIMIT * 2 / 5);
}

/// For so long after both sides see it.
fn outlives_a_cable_that_is_pulled(so_long: Duration) {
    let Some(mut link) = Link::new() else { return };
    let (mut server, mut client) = both(&link, "recover");
    server.says("begun");
    link.set("down");
    server.says("recovering");
    client.says("recovering");
    std::thread::sleep(so_long);
    link.set("up");
    client.finish();
    server.finish();
}

#[test]
fn a_cable_that_is_pulled_ends_every_operation_on_both_sides() {
    ends_with_the_cable("cut");
}

#[test]
fn a_cable_that_is_pulled_ends_connections_over_datagrams() {
    ends_with_the_cable("datagrams cut");
}

fn ends_with_the_cable(what: &str) {
    let Some(mut link) = Link::new() else { return };
    let (mut server, mut client) = both(&link, what);
    server.says("begun");
    link.set("down");
    client.says("lost");
    server.says("lost");
    client.finish();
    server.finish();
}

#[test]
fn a_rail_whose_cable_is_pulled_is_left_out_and_comes_back() {
    let Some(mut link) = Link::of(2) else { return };
    let (mut server, mut client) = both(&link, "rails");
    // Each reads over both by then.
    server.says("begun");
    client.says("begun");
    link.set("down 1");
    server.says("left out");
    client.says("all came");
    server.says("all came");
    link.set("up 1");
    client.finish();
    server.finish();
}

#[test]
fn a_connection_whose_first_rail_is_gone_goes_on_over_the_next() {
    let Some(mut link) = Link::of(2) else { return };
    let (mut server, client) = both(&link, "rails recover");
    server.says("begun");
    link.set("down 0");
    client.finish();
    server.finish();
}
