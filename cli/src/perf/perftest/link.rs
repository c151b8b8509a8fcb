//! The engine over a TCP connection: every wait has an end, and what comes out of turn stays in the socket.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::engine::{Engine, Event, Introduced, Introduction, Role, State};
use super::error::{ExchangeError, Step};
use super::wire::{BandwidthReport, Key};
use crate::perf::error::PerfError;
use crate::perf::reach::keep_alive;

/// A connection to the other side.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    engine: Engine,
    patience: Duration,
}

/// What the other side does while this one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Nothing but run.
    Running,
    /// It has gone on to the next step.
    Ahead,
    /// It has closed the connection.
    Gone,
}

impl Link {
    /// A link over `stream`. The other side may be silent for `patience` where it has something to say.
    ///
    /// # Errors
    /// [`PerfError::Exchange`].
    pub fn new(
        stream: TcpStream,
        role: Role,
        introduction: Introduction,
        patience: Duration,
    ) -> Result<Self, PerfError> {
        stream.set_nodelay(true).map_err(PerfError::Exchange)?;
        stream.set_write_timeout(Some(patience)).map_err(PerfError::Exchange)?;
        keep_alive(&stream).map_err(PerfError::Exchange)?;
        Ok(Link { stream, engine: Engine::new(role, introduction), patience })
    }

