//! Packets out: a few sockets of ports of their own, so that what is for different processes of a peer is of different flows.
//! None is connected: only then is the IPv4 identification known before, which a packet's CRC counts on.

use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use qpair_roce::wire::Addresses;
use qpair_roce::{Departure, Qpn, Route};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{
    AddressFamily, Ipv4Addr, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType, bind, getsockname, socket_with,
    sockopt,
};

use super::address::Name;
use super::backlog::{Backlog, HeldUp};
use super::control::Control;
use super::counters::{Loss, NetworkCounters};
use super::io::{Batch, send, send_several};
use super::options;
use super::outbox::{self, Outbox};
use crate::qp::HOP_LIMIT;
use crate::soft::random_u32;

/// The sockets that packets go out by.
#[derive(Debug)]
pub(super) struct Senders {
    v4: Vec<Sender>,
    v6: Vec<Sender>,
    /// How many of them are full.
    full: usize,
    /// UDP port that packets go to.
    to: u16,
    /// Packets that go at once.
    segments: usize,
    /// Interfaces of link-local addresses. The system does not choose them.
    scopes: Vec<(Ipv6Addr, u32)>,
}

/// Packets that go together, as the system takes them.
struct Letter<'a> {
    name: Name,
    bytes: &'a [u8],
    control: Control<16>,
}

#[derive(Debug)]
struct Sender {
    socket: OwnedFd,
    port: u16,
    /// What it has no room for.
    backlog: Backlog,
    /// Departures that a test has it take before it is full.
    #[cfg(test)]
    room: Option<usize>,
}

impl Senders {
    pub(super) fn open(to: u16) -> io::Result<Self> {
        let v4 = (0..SENDERS).map(|_| Sender::open(AddressFamily::INET)).collect();
        let v6 = (0..SENDERS).map(|_| Sender::open(AddressFamily::INET6)).collect();
        let mut senders =
            Senders { v4: or_none(v4)?, v6: or_none(v6)?, full: 0, to, segments: MOST_SEGMENTS, scopes: Vec::new() };
        if !senders.takes_segments() {
            senders.segments = 1;
        }
        Ok(senders)
    }

    pub(super) fn segments(&self) -> usize {
        self.segments
    }

    /// The port that packets for a queue pair of a peer come from.
    pub(super) fn source_port(&self, addresses: &Addresses, peer: Qpn) -> u16 {
        let senders = self.of(addresses);
        // Without such a socket nothing goes; any number does.
        senders.get(peer.0 as usize % senders.len().max(1)).map_or(FIRST_PORT, |sender| sender.port)
    }

