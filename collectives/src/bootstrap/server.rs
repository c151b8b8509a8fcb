//! The store's thread at rank 0.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Interest, Poll, Waker};
use qpair_transport::ClusterKey;
use rustix::process::{Resource, getrlimit};

use super::meeting::Hosting;
use super::store::{LISTENER, Store, WAKER};

/// The store's thread. Dropping it says goodbye to all ranks, and ends it within a bounded time.
#[derive(Debug)]
pub(crate) struct Server {
    /// `None` once it has ended.
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

/// Whom it lets in.
pub(super) struct Terms {
    /// The number of ranks.
    pub(super) size: u32,
    /// How long it waits for all to come, and then for all to be set up.
    pub(super) limit: Duration,
    /// What visitors must have.
    pub(super) key: Option<ClusterKey>,
    /// What ranks must show.
    pub(super) ticket: Option<String>,
    /// How many visitors there may be at once, for the descriptors that they take.
    pub(super) places: usize,
}

impl Server {
    /// Gathers the ranks.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn start(hosting: Hosting, terms: Terms) -> io::Result<Server> {
        let Hosting { listener, published } = hosting;
        Self::run(listener, terms, |mut store| {
            store.published = published;
            store
        })
    }

    /// Takes the place of a store that is gone, for those that are left to find each other. Those in `gone` can not.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn stand_in(listener: TcpListener, terms: Terms, gone: &[u32]) -> io::Result<Server> {
        Self::run(listener, terms, |store| store.standing_in(gone))
    }

    fn run(mut listener: TcpListener, terms: Terms, made: impl FnOnce(Store) -> Store) -> io::Result<Server> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let stop = Arc::new(AtomicBool::new(false));
        let token = getrandom::u64()?;
        let mut store = made(Store::new(poll, listener, terms, token, stop.clone()));
        let thread = std::thread::Builder::new().name("qpair-store".into()).spawn(move || store.run())?;
        Ok(Server { thread: Some(thread), stop, waker })
    }
}

/// The descriptors of this process.
pub(super) struct Descriptors {
    /// Those that are in use, and that a store needs beside those of its visitors.
    pub(super) taken: usize,
    /// As many as the system gives.
    pub(super) limit: usize,
}

impl Descriptors {
    pub(super) fn now() -> Self {
        let in_use = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
        Descriptors { taken: in_use + SPARE, limit }
    }

    /// How many are left for visitors.
    pub(super) fn left(&self) -> usize {
        self.limit.saturating_sub(self.taken)
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

/// For the rank's own connection, its worker, and one visitor at least.
const SPARE: usize = 32;
