//! The control connection: JSON lines over TCP, by which both sides find each other and agree on what to do.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use qpair::verbs::{QpAddress, RemoteSlice};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::perf::error::PerfError;
use crate::perf::reach::keep_alive;
use crate::perf::test::Parameters;

/// One side of the control connection.
#[derive(Debug)]
pub struct Exchange {
    stream: TcpStream,
    reader: BufReader<Timed>,
    patience: Duration,
}

/// What comes in, until a deadline where there is one.
#[derive(Debug)]
struct Timed {
    stream: TcpStream,
    until: Option<Instant>,
}

/// The first line of each side; later lines may differ between versions.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    protocol: u32,
    release: String,
}

/// Where one side can be reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contact {
    /// A queue pair, and the memory that the other side may write.
    QueuePair {
        /// Address of the queue pair.
        address: QpAddress,
        /// The memory.
        inbox: RemoteSlice,
        /// Where data goes if that is another: memory of a GPU.
        data: Option<RemoteSlice>,
    },
    /// A worker that listens at this TCP port.
    Worker {
        /// The port.
        port: u16,
    },
    /// A worker that connects.
    Connecting,
}

/// What the client says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// First of all: what to prepare for.
    Prepare(Parameters, Contact),
    /// Do your part of so many operations.
    Round(Round),
    /// That was all.
    Finish,
}

/// What the server says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Prepared.
    Prepared(Contact),
    /// Not possible.
    Refused(String),
    /// About to start with its part.
    Started,
    /// Done with its part.
    Done,
}

/// A number of operations of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Bytes of each.
    pub size: usize,
    /// Operations.
    pub count: u64,
}

impl Exchange {
    /// Asks the server to prepare, and says where it can be reached.
    ///
    /// # Errors
    /// [`PerfError::Refused`] if it can not.
    pub fn prepare(&mut self, request: &Request) -> Result<Contact, PerfError> {
        self.send(request)?;
        self.allow(Some(self.patience));
        match self.receive()? {
            Reply::Prepared(contact) => Ok(contact),
            Reply::Refused(why) => Err(PerfError::Refused(why)),
            other => Err(PerfError::Garbled { why: format!("{other:?} out of turn") }),
        }
    }

    /// Greets the other side. The greeting and the message after it must be there within `introduction`.
    ///
    /// # Errors
    /// [`PerfError::Version`] if it is of another version, [`PerfError::Garbled`] if it is something else.
    pub fn open(stream: TcpStream, introduction: Duration) -> Result<Self, PerfError> {
        stream.set_nodelay(true).map_err(PerfError::Exchange)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(PerfError::Exchange)?;
        keep_alive(&stream).map_err(PerfError::Exchange)?;
        let reader = Timed { stream: stream.try_clone().map_err(PerfError::Exchange)?, until: None };
        let mut exchange = Exchange { stream, reader: BufReader::new(reader), patience: PATIENCE };
        exchange.allow(Some(introduction));
        exchange.send(&Greeting { protocol: PROTOCOL, release: env!("CARGO_PKG_VERSION").to_owned() })?;
        let theirs: Greeting = exchange.receive()?;
        if theirs.protocol != PROTOCOL {
            return Err(PerfError::Version { release: theirs.release, theirs: theirs.protocol, ours: PROTOCOL });
        }
        Ok(exchange)
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`PerfError::Exchange`].
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), PerfError> {
        let mut line = serde_json::to_vec(message).map_err(|error| PerfError::Exchange(error.into()))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(broken)
    }

    /// How long the other side may be silent where it has something to do.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Gives the other side so long from now on to say what comes next; for ever without a limit.
    pub fn allow(&mut self, limit: Option<Duration>) {
        self.reader.get_mut().until = limit.map(|limit| Instant::now() + limit);
    }

    /// Waits for the next message, for as long as [allowed](Exchange::allow).
    ///
    /// # Errors
    /// [`PerfError::PeerClosed`], [`PerfError::Silent`], [`PerfError::Garbled`], [`PerfError::Exchange`].
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, PerfError> {
        let mut line = Vec::new();
        self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(broken)?;
        if line.is_empty() {
            return Err(PerfError::PeerClosed);
        }
        serde_json::from_slice(&line).map_err(|error| PerfError::Garbled { why: error.to_string() })
    }

    /// Asks the server to do its part of a round, and waits until it is about to.
    ///
    /// # Errors
    /// As [`receive`](Exchange::receive).
    pub fn start(&mut self, round: Round) -> Result<(), PerfError> {
        self.send(&Request::Round(round))?;
        self.expect(|reply| matches!(reply, Reply::Started))
    }

    /// Waits until the server has done its part.
    ///
    /// # Errors
    /// As [`receive`](Exchange::receive).
    pub fn finish_round(&mut self) -> Result<(), PerfError> {
        self.expect(|reply| matches!(reply, Reply::Done))
    }

    fn expect(&mut self, right: impl FnOnce(&Reply) -> bool) -> Result<(), PerfError> {
        self.allow(Some(self.patience));
        match self.receive()? {
            Reply::Refused(why) => Err(PerfError::Refused(why)),
            reply if right(&reply) => Ok(()),
            other => Err(PerfError::Garbled { why: format!("{other:?} out of turn") }),
        }
    }

    /// Finds out, without waiting, whether the other side is still there.
    ///
    /// # Errors
    /// [`PerfError::PeerClosed`] if not.
    pub fn check_open(&self) -> Result<(), PerfError> {
        match recv(&self.stream, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(PerfError::PeerClosed),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(broken(errno.into())),
        }
    }

    /// Address of the other side.
    ///
    /// # Errors
    /// [`PerfError::Exchange`].
    pub fn peer(&self) -> Result<IpAddr, PerfError> {
        self.stream.peer_addr().map(|address| address.ip()).map_err(PerfError::Exchange)
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(left)?;
        self.stream.read(buffer)
    }
}

