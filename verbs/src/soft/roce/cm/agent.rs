//! The managers of a device's addresses, and to whom their events go.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use qpair_roce::cm::{CmConfig, CmState, ConnectionManager, Event, IdTail, Offer};
use qpair_roce::wire::Addresses;
use qpair_roce::wire::cm::{IpHeader, LEN, Reason, SERVICE_TCP};
use qpair_roce::{Mtu, Port, Qpn};

use super::inbox::{Asked, Inbox};
use super::key::Key;
use super::route::address_at;
use super::watch::{Acceptance, End, Watch};
use crate::soft::home::Home;
use crate::soft::random;
use crate::soft::roce::attached::Owner;
use crate::soft::roce::memory::Memory;
use crate::soft::roce::udp::SLOTS;

/// The managers of a device.
pub(crate) struct Agent {
    home: Arc<Home>,
    managers: BTreeMap<IpAddr, ConnectionManager>,
    services: BTreeMap<u16, Arc<Inbox>>,
    watched: BTreeMap<Key, Arc<Watch>>,
    /// Ports of requests whose senders may repeat them: they do not know yet that they are heard.
    open: BTreeMap<Key, u16>,
    /// Ports at which nobody listens any more, and that are kept for what is repeated.
    closing: Vec<u16>,
    /// Connections of which the peer is not known to be ready, and their queue pairs.
    unconfirmed: Vec<(Key, Qpn)>,
    /// When the share of connection management is to be asked for again; none: it is had, or not needed.
    pub(super) asks_at: Option<Instant>,
    /// When a manager is to be looked at.
    due: Option<Instant>,
    /// Managers may have something to tell.
    has_news: bool,
    /// Datagrams that a test has lost.
    #[cfg(test)]
    pub(super) loses: Option<Loss>,
}

/// Says of a message whether it is lost.
#[cfg(test)]
pub(crate) type Loss = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// A queue pair whose connection is over.
pub(super) type Over = (Qpn, Weak<dyn Owner>);

impl Agent {
    pub(super) fn new(home: Arc<Home>) -> Self {
        Agent {
            home,
            managers: BTreeMap::new(),
            services: BTreeMap::new(),
            watched: BTreeMap::new(),
            open: BTreeMap::new(),
            closing: Vec::new(),
            unconfirmed: Vec::new(),
            asks_at: None,
            due: None,
            has_news: false,
            #[cfg(test)]
            loses: None,
        }
    }

    /// True while somebody listens, or has a connection.
    pub(super) fn is_used(&self) -> bool {
        !self.services.is_empty() || !self.watched.is_empty()
    }

    /// The manager of an address.
    pub(super) fn manager(&mut self, address: IpAddr) -> &mut ConnectionManager {
        self.has_news = true;
        self.make_room(address);
        let Agent { home, services, .. } = self;
        self.managers.entry(address).or_insert_with(|| {
            let value = home.slot().map_or(0, |slot| slot.number());
            let id_tail = IdTail { bits: SLOTS.ilog2(), value };
            let largest_mtu = address_at(home, address).map_or(Mtu::B4096, |place| place.mtu);
            let mut manager =
                ConnectionManager::new(CmConfig { id_tail, largest_mtu, ..CmConfig::new(address, guid(home)) });
            for port in services.keys() {
                // It has none yet.
                let _ = manager.listen(SERVICE_TCP + u64::from(*port));
            }
            manager
        })
    }

    /// Lets managers without connections go where there are many, unless the address has one. True if there are few then.
    fn make_room(&mut self, address: IpAddr) -> bool {
        if self.managers.len() < MANAGERS || self.managers.contains_key(&address) {
            return true;
        }
        self.managers.retain(|_, manager| manager.connections() > 0);
        self.managers.len() < MANAGERS
    }

    /// The manager of a connection.
    pub(super) fn manager_of(&mut self, key: Key) -> &mut ConnectionManager {
        self.manager(key.address)
    }

    pub(super) fn state(&self, key: Key) -> Option<CmState> {
        self.managers.get(&key.address)?.state(key.id)
    }

    pub(super) fn listen(&mut self, port: u16, inbox: Arc<Inbox>) {
        if self.home.has_failed() {
            inbox.end();
        }
        self.services.insert(port, inbox);
        for manager in self.managers.values_mut() {
            let _ = manager.listen(SERVICE_TCP + u64::from(port));
        }
    }

    /// Listens no more. The port is not given back while requests are open that came to it: what is repeated is to come here.
    pub(super) fn unlisten(&mut self, port: u16) {
        self.services.remove(&port);
        self.closing.push(port);
        self.has_news = true;
        for manager in self.managers.values_mut() {
            manager.unlisten(SERVICE_TCP + u64::from(port));
        }
    }

