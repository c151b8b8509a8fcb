//! The control thread: sleeps on the sockets of its device, and ticks while queue pairs are stalled.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};

use super::link::Link;
use super::message::Message;
use super::serve::{Drained, admit};
use super::socket::{Socket, accept};
use crate::aside;
use crate::soft::node::Retired;
use crate::sync::lock;

/// The handle of a device's control thread.
#[derive(Debug)]
pub(crate) struct Control {
    waker: Waker,
    inbox: Mutex<Vec<Arc<Link>>>,
    closing: AtomicBool,
    /// True while the thread ticks, so that waking it again costs nothing.
    ticking: AtomicBool,
    /// True once the thread can not hear peers any more, and ended.
    deaf: AtomicBool,
    /// Links that the thread serves.
    links: AtomicUsize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread calls: the device that it serves.
pub(crate) trait Handler: Send + Sync {
    /// Answers the first message of a new connection; the link, if it can be accepted.
    fn greet(&self, socket: Socket) -> Option<Arc<Link>>;
    /// Handles what waits on a link, up to one turn of it.
    fn drain(&self, link: &Link) -> Drained;
    /// Goes on with what a peer waits for; true if something is left.
    fn settle(&self, link: &Link) -> bool;
    /// The other end of a link makes no sense, or the link has ended: `is_last` if no other leads to that device.
    fn lost(&self, link: &Arc<Link>, is_last: bool);
    /// Arenas of ours that went since the last call, and memory that went and that peers may look at still: with an arena what is
    /// left of it.
    fn gone(&self) -> (Vec<u32>, Vec<Retired>);
    /// Tries stalled work again; true if there is more to do.
    fn tick(&self) -> bool;
    /// No peer is heard any more, for good.
    fn deafened(&self);
}

struct Loop {
    handler: Weak<dyn Handler>,
    control: Arc<Control>,
    poll: Poll,
    registry: Arc<Registry>,
    listener: OwnedFd,
    greeting: HashMap<Token, (Socket, Instant)>,
    links: HashMap<Token, Arc<Link>>,
    /// Those of which the system tells nothing: they are looked at now and then, and it is asked again.
    unwatched: Vec<Token>,
    next: usize,
    /// A connection waits that could not be accepted; the listener tells of it only once.
    refused: bool,
    retiring: Vec<Retiring>,
    turn: u64,
    /// Sockets of which more waits than one turn took; they tell of it only once.
    again: Vec<Token>,
    /// Links with something that is over once others have left an access, or a driver has closed it.
    unsettled: Vec<Arc<Link>>,
}

/// Memory that is dropped once each of the links was quiet over which a peer came to know of it.
struct Retiring {
    turn: u64,
    links: Vec<Arc<Link>>,
    memory: Retired,
}

impl Control {
    /// Starts the thread for `handler`, which serves `listener`.
    pub(crate) fn start(handler: Weak<dyn Handler>, listener: OwnedFd) -> io::Result<Arc<Self>> {
        let mut state = Loop::new(handler, listener)?;
        let control = state.control.clone();
        let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || state.run_to_the_end())?;
        *lock(&control.thread) = Some(thread);
        Ok(control)
    }

    /// Hands over a link to watch.
    pub(crate) fn watch(&self, link: Arc<Link>) {
        lock(&self.inbox).push(link);
        self.wake();
    }

    /// Makes the thread tick until no queue pair is stalled. Cheap while it does already.
    pub(crate) fn attend(&self) {
        if !self.ticking.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// True if a peer may have learned of something over a link.
    pub(crate) fn has_links(&self) -> bool {
        self.links.load(Ordering::Acquire) > 0
    }

    /// True once no peer is heard any more, for good.
    pub(crate) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::SeqCst)
    }

    /// Ends the thread, and waits for it unless this is such a thread: two that wait for each other would never end.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && std::thread::current().name() != Some(NAME)
        {
            let _ = thread.join();
        }
    }

    /// Has the thread look around once.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "could not wake the control thread");
        }
    }
}

