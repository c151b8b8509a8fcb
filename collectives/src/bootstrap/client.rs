//! A rank's connection to the store: to meet the others, then to tell and hear of faults.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::alarm::Alarm;
use super::message::{FromStore, LINE_LIMIT, Listening, PROTOCOL, ROSTER_LIMIT, ToStore, Whereabouts, encode};
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
#[derive(Debug)]
pub(super) struct Joining {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    rank: u32,
    size: u32,
    host: String,
    port: u16,
    /// All have come.
    met: bool,
    /// At rank 0.
    server: Option<Server>,
}

/// Where all ranks run.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) token: u64,
    pub(super) members: Vec<Whereabouts>,
}

impl Joining {
    pub(super) fn new(
        mut stream: TcpStream,
        (rank, size): (u32, u32),
        (host, port): (&str, u16),
        whereabouts: Whereabouts,
        server: Option<Server>,
    ) -> Result<Self, BootstrapError> {
        let join = ToStore::Join { protocol: PROTOCOL, size, rank, whereabouts };
        let sent = stream.set_nodelay(true).and_then(|()| stream.write_all(&encode(&join)));
        sent.map_err(system("write to the store"))?;
        let reader = BufReader::new(stream.try_clone().map_err(system("share the store's connection"))?);
        Ok(Joining { stream, reader, rank, size, host: host.to_owned(), port, met: false, server })
    }

    /// Waits until all ranks have joined.
    pub(super) fn roster(&mut self, limit: Duration) -> Result<Roster, BootstrapError> {
        match self.hear(limit)? {
            FromStore::Roster { token, members } if members.len() == self.size as usize => {
                self.met = true;
                Ok(Roster { token, members })
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Says how this rank is reached, and waits until all have said it.
    pub(super) fn listen(
        mut self,
        listening: Listening,
        limit: Duration,
    ) -> Result<(StoreClient, Vec<Listening>), BootstrapError> {
        // If that fails, the store is gone; why, it may have said before.
        let _ = self.stream.write_all(&encode(&ToStore::Listening(listening)));
        let all = match self.hear(limit)? {
            FromStore::Listening(all) if all.len() == self.size as usize => all,
            other => return Err(self.unexpected(&other)),
        };
        self.stream.set_read_timeout(None).map_err(system("reset the store's connection"))?;
        let alarm = Alarm::new(self.size);
        let heard = alarm.clone();
        let mut reader = self.reader;
        let listener = std::thread::Builder::new().name("qpair-store-client".into()).spawn(move || {
            listen(&mut reader, &heard);
        });
        let listener = Some(listener.map_err(system("start a thread"))?);
        Ok((StoreClient { stream: self.stream, alarm, listener, server: self.server }, all))
    }

    /// Tells the others that this rank can not be set up.
    pub(super) fn give_up(mut self, error: &BootstrapError) {
        let fault = Fault::Failed { rank: self.rank, reason: error.to_string() };
        // If that fails, they see that the connection ends.
        let _ = self.stream.write_all(&encode(&ToStore::Report(fault)));
        // At rank 0 the store ends with this, and is to have read it before.
        if self.server.is_some() {
            let _ = self.hear(VERDICT);
        }
    }

    fn hear(&mut self, limit: Duration) -> Result<FromStore, BootstrapError> {
        // The store waits as long as that from its own start, and says who is missing.
        let deadline = Deadline::after(limit.saturating_add(ANSWER));
        match read(&mut self.reader, Some(deadline), ROSTER_LIMIT) {
            Ok(FromStore::Refused { reason }) => Err(BootstrapError::Refused { rank: self.rank, reason }),
            Ok(FromStore::Absent { missing, limit }) if self.met => {
                Err(BootstrapError::NotSetUp { missing, size: self.size, limit })
            }
            Ok(FromStore::Absent { missing, limit }) => Err(BootstrapError::Absent { missing, size: self.size, limit }),
            Ok(FromStore::Verdict(Fault::Gone { rank } | Fault::Left { rank })) => {
                Err(BootstrapError::RankGone { rank })
            }
            Ok(FromStore::Verdict(Fault::Failed { rank, reason })) => Err(BootstrapError::RankFailed { rank, reason }),
            Ok(other) => Ok(other),
            Err(Hearing::Strange(line)) => Err(self.stranger(&line)),
            Err(Hearing::Over(source)) if source.kind() == ErrorKind::TimedOut => {
                let (host, port) = (self.host.clone(), self.port);
                Err(BootstrapError::NoAnswer { host, port, limit, source })
            }
            // The store ends with rank 0.
            Err(Hearing::Over(_)) if self.met => Err(BootstrapError::RankGone { rank: 0 }),
            Err(Hearing::Over(_)) => Err(self.stranger("it hung up")),
        }
    }

    fn unexpected(&self, said: &FromStore) -> BootstrapError {
        self.stranger(&format!("{said:?}"))
    }

    fn stranger(&self, what: &str) -> BootstrapError {
        let (host, port, what) = (self.host.clone(), self.port, what.chars().take(80).collect());
        BootstrapError::Stranger { host, port, what }
    }
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> BootstrapError {
    move |source| BootstrapError::System { what, source }
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
