//! Who is woken, how often, and what a waker may do.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;

use super::*;
use crate::OpId;

/// Sleeps until it is told to end.
#[derive(Clone, Default)]
struct Bed {
    sleeps: Rc<Cell<u32>>,
    ends: Rc<Cell<bool>>,
}

impl Sleeper for Bed {
    async fn sleep(&mut self, _: BorrowedFd<'_>, _: Option<Duration>) -> io::Result<()> {
        self.sleeps.set(self.sleeps.get() + 1);
        std::future::poll_fn(|_| if self.ends.take() { Poll::Ready(()) } else { Poll::Pending }).await;
        Ok(())
    }
}

/// A task with a waker of its own.
struct Woken {
    task: Task,
    count: Arc<Count>,
    seen: usize,
    polls: usize,
}

impl Woken {
    fn new(task: impl Future<Output = ()> + 'static) -> Woken {
        Woken { task: Box::pin(task), count: Arc::default(), seen: usize::MAX, polls: 0 }
    }

    fn wakes(&self) -> usize {
        self.count.0.load(Ordering::Relaxed)
    }

    /// Polls it if it was woken since it was polled last, or never was. False if not.
    fn turn(&mut self) -> bool {
        let wakes = self.wakes();
        if std::mem::replace(&mut self.seen, wakes) == wakes {
            return false;
        }
        self.polls += 1;
        let waker = Waker::from(self.count.clone());
        if self.task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.task = Box::pin(std::future::pending());
        }
        true
    }
}

/// Polls tasks that are woken until none is, no more than so many times.
fn settle(tasks: &mut [Woken], most: usize) -> bool {
    (0..most).any(|_| tasks.iter_mut().map(Woken::turn).filter(|&turn| turn).count() == 0)
}

const SENDS: u8 = 20;
/// More than a driver polls before it sleeps.
const MANY: usize = 5000;

/// A worker whose queue is full, with a driver and those who wait to send; its peer, which is polled by nobody; and the number
/// of messages sent.
fn crowded() -> (AsyncWorker, AsyncWorker, Bed, Vec<Woken>, Rc<Cell<u8>>) {
    let few = || Config::default().unmatched(Unmatched::Hold).window(2).queue_limit(2).keepalive(LIMIT, LIMIT);
    let (a, b) = (AsyncWorker::new(Worker::new(few()).unwrap()), AsyncWorker::new(Worker::new(few()).unwrap()));
    let address = b.listen("127.0.0.1:0").unwrap().local_addr();
    let both = driven(&[&a, &b]);
    let (client, server) = (a.clone(), b.clone());
    let ep = run(
        async move {
            let ep = client.connect(address).await.unwrap();
            server.accept().await.unwrap();
            ep
        },
        both,
    );
    let (bed, done) = (Bed::default(), Rc::new(Cell::new(0)));
    let driving = a.drive(bed.clone());
    let mut tasks = vec![Woken::new(async move { driving.await.unwrap() })];
    for number in 0..SENDS {
        let (a, done) = (a.clone(), done.clone());
        tasks.push(Woken::new(async move {
            a.send(ep, Tag(number.into()), vec![number; 50]).await.unwrap();
            done.set(done.get() + 1);
        }));
    }
    (a, b, bed, tasks, done)
}

#[test]
fn a_driver_sleeps_while_others_wait_for_room() {
    let (_a, b, bed, mut tasks, done) = crowded();
    assert!(settle(&mut tasks, MANY), "the driver was polled {} times, and sleeps not", tasks[0].polls);
    assert!(bed.sleeps.get() > 0 && done.get() < SENDS);
    // The peer takes them, and each completion of the device ends the sleep.
    for _ in 0..MANY {
        shared::with(b.shared(), shared::Shared::advance).unwrap();
        bed.ends.set(true);
        tasks[0].seen = usize::MAX;
        assert!(settle(&mut tasks, MANY));
        if done.get() == SENDS {
            return;
        }
    }
    panic!("{} of {SENDS} were sent", done.get());
}

#[test]
fn room_that_shows_up_as_the_driver_goes_to_sleep_is_told() {
    let (a, b, _, mut tasks, done) = crowded();
    assert!(settle(&mut tasks, MANY));
    let before = (done.get(), tasks[1..].iter().map(Woken::wakes).sum::<usize>());
    for _ in 0..1000 {
        shared::with(b.shared(), shared::Shared::advance).unwrap();
    }
    // What gives room is no event.
    shared::with(a.shared(), shared::Shared::arm).unwrap();
    assert!(tasks[1..].iter().map(Woken::wakes).sum::<usize>() > before.1, "nobody is woken");
    assert!(settle(&mut tasks, MANY) && done.get() > before.0);
}

/// A waker that uses the worker when it is dropped, as one does that holds the last of a task.
struct UsesInTheEnd;

