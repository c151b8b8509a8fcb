//! The exchange itself: a line of JSON each way, in bounded time, of bounded length, whatever the other side does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::summary::{PROTOCOL, Summary};

/// The other machine did not say what it has.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// The name has no address.
    #[error("it has no address: {0}")]
    Resolve(io::Error),
    /// Nobody listens there.
    #[error("no answer at {address}: {source}")]
    Connect {
        /// The last address tried.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// It took too long.
    #[error("it did not say what it has within {0:?}")]
    Silent(Duration),
    /// It closed the connection in the middle of its line.
    #[error("it closed the connection before it had said what it has")]
    Closed,
    /// It said too much.
    #[error("it says more than {MAX_LINE} bytes of itself; that is no `qpair doctor`")]
    TooLong,
    /// What it said is no summary.
    #[error("what it says makes no sense ({0}); that is no `qpair doctor` of this release")]
    Garbled(String),
    /// It has another version of the exchange.
    #[error("it speaks version {theirs} of this exchange, this side {PROTOCOL}: use the same release on both")]
    Version {
        /// Its version.
        theirs: u64,
    },
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Connection(io::Error),
}

/// How long the whole exchange may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience(pub Duration);

/// Connects to the first of the addresses that answers, says what this machine has, and reads what the other has.
///
/// # Errors
/// [`ExchangeError`].
pub fn ask(addresses: &[SocketAddr], ours: &Summary, patience: Patience) -> Result<Summary, ExchangeError> {
    let mut last = ExchangeError::Resolve(io::ErrorKind::NotFound.into());
    let until = Instant::now() + patience.0;
    for &address in addresses {
        match left(until).and_then(|limit| TcpStream::connect_timeout(&address, limit)) {
            Ok(stream) => return talk(stream, ours, patience, until),
            Err(source) => last = ExchangeError::Connect { address, source },
        }
    }
    Err(last)
}

/// The same on a connection that came in.
///
/// # Errors
/// [`ExchangeError`].
pub fn answer(stream: TcpStream, ours: &Summary, patience: Patience) -> Result<Summary, ExchangeError> {
    talk(stream, ours, patience, Instant::now() + patience.0)
}

fn talk(mut stream: TcpStream, ours: &Summary, patience: Patience, until: Instant) -> Result<Summary, ExchangeError> {
    let broken = |error| broken(error, patience);
    let mut line = serde_json::to_vec(ours).map_err(|error| ExchangeError::Connection(error.into()))?;
    line.push(b'\n');
    send(&mut stream, &line, until).map_err(broken)?;
    let line = receive(&mut stream, until, patience)?;
    parse(&line)
}

/// Writes all of it, or fails at the deadline.
fn send(stream: &mut TcpStream, mut line: &[u8], until: Instant) -> io::Result<()> {
    while !line.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => line = &line[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a line without its end.
fn receive(stream: &mut TcpStream, until: Instant, patience: Patience) -> Result<Vec<u8>, ExchangeError> {
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let limit = left(until).map_err(|error| broken(error, patience))?;
        stream.set_read_timeout(Some(limit)).map_err(ExchangeError::Connection)?;
        let count = match stream.read(&mut piece) {
            Ok(0) => return Err(ExchangeError::Closed),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error, patience)),
        };
        let end = piece[..count].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&piece[..end.unwrap_or(count)]);
        match (end, line.len() > MAX_LINE) {
            (_, true) => return Err(ExchangeError::TooLong),
            (Some(_), false) => return Ok(line),
            (None, false) => {}
        }
    }
}

fn parse(line: &[u8]) -> Result<Summary, ExchangeError> {
    let garbled = |error: serde_json::Error| ExchangeError::Garbled(error.to_string());
    // The version first: the rest may look different in another.
    let value: serde_json::Value = serde_json::from_slice(line).map_err(garbled)?;
    match value.get("protocol").and_then(serde_json::Value::as_u64) {
        Some(theirs) if theirs != u64::from(PROTOCOL) => Err(ExchangeError::Version { theirs }),
        _ => Ok(serde_json::from_value::<Summary>(value).map_err(garbled)?.clipped()),
    }
}