impl Loop {
    fn new(handler: Weak<dyn Handler>, listener: OwnedFd) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry().register(&mut SourceFd(&listener.as_raw_fd()), LISTENER, Interest::READABLE)?;
        let control = Arc::new(Control {
            waker: Waker::new(poll.registry(), WAKER)?,
            inbox: Mutex::new(Vec::new()),
            closing: AtomicBool::new(false),
            ticking: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            links: AtomicUsize::new(0),
            thread: Mutex::new(None),
        });
        Ok(Loop {
            handler,
            control: control.clone(),
            registry: Arc::new(poll.registry().try_clone()?),
            poll,
            listener,
            greeting: HashMap::new(),
            links: HashMap::new(),
            unwatched: Vec::new(),
            next: FIRST_LINK,
            refused: false,
            retiring: Vec::new(),
            turn: 0,
            again: Vec::new(),
            unsettled: Vec::new(),
        })
    }

    /// Runs; where that panics, as by what logs for the application, the device fails.
    fn run_to_the_end(&mut self) {
        // What is used then is made for threads that end at any place: atomics, and maps behind locks.
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            let _ = catch_unwind(AssertUnwindSafe(|| self.give_up()));
        }
    }

    fn run(&mut self) {
        aside::do_not_wait_here();
        let mut events = Events::with_capacity(64);
        let mut quiet_since = Instant::now();
        while !self.control.closing.load(Ordering::Acquire) {
            let ticking = self.control.ticking.load(Ordering::Acquire);
            let limit = match ticking {
                _ if !self.again.is_empty() => Some(Duration::ZERO),
                true => Some(TICK),
                false if !self.unsettled.is_empty() => Some(SETTLE_AGAIN),
                false if self.refused || !self.unwatched.is_empty() => Some(TRY_AGAIN),
                false => (!self.greeting.is_empty()).then_some(GREETING),
            };
            match self.poll.poll(&mut events, limit) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the control thread can not wait; peers' deaths will not be seen");
                    return self.give_up();
                }
            }
            let Some(handler) = self.handler.upgrade() else { return };
            self.hear(&*handler, &events);
            if self.refused {
                self.accept_all();
            }
            self.watch_again(&*handler);
            self.drop_slow_greetings();
            self.unsettled.retain(|link| !link.is_dead() && (handler.settle(link) | !link.flush()));
            if !self.unsettled.is_empty() {
                aside::attend();
            }
            self.part(&*handler);
            if ticking {
                if handler.tick() {
                    quiet_since = Instant::now();
                } else if quiet_since.elapsed() > CALM {
                    self.control.ticking.store(false, Ordering::Release);
                    // A queue pair that stalled just before saw `ticking` and did not wake us: look once more.
                    if handler.tick() {
                        self.control.ticking.store(true, Ordering::Release);
                    }
                }
            } else {
                quiet_since = Instant::now();
            }
        }
    }

    /// Gives each socket of which something waits one turn, unless the device closes meanwhile.
    fn hear(&mut self, handler: &dyn Handler, events: &Events) {
        let again = std::mem::take(&mut self.again);
        for token in events.iter().map(Event::token).chain(again) {
            if self.control.closing.load(Ordering::Acquire) {
                return;
            }
            self.handle(handler, token);
        }
    }

    fn hear_again(&mut self, token: Token) {
        if !self.again.contains(&token) {
            self.again.push(token);
        }
    }

    fn handle(&mut self, handler: &dyn Handler, token: Token) {
        match token {
            WAKER => self.take_inbox(),
            LISTENER => self.accept_all(),
            _ if self.greeting.contains_key(&token) => self.greet(handler, token),
            _ => {
                let Some(link) = self.links.get(&token).cloned() else { return };
                link.flush();
                let drained = handler.drain(&link);
                if !self.unsettled.iter().any(|known| Arc::ptr_eq(known, &link)) {
                    self.unsettled.push(link.clone());
                }
                match drained {
                    Drained::Open => {}
                    Drained::More => self.hear_again(token),
                    Drained::Nonsense => {
                        link.spurn();
                        handler.lost(&link, false);
                        // It may have ended already, which is not told again.
                        self.hear_again(token);
                    }
                    Drained::Over => {
                        self.links.remove(&token);
                        self.control.links.store(self.links.len(), Ordering::Release);
                        link.unwatch(&self.registry);
                        link.end();
                        let is_last = self.links.values().all(|other| other.peer() != link.peer());
                        handler.lost(&link, is_last);
                    }
                }
            }
        }
    }

    /// No peer is heard any more: the device fails, and what any may look at still stays for good.
    fn give_up(&mut self) {
        self.control.deaf.store(true, Ordering::SeqCst);
        let mut links: Vec<_> = self.links.values().cloned().collect();
        links.append(&mut lock(&self.control.inbox));
        links.iter().for_each(|link| link.spurn());
        let handler = self.handler.upgrade();
        let mut left: Vec<_> = std::mem::take(&mut self.retiring).into_iter().map(|retiring| retiring.memory).collect();
        left.extend(handler.iter().flat_map(|handler| handler.gone().1));
        let leaked = left.len();
        left.into_iter().for_each(Retired::leak);
        if let Some(handler) = &handler {
            handler.deafened();
            links.iter().for_each(|link| handler.lost(link, false));
        }
        drop(handler);
        self.wind_up(links);
        tracing::error!(
            leaked,
            "the device has failed: its control thread has ended; memory that peers may look at stays"
        );
    }

    /// Tells peers once nobody of this device is inside an access, and queue pairs once their peers are not, until the device
    /// closes.
    fn wind_up(&self, mut links: Vec<Arc<Link>>) {
        while !self.control.closing.load(Ordering::Acquire)
            && let Some(handler) = self.handler.upgrade()
        {
            links.retain(|link| handler.settle(link));
            if !handler.tick() && links.is_empty() {
                return;
            }
            aside::attend();
            drop(handler);
            std::thread::sleep(SETTLE_AGAIN);
        }
    }

    fn take_inbox(&mut self) {
        let links = std::mem::take(&mut *lock(&self.control.inbox));
        for link in links {
            self.add_link(link);
        }
    }

    fn add_link(&mut self, link: Arc<Link>) {
        let token = self.token();
        if let Err(error) = link.watch(&self.registry, token) {
            tracing::error!(%error, "a link can not be watched; it is looked at ten times a second");
            self.unwatched.push(token);
        }
        if !link.flush() {
            self.unsettled.push(link.clone());
        }
        self.links.insert(token, link);
        self.control.links.store(self.links.len(), Ordering::Release);
    }

    /// Asks again to be told of links of which it is told nothing, and hears what has come over them.
    fn watch_again(&mut self, handler: &dyn Handler) {
        for token in std::mem::take(&mut self.unwatched) {
            let Some(link) = self.links.get(&token) else { continue };
            if link.watch(&self.registry, token).is_err() {
                self.unwatched.push(token);
            }
            self.handle(handler, token);
        }
    }

    /// Parts with memory that went: peers are told of what is gone, those who may look at it are asked to let pass what is under
    /// way, and what was asked about before is dropped.
    fn part(&mut self, handler: &dyn Handler) {
        let (turn, asked) = (self.turn + 1, self.retiring.len());
        let (gone, retired) = handler.gone();
        for memory in retired {
            let links = self.links.values().filter(|link| memory.is_known_over(link)).cloned().collect();
            self.retiring.push(Retiring { turn, links, memory });
        }
        for arena in gone {
            self.links.values().for_each(|link| link.take_back(arena));
        }
        if asked < self.retiring.len() {
            self.turn = turn;
            let mut links: Vec<_> = self.retiring[asked..].iter().flat_map(|one| &one.links).collect();
            links.sort_unstable_by_key(|link| link.number());
            links.dedup_by_key(|link| link.number());
            links.into_iter().for_each(|link| _ = link.send(&Message::Quiesce { turn }));
        }
        self.retiring.retain(|one| !one.links.iter().all(|link| link.is_quiet(one.turn)));
    }

    fn accept_all(&mut self) {
        use std::os::fd::AsFd;
        for _ in 0..MAX_GREETING {
            match accept(self.listener.as_fd()) {
                Ok(Some(socket)) if !admit(&socket) => {}
                Ok(Some(socket)) if self.greeting.len() < MAX_GREETING => {
                    let token = self.token();
                    match self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE) {
                        Ok(()) => drop(self.greeting.insert(token, (socket, Instant::now()))),
                        Err(error) => tracing::error!(%error, "a connection can not be watched"),
                    }
                }
                Ok(Some(_)) => tracing::warn!("too many half-open connections; one is dropped"),
                Ok(None) => {
                    self.refused = false;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.refused, true) {
                        tracing::error!(%error, "could not accept a connection; it is tried again and again");
                    }
                    return;
                }
            }
        }
        self.hear_again(LISTENER);
    }

    fn greet(&mut self, handler: &dyn Handler, token: Token) {
        let Some((socket, _)) = self.greeting.remove(&token) else { return };
        let _ = self.poll.registry().deregister(&mut SourceFd(&socket.as_raw_fd()));
        if let Some(link) = handler.greet(socket) {
            self.add_link(link);
        }
    }

    fn drop_slow_greetings(&mut self) {
        self.greeting.retain(|_, (_, since)| since.elapsed() < GREETING);
    }

    fn token(&mut self) -> Token {
        self.next += 1;
        Token(self.next)
    }
}