    /// True while one has no room.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.full > 0
    }

    /// True unless the socket of a route has none.
    #[inline]
    pub(super) fn has_room(&self, route: &Route) -> bool {
        !self.is_full() || self.sender(route).is_none_or(|sender| !sender.backlog.is_full())
    }

    /// Sends departures, several by one call where they go by one socket. What goes by a full one is kept there, and the others
    /// go on.
    pub(super) fn send(
        &mut self,
        now: Instant,
        outbox: &mut Outbox,
        counters: &mut NetworkCounters,
        mut tell: impl FnMut(Qpn, HeldUp),
    ) {
        loop {
            let Some((departure, bytes)) = outbox.waiting().next() else { return };
            if !self.has_room(&departure.route) {
                let sender = self.sender_mut(&departure.route);
                if !sender.is_some_and(|sender| sender.backlog.hold(now, departure, bytes)) {
                    give_up(departure, counters, &mut tell);
                }
                outbox.sent(1);
                continue;
            }
            match self.pass(outbox.waiting(), counters) {
                Some(count) => outbox.sent(count),
                None => {
                    if let Some(sender) = self.sender_mut(&departure.route) {
                        sender.backlog.close(now);
                        self.full += 1;
                    }
                }
            }
        }
    }

    /// Tries full sockets again that were left alone long enough; true if one has room now. What waits there goes first, or is
    /// lost if it has waited for long.
    #[cold]
    pub(super) fn send_held(
        &mut self,
        now: Instant,
        counters: &mut NetworkCounters,
        mut tell: impl FnMut(Qpn, HeldUp),
    ) -> bool {
        let before = self.full;
        for index in 0..self.v4.len() + self.v6.len() {
            if !self.nth(index).backlog.is_due(now) {
                continue;
            }
            let mut backlog = mem::take(&mut self.nth(index).backlog);
            // With nothing to send the system is asked: what would be made to find out is not to be lost.
            let mut has_room = !backlog.is_empty() || self.nth(index).is_writable();
            while has_room && !backlog.is_empty() {
                match self.pass(backlog.waiting(), counters) {
                    Some(count) => backlog.gone(count),
                    None => has_room = false,
                }
            }
            if has_room {
                backlog.open();
                self.full -= 1;
            } else {
                backlog.close(now);
                let old = backlog.too_old(now);
                backlog.waiting().take(old).for_each(|(departure, _)| give_up(departure, counters, &mut tell));
                backlog.gone(old);
                let waiting = backlog.waiting().filter_map(|(departure, _)| departure.from);
                waiting.for_each(|from| tell(from, HeldUp::Still));
            }
            self.nth(index).backlog = backlog;
        }
        self.full < before
    }

    /// Sends the first departures, some of them; how many are gone, `None` if their socket has no room.
    fn pass<'a>(
        &mut self,
        waiting: impl Iterator<Item = (&'a Departure, &'a [u8])> + Clone,
        counters: &mut NetworkCounters,
    ) -> Option<usize> {
        if waiting.clone().nth(1).is_some() {
            match self.send_together(waiting.clone()) {
                Ok(0) => {}
                Ok(count) => return Some(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // The first is refused: sent alone, it tells why.
                Err(_) => {}
            }
        }
        let (departure, bytes) = waiting.clone().next()?;
        self.send_alone(departure, bytes, counters).then_some(1)
    }

    /// Sends the first departures, as far as they go by one socket; how many went, none if there is no such socket.
    fn send_together<'a>(&mut self, waiting: impl Iterator<Item = (&'a Departure, &'a [u8])>) -> io::Result<usize> {
        let port = |route: &Route| (matches!(route.addresses, Addresses::V4(..)), route.source_port);
        let mut letters = [const { None }; outbox::MOST];
        let mut first = None;
        for (letter, (departure, bytes)) in letters.iter_mut().zip(waiting) {
            let &mut route = first.get_or_insert(departure.route);
            if port(&route) != port(&departure.route) {
                break;
            }
            let scope = self.scope_of(&departure.route);
            *letter = Some(Letter::new(departure, bytes, self.to, scope));
        }
        let Some(sender) = first.and_then(|route| self.sender_mut(&route)) else { return Ok(0) };
        sender.send_several(&letters)
    }

    /// Sends packets that go together; false if there is no room. What the system refuses is lost.
    fn send_alone(&mut self, departure: &Departure, bytes: &[u8], counters: &mut NetworkCounters) -> bool {
        let scope = self.scope_of(&departure.route);
        let Err(mut error) = self.send_some(departure, bytes, scope) else { return true };
        if error.kind() == io::ErrorKind::WouldBlock {
            return false;
        }
        if bytes.len() > departure.segment && may_be_for_segments(&error) {
            // If the first goes alone, it is for their number. Its CRC is right then; those of the others are not.
            match self.send_some(departure, &bytes[..departure.segment], scope) {
                Ok(()) => {
                    self.segments = 1;
                    error = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
                }
                Err(alone) => error = alone,
            }
        }
        let is_for_segments = error.raw_os_error() == Some(libc::EOPNOTSUPP);
        let loss = if is_for_segments { Loss::Segments } else { Loss::of(&error) };
        if loss == Loss::NoAddress {
            self.forget_scope(&departure.route);
        }
        counters.lose(loss, departure, &error);
        true
    }

    fn send_some(&mut self, departure: &Departure, bytes: &[u8], scope: u32) -> io::Result<()> {
        let letter = Letter::new(departure, bytes, self.to, scope);
        let sender = self.sender_mut(&departure.route);
        sender.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?.send(&letter)
    }

    /// The interface of a link-local source, 0 for any other.
    fn scope_of(&mut self, route: &Route) -> u32 {
        match route.addresses {
            Addresses::V6(source, _) if source.is_unicast_link_local() => self.scope(source),
            _ => 0,
        }
    }

    fn of(&self, addresses: &Addresses) -> &[Sender] {
        if let Addresses::V4(..) = addresses { &self.v4 } else { &self.v6 }
    }

    /// The socket of a route.
    fn sender(&self, route: &Route) -> Option<&Sender> {
        self.of(&route.addresses).iter().find(|sender| sender.port == route.source_port)
    }

    fn sender_mut(&mut self, route: &Route) -> Option<&mut Sender> {
        let senders = if let Addresses::V4(..) = route.addresses { &mut self.v4 } else { &mut self.v6 };
        senders.iter_mut().find(|sender| sender.port == route.source_port)
    }

    /// Any of the sockets, by its place among all of them.
    fn nth(&mut self, index: usize) -> &mut Sender {
        let of_v4 = self.v4.len();
        if index < of_v4 { &mut self.v4[index] } else { &mut self.v6[index - of_v4] }
    }

    #[cfg(test)]
    pub(super) fn leave_room(&mut self, addresses: &Addresses, port: u16, departures: Option<usize>) {
        let senders = if let Addresses::V4(..) = addresses { &mut self.v4 } else { &mut self.v6 };
        let sender = senders.iter_mut().find(|sender| sender.port == port);
        sender.expect("there is such a socket").room = departures;
    }

    /// The interface that has a link-local address, looked up once, and again after it was not there; 0 if there is none.
    fn scope(&mut self, address: Ipv6Addr) -> u32 {
        if let Some(&(_, index)) = self.scopes.iter().find(|(known, _)| *known == address) {
            return index;
        }
        let found = crate::soft::roce::interfaces::interfaces().unwrap_or_default();
        let index = found.iter().find(|one| one.address == address).map(|one| one.index);
        self.scopes.extend(index.map(|index| (address, index)));
        index.unwrap_or(0)
    }

    /// Forgets the interface of a packet that was lost since there is none: it may have been made anew, with another number.
    fn forget_scope(&mut self, route: &Route) {
        if let Addresses::V6(source, _) = route.addresses {
            self.scopes.retain(|(known, _)| *known != source);
        }
    }

    /// True if several packets that are sent at once come one by one, as the loopback shows.
    fn takes_segments(&self) -> bool {
        let (sender, own) = match (self.v4.first(), self.v6.first()) {
            (Some(sender), _) => (sender, IpAddr::from(Ipv4Addr::LOCALHOST)),
            (None, Some(sender)) => (sender, IpAddr::from(Ipv6Addr::LOCALHOST)),
            (None, None) => return false,
        };
        let receiver = Sender::open(if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 });
        let Some(receiver) = receiver.ok().filter(|it| options::set_receive_buffer(it.socket.as_fd(), 1 << 16).is_ok())
        else {
            return false;
        };
        let mut control = Control::<16>::new();
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &64u16.to_ne_bytes());
        let to = Name::udp(own, receiver.port, 0);
        let result = send(sender.socket.as_fd(), to.as_bytes(), &[IoSlice::new(&[0; 160])], control.as_bytes());
        if let Err(error) = result {
            // Without a loopback it is not known; the first send that is refused will tell.
            return Loss::of(&error) == Loss::Unreachable;
        }
        let mut inbox = Batch::new(1, 256, 4);
        let mut next = || inbox.receive(receiver.socket.as_fd()).ok().map(|_| inbox.get(0).bytes.len());
        [next(), next(), next()] == [Some(64), Some(64), Some(32)]
    }
}

