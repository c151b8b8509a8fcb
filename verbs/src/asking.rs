//! Asking for what is to be known before a queue pair is connected, in threads of their own: who is asked may be stopped, or not
//! there.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::address::NodeId;
use crate::error::{ConnectError, again};
use crate::panics;
use crate::sync::lock;
use crate::types::Gid;

/// Who is to be asked, and may take long to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whom {
    /// The device of another process.
    Device(NodeId),
    /// Those of this host who share the network's port with this device, which is new there.
    Neighbours(NodeId),
    /// The port with that GID, on the network of a port of a device of libibverbs, from a row of the GID table.
    Port { device: u64, number: u8, row: u8, gid: Gid },
}

/// A question that was asked, and its answer once that is there.
pub(crate) struct Ticket<T> {
    is_over: AtomicBool,
    answer: Mutex<Option<Result<T, ConnectError>>>,
    waker: Waker,
}

impl<T> Ticket<T> {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The answer, once.
    pub(crate) fn take(&self) -> Option<Result<T, ConnectError>> {
        lock(&self.answer).take()
    }

    fn put(&self, answer: Result<T, ConnectError>) {
        *lock(&self.answer) = Some(answer);
        self.is_over.store(true, Ordering::Release);
        if let Err(error) = panics::as_error("who was to be woken", || self.waker.wake_by_ref()) {
            tracing::error!(%error, "an answer is there, of which nobody may know");
        }
    }
}

/// Has a thread ask `whom`, by `ask`, and wakes `waker` with the answer. That keeps nothing of the device before it is called,
/// which it is not if nobody wants the answer any more, nor after it has returned: whoever is told may close the device next, and
/// what is to be done for that is its own.
pub(crate) fn ask<T, A>(whom: Whom, waker: &Waker, ask: A) -> Arc<Ticket<T>>
where
    T: Send + 'static,
    A: FnOnce() -> Result<T, ConnectError> + Send + 'static,
{
    let ticket = Arc::new(Ticket { is_over: AtomicBool::new(false), answer: Mutex::default(), waker: waker.clone() });
    let asked = Asked { ask, ticket: Arc::downgrade(&ticket) };
    let needed = lock(&DESK).takes_on(Question { whom, asked: Box::new(asked) });
    if needed == Needed::Idle {
        CALLED.notify_one();
    }
    if needed != Needed::Another {
        return ticket;
    }
    if let Err(source) = thread::Builder::new().name("qpair-asking".into()).spawn(serve) {
        let unserved = lock(&DESK).gives_up(whom);
        let error = ConnectError::System { what: "start a thread that asks for the peer", source };
        tell_all(unserved, &error);
    }
    ticket
}

/// Questions of this process that nobody has begun to ask, and those who are being asked.
#[derive(Default)]
struct Desk {
    waiting: VecDeque<Question>,
    busy: HashSet<Whom>,
    threads: usize,
    /// Threads that wait to be called.
    idle: usize,
}

/// Which thread is to serve a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needed {
    /// One that is at work.
    None,
    /// One that waits.
    Idle,
    /// A new one.
    Another,
}

static DESK: LazyLock<Mutex<Desk>> = LazyLock::new(Mutex::default);
static CALLED: Condvar = Condvar::new();

/// A question of any kind.
struct Question {
    whom: Whom,
    asked: Box<dyn Ask>,
}

/// What is done with a question.
trait Ask: Send {
    /// Asks, and tells what came of it. Gives what others are to be told who have asked the same of it.
    fn ask(self: Box<Self>) -> Option<ConnectError>;

    /// Tells that it is not asked.
    fn refuse(self: Box<Self>, error: ConnectError);
}

struct Asked<T, A> {
    ask: A,
    ticket: Weak<Ticket<T>>,
}

impl<T: Send, A: FnOnce() -> Result<T, ConnectError> + Send> Ask for Asked<T, A> {
    fn ask(self: Box<Self>) -> Option<ConnectError> {
        if self.ticket.strong_count() == 0 {
            return None;
        }
        let (answer, for_all) = match panics::as_error("the thread that asked", self.ask) {
            Ok(answer) => {
                let for_all = answer.as_ref().err().and_then(for_all);
                (answer, for_all)
            }
            // Whoever waits for it is told in any case; others may have more luck.
            Err(source) => (Err(ConnectError::System { what: "ask for the peer", source }), None),
        };
        if let Some(ticket) = self.ticket.upgrade() {
            ticket.put(answer);
        }
        for_all
    }