/// What an error of the socket means for the exchange.
pub fn broken(error: io::Error) -> PerfError {
    match error.kind() {
        // Which of the two a socket's time limit gives is up to the system.
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => PerfError::Silent,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
            PerfError::PeerClosed
        }
        _ => PerfError::Exchange(error),
    }
}

/// Changes whenever the messages do.
const PROTOCOL: u32 = 2;
/// A line is a few hundred bytes; a stranger may send without end.
const MAX_LINE: u64 = 64 << 10;
/// A client that does not introduce itself in this time is no `qpair perf`.
pub const INTRODUCTION: Duration = Duration::from_secs(5);
/// Far above what either side ever takes to answer, on a busy machine and with large memory to register.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::perf::own::watch::Watch;

    /// What a side makes of another that sends `bytes` and then closes.
    fn opened_against(bytes: &'static [u8]) -> Result<Exchange, PerfError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stranger = thread::spawn(move || {
            let mut stream = TcpStream::connect(address).expect("someone listens");
            stream.write_all(bytes).expect("it is taken");
        });
        let stream = listener.accept().expect("it connects").0;
        let opened = Exchange::open(stream, INTRODUCTION);
        stranger.join().expect("no panic");
        opened
    }

    fn pair() -> (Exchange, Exchange) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let connect = move || TcpStream::connect(address).expect("someone listens");
        let client = thread::spawn(move || Exchange::open(connect(), INTRODUCTION));
        let server = Exchange::open(listener.accept().expect("it connects").0, INTRODUCTION).expect("greeted");
        (client.join().expect("no panic").expect("greeted"), server)
    }

    #[test]
    fn messages_come_through() {
        let (mut client, mut server) = pair();
        let round = Round { size: 8, count: 5 };
        client.send(&Request::Round(round)).expect("sent");
        assert!(matches!(server.receive(), Ok(Request::Round(got)) if got == round));
        server.send(&Reply::Refused("no".to_owned())).expect("sent");
        let error = client.finish_round().expect_err("refused");
        assert!(matches!(error, PerfError::Refused(why) if why == "no"));
    }

    #[test]
    fn a_reply_out_of_turn_is_an_error() {
        let (mut client, mut server) = pair();
        server.send(&Reply::Started).expect("sent");
        assert!(matches!(client.finish_round(), Err(PerfError::Garbled { .. })));
    }

    #[test]
    fn an_end_is_noticed_without_waiting() {
        let (client, server) = pair();
        client.check_open().expect("it is there");
        drop(server);
        // The end arrives some time; `receive` waits for it.
        let mut client = client;
        assert!(matches!(client.receive::<Reply>(), Err(PerfError::PeerClosed)));
        assert!(matches!(client.check_open(), Err(PerfError::PeerClosed)));
    }

    #[test]
    fn strangers_are_refused() {
        let other = opened_against(b"{\"protocol\":99,\"release\":\"9.9\",\"more\":[1]}\n");
        assert!(matches!(other, Err(PerfError::Version { theirs: 99, .. })));
        assert!(matches!(opened_against(b"GET / HTTP/1.1\r\n\r\n"), Err(PerfError::Garbled { .. })));
        assert!(matches!(opened_against(b""), Err(PerfError::PeerClosed)));
    }

    #[test]
    fn an_introduction_that_takes_too_long_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut stranger = TcpStream::connect(listener.local_addr().expect("bound")).expect("someone listens");
        let stream = listener.accept().expect("it connects").0;
        let server = thread::spawn(move || Exchange::open(stream, Duration::from_millis(100)));
        // Each byte comes in time; the line does not.
        while stranger.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(matches!(server.join().expect("no panic"), Err(PerfError::Silent)));
    }

    #[test]
    fn a_greeting_and_then_nothing_is_not_waited_for() {
        let (mut client, server) = pair();
        client.allow(Some(Duration::from_millis(20)));
        assert!(matches!(client.receive::<Reply>(), Err(PerfError::Silent)));
        client.patience = Duration::from_millis(20);
        let mut watch = Watch::new(&client);
        let error = (0..).find_map(|_| watch.idle(None).err());
        assert!(matches!(error, Some(PerfError::Silent)));
        drop(server);
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let long: &'static [u8] = Box::leak(vec![b'x'; MAX_LINE as usize].into_boxed_slice());
        assert!(matches!(opened_against(long), Err(PerfError::Garbled { .. })));
    }
}