const NAME: &str = "qpair-control";
const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
const FIRST_LINK: usize = 2;
/// Pause between attempts for stalled queue pairs: the shortest that mio knows, some percent of a core.
const TICK: Duration = Duration::from_millis(1);
/// Pause between looks at accesses of this process that peers wait for, while nothing else is to be done.
const SETTLE_AGAIN: Duration = Duration::from_millis(5);
/// Time without stalls after which the thread sleeps.
const CALM: Duration = Duration::from_millis(20);
/// Pause between attempts to accept a connection or to watch a link, for instance while there are no descriptors.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Time that a new connection has for its first message.
const GREETING: Duration = Duration::from_secs(2);
const MAX_GREETING: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::NodeId;
    use crate::memory::Left;
    use crate::soft::control::Askers;
    use crate::soft::control::socket::pair;
    use crate::soft::control::{greet, listen};
    use crate::soft::home::Home;
    use crate::soft::random;

    /// Hears of one piece of memory that went. Its peers send without end: for each turn of one it counts.
    #[derive(Default)]
    struct Deaf {
        went: Mutex<Vec<Retired>>,
        turns: Mutex<HashMap<u64, usize>>,
    }

    impl Handler for Deaf {
        fn greet(&self, _: Socket) -> Option<Arc<Link>> {
            None
        }

        fn drain(&self, link: &Link) -> Drained {
            *lock(&self.turns).entry(link.number()).or_default() += 1;
            Drained::More
        }

        fn settle(&self, _: &Link) -> bool {
            false
        }

        fn lost(&self, _: &Arc<Link>, _: bool) {}

        fn gone(&self) -> (Vec<u32>, Vec<Retired>) {
            let went = std::mem::take(&mut *lock(&self.went));
            let arena = |memory: &Retired| if let Retired::Left(left) = memory { Some(left.arena()) } else { None };
            (went.iter().filter_map(arena).collect(), went)
        }

        fn tick(&self) -> bool {
            false
        }

        fn deafened(&self) {}
    }

    #[test]
    fn memory_stays_that_peers_can_not_be_asked_about_and_its_device_closes() {
        let memory = [(); 3].map(|()| Arc::new(()));
        let device = Arc::new(());
        let retired = |memory: &Arc<()>| Retired::Left(Left::new(1, memory.clone(), Box::new(device.clone())));
        let handler: Arc<dyn Handler> =
            Arc::new(Deaf { went: Mutex::new(vec![retired(&memory[0])]), ..Deaf::default() });
        let mut state = Loop::new(Arc::downgrade(&handler), listen(NodeId(random::bytes())).unwrap()).unwrap();
        let block = Retired::Block(Box::new(memory[2].clone()), Askers::default());
        for memory in [retired(&memory[1]), block] {
            state.retiring.push(Retiring { turn: 1, links: Vec::new(), memory });
        }
        state.give_up();
        assert!(state.control.is_deaf());
        drop((state, handler));
        assert!(memory.iter().all(|memory| Arc::strong_count(memory) == 2));
        assert_eq!(Arc::strong_count(&device), 1);
    }

    #[test]
    fn memory_waits_for_those_alone_who_have_it() {
        let (home, peer) = (Home::new().unwrap(), Home::new().unwrap());
        let handler = Arc::new(Deaf::default());
        let deaf: Arc<dyn Handler> = handler.clone();
        let mut state = Loop::new(Arc::downgrade(&deaf), listen(NodeId(random::bytes())).unwrap()).unwrap();
        let _door = listen(peer.id()).unwrap();
        let (links, theirs): (Vec<_>, Vec<_>) = [(); 2]
            .map(|()| {
                let (ours, theirs) = pair();
                theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
                let link = Arc::new(greet(&home, ours).expect("it is a greeting").link);
                theirs.recv().expect("it is answered");
                state.add_link(link.clone());
                (link, theirs)
            })
            .into_iter()
            .unzip();
        lock(&links[0].remote_end().unwrap().lent).insert(7);
        let memory = [(); 2].map(|()| Arc::new(()));
        for (memory, arena) in memory.iter().zip([7, 8]) {
            lock(&handler.went).push(Retired::Left(Left::new(arena, memory.clone(), Box::new(()))));
        }
        state.part(&*deaf);
        assert_eq!(memory.each_ref().map(Arc::strong_count), [2, 1]);
        // Told first, and asked then.
        assert!(matches!(theirs[0].recv().unwrap().unwrap().message, Message::ArenaGone { arena: 7 }));
        assert!(matches!(theirs[0].recv().unwrap().unwrap().message, Message::Quiesce { turn: 1 }));
        assert!(theirs[1].recv().is_err(), "it is not asked about what it does not have");
        links[1].note_quiet(1);
        state.part(&*deaf);
        assert_eq!(Arc::strong_count(&memory[0]), 2, "it is another's word that counts");
        links[0].note_quiet(1);
        state.part(&*deaf);
        assert_eq!(Arc::strong_count(&memory[0]), 1);
    }

    #[test]
    fn a_link_that_can_not_be_watched_is_heard_and_can_be_later() {
        let (home, peer) = (Home::new().unwrap(), Home::new().unwrap());
        let handler = Arc::new(Deaf::default());
        let deaf: Arc<dyn Handler> = handler.clone();
        let mut state = Loop::new(Arc::downgrade(&deaf), listen(NodeId(random::bytes())).unwrap()).unwrap();
        let _door = listen(peer.id()).unwrap();
        let (ours, theirs) = pair();
        theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
        let link = Arc::new(greet(&home, ours).expect("it is a greeting").link);
        // The system takes a descriptor once.
        let socket = link.socket().unwrap().as_raw_fd();
        state.registry.register(&mut SourceFd(&socket), Token(7), Interest::READABLE).unwrap();
        state.add_link(link.clone());
        assert!(state.unwatched.len() == 1 && state.control.has_links());
        for turn in 1..=2 {
            state.watch_again(&*deaf);
            assert_eq!(lock(&handler.turns)[&link.number()], turn);
        }
        state.registry.deregister(&mut SourceFd(&socket)).unwrap();
        state.watch_again(&*deaf);
        assert!(state.unwatched.is_empty());
    }

    #[test]
    fn peers_that_send_without_end_have_turns_and_do_not_keep_the_thread_from_ending() {
        let (home, peer) = (Home::new().unwrap(), Home::new().unwrap());
        let handler = Arc::new(Deaf::default());
        let deaf: Arc<dyn Handler> = handler.clone();
        let _door = listen(peer.id()).unwrap();
        let control = Control::start(Arc::downgrade(&deaf), listen(NodeId(random::bytes())).unwrap()).unwrap();
        let _theirs = [(); 2].map(|()| {
            let (ours, theirs) = pair();
            theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
            control.watch(Arc::new(greet(&home, ours).expect("it is a greeting").link));
            theirs.send(&Message::Quiet { turn: 1 }, &[]).unwrap();
            theirs
        });
        let had_turns = || {
            let turns = lock(&handler.turns);
            turns.len() == 2 && turns.values().all(|&count| count > 10)
        };
        let start = Instant::now();
        while !had_turns() {
            assert!(start.elapsed() < Duration::from_secs(60), "they have no turns");
            std::thread::yield_now();
        }
        control.close();
    }
}
