//! Peers that name queue pairs of a process which is stopped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use qpair_verbs::{Context, QpAddress};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::*;
use crate::cm::tests::{connect, preface, read_preface, read_record, record};
use crate::cm::{HandshakeError, Message, Notice, RailNews, RailWord, Renewal};

/// What another process does: it tells of two queue pairs, and waits.
#[test]
#[ignore = "needs another test to start it, as its other process"]
fn process() {
    if std::env::var_os(PROCESS).is_none() {
        return;
    }
    let context = Context::open("soft0").unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let qps = [(); 2].map(|()| pd.rc(&cq).build().unwrap());
    println!("\n!{}", serde_json::to_string(&qps.each_ref().map(|qp| qp.address())).unwrap());
    let _ = std::io::stdin().read(&mut [0]);
}

/// Such a process. It ends with this.
struct Stopped {
    child: Child,
    addresses: [QpAddress; 2],
}

impl Stopped {
    fn new() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(PROCESS, "1").args(["--exact", "worker::tests::held::process", "--ignored", "--nocapture"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.find_map(|line| line.unwrap().strip_prefix('!').map(str::to_owned)).unwrap();
        let addresses = serde_json::from_str(&line).unwrap();
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        Stopped { child, addresses }
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls until there is an event. No poll may wait for the process that is stopped, which would take five seconds.
fn next(worker: &mut Worker) -> Event {
    let start = Instant::now();
    loop {
        let before = Instant::now();
        let event = worker.poll().unwrap();
        assert!(before.elapsed() < Duration::from_secs(3), "a poll took {:?}", before.elapsed());
        assert!(start.elapsed() < PATIENCE, "nothing happens");
        match event {
            Some(event) => return event,
            None => std::thread::yield_now(),
        }
    }
}

/// Polls until a message waits.
fn hold(worker: &mut Worker) {
    let start = Instant::now();
    while worker.held.is_empty() {
        let event = worker.wait(Some(Duration::from_millis(1))).unwrap();
        assert!(event.is_none(), "{event:?}");
        assert!(start.elapsed() < PATIENCE, "nothing waits");
    }
}

/// Someone who calls the worker, and says hello for a queue pair.
fn caller(worker: &mut Worker, to: SocketAddr, address: QpAddress) -> TcpStream {
    let mut caller = connect(to);
    let hello = worker.hello(address, 1, 64);
    caller.write_all(&[preface(), record(&Message::Hello(hello))].concat()).unwrap();
    caller
}

/// Hears what is answered to a caller, and is ready then.
fn answered(mut caller: TcpStream) -> JoinHandle<(Message, TcpStream)> {
    std::thread::spawn(move || {
        read_preface(&mut caller);
        let answer = read_record(&mut caller);
        caller.write_all(&record(&Message::Ready)).unwrap();
        (answer, caller)
    })
}

/// Another connection comes up meanwhile.
fn others_connect(worker: &mut Worker, to: SocketAddr) {
    worker.connect(to).unwrap();
    let (mut connected, mut accepted) = (false, false);
    while !(connected && accepted) {
        match next(worker) {
            Event::Connected { .. } => connected = true,
            Event::Accepted { .. } => accepted = true,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_hello_for_a_process_that_is_stopped_waits_and_others_are_accepted() {
    let stopped = Stopped::new();
    let mut worker = Worker::new(Config::default().hello_timeout(PATIENCE)).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let caller = caller(&mut worker, listener.local_addr(), stopped.addresses[0]);
    hold(&mut worker);
    others_connect(&mut worker, listener.local_addr());
    assert!(!worker.held.is_empty(), "nobody has answered");
    stopped.go_on();
    let calling = answered(caller);
    assert!(matches!(next(&mut worker), Event::Accepted { .. }));
    let (answer, _caller) = calling.join().unwrap();
    assert!(matches!(answer, Message::Accept(_)), "{answer:?}");
}

#[test]
fn the_answer_ends_a_sleep() {
    let stopped = Stopped::new();
    let mut worker = Worker::new(Config::default().hello_timeout(PATIENCE)).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let caller = caller(&mut worker, listener.local_addr(), stopped.addresses[0]);
    hold(&mut worker);
    let calling = answered(caller);
    stopped.go_on();
    let event = worker.wait(Some(PATIENCE)).unwrap();
    assert!(matches!(event, Some(Event::Accepted { .. })), "{event:?}");
    drop(calling.join().unwrap());
}

#[test]
fn an_answer_for_a_process_that_is_stopped_waits_and_others_connect() {
    let stopped = Stopped::new();
    let mut worker = Worker::new(Config::default().connect_timeout(PATIENCE)).unwrap();
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let called = worker.connect(peer.local_addr().unwrap()).unwrap();
    let (mut peer, _) = peer.accept().unwrap();
    peer.write_all(&preface()).unwrap();
    peer.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut hello = Vec::new();
    while hello.len() < 100 {
        assert!(worker.poll().unwrap().is_none() && start.elapsed() < PATIENCE);
        let _ = peer.read_to_end(&mut hello);
    }
    let accept = Message::Accept(worker.hello(stopped.addresses[0], 1, 64));
    peer.write_all(&record(&accept)).unwrap();
    hold(&mut worker);
    let listener = worker.listen("127.0.0.1:0").unwrap();
    others_connect(&mut worker, listener.local_addr());
    stopped.go_on();
    let event = next(&mut worker);
    assert!(matches!(event, Event::Connected { ep } if ep == called), "{event:?}");
}

#[test]
fn what_follows_on_the_stream_waits_too() {
    let stopped = Stopped::new();
    let mut worker = Worker::new(Config::default().hello_timeout(PATIENCE)).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let caller = caller(&mut worker, listener.local_addr(), stopped.addresses[0]);
    hold(&mut worker);
    // It hangs up before the other has answered.
    drop(caller);
    others_connect(&mut worker, listener.local_addr());
    stopped.go_on();
    let event = next(&mut worker);
    assert!(matches!(&event, Event::Rejected { error: HandshakeError::HungUp, .. }), "{event:?}");
    assert!(worker.held.is_empty());
}

/// Another queue pair of a connection that is up.
#[test]
fn news_of_a_process_that_is_stopped_wait() {
    let stopped = Stopped::new();
    let (mut worker, ep, _) = mirror(Config::default().recovery(Duration::from_secs(60)));
    let [first, second] = stopped.addresses;
    let hello = worker.hello(first, 1, 64);
    let renewal = Renewal { hello, received: 0, sent: 0, rail: 0 };
    let rail = RailWord { rail: 0, news: RailNews::Made(second) };
    let socket = worker.endpoints.get_mut(ep).unwrap().socket.unwrap();
    worker.hear(socket, Message::Renew(Box::new(renewal)));
    worker.notice(Notice::Message { socket, message: Message::Rail(rail) });
    let listener = worker.listen("127.0.0.1:0").unwrap();
    others_connect(&mut worker, listener.local_addr());
    assert!(!worker.held.is_empty() && worker.endpoints.get_mut(ep).unwrap().renewal.is_none());
    stopped.go_on();
    // The second is of a rail that this side does not have, and ends the connection.
    let event = next(&mut worker);
    assert!(matches!(event, Event::Closed { ep: of, .. } if of == ep), "{event:?}");
    let start = Instant::now();
    while !worker.held.is_empty() {
        worker.poll().unwrap();
        assert!(start.elapsed() < PATIENCE, "what is behind waits still");
    }
}

#[test]
fn who_hangs_up_waits_no_more() {
    let stopped = Stopped::new();
    let mut worker = Worker::new(Config::default().hello_timeout(PATIENCE)).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    // All of it is there when it is read.
    drop(caller(&mut worker, listener.local_addr(), stopped.addresses[0]));
    let event = next(&mut worker);
    assert!(matches!(event, Event::Rejected { error: HandshakeError::HungUp, .. }), "{event:?}");
    assert!(worker.held.is_empty());
}

#[test]
fn who_waits_too_long_is_turned_away() {
    let stopped = Stopped::new();
    let mut worker = Worker::new(Config::default().hello_timeout(Duration::from_millis(100))).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let _caller = caller(&mut worker, listener.local_addr(), stopped.addresses[0]);
    hold(&mut worker);
    let event = next(&mut worker);
    assert!(matches!(event, Event::Rejected { error: HandshakeError::TimedOut, .. }), "{event:?}");
    assert!(worker.held.is_empty());
}

const PROCESS: &str = "QPAIR_TEST_HELD";
