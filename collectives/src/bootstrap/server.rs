//! The store: a thread of rank 0 at which all ranks meet, and by which they hear of each other's end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::message::{FromStore, Joined, LINE_LIMIT, PROTOCOL, ToStore, encode};
use crate::fault::Fault;

/// The store's thread.
#[derive(Debug)]
pub(crate) struct Server {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Server {
    /// Listens at the first of `addresses` that can be had, and gathers `size` ranks.
    pub(crate) fn start(addresses: &[SocketAddr], size: u32, limit: Duration) -> io::Result<Server> {
        let mut listener = Err(ErrorKind::AddrNotAvailable.into());
        for &address in addresses {
            listener = TcpListener::bind(address);
            if listener.is_ok() {
                break;
            }
        }
        let mut listener = listener?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let stop = Arc::new(AtomicBool::new(false));
        let token = getrandom::u64().map_err(|_| io::Error::from(ErrorKind::Other))?;
        let mut store = Store {
            poll,
            listener,
            stop: stop.clone(),
            size,
            token,
            limit,
            deadline: Some(Instant::now() + limit),
            clients: Vec::new(),
            left: vec![false; size as usize],
            fault: None,
        };
        let thread = std::thread::Builder::new().name("qpair-store".into()).spawn(move || store.run())?;
        Ok(Server { thread, stop, waker })
    }

    /// Says goodbye to all ranks and ends. Takes a bounded time.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        // If the thread has ended, there is nobody to wake.
        let _ = self.waker.wake();
        let _ = self.thread.join();
    }
}

struct Store {
    poll: Poll,
    listener: TcpListener,
    stop: Arc<AtomicBool>,
    size: u32,
    token: u64,
    limit: Duration,
    /// Until when all ranks must have joined; `None` once they have.
    deadline: Option<Instant>,
    clients: Vec<Option<Client>>,
    /// By rank.
    left: Vec<bool>,
    fault: Option<Fault>,
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    joined: Option<(u32, Joined)>,
    /// Nothing more is read; it is closed once all is written.
    closing: bool,
}

