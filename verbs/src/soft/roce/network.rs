//! A device on the network: its protocol, which whoever posts or polls drives, and a thread where nobody does.
//!
//! One lock keeps drivers apart, and nobody waits for it on the data path: who finds it taken leaves a note, which the
//! holder works off before it goes, or whoever left it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use qpair_roce::congestion::Rate;
use qpair_roce::wire::Addresses;
use qpair_roce::{Counters, Datagram, Qpn, Route};

use super::attached::Join;
use super::engine::{Engine, Member};
use super::thread::{self, Rest};
use super::udp::{NetworkCounters, Slot, Wire};
use crate::error::NetworkError;
use crate::soft::eventfd::EventFd;
use crate::soft::home::Home;
use crate::sync::lock;

/// A device on the network.
pub(crate) struct Network {
    engine: Mutex<Engine>,
    /// What was asked for while another drove.
    notes: Mutex<Notes>,
    has_notes: AtomicBool,
    /// Something was sent or came, or will as there is a connection: polling is worth a system call. Datagram queue pairs are
    /// on the network whether or not they are of use there.
    is_used: AtomicBool,
    /// A poll brought something since memory was looked at last.
    is_fresh: AtomicBool,
    /// Polls since the thread looked, or some of them: it may sleep where there are many.
    pub(super) polls: AtomicU32,
    /// The thread sleeps by the clock, since somebody polls.
    pub(super) dozes: AtomicBool,
    pub(super) closing: AtomicBool,
    pub(super) bell: EventFd,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread panics next.
    #[cfg(test)]
    is_mined: AtomicBool,
}

/// Notes, in two buffers that take turns, so that none is allocated anew.
#[derive(Default)]
struct Notes {
    left: Vec<Note>,
    spare: Vec<Note>,
}

/// What a queue pair asks of who drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    /// Requests were posted.
    Posted(Qpn),
    /// It has failed.
    Failed(Qpn),
}

impl Network {
    pub(crate) fn open(home: &Arc<Home>, slot: &Arc<Slot>) -> Result<Arc<Self>, NetworkError> {
        let system = |what| move |source: io::Error| NetworkError::System { what, source };
        let udp = Wire::open(slot.clone())?;
        let bell = EventFd::new().map_err(system("make an event descriptor"))?;
        let network = Arc::new(Network {
            engine: Mutex::new(Engine::new(home.clone(), udp, line_rate(home))),
            notes: Mutex::default(),
            has_notes: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_fresh: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            dozes: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            bell,
            thread: Mutex::default(),
            #[cfg(test)]
            is_mined: AtomicBool::new(false),
        });
        let thread = thread::start(&network).map_err(system("start the network's thread"))?;
        *lock(&network.thread) = Some(thread);
        Ok(network)
    }

    /// UDP port that packets to a queue pair come from.
    pub(crate) fn source_port(&self, addresses: &Addresses, peer: Qpn) -> u16 {
        self.with(|engine| engine.udp.source_port(addresses, peer))
    }

    /// Packets and datagrams so far, counted.
    pub(crate) fn counters(&self) -> (Counters, NetworkCounters) {
        self.with(|engine| engine.counters())
    }

    /// Packets of a connection's peer so far.
    pub(crate) fn arrivals(&self, qpn: Qpn) -> Option<u64> {
        self.with(|engine| engine.arrivals(qpn))
    }

    /// Takes a queue pair in; false if its number can not be had.
    pub(crate) fn attach(&self, qpn: Qpn, queue_pair: Member, join: Join) -> bool {
        if !matches!(queue_pair, Member::Datagrams(_)) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        self.with(|engine| engine.attach(qpn, queue_pair, join))
    }

    /// Lets a queue pair go, which may be dropped then.
    pub(crate) fn detach(&self, qpn: Qpn) {
        let gone = self.with(|engine| engine.detach(qpn));
        // Its owner may be dropped with it: not under the lock.
        drop(gone);
    }