    /// Keeps a port that was about to be given back; true if there is such a one.
    pub(super) fn reopen(&mut self, port: u16) -> bool {
        let place = self.closing.iter().position(|closing| *closing == port);
        place.map(|place| self.closing.swap_remove(place)).is_some()
    }

    /// Ports to be given back now.
    pub(super) fn take_closed(&mut self) -> impl Iterator<Item = u16> {
        let open = &self.open;
        self.closing.extract_if(.., |port| !open.values().any(|open| open == port))
    }

    /// Tells `watch` what becomes of a connection.
    pub(super) fn watch(&mut self, key: Key, watch: Arc<Watch>) {
        if self.home.has_failed() {
            watch.ended(End::Lost, false);
        }
        self.watched.insert(key, watch);
    }

    /// The connection is accepted; its peer is ready once it says so, or sends to the queue pair.
    pub(super) fn await_peer(&mut self, key: Key, qpn: Qpn) {
        self.unconfirmed.push((key, qpn));
    }

    /// The device has failed: who waits for a connection, a request, or the end of one is told. Queue pairs fail without.
    pub(in crate::soft::roce) fn fail(&mut self) {
        self.services.values().for_each(|inbox| inbox.end());
        self.watched.values().for_each(|watch| watch.ended(End::Lost, false));
    }

    /// Nobody follows a connection any more: it ends.
    pub(super) fn let_go(&mut self, now: Instant, key: Key) -> Option<Arc<Watch>> {
        let state = self.state(key);
        let manager = self.manager_of(key);
        // Whatever it is by now, it may be over.
        let _ = match state {
            Some(CmState::RequestSent(_)) => manager.cancel(key.id),
            Some(CmState::RequestReceived(_) | CmState::ReplySent(_) | CmState::ReplyReceived(_)) => {
                manager.reject(now, key.id, Reason::CONSUMER, &[0; 148])
            }
            Some(CmState::Established) => manager.disconnect(now, key.id, &[0; 220]),
            Some(CmState::DisconnectSent | CmState::TimeWait) | None => Ok(()),
        };
        self.unconfirmed.retain(|(other, _)| *other != key);
        self.open.remove(&key);
        self.watched.remove(&key)
    }

    /// A datagram of a peer's manager. Anybody on this host may send to all addresses of the loopback: where very many have
    /// connections already, what comes for one more is lost, and repeated.
    pub(super) fn take(&mut self, now: Instant, addresses: Addresses, bytes: &[u8; LEN]) {
        let (from, own) = ends(addresses);
        if self.make_room(own) || !own.is_loopback() {
            self.manager(own).handle(now, from, bytes, &mut entropy);
        }
    }

    /// Does what is due.
    pub(super) fn keep_time(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.managers.values_mut().for_each(|manager| manager.handle_timeout(now));
            self.has_news = true;
        }
    }

    /// When something is due.
    pub(in crate::soft::roce) fn timeout(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.asks_at).min()
    }

    /// Notes what data says: that its sender is ready.
    pub(super) fn hear(&mut self, port: &Port<Memory>) {
        let heard = |(_, qpn): &(Key, Qpn)| port.get(*qpn).is_some_and(|queue_pair| queue_pair.has_heard());
        while let Some(at) = self.unconfirmed.iter().position(heard) {
            let (key, _) = self.unconfirmed.swap_remove(at);
            let _ = self.manager_of(key).heard(key.id);
        }
    }

    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.managers.values().map(ConnectionManager::connections).sum()
    }

    /// Sends what managers have to send, and passes on what they tell. Queue pairs of connections that ended are in `over`.
    pub(super) fn flush(&mut self, over: &mut Vec<Over>, mut send: impl FnMut(Addresses, [u8; LEN])) {
        if !std::mem::take(&mut self.has_news) {
            return;
        }
        let addresses: Vec<_> = self.managers.keys().copied().collect();
        for address in addresses {
            while let Some(event) = self.managers.get_mut(&address).and_then(ConnectionManager::poll_event) {
                self.tell(address, event, over);
            }
            while let Some(transmit) = self.managers.get_mut(&address).and_then(ConnectionManager::poll_transmit) {
                #[cfg(test)]
                if self.loses.as_mut().is_some_and(|loses| loses(&transmit.bytes)) {
                    continue;
                }
                if let Some(addresses) = Addresses::new(address, transmit.to) {
                    send(addresses, transmit.bytes);
                }
            }
        }
        self.due = self.managers.values().filter_map(ConnectionManager::timeout).min();
        self.has_news = false;
    }

    fn tell(&mut self, address: IpAddr, event: Event, over: &mut Vec<Over>) {
        let key = |id| Key { address, id };
        match event {
            Event::Requested { id, offer } => self.asked(key(id), offer),
            Event::Accepted { id, terms, private } => {
                if let Some(watch) = self.watched.get(&key(id)) {
                    watch.accepted(Acceptance { terms, private });
                }
            }
            Event::Established { id } => {
                self.unconfirmed.retain(|(other, _)| *other != key(id));
                self.open.remove(&key(id));
                if let Some(watch) = self.watched.get(&key(id)) {
                    watch.established();
                }
            }
            Event::Rejected { id, reason, private } => self.ended(key(id), End::Rejected { reason, private }, over),
            Event::Stale { id } => self.ended(key(id), End::Stale, over),
            Event::TimedOut { id, .. } => self.ended(key(id), End::TimedOut, over),
            Event::Disconnected { id } => self.ended(key(id), End::Disconnected, over),
            // A queue pair is connected once.
            Event::Released { .. } => {}
        }
    }

    /// A peer asks for a connection.
    fn asked(&mut self, key: Key, offer: Offer) {
        let port = offer.service_id.checked_sub(SERVICE_TCP).and_then(|port| u16::try_from(port).ok());
        let inbox = port.and_then(|port| self.services.get(&port)).cloned();
        // Nobody listens any more; or it is none of rdma_cm.
        let reason = if inbox.is_some() { Reason::UNSUPPORTED } else { Reason::INVALID_SERVICE_ID };
        let Some((inbox, header)) = inbox.zip(IpHeader::parse(&offer.private)) else {
            let _ = self.manager_of(key).reject(Instant::now(), key.id, reason, &[0; 148]);
            return;
        };
        let watch = Arc::new(Watch::default());
        self.watched.insert(key, watch.clone());
        self.open.extend(port.map(|port| (key, port)));
        inbox.push(Asked { key, offer, header, watch });
    }

    fn ended(&mut self, key: Key, end: End, over: &mut Vec<Over>) {
        let was_unconfirmed = self.unconfirmed.iter().any(|(other, _)| *other == key);
        self.unconfirmed.retain(|(other, _)| *other != key);
        self.open.remove(&key);
        let Some(watch) = self.watched.remove(&key) else { return };
        over.extend(watch.queue_pair().cloned());
        watch.ended(end, was_unconfirmed && matches!(end, End::Disconnected));
    }
}

