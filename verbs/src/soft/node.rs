//! One opened software device: its home, its links to other devices, and its control thread.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::control::{self, Askers, Control, Drained, Greeted, Handler, Link, Socket};
use super::home::Home;
use super::roce::{Network, SLOTS};
use super::seen::{Answer, Found, Seen};
use crate::address::{NodeId, QpAddress, SoftAddress};
use crate::aside;
use crate::asking::{CLOSED, Whom};
use crate::counters::Counter;
use crate::error::{ConnectError, NetworkError, OpenError};
use crate::memory::{Gone, Left};
use crate::sync::lock;

/// An opened software device.
pub(crate) struct Node {
    home: Arc<Home>,
    links: Arc<Links>,
    control: Mutex<Option<Arc<Control>>>,
    /// Its part of the network, set once it is used.
    network: OnceLock<Arc<Network>>,
    /// Held while it is set up.
    joining: Mutex<()>,
    /// When it could not be had, if it can not.
    refused: Mutex<Option<Instant>>,
    /// What datagram senders of other processes may look at still.
    retired: Mutex<Vec<Retired>>,
}

/// Memory that peers may look at still, given back when dropped.
pub(crate) enum Retired {
    /// That of a queue pair that is gone, and who has asked where it is.
    Block(Box<dyn Send>, Askers),
    /// A GPU's.
    Left(Left),
}

impl Retired {
    /// Leaves it to peers for good.
    pub(crate) fn leak(self) {
        match self {
            Retired::Block(block, _) => std::mem::forget(block),
            Retired::Left(left) => left.leak(),
        }
    }

    /// True if the peer of a link may know where it is.
    pub(crate) fn is_known_over(&self, link: &Link) -> bool {
        match self {
            Retired::Block(_, askers) => askers.has(link),
            Retired::Left(left) => link.has_arena(left.arena()),
        }
    }
}

/// Devices that this process has open.
static NODES: LazyLock<Mutex<Nodes>> = LazyLock::new(Mutex::default);

type Nodes = HashMap<NodeId, Known>;

/// What is known of a device of this process.
struct Known {
    node: Weak<Node>,
    home: Weak<Home>,
    links: Arc<Links>,
}

/// The links of a device, by whom they lead to.
type Links = Mutex<HashMap<NodeId, Arc<Link>>>;

impl Node {
    pub(crate) fn open() -> Result<Arc<Self>, OpenError> {
        let soft = |what| move |source: io::Error| OpenError::Soft { what, source };
        let home = Home::new()?;
        let id = home.id();
        let listener = control::listen(id).map_err(soft("listen for peers"))?;
        let node = Arc::new(Node {
            home: home.clone(),
            links: Arc::default(),
            control: Mutex::default(),
            network: OnceLock::new(),
            joining: Mutex::default(),
            refused: Mutex::default(),
            retired: Mutex::default(),
        });
        let handler: Arc<dyn Handler> = node.clone();
        let control = Control::start(Arc::downgrade(&handler), listener).map_err(soft("start its control thread"))?;
        *lock(&node.control) = Some(control.clone());
        let (waker, weak) = (control.clone(), Arc::downgrade(&home));
        home.arenas().set_alarm(move || match weak.upgrade() {
            Some(home) if waker.is_deaf() => home.arenas().take_gone().left.into_iter().for_each(Left::leak),
            _ => waker.wake(),
        });
        let (ear, weak) = (control.clone(), Arc::downgrade(&node));
        home.arenas().set_keeper(move || {
            let node = weak.upgrade().filter(|_| !ear.is_deaf())?;
            Some(Box::new(node))
        });
        home.set_alarm(move || control.attend());
        lock(&NODES)
            .insert(id, Known { node: Arc::downgrade(&node), home: Arc::downgrade(&home), links: node.links.clone() });
        tracing::debug!(%id, "software device opened");
        Ok(node)
    }

    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// True if the queue pair at `address` is on this host, where shared memory leads to it.
    pub(crate) fn is_here(&self, address: &QpAddress) -> bool {
        self.device_here(address).is_some()
    }

