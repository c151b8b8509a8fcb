//! What an engine sends and receives by: a slot's share of the port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qpair_roce::wire::Addresses;
use qpair_roce::{Arrival, Qpn, Route};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::backlog::HeldUp;
use super::counters::NetworkCounters;
use super::datagram::Datagram;
use super::group::{Gate, Group, PATIENCE};
use super::io::{Batch, Received};
use super::management::Desk;
use super::outbox::Outbox;
use super::place::What;
use super::sender::Senders;
use super::serving::{Said, Serving};
use super::slot::Slot;
use super::{MANAGEMENT, options, place_of};
use crate::error::NetworkError;

/// A slot's share of the port. Whoever has it calls [`receive`](Wire::receive) whenever [`fd`](Wire::fd) is
/// readable: other processes ask here for the sockets.
pub(crate) struct Wire {
    senders: Senders,
    inbox: Batch,
    messages: Batch,
    /// Where what is handed to others is put together.
    room: Vec<u8>,
    counters: NetworkCounters,
    /// Calls until other processes' messages are looked for.
    until_served: u32,
    /// The share of connection management, if this device has it.
    management: Option<Share>,
    /// Since when something waits that another with that share has to read, as far as that was looked at.
    unread: Option<Instant>,
    /// It is read here, until nothing is left.
    reads_for_another: bool,
    desk: Desk,
    /// Another device gave that share up.
    is_freed: bool,
    /// Readable where one of the sockets is. It has them without a duplicate, which would keep names from others.
    watched: OwnedFd,
    /// That of the slot. It goes before the slot, whose next owner takes the same names.
    own: Share,
    slot: Arc<Slot>,
}

/// A socket of the port, and the right to it.
struct Share {
    serving: Serving,
    place: u32,
    group: Arc<Group>,
}

impl Wire {
    /// Takes a slot's share of the port: opens the port if no process of this host has it.
    pub(crate) fn open(slot: Arc<Slot>) -> Result<Self, NetworkError> {
        let place = slot.place();
        let senders = Senders::open(place.port).map_err(NetworkError::system("make sockets that packets go out by"))?;
        let gate = Gate::enter(place, PATIENCE)?;
        let group = Group::join(&gate)?;
        // Before the gate is free: the next process finds one to ask.
        let serving = Serving::bind_after_another(place, slot.number())
            .map_err(NetworkError::system("bind the name that other processes send to"))?;
        drop(gate);
        let own =
            Share::new(serving, slot.number(), group).map_err(NetworkError::system("give a UDP socket its buffer"))?;
        let watched = own.watched().map_err(NetworkError::system("watch UDP sockets"))?;
        Ok(Wire {
            senders,
            inbox: Batch::new(DATAGRAMS, LONGEST_DATAGRAM, CONTROL_WORDS),
            messages: Serving::inbox(),
            room: Vec::with_capacity(LONGEST_DATAGRAM + 1024),
            counters: NetworkCounters::default(),
            until_served: 0,
            management: None,
            unread: None,
            reads_for_another: false,
            desk: Desk::default(),
            is_freed: false,
            watched,
            own,
            slot,
        })
    }

    #[cfg(test)]
    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Packets that go in one departure, at most. It may become 1 where the system turns out to take no more.
    pub(crate) fn segments(&self) -> usize {
        self.senders.segments()
    }

    /// The UDP port that packets to a queue pair of a peer come from: for the route to it.
    pub(crate) fn source_port(&self, addresses: &Addresses, peer: Qpn) -> u16 {
        self.senders.source_port(addresses, peer)
    }

    /// Sends what is in the outbox. What the system refuses is lost and counted. What a full socket holds up is kept for
    /// [`send_held`](Wire::send_held), or lost if too much is; then `tell` hears whose it was.
    pub(crate) fn send(&mut self, now: Instant, outbox: &mut Outbox, tell: impl FnMut(Qpn, HeldUp)) {
        self.senders.send(now, outbox, &mut self.counters, tell);
    }

    /// Sends what full sockets held up, those that were left alone long enough; true if one of them has room again. What has
    /// waited for long is lost and counted. Of that, and of what waits still, `tell` hears whose it is.
    pub(crate) fn send_held(&mut self, now: Instant, tell: impl FnMut(Qpn, HeldUp)) -> bool {
        self.senders.send_held(now, &mut self.counters, tell)
    }

    /// True unless the socket that packets of a route go by is full.
    #[inline]
    pub(crate) fn has_room(&self, route: &Route) -> bool {
        self.senders.has_room(route)
    }