    /// How long the other side may be silent where it has something to say.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Introduces both sides to each other.
    ///
    /// # Errors
    /// [`PerfError::Perftest`] with what the other side did wrong, and [`PerfError::Exchange`].
    pub fn introduce(&mut self) -> Result<Introduced, PerfError> {
        match self.next(Some(self.patience))? {
            Event::Introduced(introduced) => Ok(introduced),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Swaps the addresses of queue pairs.
    ///
    /// # Errors
    /// As [`introduce`](Link::introduce).
    pub fn addresses(&mut self, ours: Vec<Key>) -> Result<Vec<Key>, PerfError> {
        self.engine.tell_addresses(ours);
        match self.next(Some(self.patience))? {
            Event::Addresses(keys) => Ok(keys),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Waits until the other side is connected too.
    ///
    /// # Errors
    /// As [`introduce`](Link::introduce).
    pub fn connected(&mut self) -> Result<(), PerfError> {
        self.engine.tell_connected();
        match self.next(Some(self.patience))? {
            Event::Ready => Ok(()),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Waits until the other side comes to the same point.
    ///
    /// # Errors
    /// As [`introduce`](Link::introduce).
    pub fn sync(&mut self) -> Result<(), PerfError> {
        self.sync_within(Some(self.patience))
    }

    /// As [`sync`](Link::sync), within `limit`; without it as long as the other side is there.
    ///
    /// # Errors
    /// As [`introduce`](Link::introduce).
    pub fn sync_within(&mut self, limit: Option<Duration>) -> Result<(), PerfError> {
        self.engine.sync();
        match self.next(limit)? {
            Event::Synced => Ok(()),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Swaps reports.
    ///
    /// # Errors
    /// As [`introduce`](Link::introduce).
    pub fn report(&mut self, ours: &BandwidthReport) -> Result<BandwidthReport, PerfError> {
        self.engine.report(ours);
        match self.next(Some(self.patience))? {
            Event::Report(theirs) => Ok(theirs),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Says that this was all. The run is over and told: what the other side makes of it is its own affair.
    pub fn farewell(&mut self) {
        self.engine.farewell();
        if let Err(error) = self.next(Some(self.patience.min(FAREWELL))) {
            tracing::debug!(%error, "no farewell");
        }
    }

    /// Finds out, without waiting, what the other side does.
    ///
    /// # Errors
    /// [`PerfError::Exchange`].
    pub fn look(&self) -> Result<Peer, PerfError> {
        match recv(&self.stream, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => Ok(Peer::Gone),
            Ok(_) => Ok(Peer::Ahead),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Peer::Running),
            Err(errno) => Err(PerfError::Exchange(errno.into())),
        }
    }

    /// The next event, within `limit` in all. Each time that patience is over it says that it waits.
    fn next(&mut self, limit: Option<Duration>) -> Result<Event, PerfError> {
        let begin = Instant::now();
        let until = limit.map(|limit| begin + limit);
        let mut buffer = [0; 1024];
        loop {
            let event = self.engine.poll_event()?;
            let output = self.engine.take_output();
            if let Err(error) = self.stream.write_all(&output) {
                self.broken(error, limit)?;
                continue;
            }
            if let Some(event) = event {
                return Ok(event);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(self.silent(limit).into());
            }
            let pause = left.map_or(self.patience, |left| left.min(self.patience));
            self.stream.set_read_timeout(Some(pause)).map_err(PerfError::Exchange)?;
            match self.stream.read(&mut buffer) {
                Ok(0) => self.engine.handle_close()?,
                Ok(count) => self.engine.handle_input(&buffer[..count])?,
                Err(error) if is_timeout(&error) => {
                    if limit.is_none_or(|limit| begin.elapsed() < limit) {
                        tracing::warn!(seconds = begin.elapsed().as_secs(), "waiting for the other side's run to end");
                    }
                }
                Err(error) => self.broken(error, limit)?,
            }
        }
    }

    /// What an error of the socket means for the exchange.
    fn broken(&mut self, error: io::Error, limit: Option<Duration>) -> Result<(), PerfError> {
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            _ if is_timeout(&error) => Err(self.silent(limit).into()),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                Ok(self.engine.handle_close()?)
            }
            _ => Err(PerfError::Exchange(error)),
        }
    }

    fn silent(&self, limit: Option<Duration>) -> ExchangeError {
        let step = match self.engine.state() {
            State::Expects(step) => step,
            State::Introduced | State::Addressed | State::Ready | State::Over => Step::Run,
        };
        ExchangeError::Silent { step, seconds: limit.unwrap_or(self.patience).as_secs() }
    }
}

/// Which of the two a socket's time limit gives is up to the system.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn out_of_turn(event: &Event) -> PerfError {
    // The engine gives each event to the call that asked for it.
    PerfError::Garbled { why: format!("{event:?} out of turn") }
}

impl From<ExchangeError> for PerfError {
    fn from(error: ExchangeError) -> Self {
        PerfError::Perftest(error)
    }
}

/// A farewell is a courtesy.
const FAREWELL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::perf::perftest::terms::Terms;
    use crate::perf::reach::connect;
    use crate::perf::test::Test;

    fn introduction() -> Introduction {
        Introduction { terms: Terms::example(Test::WriteBw), cycle_buffer: 4096, cache_line: 64, mtu: 1024 }
    }

    /// A client whose server does as `peer` does.
    fn client(patience: Duration, peer: impl FnOnce(TcpStream) + Send + 'static) -> (Link, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let thread = thread::spawn(move || peer(listener.accept().expect("a client").0));
        let stream = connect([([127, 0, 0, 1], port).into()]).expect("it listens");
        (Link::new(stream, Role::Client, introduction(), patience).expect("a socket"), thread)
    }

    fn failed(result: Result<Introduced, PerfError>) -> ExchangeError {
        match result {
            Err(PerfError::Perftest(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn two_sides_meet() {
        let (mut link, thread) = client(LONG, |stream| {
            let mut server = Link::new(stream, Role::Server, introduction(), LONG).expect("a socket");
            server.introduce().expect("the other side is a qpair");
            assert_eq!(server.look().expect("a socket"), Peer::Running);
        });
        let introduced = link.introduce().expect("the other side is a qpair");
        assert_eq!(introduced.terms, Some(introduction().terms));
        thread.join().expect("the other side is well too");
    }

    fn key() -> Key {
        Key { lid: 0, out_reads: 1, qpn: 1, psn: 2, rkey: 3, addr: 4, gid: None }
    }

    /// Brings a side to where it measures.
    fn meet(link: &mut Link) {
        link.introduce().expect("introduced");
        link.addresses(vec![key()]).expect("told");
        link.connected().expect("connected");
    }

    #[test]
    fn a_side_that_stands_still_is_waited_for_as_long_as_it_may_take() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (mut link, thread) = client(LONG, move |stream| {
            let mut server = Link::new(stream, Role::Server, introduction(), LONG).expect("a socket");
            meet(&mut server);
            wait.recv().expect("told to");
        });
        meet(&mut link);
        link.patience = Duration::from_millis(20);
        let (begin, limit) = (Instant::now(), Duration::from_millis(200));
        let error = link.sync_within(Some(limit)).expect_err("it stands still");
        assert!(matches!(error, PerfError::Perftest(ExchangeError::Silent { step: Step::Sync, .. })), "{error:?}");
        assert!(begin.elapsed() >= limit && begin.elapsed() < LONG / 2);
        go.send(()).expect("it waits");
        thread.join().expect("it ended");
    }

    #[test]
    fn a_side_without_limit_is_waited_for_beyond_patience() {
        let patience = Duration::from_millis(20);
        let (mut link, thread) = client(LONG, move |stream| {
            let mut server = Link::new(stream, Role::Server, introduction(), LONG).expect("a socket");
            meet(&mut server);
            thread::sleep(10 * patience);
            server.sync().expect("both come");
        });
        meet(&mut link);
        link.patience = patience;
        link.sync_within(None).expect("it comes late");
        thread.join().expect("it ended");
    }

    #[test]
    fn a_silent_side_is_waited_for_within_limits() {
        let begin = Instant::now();
        let (mut link, thread) = client(Duration::from_millis(200), |mut stream| {
            // Until this one gives up.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        assert_eq!(failed(link.introduce()), ExchangeError::Silent { step: Step::Version, seconds: 0 });
        assert!(begin.elapsed() >= Duration::from_millis(200) && begin.elapsed() < LONG / 2);
        drop(link);
        thread.join().expect("it ended");
    }

    #[test]
    fn a_side_that_trickles_gains_no_time() {
        let (mut link, thread) = client(Duration::from_millis(300), |mut stream| {
            while stream.write_all(b"6").is_ok() {
                thread::sleep(Duration::from_millis(40));
            }
        });
        let begin = Instant::now();
        let error = failed(link.introduce());
        assert!(matches!(error, ExchangeError::Silent { step: Step::Version, .. }), "{error:?}");
        assert!(begin.elapsed() < LONG / 2);
        drop(link);
        thread.join().expect("it ended");
    }

    #[test]
    fn a_side_that_vanishes_is_told_with_the_step() {
        let (mut link, thread) = client(LONG, |mut stream| {
            stream.write_all(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0").expect("it is taken");
            // Close only once all was read: a reset would take back what was written.
            let _ = stream.read_exact(&mut [0; 24]);
        });
        assert_eq!(failed(link.introduce()), ExchangeError::Closed { step: Step::CacheLine });
        thread.join().expect("it ended");
    }

    #[test]
    fn a_flood_ends_the_exchange_and_takes_no_memory() {
        let (mut link, thread) = client(LONG, |mut stream| {
            let _ = stream.write_all(b"6.06\0\0\0\0qpair1\0\0\x00\x00\x0f\xff");
            while stream.write_all(&[b'{'; 1 << 16]).is_ok() {}
        });
        let error = failed(link.introduce());
        assert!(matches!(error, ExchangeError::Garbled { what: "terms of a run", .. }), "{error:?}");
        drop(link);
        thread.join().expect("it was cut off");
    }

    #[test]
    fn where_the_other_side_is_can_be_seen_without_waiting() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (link, thread) = client(LONG, move |mut stream| {
            wait.recv().expect("told to");
            stream.write_all(b"6").expect("it is taken");
            wait.recv().expect("told to");
        });
        let until = |wanted: Peer| {
            let begin = Instant::now();
            while link.look().expect("a socket") != wanted {
                assert!(begin.elapsed() < LONG, "{wanted:?} does not come");
                thread::yield_now();
            }
        };
        until(Peer::Running);
        go.send(()).expect("it waits");
        until(Peer::Ahead);
        go.send(()).expect("it waits");
        thread.join().expect("it ended");
        // What was sent before the end is there first.
        until(Peer::Ahead);
    }
}
