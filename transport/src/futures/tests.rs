//! Futures on the least of runtimes: one that polls its tasks in turn, and can drop each at any point.

mod held;
mod shortage;
mod wakers;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use qpair_verbs::{Access, Local};

use super::*;
use crate::{
    Config, EndpointId, Event, HandlerId, Notice, OpError, Payload, Returned, SendCopyError, Source, Tag, Unmatched,
    Worker,
};

const LIMIT: Duration = Duration::from_secs(20);

/// Counts wakes.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Polls `main` and the others in turn, all of them at each wake, until `main` is done. Between wakes it sleeps, so that a
/// missing wake is noticed.
fn run<T: 'static>(main: impl Future<Output = T> + 'static, mut others: Vec<Task>) -> T {
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    others.push(Box::pin(async move {
        let value = main.await;
        *slot.borrow_mut() = Some(value);
    }));
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let start = Instant::now();
    let mut seen = usize::MAX;
    loop {
        let wakes = count.0.load(Ordering::Relaxed);
        if wakes == seen {
            std::thread::yield_now();
            assert!(start.elapsed() < LIMIT, "nobody wakes what waits");
            continue;
        }
        seen = wakes;
        others.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        if let Some(value) = result.borrow_mut().take() {
            return value;
        }
    }
}

fn worker() -> AsyncWorker {
    AsyncWorker::new(Worker::new(Config::default().unmatched(Unmatched::Hold)).unwrap())
}

fn driven(workers: &[&AsyncWorker]) -> Vec<Task> {
    let drive = |worker: &&AsyncWorker| {
        let driving = worker.drive(Thread::new().unwrap());
        Box::pin(async move { driving.await.unwrap() }) as Task
    };
    workers.iter().map(drive).collect()
}

/// The ends of a connection between them.
async fn joined(a: &AsyncWorker, b: &AsyncWorker) -> (EndpointId, EndpointId) {
    let address = b.listen("127.0.0.1:0").unwrap().local_addr();
    let ep = a.connect(address).await.unwrap();
    (ep, b.accept().await.unwrap())
}

#[test]
fn every_operation_is_a_future() {
    let (a, b) = (worker(), worker());
    let others = driven(&[&a, &b]);
    let address = b.listen("127.0.0.1:0").unwrap().local_addr();
    let main = async move {
        let ep = a.connect(address).await.unwrap();
        let back = b.accept().await.unwrap();
        let sent = a.send(ep, Tag(1), &b"hello"[..]).await.unwrap();
        assert!(matches!(sent, Payload::Bytes(bytes) if bytes == b"hello"[..]));
        let (tag, message) = b.recv(back, Tag(1)).await.unwrap();
        assert!(tag == Tag(1) && message == b"hello");
        let board = b.with(|worker| worker.domain().expose(4096, Access::REMOTE_ALL)).unwrap();
        let mut memory = a.with(|worker| worker.domain().alloc(4096)).unwrap();
        memory.fill(9);
        let memory = a.put(ep, memory, board.remote(0..4096)).await.unwrap();
        let Local::Buffer(mut memory) = a.get(ep, board.remote(0..4096), memory).await.unwrap() else { panic!() };
        assert!(memory.iter().all(|&byte| byte == 9));
        memory.fill(0);
        let nines = u64::from_ne_bytes([9; 8]);
        assert_eq!(a.fetch_add(ep, board.remote(0..8), 1).await.unwrap(), nines);
        assert_eq!(a.compare_swap(ep, board.remote(0..8), nines + 1, 5).await.unwrap(), nines + 1);
        a.flush(ep).await.unwrap();
        assert_eq!(board.load(0).unwrap(), 5);
        let dead = a.connect("127.0.0.1:1").await.unwrap_err();
        assert!(matches!(dead, Refused::Closed(_)), "{dead}");
        let ep = a.connect_datagram(address).await.unwrap();
        let back = b.accept().await.unwrap();
        a.send(ep, Tag(2), &b"a datagram"[..]).await.unwrap();
        let (_, message) = b.recv(back, Tag(2)).await.unwrap();
        assert!(message == b"a datagram"[..]);
    };
    run(main, others);
}