impl Store {
    fn run(&mut self) {
        let mut events = Events::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.poll.poll(&mut events, left) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the store can not go on");
                    return;
                }
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    Token(at) => self.serve(at - FIRST_CLIENT),
                }
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.give_up();
            }
        }
        self.leave(0);
        self.drain();
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    // Only latency is at stake.
                    let _ = stream.set_nodelay(true);
                    let at = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
                    // Strangers cost no more than this.
                    if at >= 2 * self.size as usize + 64 {
                        continue;
                    }
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    if self.poll.registry().register(&mut stream, Token(FIRST_CLIENT + at), interest).is_err() {
                        continue;
                    }
                    let (input, output) = (Vec::new(), Vec::new());
                    let client = Client { stream, input, output, joined: None, closing: false };
                    if at == self.clients.len() {
                        self.clients.push(None);
                    }
                    self.clients[at] = Some(client);
                    self.serve(at);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Reads and writes what is possible for a client.
    fn serve(&mut self, at: usize) {
        let Some(Some(client)) = self.clients.get_mut(at) else { return };
        let ended = client.fill();
        let mut lines = Vec::new();
        while let Some(end) = client.input.iter().position(|&byte| byte == b'\n') {
            lines.push(client.input.drain(..=end).collect::<Vec<u8>>());
        }
        let too_long = client.input.len() > LINE_LIMIT;
        for line in lines {
            match serde_json::from_slice(&line) {
                Ok(message) => self.handle(at, message),
                Err(_) => self.refuse(at, "it does not speak this release's language: use one release for all"),
            }
        }
        if too_long {
            self.refuse(at, "it sent a line that is too long");
        }
        let flushed = self.flush(at);
        if ended || !flushed {
            self.hang_up(at);
        }
    }

    fn handle(&mut self, at: usize, message: ToStore) {
        let Some(Some(client)) = self.clients.get(at) else { return };
        let rank = client.joined.as_ref().map(|(rank, _)| *rank);
        match (message, rank) {
            (ToStore::Join { protocol, size, rank, joined }, None) => self.join(at, protocol, size, rank, joined),
            (ToStore::Report(fault), Some(_)) => self.raise(fault),
            (ToStore::Leave, Some(rank)) => self.leave(rank),
            _ => self.refuse(at, "it said what it should not"),
        }
    }

    fn join(&mut self, at: usize, protocol: u32, size: u32, rank: u32, joined: Joined) {
        let reason = if protocol != PROTOCOL {
            format!("rank 0 speaks version {PROTOCOL}, this rank {protocol}: use one release for all ranks")
        } else if size != self.size {
            format!("WORLD_SIZE is {} at rank 0, and {size} at this rank: give all ranks the same", self.size)
        } else if rank >= size {
            format!("there is no rank {rank} among {size}")
        } else if self.rank(rank).is_some() || self.deadline.is_none() {
            format!("there is another rank {rank} already: give each process its own RANK")
        } else {
            String::new()
        };
        if !reason.is_empty() {
            return self.refuse(at, &reason);
        }
        if let Some(Some(client)) = self.clients.get_mut(at) {
            client.joined = Some((rank, joined));
        }
        let mut members: Vec<_> = self.clients.iter().flatten().filter_map(|client| client.joined.clone()).collect();
        if members.len() < self.size as usize {
            return;
        }
        members.sort_by_key(|(rank, _)| *rank);
        let members = members.into_iter().map(|(_, joined)| joined).collect();
        self.deadline = None;
        self.tell_all(&FromStore::Roster { token: self.token, members });
    }

    /// Takes note of the first fault and tells all ranks, for each of later ones again.
    fn raise(&mut self, fault: Fault) {
        let fault = match fault {
            Fault::Gone { rank } if self.has_left(rank) => Fault::Left { rank },
            fault => fault,
        };
        let first = self.fault.get_or_insert(fault).clone();
        self.tell_all(&FromStore::Verdict(first));
    }

    fn leave(&mut self, rank: u32) {
        if let Some(left) = self.left.get_mut(rank as usize).filter(|left| !**left) {
            *left = true;
            self.tell_all(&FromStore::Left { rank });
        }
    }

    /// A connection ended: without a word before, that is the end of the rank.
    fn hang_up(&mut self, at: usize) {
        let Some(Some(mut client)) = self.clients.get_mut(at).map(Option::take) else { return };
        // Closing deregisters as well.
        let _ = self.poll.registry().deregister(&mut client.stream);
        if let Some((rank, _)) = client.joined
            && !self.has_left(rank)
        {
            self.raise(Fault::Gone { rank });
        }
    }

    /// Not all ranks came in time.
    fn give_up(&mut self) {
        self.deadline = None;
        let missing = (0..self.size).filter(|&rank| self.rank(rank).is_none()).collect();
        self.tell_all(&FromStore::Absent { missing, limit: self.limit });
    }

    fn refuse(&mut self, at: usize, reason: &str) {
        if let Some(Some(client)) = self.clients.get_mut(at) {
            client.output.extend(encode(&FromStore::Refused { reason: reason.to_owned() }));
            client.closing = true;
        }
    }

    fn rank(&self, rank: u32) -> Option<&Client> {
        self.clients.iter().flatten().find(|client| client.is(rank))
    }

    fn has_left(&self, rank: u32) -> bool {
        self.left.get(rank as usize) == Some(&true)
    }

    fn tell_all(&mut self, message: &FromStore) {
        let line = encode(message);
        for at in 0..self.clients.len() {
            if let Some(client) = self.clients[at].as_mut().filter(|client| client.joined.is_some()) {
                client.output.extend_from_slice(&line);
                // One that can not be written to is found out when it is read.
                self.flush(at);
            }
        }
    }

    /// Writes what is possible. False if the connection is over.
    fn flush(&mut self, at: usize) -> bool {
        let Some(Some(client)) = self.clients.get_mut(at) else { return true };
        while !client.output.is_empty() {
            match client.stream.write(&client.output) {
                Ok(0) => return false,
                Ok(written) => drop(client.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        !client.closing
    }

    /// Writes what is left, for a bounded time.
    fn drain(&mut self) {
        for _ in 0..DRAIN_ATTEMPTS {
            let mut left = false;
            for at in 0..self.clients.len() {
                let open = self.flush(at);
                left |= open && self.clients[at].as_ref().is_some_and(|client| !client.output.is_empty());
            }
            if !left {
                return;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
    }
}

impl Client {
    fn is(&self, rank: u32) -> bool {
        self.joined.as_ref().is_some_and(|(joined, _)| *joined == rank)
    }

    /// Reads what is there. True if the connection is over.
    fn fill(&mut self) -> bool {
        let mut part = [0; 4096];
        while self.input.len() <= LINE_LIMIT {
            match self.stream.read(&mut part) {
                Ok(0) => return true,
                Ok(_) if self.closing => {}
                Ok(read) => self.input.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
        false
    }
}

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_CLIENT: usize = 2;
const DRAIN_ATTEMPTS: u32 = 50;
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