    fn refuse(self: Box<Self>, error: ConnectError) {
        if let Some(ticket) = self.ticket.upgrade() {
            ticket.put(Err(error));
        }
    }
}

impl Desk {
    fn takes_on(&mut self, question: Question) -> Needed {
        let whom = question.whom;
        let is_served =
            self.threads > 0 && (!self.may_be_asked(whom) || self.waiting.iter().any(|waiting| waiting.whom == whom));
        self.waiting.push_back(question);
        if is_served {
            return Needed::None;
        }
        let waited_for: HashSet<_> = self.waiting.iter().map(|waiting| waiting.whom).collect();
        if waited_for.into_iter().filter(|&whom| self.may_be_asked(whom)).count() <= self.idle {
            return Needed::Idle;
        }
        if self.threads == THREADS {
            return Needed::None;
        }
        self.threads += 1;
        Needed::Another
    }

    /// The thread that was to serve a question is not there: those of that kind to which nobody else has come.
    fn gives_up(&mut self, whom: Whom) -> Vec<Question> {
        self.threads -= 1;
        self.take_all(whom)
    }

    fn take_all(&mut self, whom: Whom) -> Vec<Question> {
        let (same, others): (VecDeque<_>, _) = self.waiting.drain(..).partition(|question| question.whom == whom);
        self.waiting = others;
        same.into()
    }

    /// True if nobody asks the same, and others are not kept from asking by it: anybody can make up ports that nobody has.
    fn may_be_asked(&self, whom: Whom) -> bool {
        let is_port = |whom: &Whom| matches!(whom, Whom::Port { .. });
        !self.busy.contains(&whom) && (!is_port(&whom) || self.busy.iter().copied().filter(is_port).count() < PORTS)
    }

    /// The question that waits longest of those that may be asked.
    fn next(&mut self) -> Option<Question> {
        let place = self.waiting.iter().position(|question| self.may_be_asked(question.whom))?;
        let question = self.waiting.remove(place)?;
        self.busy.insert(question.whom);
        Some(question)
    }

    /// `whom` may be asked again, unless nobody who waits for it is to wait as long once more.
    fn asked(&mut self, whom: Whom, is_for_all: bool) -> Vec<Question> {
        self.busy.remove(&whom);
        if is_for_all { self.take_all(whom) } else { Vec::new() }
    }
}

/// What a thread does: asks one after the other, until there was nobody to be asked for a while.
fn serve() {
    while let Some(Question { whom, asked }) = next() {
        let for_all = asked.ask();
        let same = lock(&DESK).asked(whom, for_all.is_some());
        if let Some(error) = for_all {
            tell_all(same, &error);
        }
    }
}

/// Tells each the same, which is [for all](for_all).
fn tell_all(questions: Vec<Question>, error: &ConnectError) {
    for question in questions {
        if let Some(error) = for_all(error) {
            question.asked.refuse(error);
        }
    }
}

/// An error once more, for others who ask, where it is not about one queue pair.
fn for_all(error: &ConnectError) -> Option<ConnectError> {
    match error {
        ConnectError::TimedOut { seconds } => Some(ConnectError::TimedOut { seconds: *seconds }),
        ConnectError::Unreachable { gid, source } => {
            Some(ConnectError::Unreachable { gid: *gid, source: again(source) })
        }
        ConnectError::Network(error) => Some(ConnectError::Network(error.again())),
        ConnectError::System { what, source } => Some(ConnectError::System { what, source: again(source) }),
        _ => None,
    }
}

/// The next question, once there is one. Connections come together, and a thread that is there is sooner at work than a new one.
fn next() -> Option<Question> {
    let mut desk = lock(&DESK);
    let until = Instant::now() + LINGER;
    loop {
        if let Some(question) = desk.next() {
            return Some(question);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            desk.threads -= 1;
            return None;
        }
        desk.idle += 1;
        desk = CALLED.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        desk.idle -= 1;
    }
}

