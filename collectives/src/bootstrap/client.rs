//! A rank's connection to the store: to meet the others, then to tell and hear of faults.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::alarm::Alarm;
use super::message::{FromStore, Joined, LINE_LIMIT, PROTOCOL, ROSTER_LIMIT, ToStore, encode};
use super::server::Server;
use crate::deadline::Deadline;
use crate::error::BootstrapError;
use crate::fault::Fault;

/// A rank's connection to the store. A thread listens to it; it sleeps as long as nobody has a fault.
#[derive(Debug)]
pub(crate) struct StoreClient {
    stream: TcpStream,
    alarm: Arc<Alarm>,
    listener: Option<JoinHandle<()>>,
    /// At rank 0.
    server: Option<Server>,
}

/// A rank that has said who it is.
pub(super) struct Joining {
    stream: TcpStream,
    rank: u32,
    size: u32,
    host: String,
    port: u16,
}

/// What all ranks know of each other.
#[derive(Debug)]
pub(crate) struct Roster {
    pub(crate) token: u64,
    pub(crate) members: Vec<Joined>,
}

impl Joining {
    pub(super) fn new(
        mut stream: TcpStream,
        (rank, size): (u32, u32),
        (host, port): (&str, u16),
        joined: Joined,
    ) -> Result<Self, BootstrapError> {
        let join = ToStore::Join { protocol: PROTOCOL, size, rank, joined };
        let sent = stream.set_nodelay(true).and_then(|()| stream.write_all(&encode(&join)));
        sent.map_err(|source| BootstrapError::System { what: "write to the store", source })?;
        Ok(Joining { stream, rank, size, host: host.to_owned(), port })
    }

    /// Waits until all ranks have joined.
    pub(super) fn finish(
        self,
        server: Option<Server>,
        limit: Duration,
    ) -> Result<(StoreClient, Roster), BootstrapError> {
        let system = |what| move |source| BootstrapError::System { what, source };
        let mut reader = BufReader::new(self.stream.try_clone().map_err(system("share the store's connection"))?);
        let roster = self.roster(&mut reader, limit)?;
        self.stream.set_read_timeout(None).map_err(system("reset the store's connection"))?;
        let alarm = Alarm::new(self.size);
        let heard = alarm.clone();
        let listener = std::thread::Builder::new().name("qpair-store-client".into()).spawn(move || {
            listen(&mut reader, &heard);
        });
        let listener = Some(listener.map_err(system("start a thread"))?);
        Ok((StoreClient { stream: self.stream, alarm, listener, server }, roster))
    }

    fn roster(&self, reader: &mut BufReader<TcpStream>, limit: Duration) -> Result<Roster, BootstrapError> {
        // The store waits as long as that from its own start, and says who is missing.
        let deadline = Deadline::after(limit.saturating_add(ANSWER));
        let stranger = |what: &str| {
            let (host, port, what) = (self.host.clone(), self.port, what.chars().take(80).collect());
            BootstrapError::Stranger { host, port, what }
        };
        match read(reader, Some(deadline), ROSTER_LIMIT) {
            Ok(FromStore::Roster { token, members }) if members.len() == self.size as usize => {
                Ok(Roster { token, members })
            }
            Ok(FromStore::Refused { reason }) => Err(BootstrapError::Refused { rank: self.rank, reason }),
            Ok(FromStore::Absent { missing, limit }) => Err(BootstrapError::Absent { missing, size: self.size, limit }),
            Ok(FromStore::Verdict(Fault::Gone { rank })) => Err(BootstrapError::RankGone { rank }),
            Ok(other) => Err(stranger(&format!("{other:?}"))),
            Err(Hearing::Strange(line)) => Err(stranger(&line)),
            Err(Hearing::Over(source)) if source.kind() == ErrorKind::TimedOut => {
                let (host, port) = (self.host.clone(), self.port);
                Err(BootstrapError::NoAnswer { host, port, limit, source })
            }
            Err(Hearing::Over(_)) => Err(stranger("it hung up")),
        }
    }
}

impl StoreClient {
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Tells the store, and waits for its verdict for a short time.
    pub(super) fn report(&mut self, fault: Fault) -> Fault {
        if let Some(first) = self.alarm.fault() {
            return first;
        }
        // If that fails, the listener has seen, or will see, that the store is gone.
        let _ = self.stream.write_all(&encode(&ToStore::Report(fault.clone())));
        match self.alarm.wait(VERDICT) {
            Some(first) => first,
            None => self.alarm.raise(fault),
        }
    }

    pub(super) fn leave(&mut self) {
        // Nobody is left to be told if that fails.
        let _ = self.stream.write_all(&encode(&ToStore::Leave));
        // It tells the others.
        self.server = None;
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(listener) = self.listener.take() {
            // It can not panic; and if it did, all that it did is over.
            let _ = listener.join();
        }
    }
}

impl Drop for StoreClient {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Why nothing was heard.
enum Hearing {
    /// The connection ended, or the time is over.
    Over(std::io::Error),
    /// A line that is no message.
    Strange(String),
}

/// Listens until the connection ends.
fn listen(reader: &mut BufReader<TcpStream>, alarm: &Alarm) {
    loop {
        match read(reader, None, LINE_LIMIT) {
            Ok(FromStore::Verdict(fault)) => drop(alarm.raise(fault)),
            Ok(FromStore::Left { rank }) => alarm.leave(rank),
            Ok(other) => tracing::warn!(?other, "the store said what it should not"),
            Err(Hearing::Strange(line)) => tracing::warn!(line, "the store said what is no message"),
            Err(Hearing::Over(_)) => {
                // The store ends with rank 0, which says so before if it is no fault.
                if !alarm.has_left(0) {
                    alarm.raise(Fault::Gone { rank: 0 });
                }
                return;
            }
        }
    }
}

/// Reads a message, until the deadline.
fn read(reader: &mut BufReader<TcpStream>, deadline: Option<Deadline>, limit: usize) -> Result<FromStore, Hearing> {
    let mut line = Vec::new();
    loop {
        if let Some(deadline) = deadline {
            if deadline.is_over() {
                return Err(Hearing::Over(ErrorKind::TimedOut.into()));
            }
            let left = deadline.left().map(|left| left.max(LEAST));
            reader.get_ref().set_read_timeout(left).map_err(Hearing::Over)?;
        }
        let room = (limit - line.len()) as u64;
        match reader.by_ref().take(room).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                let strange = |_| Hearing::Strange(String::from_utf8_lossy(&line).into_owned());
                return serde_json::from_slice(&line).map_err(strange);
            }
            Ok(_) if line.len() >= limit => return Err(Hearing::Strange("a line too long".into())),
            Ok(_) => return Err(Hearing::Over(ErrorKind::UnexpectedEof.into())),
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(Hearing::Over(error)),
        }
    }
}

/// How much longer than the store a rank waits for what the store has to say.
const ANSWER: Duration = Duration::from_secs(2);

/// A socket takes no shorter limit than this.
const LEAST: Duration = Duration::from_millis(1);

/// How long a rank waits for the verdict on a fault. The store answers within a millisecond if it runs.
const VERDICT: Duration = Duration::from_millis(500);
