//! How a driver sleeps until a descriptor is readable.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll as Selector, Token, Waker as SelectorWaker};

/// Something that sleeps for an [`AsyncWorker`](super::AsyncWorker): mostly a few lines on a runtime's own reactor.
pub trait Sleeper {
    /// Until `fd` is readable, or `limit` is over. It may end early. It may be dropped before it ends.
    ///
    /// # Errors
    /// If the system refuses to wait for the descriptor; driving ends with it. Not for want of descriptors (`EMFILE`, `ENFILE`): the
    /// worker is polled then, and the sleep tried again.
    fn sleep(&mut self, fd: BorrowedFd<'_>, limit: Option<Duration>) -> impl Future<Output = io::Result<()>>;
}

/// Sleeps in a thread of its own, which wakes the driver's task: works on every runtime, and takes some tens of microseconds
/// more to wake up than the runtime's reactor would.
#[derive(Debug)]
pub struct Thread {
    requests: Sender<Request>,
    interrupt: Arc<SelectorWaker>,
}

/// What the thread is to wait for.
struct Request {
    fd: OwnedFd,
    limit: Option<Duration>,
    done: Arc<Mutex<Done>>,
}

#[derive(Default)]
struct Done {
    result: Option<io::Result<()>>,
    waker: Option<Waker>,
}

impl Thread {
    /// Starts the thread. It ends with this.
    ///
    /// # Errors
    /// If the system has no thread or descriptor for it.
    pub fn new() -> io::Result<Thread> {
        let selector = Selector::new()?;
        let interrupt = Arc::new(SelectorWaker::new(selector.registry(), INTERRUPT)?);
        let (requests, incoming) = mpsc::channel();
        std::thread::Builder::new().name("qpair-sleeper".into()).spawn(move || run(selector, &incoming))?;
        Ok(Thread { requests, interrupt })
    }
}

impl Sleeper for Thread {
    async fn sleep(&mut self, fd: BorrowedFd<'_>, limit: Option<Duration>) -> io::Result<()> {
        let done = Arc::new(Mutex::new(Done::default()));
        let request = Request { fd: fd.try_clone_to_owned()?, limit, done: done.clone() };
        let gone = || io::Error::other("the thread to sleep in has ended");
        self.requests.send(request).map_err(|_| gone())?;
        // A sleep that was dropped before it ended gives way.
        self.interrupt.wake()?;
        poll_fn(|context| {
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            match done.result.take() {
                Some(result) => Poll::Ready(result),
                None => {
                    done.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // The thread sees that nobody asks any more.
        let (nobody, _) = mpsc::channel();
        self.requests = nobody;
        let _ = self.interrupt.wake();
    }
}

fn run(mut selector: Selector, incoming: &Receiver<Request>) {
    let mut events = Events::with_capacity(4);
    let mut next = incoming.recv().ok();
    while let Some(request) = next.take() {
        let result = wait(&mut selector, &mut events, &request);
        let newer = incoming.try_recv().ok();
        let waker = {
            let mut done = request.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.result = Some(result);
            done.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        next = match newer {
            Some(request) => Some(request),
            None => incoming.recv().ok(),
        };
    }
}

/// Waits for a descriptor, until it is readable, the time is over, or something else is asked for.
fn wait(selector: &mut Selector, events: &mut Events, request: &Request) -> io::Result<()> {
    let fd = request.fd.as_raw_fd();
    selector.registry().register(&mut SourceFd(&fd), READABLE, Interest::READABLE)?;
    let begun = std::time::Instant::now();
    let result = loop {
        let left = request.limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        match selector.poll(events, left) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => break Err(error),
            Ok(()) => {}
        }
        // The wake that came with this request itself is no reason to end.
        let readable = events.iter().any(|event| event.token() == READABLE);
        let superseded = Arc::strong_count(&request.done) == 1;
        let over = left.is_some_and(|left| left.is_zero()) || events.is_empty();
        if readable || superseded || over {
            break Ok(());
        }
    };
    selector.registry().deregister(&mut SourceFd(&fd))?;
    result
}

const INTERRUPT: Token = Token(0);
const READABLE: Token = Token(1);