    /// Its device, if that is on this host.
    fn device_here<'a>(&self, address: &'a QpAddress) -> Option<&'a SoftAddress> {
        let host = self.home.host();
        let is_here = |soft: &&SoftAddress| soft.host == host.boot_id && soft.namespace == host.namespace;
        address.soft.as_ref().filter(is_here)
    }

    /// The device's part of the network, set up now if it was not used yet: that takes long where a process that has a place at
    /// the port is stopped in just the wrong moment.
    pub(crate) fn network(&self) -> Result<Arc<Network>, NetworkError> {
        let in_use = || self.network.get().cloned();
        if let Some(network) = in_use() {
            return Ok(network);
        }
        let _joining = lock(&self.joining);
        in_use().map_or_else(|| self.join(), Ok)
    }

    /// As [`network`](Node::network), for one who can do without: `None` where it could not be had not long ago. Trying may
    /// take seconds.
    pub(crate) fn network_if_any(&self) -> Result<Option<Arc<Network>>, NetworkError> {
        let in_use = || self.network.get().cloned();
        if let Some(network) = in_use() {
            return Ok(Some(network));
        }
        let is_refused = || lock(&self.refused).is_some_and(|at| at.elapsed() < REFUSED);
        if is_refused() {
            return Ok(None);
        }
        let _joining = lock(&self.joining);
        match in_use() {
            // While it was another's turn to try.
            None if is_refused() => Ok(None),
            None => self.join().map(Some),
            network => Ok(network),
        }
    }

    fn join(&self) -> Result<Arc<Network>, NetworkError> {
        let slot = self.home.slot().ok_or(NetworkError::Full { limit: SLOTS });
        let opened = slot.and_then(|slot| Network::open(&self.home, slot));
        *lock(&self.refused) = opened.is_err().then(Instant::now);
        let opened = opened?;
        let weak = Arc::downgrade(&opened);
        self.home.set_network(move || {
            if let Some(network) = weak.upgrade() {
                network.poll_before_a_look();
            }
        });
        Ok(self.network.get_or_init(|| opened).clone())
    }

    /// The way to the queue pair at `address`. Waits for the device of another process, some seconds at most.
    pub(crate) fn find(&self, address: &QpAddress) -> Answer {
        self.check()?;
        let Some(soft) = self.device_here(address) else {
            return Ok(Found::Network(self.network()?));
        };
        Ok(Found::Here(Box::new(Seen::by(self.link_to(soft)?, address)?)))
    }

    /// The same, without keeping the device open while another process is asked.
    pub(crate) fn find_apart(self: Arc<Self>, address: &QpAddress) -> Answer {
        self.check()?;
        let Some(&SoftAddress { node: peer, .. }) = self.device_here(address) else {
            return self.find(address);
        };
        let link = self.link_if_any(peer)?;
        let (home, node) = (self.home.clone(), Arc::downgrade(&self));
        drop(self);
        let link = match link {
            Some(link) => link,
            None => {
                let link = control::establish(&home, peer)?;
                node.upgrade().ok_or(CLOSED)?.adopt(link)
            }
        };
        Ok(Found::Here(Box::new(Seen::by(link, address)?)))
    }

    /// Refuses once the device has failed.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        if self.home.has_failed() { Err(ConnectError::DeviceFailed) } else { Ok(()) }
    }

    /// Whom [`find`](Node::find) would wait for; `None` if it waits for nobody.
    pub(crate) fn whom_to_ask(&self, address: &QpAddress) -> Option<Whom> {
        match self.device_here(address) {
            Some(soft) => (!lock(&NODES).contains_key(&soft.node)).then_some(Whom::Device(soft.node)),
            None if self.home.host().reaches_by_network(address) => self.neighbours(),
            None => None,
        }
    }

    /// Whom [`network`](Node::network) would wait for; `None` once it is in use.
    pub(crate) fn neighbours(&self) -> Option<Whom> {
        self.network.get().is_none().then(|| Whom::Neighbours(self.home.id()))
    }

    /// Packets so far, counted.
    pub(crate) fn counters(&self) -> Vec<Counter> {
        let (packets, datagrams) = self.network.get().map_or_else(Default::default, |network| network.counters());
        let counter = |(name, value): (&'static str, u64)| Counter { name: name.into(), value };
        packets.named().chain(datagrams.named()).map(counter).collect()
    }

    /// The link to the device at `address`, made now if there is none.
    pub(crate) fn link_to(&self, address: &SoftAddress) -> Result<Arc<Link>, ConnectError> {
        match self.link_if_any(address.node)? {
            Some(link) => Ok(link),
            None => Ok(self.adopt(control::establish(&self.home, address.node)?)),
        }
    }

    /// The link to a device, if there is one, or it is this process's own.
    fn link_if_any(&self, peer: NodeId) -> Result<Option<Arc<Link>>, ConnectError> {
        if let Some(link) = lock(&self.links).get(&peer).filter(|link| !link.is_over()) {
            return Ok(Some(link.clone()));
        }
        let local = lock(&NODES).get(&peer).map(|known| known.node.upgrade());
        match local {
            Some(Some(node)) => Ok(Some(self.adopt(Link::local(&node.home)))),
            Some(None) => Err(ConnectError::PeerGone { node: peer }),
            None => Ok(None),
        }
    }

    /// Drops memory of a datagram queue pair, whose gate is closed, once nobody can look at it any more: each device of this
    /// process and each that has asked for it is asked to let pass what is under way.
    pub(crate) fn retire(&self, memory: Box<dyn Send>, askers: Askers) {
        let homes: Vec<_> = lock(&NODES).values().filter_map(|known| known.home.upgrade()).collect();
        if !homes.iter().all(|home| home.quiesce_initiators()) {
            // Before that is logged, which may panic.
            std::mem::forget(memory);
            return tracing::warn!("an access of this process takes long; the memory of a queue pair is leaked");
        }
        let control = lock(&self.control).clone();
        if let Some(control) = control.filter(|control| control.has_links()) {
            lock(&self.retired).push(Retired::Block(memory, askers));
            control.wake();
            if control.is_deaf() {
                Handler::gone(self).1.into_iter().for_each(Retired::leak);
            }
        }
    }

    /// A link to a device of this process as if it were another's, so that a test can be both.
    #[cfg(test)]
    pub(crate) fn link_by_socket(&self, peer: NodeId) -> Result<Arc<Link>, ConnectError> {
        Ok(self.adopt(control::establish(&self.home, peer)?))
    }

    /// Takes a new link into the table and has it watched.
    fn adopt(&self, link: Link) -> Arc<Link> {
        let link = self.enter(link);
        if !link.is_local()
            && let Some(control) = &*lock(&self.control)
        {
            control.watch(link.clone());
        }
        link
    }

    /// Takes a new link to a peer that is known into the table. Where two devices link to each other at once both links live.
    fn enter(&self, link: Link) -> Arc<Link> {
        let link = Arc::new(link);
        let mut links = lock(&self.links);
        if links.get(&link.peer()).is_none_or(|old| old.is_over()) {
            links.insert(link.peer(), link.clone());
        }
        link
    }
}

