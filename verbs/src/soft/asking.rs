//! Asking for what is to be known before a queue pair is connected, in threads of their own: who is asked may be stopped.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::bell::Rope;
use super::control::Link;
use super::filler::Filler;
use super::layout::QpInfo;
use super::node::Node;
use super::roce::Network;
use crate::address::{NodeId, QpAddress};
use crate::error::{ConnectError, again};
use crate::sync::lock;

/// The way to a queue pair, as it was found.
pub(crate) enum Found {
    /// It is on this host.
    Here(Box<Seen>),
    /// It is on another, or on no software device.
    Network(Arc<Network>),
}

/// A queue pair of this host, as its device describes it.
pub(crate) struct Seen {
    pub(crate) link: Arc<Link>,
    pub(crate) info: QpInfo,
    pub(crate) rope: Rope,
    pub(crate) filler: Option<Filler>,
}

impl Found {
    /// The queue pair of this host.
    pub(crate) fn here(self) -> Result<Seen, ConnectError> {
        match self {
            Found::Here(seen) => Ok(*seen),
            Found::Network(_) => Err(ANOTHER_WAY),
        }
    }

    /// The network, where the way leads over it.
    pub(crate) fn network(self) -> Result<Arc<Network>, ConnectError> {
        match self {
            Found::Here(_) => Err(ANOTHER_WAY),
            Found::Network(network) => Ok(network),
        }
    }
}

impl Seen {
    /// That at `address`, as the other end of the link describes it.
    pub(crate) fn by(link: Arc<Link>, address: &QpAddress) -> Result<Self, ConnectError> {
        let (info, rope, filler) = link.query(address.qpn.0)?;
        if info.who.qpn != address.qpn.0 || info.qp_type != address.qp_type {
            return Err(ConnectError::BadAnswer { why: "the peer's device speaks of another queue pair" });
        }
        Ok(Seen { link, info, rope, filler })
    }
}

/// What came of asking.
pub(crate) type Answer = Result<Found, ConnectError>;

/// Who is to be asked, and may take long to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whom {
    /// The device of another process.
    Device(NodeId),
    /// Those of this host who share the network's port with this device, which is new there.
    Neighbours(NodeId),
}

/// A question that was asked, and its answer once that is there.
pub(crate) struct Ticket {
    is_over: AtomicBool,
    answer: Mutex<Option<Answer>>,
    waker: Waker,
}

impl Ticket {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The answer, once.
    pub(crate) fn take(&self) -> Option<Answer> {
        lock(&self.answer).take()
    }

    fn put(&self, answer: Answer) {
        *lock(&self.answer) = Some(answer);
        self.is_over.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

/// Asks `whom` on behalf of `node` for the way to the queue pair at `address`, or for the network if none is named, and wakes
/// `waker` with the answer.
pub(crate) fn ask(node: &Arc<Node>, whom: Whom, address: Option<QpAddress>, waker: &Waker) -> Arc<Ticket> {
    let ticket = Arc::new(Ticket { is_over: AtomicBool::new(false), answer: Mutex::default(), waker: waker.clone() });
    let question = Question { whom, node: Arc::downgrade(node), address, ticket: Arc::downgrade(&ticket) };
    let needed = lock(&DESK).takes_on(question);
    if needed == Needed::Idle {
        CALLED.notify_one();
    }
    if needed != Needed::Another {
        return ticket;
    }
    if let Err(source) = thread::Builder::new().name("qpair-asking".into()).spawn(serve) {
        let unserved = lock(&DESK).gives_up(whom);
        let error = ConnectError::System { what: "start a thread that asks the peer's device", source };
        tell_all(&unserved, &error);
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

/// A question. Nothing of the device is kept by one that waits, nor for one whose answer nobody wants any more.
struct Question {
    whom: Whom,
    node: Weak<Node>,
    address: Option<QpAddress>,
    ticket: Weak<Ticket>,
}

impl Question {
    /// Asks, and tells what came of it. Gives what others are to be told who have asked the same of it.
    fn ask(&self) -> Option<ConnectError> {
        if self.ticket.strong_count() == 0 {
            return None;
        }
        let answer = match (self.node.upgrade(), &self.address) {
            (Some(node), Some(address)) => node.find_apart(address),
            (Some(node), None) => {
                let network = node.network();
                // Whoever is told may close the device next, and what is to be done for that is its own.
                drop(node);
                network.map(Found::Network).map_err(ConnectError::from)
            }
            (None, _) => Err(CLOSED),
        };
        let for_all = answer.as_ref().err().and_then(for_all);
        self.tell(answer);
        for_all
    }

    fn tell(&self, answer: Answer) {
        if let Some(ticket) = self.ticket.upgrade() {
            ticket.put(answer);
        }
    }
}

impl Desk {
    fn takes_on(&mut self, question: Question) -> Needed {
        let whom = question.whom;
        let is_served =
            self.threads > 0 && (self.busy.contains(&whom) || self.waiting.iter().any(|waiting| waiting.whom == whom));
        self.waiting.push_back(question);
        if is_served {
            return Needed::None;
        }
        let waited_for: HashSet<_> = self.waiting.iter().map(|waiting| waiting.whom).collect();
        if waited_for.difference(&self.busy).count() <= self.idle {
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

    /// The question that waits longest of those whose addressee is not being asked.
    fn next(&mut self) -> Option<Question> {
        let place = self.waiting.iter().position(|question| !self.busy.contains(&question.whom))?;
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
    while let Some(question) = next() {
        let asked = catch_unwind(AssertUnwindSafe(|| question.ask()));
        let for_all = asked.unwrap_or_else(|panic| {
            tracing::error!("who was to be woken by an answer panicked");
            // It may be of a type whose drop panics.
            std::mem::forget(panic);
            None
        });
        let same = lock(&DESK).asked(question.whom, for_all.is_some());
        if let Some(error) = for_all {
            tell_all(&same, &error);
        }
    }
}

/// Tells each the same, which is [for all](for_all).
fn tell_all(questions: &[Question], error: &ConnectError) {
    for question in questions {
        if let Some(error) = for_all(error) {
            question.tell(Err(error));
        }
    }
}

/// An error once more, for others who ask, where it is not about one queue pair.
fn for_all(error: &ConnectError) -> Option<ConnectError> {
    match error {
        ConnectError::TimedOut { seconds } => Some(ConnectError::TimedOut { seconds: *seconds }),
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
pub(super) const CLOSED: ConnectError = ConnectError::NoRoute { why: "the device that asked was closed meanwhile" };
const ANOTHER_WAY: ConnectError =
    ConnectError::NoRoute { why: "what was asked for is another address than the one to connect to" };
/// Who are asked at once.
const THREADS: usize = 32;
/// How long a thread waits for somebody else to ask.
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn question(whom: u8) -> Question {
        let whom = Whom::Device(NodeId([whom; 16]));
        Question { whom, node: Weak::new(), address: None, ticket: Weak::new() }
    }

    fn whom(question: Option<Question>) -> Option<u8> {
        question.map(|question| match question.whom {
            Whom::Device(node) | Whom::Neighbours(node) => node.0[0],
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
