//! Several processes of a host, of which one has the socket for all messages. Each is this program, run for one test.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::ground::{Side, soon};
use crate::companion::Companion;
use crate::soft::random_u32;

/// What such a process does: it is told by its input, and says what happens.
#[test]
#[ignore = "needs another test to start it, as its other process"]
fn process() {
    if std::env::var(PORT_VARIABLE).is_err() {
        return;
    }
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        // Ends with the test that started it, however that ends.
        std::process::exit(0);
    });
    let side = Side::new();
    let network = side.ctx.soft().unwrap().network();
    let network = match network {
        Ok(network) => network,
        Err(error) => return println!("\n!unable {error}"),
    };
    println!("\n!ready");
    let (mut listeners, mut connecting, mut connected) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        match orders.recv_timeout(Duration::from_millis(1)).as_deref() {
            Ok("listen") => {
                listeners.push(side.ctx.listen(0).unwrap());
                println!("\n!port {}", listeners.last().unwrap().port());
            }
            Ok("socket") => println!("\n!socket {}", network.has_management()),
            Ok("disconnect") => {
                connected.iter().for_each(|end: &crate::Established| end.connection.disconnect());
            }
            Ok("close") => return,
            Ok(order) => connecting.push(side.ask_with(order.parse().unwrap(), &soon())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let requests = listeners.iter().filter_map(|listener| listener.poll());
        connecting.extend(requests.map(|request| request.accept(side.rc(), b"").unwrap()));
        connecting.retain_mut(|connecting| match connecting.poll() {
            Ok(None) => true,
            Ok(Some(established)) => {
                connected.push(established);
                println!("\n!up");
                false
            }
            Err(error) => {
                println!("\n!error {error}");
                false
            }
        });
        connected.retain(|end| end.connection.poll().inspect(|ended| println!("\n!ended {ended:?}")).is_none());
    }
}

/// Such a process.
struct Process(Companion);

/// The processes of a host: they share a port that no others have.
struct Host {
    port: u16,
}

impl Host {
    fn new() -> Self {
        loop {
            // Below what the system gives out by itself.
            let port = 20_000 + (random_u32() % 12_000) as u16;
            if UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
                return Host { port };
            }
        }
    }

    fn start(&self) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(PORT_VARIABLE, self.port.to_string());
        let process = Process(Companion::start(command, "cm::tests::processes::process"));
        assert_eq!(process.line(), "ready");
        process
    }
}

impl Process {
    fn order(&mut self, order: &str) {
        self.0.order(order);
    }

    fn line(&self) -> String {
        self.0.line()
    }

    fn listen(&mut self) -> u16 {
        self.order("listen");
        self.line().strip_prefix("port ").unwrap().parse().unwrap()
    }

    /// Connects to a port; what comes of it.
    fn connect(&mut self, port: u16) -> String {
        self.order(&port.to_string());
        self.line()
    }

    fn has_socket(&mut self) -> bool {
        self.order("socket");
        self.line() == "socket true"
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn close(mut self) {
        self.order("close");
        assert!(self.0.ends_well());
    }
}

#[test]
fn each_process_listens_and_connects() {
    let host = Host::new();
    let mut processes: Vec<_> = (0..4).map(|_| host.start()).collect();
    let ports: Vec<_> = processes.iter_mut().map(Process::listen).collect();
    for asks in 0..4 {
        for (answers, port) in ports.iter().enumerate() {
            assert_eq!(processes[asks].connect(*port), "up", "{asks} to {answers}");
            assert_eq!(processes[answers].line(), "up", "{asks} to {answers}");
        }
    }
    let holders = processes.iter_mut().map(|process| u32::from(process.has_socket())).sum::<u32>();
    assert_eq!(holders, 1);
    // Those of one: four that it asked for, four that it was asked for, of which one is with itself.
    processes[0].order("disconnect");
    for process in &processes[1..] {
        assert_eq!((process.line(), process.line()), ("ended Disconnected".into(), "ended Disconnected".into()));
    }
}

#[test]
fn connections_are_made_whoever_ends() {
    for is_killed in [true, false] {
        let host = Host::new();
        let mut first = host.start();
        let gone = first.listen();
        assert!(first.has_socket(), "nobody else is there");
        let (mut second, mut third) = (host.start(), host.start());
        let port = second.listen();
        assert_eq!((third.connect(port), second.line()), ("up".into(), "up".into()));
        if is_killed {
            drop(first)
        } else {
            first.close()
        }
        assert_eq!((third.connect(port), second.line()), ("up".into(), "up".into()));
        assert!(second.has_socket() != third.has_socket());
        let refused = third.connect(gone);
        assert!(refused.contains("invalid service ID"), "{refused}");
        assert_eq!((second.connect(port), second.line()), ("up".into(), "up".into()));
    }
}

#[test]
fn a_process_that_is_killed_is_no_peer_for_long() {
    let host = Host::new();
    let mut asks = host.start();
    asks.listen();
    assert!(asks.has_socket());
    // While it is asked.
    let mut killed = host.start();
    let port = killed.listen();
    killed.stop();
    asks.order(&port.to_string());
    let begin = Instant::now();
    drop(killed);
    let error = asks.line();
    assert!(error.starts_with("error"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    // Once it is connected: whoever has the socket answers for it.
    let mut killed = host.start();
    let port = killed.listen();
    assert_eq!((asks.connect(port), killed.line()), ("up".into(), "up".into()));
    drop(killed);
    asks.order("disconnect");
    assert_eq!(asks.line(), "ended Disconnected");
}

const PORT_VARIABLE: &str = "QPAIR_TEST_UDP_PORT";