#[test]
fn tasks_that_wait_are_woken_by_what_others_do() {
    let (a, b) = (worker(), worker());
    let mut others = driven(&[&a, &b]);
    let address = b.listen("127.0.0.1:0").unwrap().local_addr();
    let server = b.clone();
    others.push(Box::pin(async move {
        let back = server.accept().await.unwrap();
        let memory = server.with(|worker| worker.domain().alloc(100_000)).unwrap();
        let (memory, tag, len) = server.recv_into(back, Tag(1), memory).await.unwrap();
        let Local::Buffer(memory) = memory else { panic!() };
        server.send(back, tag, memory[..len].to_vec()).await.unwrap();
        loop {
            if let Event::Request(request) = server.next_event().await.unwrap() {
                server
                    .with(|worker| {
                        worker.respond(request.reply, request.message.into_bytes()).map_err(|(error, _)| error)
                    })
                    .unwrap();
            }
        }
    }));
    let main = async move {
        let ep = a.connect(address).await.unwrap();
        let data: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
        a.send(ep, Tag(1), data.clone()).await.unwrap();
        assert!(a.recv(Source::Any, Tag(1)).await.unwrap().1 == data);
        let answer = a.request(ep, HandlerId(1), data.clone()).await.unwrap();
        assert!(answer == data);
        // Nothing happens for a while: the drivers sleep, and wake up again.
        std::thread::sleep(Duration::from_millis(20));
        assert!(a.request(ep, HandlerId(1), &b"short"[..]).await.unwrap() == b"short");
    };
    run(main, others);
}

/// Polls a future so often, then drops it.
fn dropped_after(future: impl Future, polls: usize, mut between: impl FnMut()) -> bool {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        between();
    }
    false
}