thread_local! {
    static ENDS: Cell<usize> = const { Cell::new(0) };
}

impl Wake for UsesInTheEnd {
    fn wake(self: Arc<Self>) {}
}

impl Drop for UsesInTheEnd {
    fn drop(&mut self) {
        USED.with_borrow(|used| used.as_ref().unwrap().with(|worker| worker.metrics()));
        ENDS.set(ENDS.get() + 1);
    }
}

fn in_the_end() -> Waker {
    Waker::from(Arc::new(UsesInTheEnd))
}

/// A payload that goes back to a pool, which uses the worker for that.
struct Pooled;

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        b"pooled"
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        USED.with_borrow(|used| used.as_ref().unwrap().with(|worker| worker.metrics()));
        ENDS.set(ENDS.get() + 1);
    }
}

#[test]
fn memory_of_an_operation_that_nobody_wants_may_use_the_worker_when_it_is_dropped() {
    let a = worker();
    USED.set(Some(a.clone()));
    let op = OpId { number: 1, index: 0 };
    let returned = || Returned::Payload(bytes::Bytes::from_owner(Pooled).into());
    let unwanted = || {
        shared::with(a.shared(), |shared| {
            let place = shared.await_op(op);
            shared.drop_op(place, op);
        });
    };
    let come = |event| shared::with(a.shared(), |shared| shared.hand_out(event));
    unwanted();
    come(Event::Failed { op, ep: None, error: OpError::Cancelled, returned: returned() });
    assert_eq!(ENDS.get(), 1);
    // Of one that was withheld.
    unwanted();
    come(Event::Failed { op, ep: None, error: OpError::Cancelled, returned: Returned::Withheld });
    come(Event::Released { op, returned: returned() });
    assert_eq!(ENDS.get(), 2);
    // It came back, and was for whoever asks for events.
    come(Event::Released { op, returned: returned() });
    shared::with(a.shared(), |shared| shared.disown(op));
    assert_eq!(ENDS.get(), 3);
    USED.take();
}

#[test]
fn a_waker_may_use_the_worker_when_it_is_dropped() {
    let a = worker();
    USED.set(Some(a.clone()));
    let dropped = || ENDS.get();
    // Another takes its place.
    let mut event = Box::pin(a.next_event());
    begin(event.as_mut(), &in_the_end());
    begin(event.as_mut(), &in_the_end());
    assert_eq!(dropped(), 1);
    // Who waits goes.
    drop(event);
    assert_eq!(dropped(), 2);
    // The same of an operation.
    let mut receiving = Box::pin(a.recv(Source::Any, Tag(1)));
    begin(receiving.as_mut(), &in_the_end());
    begin(receiving.as_mut(), &in_the_end());
    assert_eq!(dropped(), 3);
    drop(receiving);
    assert_eq!(dropped(), 4);
    // Of one that is over.
    let mut receiving = Box::pin(a.recv(Source::Any, Tag(1)));
    begin(receiving.as_mut(), &in_the_end());
    shared::with(a.shared(), |shared| shared.stop(0, true));
    assert_eq!(dropped(), 5);
    assert!(receiving.as_mut().poll(&mut Context::from_waker(&in_the_end())).is_ready());
    assert_eq!(dropped(), 6);
    // And of the driver.
    let mut driving = Box::pin(a.drive(Bed::default()));
    for _ in 0..1000 {
        begin(driving.as_mut(), &in_the_end());
    }
    drop(driving);
    a.with(|_| ());
    assert_eq!(dropped(), 1006);
    USED.take();
}

/// A driver's waker that has the worker polled at once, as where tasks run as they are woken.
struct Inline;

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let worker = USED.with_borrow(|used| used.clone().unwrap());
        shared::with(worker.shared(), shared::Shared::advance).unwrap();
    }
}

#[test]
fn a_driver_may_run_as_it_is_woken() {
    let a = AsyncWorker::new(Worker::new(Config::default().unmatched(Unmatched::Hold)).unwrap());
    let address = a.listen("127.0.0.1:0").unwrap().local_addr();
    let client = a.clone();
    let connecting = async move {
        let ep = client.connect(address).await.unwrap();
        client.accept().await.unwrap();
        client.send(ep, Tag(1), b"held".to_vec()).await.unwrap();
    };
    run(connecting, driven(&[&a]));
    USED.set(Some(a.clone()));
    let inline = Waker::from(Arc::new(Inline));
    let mut driving = Box::pin(a.drive(Bed::default()));
    (0..MANY).for_each(|_| begin(driving.as_mut(), &inline));
    let mut receiving = Box::pin(a.recv(Source::Any, Tag(1)));
    let polled = receiving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Ok((_, message))) = polled else { panic!("its end was missed: {polled:?}") };
    assert!(message == *b"held");
    USED.take();
}