    /// True while a socket is full.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.senders.is_full()
    }

    /// Has the socket of a port take so many departures more, as if it were full then; or as many as the system takes.
    #[cfg(test)]
    pub(crate) fn leave_room(&mut self, addresses: &Addresses, port: u16, departures: Option<usize>) {
        self.senders.leave_room(addresses, port, departures);
    }

    /// Takes some of what waits, and hands the packets for this slot to `each`; how many datagrams and messages there were.
    /// With 0 nothing waits at the sockets of this slot. Other processes' messages are looked for now and then, and after
    /// [`look_everywhere`](Wire::look_everywhere).
    pub(crate) fn receive(&mut self, mut each: impl FnMut(Arrival<'_>)) -> io::Result<usize> {
        let mut taken = self.receive_own(&mut each)?;
        if let Some(left) = self.until_served.checked_sub(1) {
            self.until_served = left;
            return Ok(taken);
        }
        self.until_served = SERVED_EVERY;
        let others = self.receive_management(&mut each).and_then(|count| Ok(count + self.serve(&mut each)?));
        match others {
            Ok(count) => taken += count,
            // What came to the slot came.
            Err(error) if taken > 0 => tracing::debug!(%error, "messages of other processes can not be received"),
            Err(error) => return Err(error),
        }
        Ok(taken)
    }

    /// What came to the slot's socket.
    fn receive_own(&mut self, each: &mut impl FnMut(Arrival<'_>)) -> io::Result<usize> {
        let Wire { inbox, room, counters, own, .. } = self;
        let got = inbox.receive(own.group.socket(own.place))?;
        for index in 0..got {
            match Datagram::from_kernel(inbox.get(index)) {
                Some(datagram) => {
                    let others = sort(&datagram, 1 << own.place, counters, &mut *each);
                    own.serving.hand_on(&datagram, others, room, counters);
                }
                None => counters.unclear += 1,
            }
        }
        Ok(got)
    }

    /// What came to the socket for connection management, if this device has it, or another that does not read it.
    fn receive_management(&mut self, each: &mut impl FnMut(Arrival<'_>)) -> io::Result<usize> {
        let Wire { inbox, room, counters, management, desk, own, .. } = self;
        let from = management.as_ref().map_or(&own.serving, |share| &share.serving);
        desk.hand_on_waiting(from, counters);
        if management.is_none() && !self.reads_for_another {
            return Ok(0);
        }
        let got = inbox.receive(own.group.socket(MANAGEMENT))?;
        if management.is_none() {
            match got {
                0 => (self.unread, self.reads_for_another) = (None, false),
                _ => self.until_served = 0,
            }
        }
        for index in 0..got {
            match Datagram::from_kernel(inbox.get(index)) {
                Some(datagram) => desk.sort(&datagram, own.place, from, room, counters, &mut *each),
                None => counters.unclear += 1,
            }
        }
        Ok(got)
    }

    /// What other processes sent: requests, and packets for the slot, or for the connection manager.
    fn serve(&mut self, each: &mut impl FnMut(Arrival<'_>)) -> io::Result<usize> {
        let Wire { messages, counters, desk, own, is_freed, .. } = self;
        let mut taken = 0;
        for serving in std::iter::once(&own.serving).chain(desk.listening()) {
            taken += serve(serving, messages, |message| {
                let datagram = match serving.take(message, &own.group, counters) {
                    Some(Said::Packets(datagram)) => datagram,
                    Some(Said::Freed) => return *is_freed = true,
                    None => return,
                };
                // What was handed on is not so once more: two that are of two minds would go on for ever.
                let mut here = 0;
                let strays = sort(&datagram, 1 << own.place | 1 << MANAGEMENT, counters, |arrival| {
                    here += 1;
                    each(arrival);
                });
                let stray = |packet| place_of(packet).is_some_and(|place| strays >> place & 1 == 1);
                counters.dropped_forwards += datagram.packets().filter(|packet| stray(packet)).count() as u64;
                counters.taken_over += here;
            })?;
        }
        let Some(share) = &self.management else { return Ok(taken) };
        let Wire { messages, room, counters, desk, own, .. } = self;
        taken += serve(&share.serving, messages, |message| {
            if let Some(Said::Packets(datagram)) = share.serving.take(message, &share.group, counters) {
                desk.sort(&datagram, own.place, &share.serving, room, counters, &mut *each);
            }
        })?;
        Ok(taken)
    }

    /// Has the next [`receive`](Wire::receive) look for messages of other processes too: to be called after a sleep that
    /// ended because something was readable, and before one.
    pub(crate) fn look_everywhere(&mut self) {
        self.until_served = 0;
    }

    /// What to sleep on: readable when there is something to [`receive`](Wire::receive).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    /// Takes the host's share of connection management, which one device at a time has; false if another has it. From now on
    /// [`receive`](Wire::receive) takes packets for queue pair 1 in, and hands them to those that they are for. So it does with
    /// what another leaves unread for a second, as one does that is stopped.
    pub(crate) fn claim_management(&mut self, now: Instant) -> io::Result<bool> {
        if self.management.is_none() {
            let name = What::Serving(MANAGEMENT);
            let Some(serving) = Serving::bind(self.slot.place(), name)? else {
                let is_waiting = is_readable(self.own.group.socket(MANAGEMENT));
                self.unread = is_waiting.then(|| self.unread.unwrap_or(now));
                if self.unread.is_some_and(|since| now.saturating_duration_since(since) >= UNREAD) {
                    self.reads_for_another = true;
                    self.look_everywhere();
                }
                return Ok(false);
            };
            let share = Share::new(serving, MANAGEMENT, self.own.group.clone())?;
            share.watch_by(&self.watched)?;
            self.management = Some(share);
        }
        Ok(true)
    }

    /// True if another device gave the share of connection management up since this was asked last.
    pub(crate) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.is_freed)
    }

    /// Has requests for connections to a port handed to this device; false if another of this host has it.
    pub(crate) fn listen(&mut self, port: u16) -> io::Result<bool> {
        let Some(serving) = Serving::bind(self.slot.place(), What::Listening(port))? else { return Ok(false) };
        watch(&self.watched, serving.fd())?;
        self.desk.listen(port, serving);
        Ok(true)
    }

    /// Gives a port back.
    pub(crate) fn unlisten(&mut self, port: u16) {
        self.desk.unlisten(port);
    }

    /// True if something is to be handed to another process that had no room for it.
    pub(crate) fn has_waiting(&self) -> bool {
        self.desk.has_waiting()
    }

    #[cfg(test)]
    pub(crate) fn has_management(&self) -> bool {
        self.management.is_some()
    }

    #[cfg(test)]
    pub(super) fn group(&self) -> &Arc<Group> {
        &self.own.group
    }

    /// What became of datagrams that did not simply come or go.
    pub(crate) fn counters(&self) -> &NetworkCounters {
        &self.counters
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.management.take().is_some() {
            self.own.serving.say_freed();
        }
    }
}

impl Share {
    fn new(serving: Serving, place: u32, group: Arc<Group>) -> io::Result<Self> {
        options::set_receive_buffer(group.socket(place), RECEIVE_BUFFER)?;
        Ok(Share { serving, place, group })
    }

    /// What is readable where one of its sockets is.
    fn watched(&self) -> io::Result<OwnedFd> {
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        self.watch_by(&watched)?;
        Ok(watched)
    }

    fn watch_by(&self, watched: &OwnedFd) -> io::Result<()> {
        watch(watched, self.group.socket(self.place))?;
        watch(watched, self.serving.fd())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // What comes while nobody has the share is not to fill memory. But that of connection management is another's soon,
        // who reads what came meanwhile.
        if self.place != MANAGEMENT {
            let _ = options::set_receive_buffer(self.group.socket(self.place), 0);
        }
    }
}

/// Has `watched` be readable where a socket is, until that is closed.
fn watch(watched: &OwnedFd, socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(watched, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())) == Ok(1)
}