#[test]
fn a_future_may_be_dropped_at_any_point() {
    for polls in 0..40 {
        let (a, b) = (worker(), worker());
        let others = driven(&[&a, &b]);
        let address = b.listen("127.0.0.1:0").unwrap().local_addr();
        let main = async move {
            let ep = a.connect(address).await.unwrap();
            let back = b.accept().await.unwrap();
            let poll_both = || {
                a.shared().borrow_mut().advance().unwrap();
                b.shared().borrow_mut().advance().unwrap();
            };
            let memory = b.with(|worker| worker.domain().alloc(100_000)).unwrap();
            let sent = dropped_after(a.send(ep, Tag(1), vec![1; 100_000]), polls, poll_both);
            let received = dropped_after(b.recv_into(back, Tag(1), memory), polls, poll_both);
            dropped_after(a.request(ep, HandlerId(1), vec![2; 50_000]), polls, poll_both);
            dropped_after(a.connect(address), polls, poll_both);
            // What is left of them disturbs nothing that comes after.
            let both = async {
                let (tag, message) = b.recv(back, Tag(2)).await.unwrap();
                assert!(tag == Tag(2) && message == vec![3; 60_000]);
            };
            let mut both = Box::pin(both);
            let mut send = Box::pin(a.send(ep, Tag(2), vec![3; 60_000]));
            let mut done = [false; 2];
            std::future::poll_fn(|context| {
                done[0] = done[0] || both.as_mut().poll(context).is_ready();
                done[1] = done[1] || send.as_mut().poll(context).is_ready();
                if done == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            assert!(polls > 0 || !(sent || received));
        };
        run(main, others);
    }
}

#[test]
fn failures_are_results_and_hand_the_memory_back() {
    let (a, b) = (worker(), worker());
    let others = driven(&[&a, &b]);
    let main = async move {
        let (ep, back) = joined(&a, &b).await;
        let memory = a.with(|worker| worker.domain().alloc(8)).unwrap();
        let receiving = a.recv_into(ep, Tag(1), memory);
        b.with(|worker| worker.abort(back));
        let failed = receiving.await.unwrap_err();
        assert!(matches!(failed.error, Refused::Failed(OpError::Closed) | Refused::Recv(_)), "{failed}");
        assert!(matches!(failed.returned, Returned::Memory(Local::Buffer(_))));
        while !matches!(a.next_event().await.unwrap(), Event::Closed { .. }) {}
        let failed = a.send(ep, Tag(1), &b"gone"[..]).await.unwrap_err();
        assert!(matches!(failed.error, Refused::Send(_)));
        assert!(matches!(failed.returned, Returned::Payload(_)));
    };
    run(main, others);
}

#[test]
fn what_no_future_began_is_an_event() {
    let a = worker();
    let others = driven(&[&a]);
    let main = async move {
        let counter = a.with(|worker| worker.counter()).unwrap();
        let wait = a.with(|worker| worker.when_counted(counter, 0)).unwrap();
        assert!(matches!(a.next_event().await.unwrap(), Event::Counted { op, value: 0, .. } if op == wait));
    };
    run(main, others);
}

/// Polls a future once; it waits.
fn begin(future: Pin<&mut impl Future>, waker: &Waker) {
    assert!(future.poll(&mut Context::from_waker(waker)).is_pending());
}

#[test]
fn who_waits_no_more_leaves_no_waker_behind() {
    let a = worker();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    for _ in 0..10 {
        begin(std::pin::pin!(a.accept()), &waker);
        begin(std::pin::pin!(a.next_event()), &waker);
    }
    drop(waker);
    assert_eq!(Arc::strong_count(&count), 1);
    assert!(count.0.load(Ordering::Relaxed) == 0);
}

/// A waker that uses the worker, as that of a runtime may which runs a task at once.
struct Uses(std::sync::Mutex<Vec<usize>>, usize);

thread_local! {
    static USED: RefCell<Option<AsyncWorker>> = const { RefCell::new(None) };
}

impl Wake for Uses {
    fn wake(self: Arc<Self>) {
        let metrics = USED.with_borrow(|used| used.as_ref().unwrap().with(|worker| worker.metrics().requests));
        self.0.lock().unwrap().push(self.1 + metrics);
    }
}

#[test]
fn a_waker_may_use_the_worker() {
    let a = worker();
    USED.set(Some(a.clone()));
    let uses = Arc::new(Uses(std::sync::Mutex::default(), 5));
    let waker = Waker::from(uses.clone());
    let mut waits = Box::pin(a.next_event());
    begin(waits.as_mut(), &waker);
    let counter = a.with(|worker| worker.counter()).unwrap();
    a.with(|worker| worker.when_counted(counter, 0)).unwrap();
    shared::with(a.shared(), shared::Shared::advance).unwrap();
    assert_eq!(*uses.0.lock().unwrap(), [5]);
    USED.take();
}

#[test]
fn who_waits_when_the_driver_goes_is_told() {
    let a = worker();
    let mut drive = Box::pin(a.drive(Thread::new().unwrap()));
    begin(drive.as_mut(), Waker::noop());
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut receiving = Box::pin(a.recv(Source::Any, Tag(1)));
    begin(receiving.as_mut(), &waker);
    let (mut accepting, mut noticing) = (Box::pin(a.accept()), Box::pin(a.next_event()));
    begin(accepting.as_mut(), &waker);
    begin(noticing.as_mut(), &waker);
    drop(drive);
    assert_eq!(count.0.load(Ordering::Relaxed), 3);
    let mut context = Context::from_waker(&waker);
    assert!(matches!(accepting.as_mut().poll(&mut context), Poll::Ready(Err(Refused::Stopped))));
    assert!(matches!(noticing.as_mut().poll(&mut context), Poll::Ready(Err(Refused::Stopped))));
    let Poll::Ready(Err(failed)) = receiving.as_mut().poll(&mut Context::from_waker(&waker)) else { panic!("waits") };
    assert!(matches!(failed.error, Refused::Stopped));
}

/// As a task of a runtime that ends first.
#[test]
fn who_waits_when_the_driver_goes_that_never_ran_is_told() {
    let a = worker();
    let drive = a.drive(Thread::new().unwrap());
    let mut accepting = Box::pin(a.accept());
    begin(accepting.as_mut(), Waker::noop());
    drop(drive);
    let polled = accepting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(Refused::Stopped))));
}