impl<'a> Letter<'a> {
    /// To a UDP port. Of the interface `scope`, where that has to be said.
    fn new(departure: &Departure, bytes: &'a [u8], port: u16, scope: u32) -> Self {
        let route = &departure.route;
        let mut control = Control::new();
        let to = match route.addresses {
            Addresses::V4(source, to) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&source.octets());
                control.push(libc::SOL_IP, libc::IP_PKTINFO, &info);
                control.push(libc::SOL_IP, libc::IP_TOS, &i32::from(route.traffic_class).to_ne_bytes());
                if route.hop_limit != HOP_LIMIT {
                    control.push(libc::SOL_IP, libc::IP_TTL, &i32::from(route.hop_limit).to_ne_bytes());
                }
                IpAddr::V4(to)
            }
            Addresses::V6(source, to) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                info[16..].copy_from_slice(&scope.to_ne_bytes());
                control.push(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
                control.push(libc::SOL_IPV6, libc::IPV6_TCLASS, &i32::from(route.traffic_class).to_ne_bytes());
                if route.hop_limit != HOP_LIMIT {
                    control.push(libc::SOL_IPV6, libc::IPV6_HOPLIMIT, &i32::from(route.hop_limit).to_ne_bytes());
                }
                IpAddr::V6(to)
            }
        };
        if bytes.len() > departure.segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(departure.segment as u16).to_ne_bytes());
        }
        Letter { name: Name::udp(to, port, scope), bytes, control }
    }

    fn parts(&self) -> (&[u8], &'a [u8], &[u8]) {
        (self.name.as_bytes(), self.bytes, self.control.as_bytes())
    }
}