/// What nobody is to be told who has a queue pair.
pub(crate) const CLOSED: ConnectError = ConnectError::NoRoute { why: "the device that asked was closed meanwhile" };
/// Who are asked at once,
const THREADS: usize = 32;
/// and ports on networks among them.
const PORTS: usize = 16;
/// How long a thread waits for somebody else to ask.
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn question(whom: u8) -> Question {
        let whom = Whom::Device(NodeId([whom; 16]));
        Question { whom, asked: Box::new(Asked { ask: || Ok(()), ticket: Weak::new() }) }
    }

    fn whom(question: Option<Question>) -> Option<u8> {
        question.map(|question| match question.whom {
            Whom::Device(node) | Whom::Neighbours(node) => node.0[0],
            Whom::Port { number, .. } => number,
        })
    }

    #[test]
    fn each_is_asked_one_thing_at_a_time_and_a_silent_one_no_more() {
        let mut desk = Desk::default();
        assert_eq!([1, 2].map(|who| desk.takes_on(question(who))), [Needed::Another; 2]);
        assert_eq!(whom(desk.next()), Some(1));
        assert_eq!([1, 1].map(|who| desk.takes_on(question(who))), [Needed::None; 2], "the thread that asks it will");
        assert_eq!(desk.takes_on(question(3)), Needed::Another);
        assert_eq!((whom(desk.next()), whom(desk.next())), (Some(2), Some(3)));
        let done = |desk: &mut Desk, who, is_silent| desk.asked(Whom::Device(NodeId([who; 16])), is_silent).len();
        assert_eq!(done(&mut desk, 2, true), 0);
        assert_eq!(whom(desk.next()), None);
        assert_eq!(done(&mut desk, 1, false), 0);
        assert_eq!(whom(desk.next()), Some(1));
        assert_eq!(done(&mut desk, 1, true), 1, "who asked it too is told the same");
        assert_eq!(done(&mut desk, 3, false), 0);
        assert_eq!(whom(desk.next()), None);
        assert_eq!((desk.threads, desk.busy.len(), desk.waiting.len()), (3, 0, 0));
    }

    #[test]
    fn no_more_are_asked_at_once_than_there_may_be_threads() {
        let mut desk = Desk::default();
        let needed: Vec<_> = (0..=THREADS as u8).map(|who| desk.takes_on(question(who))).collect();
        assert_eq!(needed[..THREADS], [Needed::Another; THREADS]);
        assert_eq!((needed[THREADS], desk.threads), (Needed::None, THREADS));
        assert!((0..THREADS as u8).all(|one| whom(desk.next()) == Some(one)));
        assert!(desk.asked(Whom::Device(NodeId([9; 16])), true).is_empty());
        assert_eq!(whom(desk.next()), Some(THREADS as u8), "it is the next one's turn");
    }

    #[test]
    fn ports_that_nobody_has_leave_threads_for_others() {
        let mut desk = Desk::default();
        let port = |number| Whom::Port { device: 0, number, row: 0, gid: Gid([0; 16]) };
        let ask = |desk: &mut Desk, whom| desk.takes_on(Question { whom, ..question(0) });
        for number in 0..PORTS as u8 {
            assert_eq!(ask(&mut desk, port(number)), Needed::Another);
            assert_eq!(whom(desk.next()), Some(number));
        }
        assert_eq!([90, 91].map(|number| ask(&mut desk, port(number))), [Needed::None; 2]);
        assert_eq!(whom(desk.next()), None, "others ask first");
        assert_eq!(desk.takes_on(question(70)), Needed::Another);
        assert_eq!(whom(desk.next()), Some(70));
        assert_eq!(desk.asked(port(3), true).len(), 0);
        assert_eq!((whom(desk.next()), whom(desk.next())), (Some(90), None));
    }

    #[test]
    fn a_thread_that_waits_is_called_first() {
        let mut desk = Desk { threads: 1, idle: 1, ..Desk::default() };
        assert_eq!(desk.takes_on(question(1)), Needed::Idle);
        assert_eq!(desk.takes_on(question(1)), Needed::None, "it will do this too");
        assert_eq!(desk.takes_on(question(2)), Needed::Another, "the one that was called has not come yet");
        let Whom::Device(first) = question(1).whom else { unreachable!() };
        assert_eq!(desk.gives_up(Whom::Device(first)).len(), 2);
        assert_eq!((whom(desk.next()), desk.threads), (Some(2), 1));
    }
}