/// The peer's address, and the own one, of what came.
fn ends(addresses: Addresses) -> (IpAddr, IpAddr) {
    match addresses {
        Addresses::V4(from, own) => (from.into(), own.into()),
        Addresses::V6(from, own) => (from.into(), own.into()),
    }
}

/// An EUI-64 of the opened device, with the local bit set. The host's would not do: containers share it, and peers tell
/// connections by it.
fn guid(home: &Home) -> u64 {
    let [bytes @ .., _, _, _, _, _, _, _, _] = home.id().0;
    u64::from_be_bytes(bytes) | 0x0200_0000_0000_0000
}

/// Unpredictable numbers, for connection IDs and first sequence numbers.
pub(super) fn entropy() -> u64 {
    u64::from_le_bytes(random::bytes())
}

/// Managers that are kept without connections, and that peers may have made: hosts have less addresses, but for the 16 million
/// of the loopback.
const MANAGERS: usize = 64;
/// How long the share of connection management is left to another before it is asked for again.
pub(super) const ASKS_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use qpair_roce::cm::{Connect, Offered};

    use super::*;

    /// Anybody on the host may send to all of them.
    #[test]
    fn requests_to_all_addresses_of_the_loopback_do_no_harm() {
        let (now, port) = (Instant::now(), 7471);
        let mut agent = Agent::new(Home::new().unwrap());
        agent.listen(port, Arc::new(Inbox::new().unwrap()));
        let from = Ipv4Addr::new(127, 9, 9, 9);
        let mut peer = ConnectionManager::new(CmConfig::new(from.into(), 1));
        let offered = Offered {
            qpn: Qpn(77),
            max_reads: 1,
            reads_answered: 1,
            peer_rnr_retry: 7,
            flow_control: false,
            shared_receives: false,
        };
        let own = |number: u32| Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + number);
        let connect = Connect::new(own(0).into(), SERVICE_TCP + u64::from(port), offered);
        peer.connect(now, &connect, &mut entropy).unwrap();
        let request = peer.poll_transmit().expect("it asks").bytes;
        for number in 0..5000 {
            agent.take(now, Addresses::V4(from, own(number)), &request);
        }
        assert_eq!(agent.connections(), MANAGERS);
        // Other addresses are few, and what this device asks for itself is its own affair.
        agent.take(now, Addresses::V4(from, Ipv4Addr::new(192, 0, 2, 1)), &request);
        assert_eq!(agent.connections(), MANAGERS + 1);
        let asks = Connect::new(from.into(), SERVICE_TCP + 1, offered);
        agent.manager(own(9000).into()).connect(now, &asks, &mut entropy).unwrap();
        assert_eq!(agent.connections(), MANAGERS + 2);
    }
}
