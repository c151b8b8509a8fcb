//! The protocol between its sockets and the device: one round takes in what came, does what is due, and sends what is to
//! be sent.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qpair_roce::congestion::{DcqcnParameters, Rate};
use qpair_roce::{Counters, Datagram, Port, Qpn, QueuePair, Route};

use super::attached::{Attached, Join, Next};
use super::cm::Agent;
use super::memory::Memory;
use super::side::Side;
use super::udp::{HeldUp, NetworkCounters, Outbox, Wire};
use crate::soft::home::Home;

/// The protocol of a device. Used by one thread at a time.
pub(super) struct Engine {
    pub(super) home: Arc<Home>,
    pub(super) port: Port<Memory>,
    pub(super) side: Side,
    pub(super) udp: Wire,
    /// The connection manager, once it is used.
    pub(super) agent: Option<Box<Agent>>,
    /// Packets on their way to a socket.
    outbox: Outbox,
    /// There was more to send than one round does.
    has_more: bool,
    /// Receiving failed: it is tried again then.
    deaf_until: Option<Instant>,
    /// Packets for queue pairs here have come.
    pub(super) has_heard: bool,
    /// Rounds in a row that brought something, and in which no timer was looked at.
    put_off: u32,
    /// The device's thread sleeps so long at most; none: without end.
    pub(super) sleeps_until: Option<Instant>,
}

/// A queue pair as it joins the network.
pub(crate) type Member = QueuePair<Memory>;

impl Engine {
    /// With congestion control of links of that rate.
    pub(super) fn new(home: Arc<Home>, udp: Wire, line_rate: Rate) -> Self {
        let mut port = Port::new();
        port.control_congestion(DcqcnParameters::new(line_rate));
        Engine {
            side: Side::new(home.clone()),
            home,
            port,
            udp,
            agent: None,
            outbox: Outbox::new(),
            has_more: false,
            deaf_until: None,
            has_heard: false,
            put_off: 0,
            sleeps_until: Some(Instant::now()),
        }
    }

    pub(super) fn counters(&self) -> (Counters, NetworkCounters) {
        (*self.port.counters(), *self.udp.counters())
    }

    /// Packets of a connection's peer so far.
    pub(super) fn arrivals(&self, qpn: Qpn) -> Option<u64> {
        match self.port.get(qpn)? {
            QueuePair::Reliable(connection, _) => Some(connection.arrivals()),
            QueuePair::Unreliable(..) | QueuePair::Datagrams(_) => None,
        }
    }

    /// Takes a queue pair in; false if its number can not be had.
    pub(super) fn attach(&mut self, qpn: Qpn, queue_pair: Member, join: Join) -> bool {
        if self.port.add(Instant::now(), queue_pair).is_err() {
            return false;
        }
        let is_new = self.side.attached.add(qpn, Attached::new(qpn, join)).is_ok();
        debug_assert!(is_new, "the port had no such number");
        is_new
    }

    /// Lets a queue pair go. Its peer is told before of what is done.
    pub(super) fn detach(&mut self, qpn: Qpn) -> Option<Attached> {
        self.close(qpn);
        // That is made before what others have, and whatever waits for room.
        self.transmit(Instant::now());
        self.port.remove(qpn);
        self.side.remove(qpn)
    }

    /// Takes up what was posted to a queue pair. Of one that has failed it is flushed.
    pub(super) fn take_up(&mut self, qpn: Qpn) {
        self.take_up_all(qpn);
        if let Some(attached) = self.side.attached.get_mut(qpn).filter(|attached| attached.is_closed) {
            attached.publish(true);
        }
    }

    fn take_up_all(&mut self, qpn: Qpn) {
        while let Some(attached) = self.side.attached.get_mut(qpn) {
            let (index, status) = match attached.next(&self.home) {
                Next::Nothing => return,
                Next::Over(index, status) => (index, status),
                Next::Wire(work) => {
                    let index = work.id as u32;
                    // Let through by the checks of posting, and yet nothing that the protocol takes.
                    if self.port.post(qpn, work, &mut self.side).is_err()
                        && let Some(attached) = self.side.attached.get_mut(qpn)
                    {
                        attached.refuse(index);
                    }
                    continue;
                }
            };
            let Some(attached) = self.side.attached.get_mut(qpn) else { return };
            attached.finish(index, status);
            if !status.is_success() {
                self.close(qpn);
            }
        }
    }

    /// As [`close`](Engine::close), unless the protocol gave it up itself: then it may answer its peer still.
    pub(super) fn close_failed(&mut self, qpn: Qpn) {
        if self.side.attached.get(qpn).is_some_and(|attached| !attached.is_closed) {
            self.close(qpn);
        }
    }

    /// Takes the protocol out of the memory of a queue pair: what is posted is flushed.
    pub(super) fn close(&mut self, qpn: Qpn) {
        self.port.close(qpn, &mut self.side);
        self.settle();
    }