impl Handler for Node {
    fn greet(&self, socket: Socket) -> Option<Arc<Link>> {
        let Greeted { link, is_known } = control::greet(&self.home, socket)?;
        Some(if is_known { self.enter(link) } else { Arc::new(link) })
    }

    fn drain(&self, link: &Link) -> Drained {
        control::drain(&self.home, link)
    }

    fn settle(&self, link: &Link) -> bool {
        control::settle(&self.home, link)
    }

    fn lost(&self, link: &Arc<Link>, is_last: bool) {
        {
            let mut links = lock(&self.links);
            if links.get(&link.peer()).is_some_and(|current| Arc::ptr_eq(current, link)) {
                links.remove(&link.peer());
            }
        }
        self.home.visit(|member| member.link_lost(link.number(), link.peer(), is_last));
        if !link.is_dead() {
            link.hang_up_after(self.home.sight_initiators());
        }
    }

    fn gone(&self) -> (Vec<u32>, Vec<Retired>) {
        let mut retired = std::mem::take(&mut *lock(&self.retired));
        let Gone { arenas, left } = self.home.arenas().take_gone();
        retired.extend(left.into_iter().map(Retired::Left));
        (arenas, retired)
    }

    fn tick(&self) -> bool {
        let mut busy = false;
        self.home.visit(|member| busy |= member.tick());
        busy
    }

    fn deafened(&self) {
        self.home.fail();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let others: Vec<Arc<Links>> = {
            let mut nodes = lock(&NODES);
            nodes.remove(&self.home.id());
            nodes.values().map(|known| known.links.clone()).collect()
        };
        // Links over sockets end by themselves.
        for links in others {
            lock(&links).remove(&self.home.id());
        }
        let control = lock(&self.control).take();
        if let Some(control) = control {
            control.close();
        }
        // What it had of peers' is closed by now, or soon; a program may end next.
        if aside::may_wait_here() {
            aside::wait_a_while();
        }
    }
}