impl Sender {
    /// Sends a letter.
    fn send(&mut self, letter: &Letter<'_>) -> io::Result<()> {
        #[cfg(test)]
        self.take_room(1)?;
        let (name, bytes, control) = letter.parts();
        send(self.socket.as_fd(), name, &[IoSlice::new(bytes)], control)
    }

    /// Sends those letters that there are; how many went.
    fn send_several(&mut self, letters: &[Option<Letter<'_>>]) -> io::Result<usize> {
        #[cfg(test)]
        let letters = &letters[..self.take_room(letters.iter().flatten().count())?];
        send_several(self.socket.as_fd(), letters.iter().flatten().map(Letter::parts))
    }

    /// True if there is room for more: where half of the buffer is free, as the system sees it.
    fn is_writable(&self) -> bool {
        #[cfg(test)]
        if self.room == Some(0) {
            return false;
        }
        poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&Timespec::default())) == Ok(1)
    }

    /// How many departures of `count` a test has it take.
    #[cfg(test)]
    fn take_room(&mut self, count: usize) -> io::Result<usize> {
        let Some(room) = &mut self.room else { return Ok(count) };
        let taken = count.min(*room);
        *room -= taken;
        if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn open(family: AddressFamily) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        if family == AddressFamily::INET {
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
        } else {
            sockopt::set_ipv6_v6only(&socket, true)?;
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
        }
        options::set_hop_limit(socket.as_fd(), family == AddressFamily::INET, HOP_LIMIT)?;
        options::set_send_buffer(socket.as_fd(), SEND_BUFFER)?;
        // Nobody is to send to it.
        options::set_receive_buffer(socket.as_fd(), 0)?;
        for attempt in 0..=ATTEMPTS {
            // Any port at last, should others have taken them all.
            let any = FIRST_PORT + (random_u32() % u32::from(PORTS)) as u16;
            let port = if attempt < ATTEMPTS { any } else { 0 };
            let result = if family == AddressFamily::INET {
                bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))
            } else {
                bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))
            };
            match result {
                Ok(()) if port == 0 => break,
                Ok(()) => return Ok(Sender::new(socket, port)),
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let name = getsockname(&socket)?;
        let port = match name.address_family() {
            AddressFamily::INET => SocketAddrV4::try_from(name)?.port(),
            _ => SocketAddrV6::try_from(name)?.port(),
        };
        Ok(Sender::new(socket, port))
    }

    fn new(socket: OwnedFd, port: u16) -> Self {
        Sender {
            socket,
            port,
            backlog: Backlog::new(),
            #[cfg(test)]
            room: None,
        }
    }
}

/// Gives a departure up that its socket has no room for.
fn give_up(departure: &Departure, counters: &mut NetworkCounters, tell: &mut impl FnMut(Qpn, HeldUp)) {
    counters.lose(Loss::HeldUp, departure, &io::ErrorKind::WouldBlock.into());
    departure.from.into_iter().for_each(|from| tell(from, HeldUp::TooLong));
}

/// None where the system has not the family.
fn or_none(opened: io::Result<Vec<Sender>>) -> io::Result<Vec<Sender>> {
    match opened {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => Ok(Vec::new()),
        opened => opened,
    }
}

/// What the system says to several packets at once that it would take one by one.
fn may_be_for_segments(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::ENOPROTOOPT | libc::EOPNOTSUPP))
}

/// What Linux takes at once.
const MOST_SEGMENTS: usize = 64;
/// Flows to a peer, of each family.
const SENDERS: usize = 4;
/// Source ports of RoCEv2: 0xC000 to 0xFFFF.
const FIRST_PORT: u16 = 0xc000;
const PORTS: u16 = 0x4000;
const ATTEMPTS: u32 = 64;
const SEND_BUFFER: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_not_there_is_looked_up_again() {
        let mut senders = Senders::open(4791).unwrap();
        let absent: Ipv6Addr = "fe80::dead:beef:dead:beef".parse().unwrap();
        assert_eq!(senders.scope(absent), 0);
        assert!(senders.scopes.is_empty());
        // One that was there, and is no more.
        senders.scopes.push((absent, 7));
        assert_eq!(senders.scope(absent), 7);
        let addresses = Addresses::V6(absent, Ipv6Addr::LOCALHOST);
        senders.forget_scope(&Route { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 1 });
        assert_eq!(senders.scope(absent), 0);
    }
}
