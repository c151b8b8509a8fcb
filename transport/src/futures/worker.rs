//! The handle of an async program on its worker.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::net::ToSocketAddrs;
use std::rc::Rc;

use qpair_verbs::Local;

use super::drive::drive;
use super::error::{Failed, Refused};
use super::operation::Operation;
use super::shared::{Shared, with};
use super::sleeper::Sleeper;
use super::turn::Turn;
use crate::cm::ToPeer;
use crate::engine::RemoteMemory;
use crate::worker::{
    EndpointId, Event, HandlerId, ListenError, Listener, Message, OneSidedError, OneSidedFailure, OpId, Payload,
    Returned, SendError, SendFailure, Source, Tag, TagPattern, Worker, WorkerError,
};

/// A [`Worker`] whose operations are futures. See the [module](super).
#[derive(Clone)]
pub struct AsyncWorker {
    shared: Rc<RefCell<Shared>>,
}

impl AsyncWorker {
    /// Takes a worker. It should [hold](crate::Unmatched::Hold) messages that come before their receives, unless the program
    /// takes them from [`next_event`](AsyncWorker::next_event).
    ///
    /// Where a thousand events wait that nobody takes, each message takes its peer's window from then on until it is dropped, and
    /// each notification until it is taken, as with [`Config::lend_short`](crate::Config::lend_short): a peer whose events nobody
    /// takes is held up then, and what it would answer as well.
    pub fn new(worker: Worker) -> AsyncWorker {
        AsyncWorker { shared: Rc::new(RefCell::new(Shared::new(worker))) }
    }

    /// Makes all other futures go on: to be run as a task of its own, for as long as any is wanted. It ends only when the
    /// worker can not go on. When it has ended or is dropped, and no other drives, those who wait get [`Refused::Stopped`].
    pub fn drive<S: Sleeper>(&self, sleeper: S) -> impl Future<Output = Result<(), WorkerError>> + use<S> {
        drive(self.shared.clone(), sleeper, SPINS)
    }

    /// The worker itself, for what is no future: its domain, `explain`, metrics, `send_copy`. Events are the driver's.
    ///
    /// # Panics
    /// If `f` uses this handle or a clone of it.
    pub fn with<R>(&self, f: impl FnOnce(&mut Worker) -> R) -> R {
        with(&self.shared, |shared| {
            let result = f(&mut shared.worker);
            shared.poke();
            result
        })
    }

    /// As [`Worker::listen`]; [`accept`](AsyncWorker::accept) gives the connections.
    ///
    /// # Errors
    /// As [`Worker::listen`].
    pub fn listen(&self, addr: impl ToSocketAddrs) -> Result<Listener, ListenError> {
        self.with(|worker| worker.listen(addr))
    }

    /// Listens by rdma_cm: [`Worker::listen_rdma_cm`](crate::Worker::listen_rdma_cm).
    ///
    /// # Errors
    /// As [`Worker::listen_rdma_cm`](crate::Worker::listen_rdma_cm).
    pub fn listen_rdma_cm(&self, port: u16) -> Result<Listener, ListenError> {
        self.with(|worker| worker.listen_rdma_cm(port))
    }

    /// The next connection that a peer makes.
    ///
    /// # Errors
    /// [`Refused::Stopped`], after those that were made before.
    pub async fn accept(&self) -> Result<EndpointId, Refused> {
        self.next(|shared| shared.accepted.pop_front()).await
    }

    async fn next<T>(&self, mut take: impl FnMut(&mut Shared) -> Option<T> + Unpin) -> Result<T, Refused> {
        let or_stopped = |shared: &mut Shared| match take(shared) {
            Some(next) => Some(Ok(next)),
            None => shared.stopped.then_some(Err(Refused::Stopped)),
        };
        Turn::new(&self.shared, or_stopped).await
    }

    /// Connects. Dropped before it is done, it gives the connection up.
    ///
    /// # Errors
    /// [`Refused::Connect`] or [`Refused::Closed`].
    pub async fn connect(&self, peer: impl ToPeer) -> Result<EndpointId, Refused> {
        let ep = self.attempt(|worker| worker.connect(peer))?;
        self.up(ep).await
    }

    /// Connects over datagrams, as [`Worker::connect_datagram`]. Dropped before it is done, it gives the connection up.
    ///
    /// # Errors
    /// [`Refused::Connect`] or [`Refused::Closed`].
    pub async fn connect_datagram(&self, peer: impl ToPeer) -> Result<EndpointId, Refused> {
        let ep = self.attempt(|worker| worker.connect_datagram(peer))?;
        self.up(ep).await
    }

    async fn up(&self, ep: EndpointId) -> Result<EndpointId, Refused> {
        match Operation::endpoint(&self.shared, ep).await {
            Some(Event::Connected { ep }) => Ok(ep),
            Some(Event::Closed { reason, .. }) => Err(reason.into()),
            Some(_) => Err(Refused::Strange),
            None => Err(Refused::Stopped),
        }
    }