    /// Sends what was posted to a queue pair.
    #[inline]
    pub(crate) fn posted(&self, qpn: Qpn) {
        self.ask(Note::Posted(qpn));
    }

    /// Takes the protocol out of the memory of a queue pair that has failed.
    pub(crate) fn failed(&self, qpn: Qpn) {
        self.ask(Note::Failed(qpn));
    }

    /// Sends a datagram at once; false if there is no room now.
    pub(crate) fn send_datagram(&self, qpn: Qpn, work: &Datagram<(), Route>, fill: impl FnOnce(&mut [u8])) -> bool {
        let Some(mut engine) = self.try_engine() else { return false };
        self.is_used.store(true, Ordering::Relaxed);
        let now = Instant::now();
        let is_gone = engine.send_datagram(now, qpn, work, fill);
        self.wake_for(&mut engine, now);
        drop(engine);
        self.work_off();
        is_gone
    }

    /// One round, for who polls: true if something came. What is to be answered goes with the next poll, or with what is
    /// posted before that: an answer of this side and the acknowledgment of what it answers leave together.
    pub(crate) fn poll(&self) -> bool {
        if !self.is_used.load(Ordering::Relaxed) {
            return false;
        }
        // Where several poll, one may not count.
        self.polls.store(self.polls.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        let Some(mut engine) = self.try_engine() else { return false };
        let now = Instant::now();
        engine.side.patience = PATIENCE;
        engine.transmit(now);
        let came = engine.receive(now);
        engine.keep_time(now, came);
        drop(engine);
        self.work_off();
        if came {
            self.is_fresh.store(true, Ordering::Relaxed);
        }
        // Who polls may stop now: the thread looks after what is to be answered, once it has dozed.
        if came && !self.dozes.load(Ordering::SeqCst) {
            self.bell.ring();
        }
        came
    }

    /// Has the socket by which packets to a queue pair of a peer go take so many departures more; or as many as the system does.
    #[cfg(test)]
    pub(super) fn leave_room(&self, addresses: &Addresses, peer: Qpn, departures: Option<usize>) {
        self.with(|engine| {
            let port = engine.udp.source_port(addresses, peer);
            engine.udp.leave_room(addresses, port, departures);
        });
    }

    /// Has the thread panic.
    #[cfg(test)]
    pub(crate) fn mine(&self) {
        self.is_mined.store(true, Ordering::Relaxed);
        self.hand_over();
    }

    /// For who is about to look at memory: a round, unless one has brought something that was not looked at yet. That may be
    /// what is looked for, and an answer to it shall be the next to go.
    pub(crate) fn poll_before_a_look(&self) {
        if self.is_fresh.load(Ordering::Relaxed) || self.poll() {
            self.is_fresh.store(false, Ordering::Relaxed);
        }
    }

    /// True once polling is worth a system call.
    #[cfg(test)]
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Who polled goes to sleep: the thread takes over.
    pub(crate) fn hand_over(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.polls.store(0, Ordering::SeqCst);
            self.bell.ring();
        }
    }

    /// Rounds until nothing happens any more, for the thread; how it may sleep then.
    pub(super) fn serve(&self) -> Rest {
        #[cfg(test)]
        assert!(!self.is_mined.load(Ordering::Relaxed), "as a test wants it");
        let mut engine = lock(&self.engine);
        engine.udp.look_everywhere();
        // Nobody here is about to answer.
        engine.side.patience = Duration::ZERO;
        for _ in 0..ROUNDS {
            let now = Instant::now();
            let came = engine.receive(now);
            engine.keep_time(now, came);
            let sent = engine.transmit(now);
            if engine.has_heard {
                self.is_used.store(true, Ordering::Relaxed);
            }
            if !(came || sent) || self.has_notes.load(Ordering::Relaxed) {
                break;
            }
        }
        let until = engine.timeout(Instant::now());
        engine.sleeps_until = until;
        let rest = Rest { until, hears: engine.hears() };
        drop(engine);
        self.work_off();
        rest
    }