#[test]
fn a_driver_that_takes_over_goes_on_when_the_one_before_goes() {
    let a = worker();
    let [first, mut second] = [(); 2].map(|()| {
        let mut drive = Box::pin(a.drive(Thread::new().unwrap()));
        begin(drive.as_mut(), Waker::noop());
        drive
    });
    drop(first);
    let mut receiving = Box::pin(a.recv(Source::Any, Tag(1)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(receiving.as_mut().poll(&mut context).is_pending());
    begin(second.as_mut(), Waker::noop());
    drop(second);
    let Poll::Ready(Err(failed)) = receiving.as_mut().poll(&mut context) else { panic!("waits") };
    assert!(matches!(failed.error, Refused::Stopped));
}

#[test]
fn a_message_whose_receive_is_dropped_is_not_lost() {
    let (a, b) = (worker(), worker());
    let others = driven(&[&a, &b]);
    let main = async move {
        let (ep, back) = joined(&a, &b).await;
        a.send(ep, Tag(1), &b"kept"[..]).await.unwrap();
        while b.with(|worker| worker.probe(back, Tag(1))).is_none() {
            shared::with(b.shared(), shared::Shared::advance).unwrap();
        }
        let mut receiving = Box::pin(b.recv(back, Tag(1)));
        begin(receiving.as_mut(), Waker::noop());
        shared::with(b.shared(), shared::Shared::advance).unwrap();
        drop(receiving);
        assert!(matches!(b.next_event().await.unwrap(), Event::Matched { message, .. } if message == *b"kept"));
    };
    run(main, others);
}

#[test]
fn sends_wait_for_room() {
    let few = || Config::default().unmatched(Unmatched::Hold).window(2).queue_limit(2);
    let (a, b) = (AsyncWorker::new(Worker::new(few()).unwrap()), AsyncWorker::new(Worker::new(few()).unwrap()));
    let others = driven(&[&a, &b]);
    let main = async move {
        let (ep, back) = joined(&a, &b).await;
        let mut sends: Vec<_> =
            (0..20u8).map(|number| Box::pin(a.send(ep, Tag(number.into()), vec![number; 50]))).collect();
        for send in &mut sends {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(result) = send.as_mut().poll(&mut context) {
                panic!("{:?}", result.map(|_| "sent at once"));
            }
        }
        let mut all = sends.into_iter();
        for number in 0..20u8 {
            let receive = async { b.recv(back, Tag(number.into())).await.unwrap() };
            let (mut send, mut receive) = (all.next().unwrap(), Box::pin(receive));
            let mut done = [false; 2];
            std::future::poll_fn(|context| {
                done[0] = done[0] || send.as_mut().poll(context).map(Result::unwrap).is_ready();
                done[1] = done[1]
                    || receive.as_mut().poll(context).map(|(_, message)| assert!(message == [number; 50])).is_ready();
                if done == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    };
    run(main, others);
}

#[test]
fn a_connection_that_ended_is_not_accepted_any_more() {
    let (a, b) = (worker(), worker());
    let others = driven(&[&a, &b]);
    let address = b.listen("127.0.0.1:0").unwrap().local_addr();
    let main = async move {
        for _ in 0..3 {
            let ep = a.connect(address).await.unwrap();
            a.with(|worker| worker.abort(ep));
            while !matches!(b.next_event().await.unwrap(), Event::Closed { .. }) {}
        }
        assert!(b.shared().borrow().accepted.is_empty());
        let ep = a.connect(address).await.unwrap();
        let back = b.accept().await.unwrap();
        a.send(ep, Tag(1), &b"lives"[..]).await.unwrap();
        assert!(b.recv(back, Tag(1)).await.unwrap().1 == *b"lives");
    };
    run(main, others);
}

#[test]
fn atomics_wait_for_room() {
    let (a, b) = (worker(), worker());
    let others = driven(&[&a, &b]);
    let address = b.listen("127.0.0.1:0").unwrap().local_addr();
    let main = async move {
        let ep = a.connect(address).await.unwrap();
        b.accept().await.unwrap();
        let word = b.with(|worker| worker.domain().alloc(8).unwrap().expose(Access::REMOTE_ATOMIC).unwrap());
        // Far more than a connection has places for.
        const COUNT: u64 = 2000;
        let remote = word.remote(0..8);
        let mut adds: Vec<_> = (0..COUNT).map(|_| Box::pin(a.fetch_add(ep, remote, 1))).collect();
        let mut sum = 0;
        std::future::poll_fn(|context| {
            adds.retain_mut(|add| match add.as_mut().poll(context) {
                Poll::Ready(before) => {
                    sum += before.unwrap();
                    false
                }
                Poll::Pending => true,
            });
            if adds.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(sum, COUNT * (COUNT - 1) / 2);
        assert_eq!(a.compare_swap(ep, remote, COUNT, 5).await.unwrap(), COUNT);
    };
    run(main, others);
}