    /// Sends a message; the payload comes back when it may be reused. As [`Worker::send`], but while too many messages wait
    /// for the peer it waits too.
    ///
    /// # Errors
    /// [`Failed`], with the payload.
    pub async fn send(&self, ep: EndpointId, tag: Tag, payload: impl Into<Payload>) -> Result<Payload, Failed> {
        let op = self.begin_send(payload.into(), |worker, payload| worker.send(ep, tag, payload)).await?;
        match self.finish(op).await? {
            Event::Sent { payload, .. } => Ok(payload),
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    /// Receives a message as it is. As [`Worker::recv`]. Where it is dropped with a message that it has taken, and not given, as the loser
    /// of a race may be, that comes by [`next_event`](AsyncWorker::next_event): to race against something else, keep it and poll it again.
    ///
    /// # Errors
    /// [`Failed`].
    pub async fn recv(&self, source: impl Into<Source>, tags: impl Into<TagPattern>) -> Result<(Tag, Message), Failed> {
        let op = self.attempt(|worker| worker.recv(source, tags)).map_err(Failed::bare)?;
        match self.finish(op).await? {
            Event::Matched { tag, message, .. } => Ok((tag, message)),
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    /// Receives a message into memory: that, the message's tag and its length. As [`Worker::recv_into`].
    ///
    /// # Errors
    /// [`Failed`], with the memory.
    pub async fn recv_into(
        &self,
        source: impl Into<Source>,
        tags: impl Into<TagPattern>,
        into: impl Into<Local>,
    ) -> Result<(Local, Tag, usize), Failed> {
        let begun = self.attempt(|worker| worker.recv_into(source, tags, into, None));
        let op = begun.map_err(|refused| Failed::new(refused.error, Returned::Memory(refused.memory)))?;
        match self.finish(op).await? {
            Event::ReceivedInto { memory, tag, len, .. } => Ok((memory, tag, len)),
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    /// Sends a request, and waits for its answer. As [`Worker::request`], but waits for room as [`send`](AsyncWorker::send).
    ///
    /// # Errors
    /// [`Failed`], with the payload.
    pub async fn request(
        &self,
        ep: EndpointId,
        handler: HandlerId,
        payload: impl Into<Payload>,
    ) -> Result<Message, Failed> {
        let op = self.begin_send(payload.into(), |worker, payload| worker.request(ep, handler, payload)).await?;
        match self.finish(op).await? {
            Event::Response { op, message, returned, .. } => {
                // The payload is dropped once the peer lets go of it.
                if matches!(returned, Returned::Withheld) {
                    with(&self.shared, |shared| shared.disown(op));
                }
                Ok(message)
            }
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    /// Writes to the peer's memory; the local memory comes back. As [`Worker::put`], but while there is no room it waits.
    ///
    /// # Errors
    /// [`Failed`], with the memory.
    pub async fn put(
        &self,
        ep: EndpointId,
        from: impl Into<Local>,
        remote: impl Into<RemoteMemory>,
    ) -> Result<Local, Failed> {
        let remote = remote.into();
        let op = self.begin_one_sided(from.into(), |worker, from| worker.put(ep, from, remote)).await?;
        match self.finish(op).await? {
            Event::Put { memory, .. } => Ok(memory),
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    /// Reads the peer's memory; the local memory comes back with it. As [`Worker::get`].
    ///
    /// # Errors
    /// As [`put`](AsyncWorker::put).
    pub async fn get(
        &self,
        ep: EndpointId,
        remote: impl Into<RemoteMemory>,
        into: impl Into<Local>,
    ) -> Result<Local, Failed> {
        let remote = remote.into();
        let op = self.begin_one_sided(into.into(), |worker, into| worker.get(ep, remote, into, None)).await?;
        match self.finish(op).await? {
            Event::Got { memory, .. } => Ok(memory),
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    /// Adds to 8 bytes of the peer's; what was there before. As [`Worker::fetch_add`], but while there is no room it waits.
    ///
    /// # Errors
    /// [`Failed`].
    pub async fn fetch_add(&self, ep: EndpointId, remote: impl Into<RemoteMemory>, add: u64) -> Result<u64, Failed> {
        let remote = remote.into();
        let op = self.begin_atomic(|worker| worker.fetch_add(ep, remote, add)).await?;
        self.fetched(op).await
    }

    /// Swaps 8 bytes of the peer's; what was there before. As [`Worker::compare_swap`], but while there is no room it waits.
    ///
    /// # Errors
    /// [`Failed`].
    pub async fn compare_swap(
        &self,
        ep: EndpointId,
        remote: impl Into<RemoteMemory>,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Failed> {
        let remote = remote.into();
        let op = self.begin_atomic(|worker| worker.compare_swap(ep, remote, compare, swap)).await?;
        self.fetched(op).await
    }

    /// Waits until all that was begun before has come to the peer. As [`Worker::flush`].
    ///
    /// # Errors
    /// [`Failed`].
    pub async fn flush(&self, ep: EndpointId) -> Result<(), Failed> {
        let op = self.attempt(|worker| worker.flush(ep)).map_err(Failed::bare)?;
        match self.finish(op).await? {
            Event::Flushed { .. } => Ok(()),
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    /// The next event that belongs to no future of this handle: requests and active messages of peers, parts of streams,
    /// messages that were not held for a receive, messages whose receive was dropped when it had taken them, ends of
    /// connections ([`Event::Closed`]), of those that peers made and that came to nothing ([`Event::Rejected`]), long messages
    /// that wait for a receive ([`Event::Offered`]), and memory that comes back of operations that failed and withheld it
    /// ([`Event::Released`]). Of the last four kinds the newest 1024 are kept, together, for there is no end to them where nobody
    /// asks; of the others, beyond a thousand, as many as the windows of their connections let through.
    ///
    /// # Errors
    /// [`Refused::Stopped`], after those that came before.
    pub async fn next_event(&self) -> Result<Event, Refused> {
        self.next(Shared::next_event).await
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &RefCell<Shared> {
        &self.shared
    }

    /// Sends as soon as there is room.
    #[expect(clippy::result_large_err, reason = "what was handed in comes back")]
    async fn begin_send(
        &self,
        payload: Payload,
        mut send: impl FnMut(&mut Worker, Payload) -> Result<OpId, SendError>,
    ) -> Result<OpId, Failed> {
        let begin = |worker: &mut Worker, payload| {
            send(worker, payload).map_err(|SendError { error, payload }| match error {
                SendFailure::QueueFull { .. } => (None, payload),
                error => (Some(error.into()), payload),
            })
        };
        self.begin(payload, begin, Returned::Payload).await
    }

    /// Begins a one-sided operation as soon as there is room.
    async fn begin_one_sided(
        &self,
        memory: Local,
        mut post: impl FnMut(&mut Worker, Local) -> Result<OpId, OneSidedError>,
    ) -> Result<OpId, Failed> {
        let begin = |worker: &mut Worker, memory| {
            post(worker, memory).map_err(|OneSidedError { error, memory }| (unless_full(error), memory))
        };
        self.begin(memory, begin, Returned::Memory).await
    }

    /// The same for one without memory of its own.
    async fn begin_atomic(
        &self,
        mut post: impl FnMut(&mut Worker) -> Result<OpId, OneSidedFailure>,
    ) -> Result<OpId, Failed> {
        let begin = |worker: &mut Worker, ()| post(worker).map_err(|error| (unless_full(error), ()));
        self.begin((), begin, |()| Returned::Nothing).await
    }

    /// Begins something as soon as there is room. What it takes comes back where it does not begin: without a reason there is no
    /// room.
    async fn begin<T>(
        &self,
        mut taken: T,
        mut begin: impl FnMut(&mut Worker, T) -> Result<OpId, (Option<Refused>, T)>,
        returned: impl FnOnce(T) -> Returned,
    ) -> Result<OpId, Failed> {
        loop {
            let polls = self.shared.borrow().polls();
            taken = match self.attempt(|worker| begin(worker, taken)) {
                Ok(op) => return Ok(op),
                Err((None, taken)) => taken,
                Err((Some(why), taken)) => return Err(Failed::new(why, returned(taken))),
            };
            if !self.polled(polls).await {
                return Err(Failed::new(Refused::Stopped, returned(taken)));
            }
        }
    }

    /// Begins something that is waited for next, which tells the driver: whoever that wakes may poll at once. If it is refused there is
    /// nothing new to poll for: those who try until there is room would keep the driver from sleeping.
    fn attempt<T, E>(&self, begin: impl FnOnce(&mut Worker) -> Result<T, E>) -> Result<T, E> {
        with(&self.shared, |shared| begin(&mut shared.worker))
    }

    /// Waits until the worker was polled again. False if it will not be.
    async fn polled(&self, since: u64) -> bool {
        Turn::new(&self.shared, move |shared: &mut Shared| shared.is_polled(since)).await
    }

    async fn fetched(&self, op: OpId) -> Result<u64, Failed> {
        match self.finish(op).await? {
            Event::Fetched { value, .. } => Ok(value),
            _ => Err(Failed::bare(Refused::Strange)),
        }
    }

    async fn finish(&self, op: OpId) -> Result<Event, Failed> {
        match Operation::op(&self.shared, op).await {
            Some(Event::Failed { error, returned, .. }) => Err(Failed::new(error, returned)),
            Some(event) => Ok(event),
            None => Err(Failed::new(Refused::Stopped, Returned::Withheld)),
        }
    }
}

impl fmt::Debug for AsyncWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncWorker").finish_non_exhaustive()
    }
}

/// Why a one-sided operation did not begin, unless that is for want of room.
fn unless_full(error: OneSidedFailure) -> Option<Refused> {
    (!matches!(error, OneSidedFailure::WouldBlock)).then(|| error.into())
}

/// Polls that find nothing, with a turn for other tasks after each, before the driver sleeps.
const SPINS: u32 = 200;