    /// The thread ends, and what it did is done no more: the device fails.
    pub(super) fn give_up(&self) {
        // What was asked for meanwhile is not carried out: that may panic again.
        let home = lock(&self.engine).home.clone();
        home.fail();
        // One that is made from now on knows.
        if let Some(agent) = &mut lock(&self.engine).agent {
            agent.fail();
        }
        tracing::error!("the device has failed: its network thread has ended");
    }

    /// What the thread sleeps on.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.with(|engine| engine.udp.fd().try_clone_to_owned())
    }

    /// Carries out what is asked of the connection manager, and sends what comes of it.
    pub(super) fn manage<R>(&self, act: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        let mut engine = lock(&self.engine);
        let now = Instant::now();
        let result = act(&mut engine, now);
        engine.claim_management(now);
        // Before a peer hears of an end: what it is owed for what was taken here.
        engine.transmit(now);
        engine.flush_management(now);
        engine.transmit(now);
        self.wake_for(&mut engine, now);
        drop(engine);
        self.work_off();
        result
    }

    /// Under the lock, which is waited for. Whoever finds it taken meanwhile leaves a note, which is worked off.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = lock(&self.engine);
        let result = act(&mut engine);
        drop(engine);
        self.work_off();
        result
    }

    fn ask(&self, note: Note) {
        match self.try_engine() {
            Some(mut engine) => self.carry_out(&mut engine, note),
            None => {
                let mut notes = lock(&self.notes);
                if notes.left.last() != Some(&note) {
                    notes.left.push(note);
                }
                drop(notes);
                self.has_notes.store(true, Ordering::SeqCst);
            }
        }
        self.work_off();
    }

    /// Works off what was asked for meanwhile, unless another does. After the lock was given back: either its next holder
    /// sees a note, or who left it sees that the lock is free.
    fn work_off(&self) {
        fence(Ordering::SeqCst);
        while self.has_notes.load(Ordering::SeqCst) {
            let Some(mut engine) = self.try_engine() else { return };
            self.has_notes.store(false, Ordering::SeqCst);
            let mut taken = lock(&self.notes).take();
            for note in taken.drain(..) {
                self.carry_out(&mut engine, note);
            }
            lock(&self.notes).spare = taken;
            drop(engine);
            fence(Ordering::SeqCst);
        }
    }

    fn carry_out(&self, engine: &mut Engine, note: Note) {
        match note {
            Note::Posted(qpn) => engine.take_up(qpn),
            Note::Failed(qpn) => engine.close_failed(qpn),
        }
        let now = Instant::now();
        engine.transmit(now);
        self.wake_for(engine, now);
    }

    /// The thread may sleep longer than what is due now.
    fn wake_for(&self, engine: &mut Engine, now: Instant) {
        if let Some(due) = engine.timeout(now)
            && engine.sleeps_until.is_none_or(|until| due < until)
        {
            engine.sleeps_until = Some(due);
            self.bell.ring();
        }
    }

    fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Notes {
    /// Those that were left. Their buffer becomes [`spare`](Notes::spare) once it is empty.
    fn take(&mut self) -> Vec<Note> {
        std::mem::replace(&mut self.left, std::mem::take(&mut self.spare))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        self.bell.ring();
        let thread = lock(&self.thread).take();
        // The thread itself may hold the network last.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

/// The rate of the fastest link, as far as drivers tell.
fn line_rate(home: &Home) -> Rate {
    let speed = home.network_gids().iter().filter_map(|row| row.interface.speed).max();
    speed.map_or(LINE_RATE, Rate::from_mbps)
}

/// Where no driver tells the rate of a link: that of a fast one, so that it alone limits what is sent.
const LINE_RATE: Rate = Rate::from_gbps(100);
/// How long an acknowledgment may wait for what the program that polls answers, or sends in its next step: some round trips
/// between hosts. It saves the system a packet, which takes both hosts some microseconds.
const PATIENCE: Duration = Duration::from_micros(400);
/// Rounds of the thread before it gives the lock back to others.
const ROUNDS: usize = 64;