/// Shows the messages of a socket to `each`, some of them; their number.
fn serve(serving: &Serving, messages: &mut Batch, mut each: impl FnMut(Received<'_>)) -> io::Result<usize> {
    for taken in 0..MESSAGES {
        if messages.receive(serving.fd())? == 0 {
            return Ok(taken);
        }
        each(messages.get(0));
    }
    Ok(MESSAGES)
}

/// Hands packets for one of the places in `mine` to `each`, and says for which places there are others.
#[inline]
fn sort<'a>(
    datagram: &Datagram<'a>,
    mine: u128,
    counters: &mut NetworkCounters,
    mut each: impl FnMut(Arrival<'a>),
) -> u128 {
    let mut others = 0;
    for packet in datagram.packets() {
        match place_of(packet) {
            Some(place) if mine >> place & 1 == 1 => each(datagram.arrival(packet)),
            Some(place) => others |= 1 << place,
            None => counters.short += 1,
        }
    }
    others
}

/// Datagrams that are received by one call at most, and bytes that one may have.
const DATAGRAMS: usize = 8;
const LONGEST_DATAGRAM: usize = 1 << 16;
/// For the control messages that a socket of the port gives: 192 bytes.
const CONTROL_WORDS: usize = 32;
/// Room for what waits to be read: what 16 peers may have under way, of 1 MiB each.
const RECEIVE_BUFFER: usize = 16 << 20;
/// How long something waits for another before it is read here.
const UNREAD: Duration = Duration::from_secs(1);
/// A look at other processes' messages costs a system call; one of so many calls makes it.
const SERVED_EVERY: u32 = 16;
/// Messages that are taken at a time.
const MESSAGES: usize = 16;