    /// Takes in what came, some of it; true if there was something.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        if self.deaf_until.is_some_and(|until| now < until) {
            return false;
        }
        let Engine { home, port, side, udp, has_heard, .. } = self;
        let mut inside = None;
        let came = to_the_end(|| {
            udp.receive(|arrival| {
                *has_heard = true;
                inside.get_or_insert_with(|| home.enter_as_engine());
                port.receive(now, &arrival, side);
            })
        });
        // Before the memory may be another's, and before the peers are told.
        side.behind.settle();
        drop(inside);
        // Before anything is acknowledged.
        while let Some(qpn) = side.behind.take_lost() {
            port.lose(qpn, side);
        }
        let came = came.unwrap_or_else(|panic| resume_unwind(panic));
        self.settle();
        match came {
            Ok(count) => {
                self.deaf_until = None;
                count > 0
            }
            Err(error) => {
                if self.deaf_until.replace(now + DEAF).is_none() {
                    tracing::warn!(%error, "can not receive from the network; it is tried again and again");
                }
                false
            }
        }
    }

    /// True unless receiving failed just now: the sockets are left alone for a while.
    pub(super) fn hears(&self) -> bool {
        self.deaf_until.is_none()
    }

    /// Does what is due, and what the connection manager has to do. Where something `came`, more may be waiting, and among it the
    /// answer whose time is over: it is taken in first, for some rounds.
    pub(super) fn keep_time(&mut self, now: Instant, came: bool) {
        self.manage(now);
        self.put_off = if came { self.put_off.saturating_add(1) } else { 0 };
        if self.port.timeout().is_some_and(|due| due <= now) {
            // No answer is late to what waits for room.
            if self.udp.is_full() {
                self.send_held(now);
            }
            if (1..PUT_OFF).contains(&self.put_off) {
                self.port.handle_timeout_but_of_answers(now, now + SPARE, &mut self.side);
            } else {
                self.port.handle_timeout(now, &mut self.side);
                self.put_off = 0;
            }
            self.settle();
        }
    }

    /// Sends what is to be sent, some of it; true if there was something.
    pub(super) fn transmit(&mut self, now: Instant) -> bool {
        let mut sent = self.udp.is_full() && self.send_held(now);
        for _ in 0..SENDS {
            self.fill_outbox(now);
            self.has_more = !self.outbox.is_empty();
            if !self.has_more {
                break;
            }
            self.send_outbox(now);
            sent = true;
        }
        self.settle();
        sent
    }

    /// Sends what full sockets held up, where there is room again; true if there is.
    fn send_held(&mut self, now: Instant) -> bool {
        let Engine { port, udp, .. } = self;
        let has_room = udp.send_held(now, |qpn, held_up| hear(port, now, qpn, held_up));
        if has_room {
            port.resume();
        }
        has_room
    }

    /// Hands what is in the outbox to the sockets, which keep what they have no room for.
    fn send_outbox(&mut self, now: Instant) {
        let Engine { port, udp, outbox, .. } = self;
        udp.send(now, outbox, |qpn, held_up| hear(port, now, qpn, held_up));
    }

    /// Puts into the outbox, which is empty, what goes by sockets that have room.
    fn fill_outbox(&mut self, now: Instant) {
        let Engine { home, port, side, udp, outbox, .. } = self;
        if port.is_quiet() {
            return;
        }
        let segments = udp.segments();
        home.as_engine(|| {
            let filled = to_the_end(|| {
                while let Some(room) = outbox.room() {
                    let has_room = |route: &Route| udp.has_room(route);
                    let Some(departure) = port.transmit_where(now, room, segments, side, has_room) else { break };
                    outbox.push(departure);
                }
            });
            side.end_reads();
            filled.unwrap_or_else(|panic| resume_unwind(panic));
        });
    }

    /// Sends a datagram at once; false if there is no room now. What may be lost on the way is sent.
    pub(super) fn send_datagram(
        &mut self,
        now: Instant,
        qpn: Qpn,
        work: &Datagram<(), Route>,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if !self.udp.has_room(&work.target.path) {
            return false;
        }
        let Some(room) = self.outbox.room() else { return false };
        if let Some(departure) = self.port.make_datagram(qpn, work, room, fill) {
            self.outbox.push(departure);
            // Without room now, it goes when there is.
            self.send_outbox(now);
        }
        true
    }

    /// When there is something to do, if nothing comes before.
    pub(super) fn timeout(&self, now: Instant) -> Option<Instant> {
        let room = (self.udp.is_full() || self.udp.has_waiting()).then(|| now + ROOM);
        let more = self.has_more.then_some(now);
        let management = self.agent.as_ref().and_then(|agent| agent.timeout());
        let deaf = self.deaf_until;
        self.port.timeout().into_iter().chain(management).chain(room).chain(more).chain(deaf).min()
    }

    /// Tells owners of what happened to their queue pairs, now that no access is under way. A connection that failed may
    /// answer its peer still; it is out of all memory that was posted.
    fn settle(&mut self) {
        while let Some((qpn, cause)) = self.side.failed.pop() {
            let Some(attached) = self.side.attached.get_mut(qpn) else { continue };
            attached.is_closed = true;
            let owner = attached.owner().clone();
            owner.network_failed(cause);
            self.take_up(qpn);
            owner.network_left();
        }
        while let Some(qpn) = self.side.freed.pop() {
            self.take_up(qpn);
        }
    }
}

/// Runs what may log something, whose subscriber may panic: what GPUs are at then has to come to its end before that goes on.
fn to_the_end<R>(act: impl FnOnce() -> R) -> std::thread::Result<R> {
    catch_unwind(AssertUnwindSafe(act))
}

/// Tells a queue pair what became of a departure that a full socket held up.
fn hear(port: &mut Port<Memory>, now: Instant, qpn: Qpn, held_up: HeldUp) {
    match held_up {
        HeldUp::Still => port.still_waits(now, qpn),
        HeldUp::TooLong => port.never_went(qpn),
    }
}

/// Rounds that bring something before answers are late all the same,
const PUT_OFF: u32 = 64;
/// and how long those that may be waiting are not late in each of them: a few rounds.
const SPARE: Duration = Duration::from_micros(50);
/// Outboxes that are sent in one round, after which arrivals have their turn.
const SENDS: usize = 8;
/// How long the thread leaves sockets without room alone.
const ROOM: Duration = Duration::from_micros(200);
/// How long after a failure nothing is received.
const DEAF: Duration = Duration::from_millis(10);