/// What is left until then; an error if nothing is.
fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn broken(error: io::Error, patience: Patience) -> ExchangeError {
    match error.kind() {
        // Which of the two a socket's time limit gives is up to the system.
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ExchangeError::Silent(patience.0),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ExchangeError::Closed,
        _ => ExchangeError::Connection(error),
    }
}

/// The summary of a machine with very many ports and GIDs is shorter; a stranger may send without end.
const MAX_LINE: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::super::super::fixture::Fixture;
    use super::*;

    const SHORT: Patience = Patience(Duration::from_millis(200));
    const LONG: Patience = Patience(Duration::from_secs(60));

    fn ours() -> Summary {
        Summary::new(&Fixture::rxe_host().system())
    }

    /// What asking gives where `other` holds the other end.
    fn asked(patience: Patience, other: impl FnOnce(TcpStream) + Send + 'static) -> Result<Summary, ExchangeError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let other = thread::spawn(move || other(listener.accept().expect("it connects").0));
        let result = ask(&[address], &ours(), patience);
        other.join().expect("no panic");
        result
    }

    /// Writes as much as is taken.
    fn says(text: Vec<u8>) -> impl FnOnce(TcpStream) {
        move |mut stream| {
            // The other end may have had enough.
            let _ = stream.write_all(&text);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    }

    #[test]
    fn both_sides_learn_what_the_other_has() {
        let result = asked(LONG, |stream| {
            let theirs = answer(stream, &ours(), LONG).expect("a summary");
            assert_eq!(theirs, ours());
        });
        assert_eq!(result.expect("a summary"), ours());
    }

    #[test]
    fn strangers_are_told_apart() {
        let garbled = asked(LONG, says(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
        assert!(matches!(garbled, Err(ExchangeError::Garbled(_))), "{garbled:?}");
        let incomplete = asked(LONG, says(b"{\"protocol\":2,\"release\":\"x\"}\n".to_vec()));
        assert!(matches!(incomplete, Err(ExchangeError::Garbled(_))), "{incomplete:?}");
        let newer = asked(LONG, says(b"{\"protocol\":7,\"machines\":[]}\n".to_vec()));
        assert!(matches!(newer, Err(ExchangeError::Version { theirs: 7 })), "{newer:?}");
        let deep = asked(LONG, says([b"[".repeat(100_000), b"\n".to_vec()].concat()));
        assert!(matches!(deep, Err(ExchangeError::Garbled(_))), "{deep:?}");
        let binary = asked(LONG, says((0..=255).chain([b'\n']).collect()));
        assert!(matches!(binary, Err(ExchangeError::Garbled(_))), "{binary:?}");
    }

    #[test]
    fn one_that_closes_early_is_told() {
        let closed = asked(LONG, says(b"{\"protocol\":2".to_vec()));
        assert!(matches!(closed, Err(ExchangeError::Closed)), "{closed:?}");
    }

    #[test]
    fn a_flood_is_not_kept() {
        let flood = asked(LONG, says(vec![b'x'; MAX_LINE + 8192]));
        assert!(matches!(flood, Err(ExchangeError::TooLong)), "{flood:?}");
    }

    #[test]
    fn silence_and_single_bytes_take_no_longer_than_the_patience() {
        let begin = Instant::now();
        let silent = asked(SHORT, says_nothing);
        assert!(matches!(silent, Err(ExchangeError::Silent(_))), "{silent:?}");
        let drip = asked(SHORT, |mut stream| while stream.write_all(b" ").is_ok() {});
        assert!(matches!(drip, Err(ExchangeError::Silent(_) | ExchangeError::TooLong)), "{drip:?}");
        assert!(begin.elapsed() < LONG.0);
    }

    fn says_nothing(mut stream: TcpStream) {
        let _ = io::copy(&mut stream, &mut io::sink());
    }

    #[test]
    fn where_nobody_listens_there_is_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let result = ask(&[address], &ours(), SHORT);
        // Another test may have got the port by now: it says no summary either.
        assert!(result.is_err());
        assert!(matches!(ask(&[], &ours(), LONG), Err(ExchangeError::Resolve(_))));
    }
}
