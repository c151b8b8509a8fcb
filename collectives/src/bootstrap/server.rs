//! The store: a thread of rank 0 at which all ranks meet, and by which they hear of each other's end.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use super::message::{FromStore, Listening, PROTOCOL, ToStore, Whereabouts, encode};
use super::visitor::{Heard, Visitor};
use crate::deadline::Deadline;
use crate::fault::Fault;

/// The store's thread. Dropping it says goodbye to all ranks, and ends it within a bounded time.
#[derive(Debug)]
pub(crate) struct Server {
    /// `None` once it has ended.
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Server {
    /// Gathers `size` ranks.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn start(mut listener: TcpListener, size: u32, limit: Duration) -> io::Result<Server> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut store = Store {
            poll,
            listener,
            backlog: false,
            stop: stop.clone(),
            size,
            token: getrandom::u64().map_err(|_| io::Error::from(ErrorKind::Other))?,
            limit,
            stage: Stage::Gathering(Deadline::after(limit)),
            visitors: Vec::new(),
            left: vec![false; size as usize],
        };
        let thread = std::thread::Builder::new().name("qpair-store".into()).spawn(move || store.run())?;
        Ok(Server { thread: Some(thread), stop, waker })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // If the thread has ended, there is nobody to wake.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Listens at the first of `addresses` that this host has.
///
/// # Errors
/// Also if that port is taken at an address before: ranks would find what listens there.
pub(super) fn listen(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for &address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

struct Store {
    poll: Poll,
    listener: TcpListener,
    /// Whether somebody may wait who could not be let in.
    backlog: bool,
    stop: Arc<AtomicBool>,
    size: u32,
    token: u64,
    limit: Duration,
    stage: Stage,
    visitors: Vec<Option<Visitor>>,
    /// By rank.
    left: Vec<bool>,
}

/// How far the ranks are.
enum Stage {
    /// Until then all must have come.
    Gathering(Deadline),
    /// All have come, and until then must be ready to be reached.
    SettingUp(Deadline),
    /// All are.
    Complete,
    /// They did not, or a fault ended it: what all are told, also those that come later.
    Over(FromStore),
}

impl Store {
    fn run(&mut self) {
        let mut events = Events::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, self.left()) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the store can not go on");
                    return;
                }
            }
            let backlog = std::mem::take(&mut self.backlog);
            if backlog || events.iter().any(|event| event.token() == LISTENER) {
                self.accept();
            }
            for event in &events {
                if let Some(at) = event.token().0.checked_sub(FIRST_VISITOR) {
                    self.serve(at);
                }
            }
            if self.deadline().is_some_and(Deadline::is_over) {
                let missing = (0..self.size).filter(|&rank| !self.is_ready(rank)).collect();
                self.end(FromStore::Absent { missing, limit: self.limit });
            }
        }
        if self.deadline().is_some() {
            self.end(FromStore::Verdict(Fault::Gone { rank: 0 }));
        }
        self.leave(0);
        self.drain();
    }

    /// Until when the ranks must be so far.
    fn deadline(&self) -> Option<Deadline> {
        match self.stage {
            Stage::Gathering(deadline) | Stage::SettingUp(deadline) => Some(deadline),
            Stage::Complete | Stage::Over(_) => None,
        }
    }

    /// How long there is nothing to do unless something comes.
    fn left(&self) -> Option<Duration> {
        let deadline = self.deadline().and_then(Deadline::left);
        let again = self.backlog.then_some(ACCEPT_PAUSE);
        deadline.into_iter().chain(again).min()
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(error) => {
                    // No descriptor is left, for example. The listener does not tell of those in line again.
                    tracing::warn!(%error, "the store can let nobody in now");
                    self.backlog = true;
                    return;
                }
            };
            let at = self.visitors.iter().position(Option::is_none).unwrap_or(self.visitors.len());
            // Strangers cost no more than this.
            if at >= 2 * self.size as usize + 64 {
                continue;
            }
            let Ok(visitor) = Visitor::new(stream, self.poll.registry(), Token(FIRST_VISITOR + at)) else { continue };
            if at == self.visitors.len() {
                self.visitors.push(None);
            }
            self.visitors[at] = Some(visitor);
            self.serve(at);
        }
    }

    /// Hears and tells a visitor what is possible.
    fn serve(&mut self, at: usize) {
        let ended = loop {
            let Some(Some(visitor)) = self.visitors.get_mut(at) else { return };
            match visitor.hear() {
                Heard::Line(line) => match serde_json::from_slice(&line) {
                    Ok(message) => self.handle(at, message),
                    Err(_) => self.refuse(at, "it does not speak this release's language: use one release for all"),
                },
                Heard::TooMuch => self.refuse(at, "it says more than any rank has to"),
                Heard::Nothing => break false,
                Heard::End => break true,
            }
        };
        if ended || !self.flush(at) {
            self.hang_up(at);
        }
    }

    fn handle(&mut self, at: usize, message: ToStore) {
        let Some(Some(visitor)) = self.visitors.get(at) else { return };
        let rank = visitor.joined.as_ref().map(|(rank, _)| *rank);
        match (message, rank) {
            (ToStore::Join { protocol, size, rank, whereabouts }, None) => {
                self.join(at, protocol, size, rank, whereabouts);
            }
            (ToStore::Listening(listening), Some(_))
                if matches!(self.stage, Stage::SettingUp(_)) && visitor.listening.is_none() =>
            {
                self.ready(at, listening);
            }
            // It was ready too late, or while a fault ended it: it is told of that.
            (ToStore::Listening(_), Some(_)) if matches!(self.stage, Stage::Over(_)) => {}
            (ToStore::Report(fault), Some(_)) => self.raise(fault),
            // The others count on it.
            (ToStore::Leave, Some(rank)) if self.deadline().is_some() => self.raise(Fault::Gone { rank }),
            (ToStore::Leave, Some(rank)) => self.leave(rank),
            _ => self.refuse(at, "it said what it should not"),
        }
    }

    fn join(&mut self, at: usize, protocol: u32, size: u32, rank: u32, whereabouts: Whereabouts) {
        let reason = if protocol != PROTOCOL {
            format!("rank 0 speaks version {PROTOCOL}, this rank {protocol}: use one release for all ranks")
        } else if size != self.size {
            format!("WORLD_SIZE is {} at rank 0, and {size} at this rank: give all ranks the same", self.size)
        } else if rank >= size {
            format!("there is no rank {rank} among {size}")
        } else if let Stage::Over(verdict) = &self.stage {
            return self.dismiss(at, &verdict.clone());
        } else if self.is_here(rank) || !matches!(self.stage, Stage::Gathering(_)) {
            format!("there is another rank {rank} already: give each process its own RANK")
        } else {
            return self.admit(at, rank, whereabouts);
        };
        self.refuse(at, &reason);
    }

    fn admit(&mut self, at: usize, rank: u32, whereabouts: Whereabouts) {
        if let Some(Some(visitor)) = self.visitors.get_mut(at) {
            visitor.joined = Some((rank, whereabouts));
        }
        if self.count(|visitor| visitor.joined.is_some()) == self.size as usize {
            let members = self.by_rank(|visitor| visitor.joined.as_ref().map(|(_, whereabouts)| whereabouts.clone()));
            self.stage = Stage::SettingUp(Deadline::after(self.limit));
            self.tell_all(&FromStore::Roster { token: self.token, members });
        }
    }

    fn ready(&mut self, at: usize, listening: Listening) {
        if let Some(Some(visitor)) = self.visitors.get_mut(at) {
            visitor.listening = Some(listening);
        }
        if self.count(|visitor| visitor.listening.is_some()) == self.size as usize {
            let all = self.by_rank(|visitor| visitor.listening.clone());
            self.stage = Stage::Complete;
            self.tell_all(&FromStore::Listening(all));
        }
    }

    fn count(&self, which: impl Fn(&Visitor) -> bool) -> usize {
        self.visitors.iter().flatten().filter(|visitor| which(visitor)).count()
    }

    /// What those ranks that said it have said, in order.
    fn by_rank<T>(&self, said: impl Fn(&Visitor) -> Option<T>) -> Vec<T> {
        let ranks = self.visitors.iter().flatten();
        let mut all: Vec<_> = ranks.filter_map(|rank| Some((rank.joined.as_ref()?.0, said(rank)?))).collect();
        all.sort_by_key(|(rank, _)| *rank);
        all.into_iter().map(|(_, said)| said).collect()
    }

    /// A rank can not go on. The first fault counts.
    fn raise(&mut self, fault: Fault) {
        let fault = match fault {
            Fault::Gone { rank } if self.has_left(rank) => Fault::Left { rank },
            fault => fault,
        };
        self.end(FromStore::Verdict(fault));
    }

    /// Tells all ranks what ended it, unless something did before.
    fn end(&mut self, verdict: FromStore) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.tell_all(&verdict);
            self.stage = Stage::Over(verdict);
        }
    }

    fn leave(&mut self, rank: u32) {
        if let Some(left) = self.left.get_mut(rank as usize).filter(|left| !**left) {
            *left = true;
            self.tell_all(&FromStore::Left { rank });
        }
    }

    /// A connection ended: without a word before, that is the end of the rank.
    fn hang_up(&mut self, at: usize) {
        let visitor = self.visitors.get_mut(at).and_then(Option::take);
        if let Some((rank, _)) = visitor.and_then(|visitor| visitor.joined)
            && !self.has_left(rank)
        {
            self.raise(Fault::Gone { rank });
        }
    }

    fn refuse(&mut self, at: usize, reason: &str) {
        self.dismiss(at, &FromStore::Refused { reason: reason.to_owned() });
    }

    fn dismiss(&mut self, at: usize, message: &FromStore) {
        if let Some(Some(visitor)) = self.visitors.get_mut(at) {
            visitor.tell(&encode(message));
            visitor.dismiss();
        }
    }

    fn is_here(&self, rank: u32) -> bool {
        self.visitors.iter().flatten().any(|visitor| visitor.is(rank))
    }

    /// True of a rank that is as far as all have to be.
    fn is_ready(&self, rank: u32) -> bool {
        let gathering = matches!(self.stage, Stage::Gathering(_));
        let mut visitors = self.visitors.iter().flatten();
        visitors.any(|visitor| visitor.is(rank) && (gathering || visitor.listening.is_some()))
    }

    fn has_left(&self, rank: u32) -> bool {
        self.left.get(rank as usize) == Some(&true)
    }

    fn tell_all(&mut self, message: &FromStore) {
        let line = encode(message);
        for visitor in self.visitors.iter_mut().flatten().filter(|visitor| visitor.joined.is_some()) {
            visitor.tell(&line);
            // One that can not be written to is found out when it is read.
            visitor.flush();
        }
    }

    fn flush(&mut self, at: usize) -> bool {
        self.visitors.get_mut(at).and_then(Option::as_mut).is_none_or(Visitor::flush)
    }

    /// Writes what is left, for a bounded time.
    fn drain(&mut self) {
        for _ in 0..DRAIN_ATTEMPTS {
            let mut behind = false;
            for visitor in self.visitors.iter_mut().flatten() {
                behind |= visitor.flush() && visitor.is_behind();
            }
            if !behind {
                return;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
    }
}

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_VISITOR: usize = 2;
/// Between attempts to let somebody in where the system has no room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const DRAIN_ATTEMPTS: u32 = 50;
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