/// How long a network that could not be had is taken to be none.
const REFUSED: Duration = Duration::from_secs(10);

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.home.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::control::{Message, listen};
    use crate::{AsyncEvent, Context};

    #[test]
    fn a_network_that_could_not_be_had_is_left_alone_for_a_while_unless_it_is_open() {
        let node = Node::open().unwrap();
        *lock(&node.refused) = Some(Instant::now());
        assert!(node.network_if_any().unwrap().is_none());
        let network = node.network().unwrap();
        let again = node.network_if_any().unwrap().expect("it is open");
        assert!(Arc::ptr_eq(&network, &again));
    }

    #[test]
    fn links_to_devices_of_this_process_go_with_these() {
        let (ctx, others) = (Context::open("soft0").unwrap(), 10);
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        for _ in 0..others {
            let far_ctx = Context::open("soft0").unwrap();
            let (far, far_cq) = (far_ctx.alloc_pd().unwrap(), far_ctx.create_cq(16).unwrap());
            let (qp, peer) = (pd.rc(&cq).build().unwrap(), far.rc(&far_cq).build().unwrap());
            let (at, at_peer) = (qp.address(), peer.address());
            let _pair = (qp.connect(&at_peer).unwrap(), peer.connect(&at).unwrap());
            assert_eq!(lock(&pd.node().links).len(), 1);
        }
        assert_eq!(lock(&pd.node().links).len(), 0);
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not come about");
        }
    }

    /// What panics there is not of this library: a subscriber of its log, for one.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as a test wants it");
        }
    }

    #[test]
    fn a_device_whose_control_thread_ends_fails_and_its_peers_are_told() {
        let open = || {
            let ctx = Context::open("soft0").unwrap();
            let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
            (ctx, pd, cq)
        };
        let ((ctx, pd, mut cq), (far_ctx, far, far_cq)) = (open(), open());
        let (mut events, mut far_events) = (ctx.events().unwrap(), far_ctx.events().unwrap());
        pd.node().link_by_socket(far.node().home().id()).unwrap();
        let (qp, peer) = (pd.rc(&cq).build().unwrap(), far.rc(&far_cq).build().unwrap());
        let (at, at_peer) = (qp.address(), peer.address());
        far.node().link_by_socket(at.soft.unwrap().node).unwrap();
        let (mut qp, peer) = (qp.connect(&at_peer).unwrap(), peer.connect(&at).unwrap());
        qp.recv(pd.alloc(8).unwrap()).post().unwrap();
        pd.node().retire(Box::new(Bomb), Askers::default());
        until(|| cq.poll().unwrap().is_some_and(|done| !done.status().is_success()));
        until(|| events.next_event() == Some(AsyncEvent::DeviceFatal));
        until(|| events.next_event() == Some(AsyncEvent::QpFatal(qp.number())));
        until(|| far_events.next_event() == Some(AsyncEvent::PeerLost(peer.number())));
        let again = pd.rc(&cq).build().unwrap();
        let other = far.rc(&far_cq).build().unwrap();
        let refused = again.connect(&other.address()).unwrap_err();
        assert!(matches!(refused, ConnectError::DeviceFailed), "{refused}");
    }

    /// Of processes that are linked and say nothing any more, as one that is stopped.
    #[test]
    fn the_memory_of_a_datagram_queue_pair_waits_for_those_alone_who_asked_for_it() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let home = pd.node().home();
        let make = || {
            let qp = pd.ud(&cq).build().unwrap();
            let place = home.member(qp.number().0).expect("it is there").info().public;
            (qp, place)
        };
        // The lowest that is free is taken first.
        let has_place_again = |place| {
            let mut found = None;
            until(|| {
                found = Some(make()).filter(|(_, at)| *at == place);
                found.is_some()
            });
            found
        };
        let [(unknown, first), (known, second)] = [(); 2].map(|()| make());
        let peer = Home::new().unwrap();
        let _door = listen(peer.id()).unwrap();
        let theirs = Socket::connect(home.id(), Duration::from_secs(20)).unwrap();
        theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
        let is_answered = || {
            let start = Instant::now();
            while let Err(error) = theirs.recv() {
                assert!(
                    error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < Duration::from_secs(20),
                    "{error}"
                );
            }
        };
        is_answered();
        drop(unknown);
        let _at_first = has_place_again(first);
        theirs.send(&Message::Query { request: 1, qpn: known.number().0 }, &[]).unwrap();
        is_answered();
        drop(known);
        for _ in 0..100 {
            assert_ne!(make().1, second, "the peer may look at it");
        }
        drop(theirs);
        has_place_again(second);
    }
}
