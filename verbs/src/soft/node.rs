//! One opened software device: its mappings, keys, queue pairs and links.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::arena::ArenaPool;
use super::control::{self, BounceOp, Control, FaultKind, Message};
use super::hazard::{Hazard, Sighting};
use super::host::{self, Host};
use super::keys::KeyTable;
use super::layout::{LAYOUT_VERSION, MAGIC, NodeHeader, PUBLIC_BLOCKS, PUBLIC_BYTES, SHARED_BYTES};
use super::link::Link;
use super::qp::SoftQp;
use super::random;
use super::ranges::Ranges;
use super::segment::{Segment, Writers};
use crate::address::{NodeId, SoftAddress};
use crate::error::{ConnectError, OpenError};
use crate::events::{AsyncEvent, EventHub};
use crate::types::Rkey;

/// An opened software device.
#[derive(Debug)]
pub(crate) struct Node {
    id: NodeId,
    host: Host,
    public: Arc<Segment>,
    shared: Arc<Segment>,
    public_blocks: Mutex<Ranges>,
    shared_blocks: Mutex<Ranges>,
    keys: KeyTable,
    arenas: Arc<ArenaPool>,
    events: EventHub,
    qps: Mutex<HashMap<u32, Weak<SoftQp>>>,
    links: Mutex<HashMap<NodeId, Arc<Link>>>,
    /// The control thread as initiator on behalf of peers.
    engine: (AtomicU32, Mutex<Hazard>),
    control: Mutex<Option<Arc<Control>>>,
    me: Weak<Node>,
}

/// Devices that this process has open.
static NODES: LazyLock<Mutex<HashMap<NodeId, Weak<Node>>>> = LazyLock::new(Mutex::default);

impl Node {
    pub(crate) fn open() -> Result<Arc<Self>, OpenError> {
        let soft = |what| move |source: io::Error| OpenError::Soft { what, source };
        let host = Host::this().map_err(soft("identify this host"))?;
        let public =
            Segment::create("qpair-public", PUBLIC_BYTES, Writers::Owner).map_err(soft("create its memory"))?;
        let shared =
            Segment::create("qpair-shared", SHARED_BYTES, Writers::Peers).map_err(soft("create its memory"))?;
        let (public, shared) = (Arc::new(public), Arc::new(shared));
        write_header(&public);
        let Some(keys) = KeyTable::new(public.clone()) else {
            return Err(soft("lay out its memory")(io::Error::other("the public mapping is too short")));
        };
        let id = NodeId(random::bytes());
        let listener = control::listen(id).map_err(soft("listen for peers"))?;
        let node = Arc::new_cyclic(|me| Node {
            id,
            host,
            public,
            shared,
            public_blocks: Mutex::new(Ranges::new(PUBLIC_BLOCKS, PUBLIC_BYTES)),
            shared_blocks: Mutex::new(Ranges::new(0, SHARED_BYTES)),
            keys,
            arenas: ArenaPool::new(),
            events: EventHub::default(),
            qps: Mutex::default(),
            links: Mutex::default(),
            engine: (AtomicU32::new(0), Mutex::new(Hazard::new())),
            control: Mutex::default(),
            me: me.clone(),
        });
        let control = Control::start(Arc::downgrade(&node), listener).map_err(soft("start its control thread"))?;
        *lock(&node.control) = Some(control);
        lock(&NODES).insert(id, Arc::downgrade(&node));
        tracing::debug!(%id, "software device opened");
        Ok(node)
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    pub(crate) fn public(&self) -> &Arc<Segment> {
        &self.public
    }

    pub(crate) fn shared(&self) -> &Arc<Segment> {
        &self.shared
    }

    pub(crate) fn keys(&self) -> &KeyTable {
        &self.keys
    }

    pub(crate) fn arenas(&self) -> &ArenaPool {
        &self.arenas
    }

    pub(crate) fn events(&self) -> &EventHub {
        &self.events
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn address(&self) -> SoftAddress {
        SoftAddress { host: self.host.boot_id, namespace: self.host.namespace, node: self.id }
    }

    /// A zeroed block of the public mapping.
    pub(crate) fn take_public(&self, len: usize) -> Option<usize> {
        take_block(&self.public, &self.public_blocks, len)
    }

    pub(crate) fn give_public(&self, offset: usize, len: usize) {
        lock(&self.public_blocks).give(offset, block_len(len));
    }

    /// A zeroed block of the shared mapping.
    pub(crate) fn take_shared(&self, len: usize) -> Option<usize> {
        take_block(&self.shared, &self.shared_blocks, len)
    }

    pub(crate) fn give_shared(&self, offset: usize, len: usize) {
        lock(&self.shared_blocks).give(offset, block_len(len));
    }

    /// Registers a queue pair under a fresh unpredictable number.
    pub(crate) fn add_qp(&self, make: impl FnOnce(u32) -> Arc<SoftQp>) -> Arc<SoftQp> {
        let mut qps = lock(&self.qps);
        let qpn = loop {
            // 0 and 1 are reserved for management, 0xffffff for multicast.
            let qpn = random::u32() & 0x00ff_ffff;
            if (2..0x00ff_ffff).contains(&qpn) && !qps.contains_key(&qpn) {
                break qpn;
            }
        };
        let qp = make(qpn);
        qps.insert(qpn, Arc::downgrade(&qp));
        qp
    }

    pub(crate) fn remove_qp(&self, qpn: u32) {
        lock(&self.qps).remove(&qpn);
    }

    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<SoftQp>> {
        lock(&self.qps).get(&qpn).and_then(Weak::upgrade)
    }

    fn all_qps(&self) -> Vec<Arc<SoftQp>> {
        lock(&self.qps).values().filter_map(Weak::upgrade).collect()
    }

    /// The link to the device at `address`, made now if there is none.
    pub(crate) fn link_to(&self, address: &SoftAddress) -> Result<Arc<Link>, ConnectError> {
        if address.host != self.host.boot_id {
            return Err(ConnectError::NoRoute {
                why: "it is on another host, and this device reaches its own host only",
            });
        }
        if let Some(link) = lock(&self.links).get(&address.node).filter(|link| !link.is_dead()) {
            return Ok(link.clone());
        }
        let local = lock(&NODES).get(&address.node).map(Weak::upgrade);
        match local {
            Some(Some(peer)) => Ok(self.adopt(Link::local(&peer))),
            Some(None) => Err(ConnectError::PeerGone { node: address.node }),
            None if address.namespace != self.host.namespace => Err(ConnectError::NoRoute {
                why: "it is in another network namespace, where the two devices can not find each other",
            }),
            None => {
                let me = self.me.upgrade().ok_or(ConnectError::PeerGone { node: self.id })?;
                control::establish(&me, address.node)
            }
        }
    }

    /// Takes a new link into the table and has it watched.
    pub(crate) fn adopt(&self, link: Link) -> Arc<Link> {
        let link = self.adopt_unwatched(link);
        if !link.is_local()
            && let Some(control) = &*lock(&self.control)
        {
            control.watch(link.clone());
        }
        link
    }

    /// Takes a new link into the table. Where two devices link to each other at once both links live.
    pub(crate) fn adopt_unwatched(&self, link: Link) -> Arc<Link> {
        let link = Arc::new(link);
        let mut links = lock(&self.links);
        if links.get(&link.peer()).is_none_or(|old| old.is_dead()) {
            links.insert(link.peer(), link.clone());
        }
        link
    }

    pub(crate) fn hello(&self) -> Message {
        Message::Hello {
            version: LAYOUT_VERSION,
            node: self.id,
            pid: std::process::id(),
            registered: super::barrier::registered(),
        }
    }

    /// What a greeting carries: public, then shared.
    pub(crate) fn mappings(&self) -> [BorrowedFd<'_>; 2] {
        [self.public.fd(), self.shared.fd()]
    }

    /// Has the control thread try stalled work again.
    pub(crate) fn attend(&self) {
        if let Some(control) = &*lock(&self.control) {
            control.attend();
        }
    }

    /// Tries stalled work again and tells peers of memory that is gone; true if there is more to do.
    pub(crate) fn tick(&self) -> bool {
        let gone = self.arenas.take_gone();
        if !gone.is_empty() {
            for link in lock(&self.links).values() {
                gone.iter().for_each(|&arena| link.send(&Message::ArenaGone { arena }, &[]));
            }
        }
        self.all_qps().iter().fold(false, |busy, qp| qp.tick() | busy)
    }

    /// Withdraws a key and waits until no access with it is under way. False if a peer does not leave: the memory must
    /// not be touched then.
    pub(crate) fn withdraw(&self, rkey: Rkey) -> bool {
        let was_live = self.keys.kill(rkey);
        fence(Ordering::SeqCst);
        if !self.quiesce_peers() {
            return false;
        }
        if was_live {
            self.keys.release(rkey);
        }
        true
    }

    /// Waits until every peer that is inside an access to this device now has left it.
    fn quiesce_peers(&self) -> bool {
        let engine = Sighting::take(&self.engine.0);
        let qps = self.all_qps();
        let inside: Vec<_> = qps.iter().filter_map(|qp| qp.sight_peer()).collect();
        let deadline = Instant::now() + LEAVE;
        wait_until(deadline, || inside.iter().all(super::qp::PeerSighting::is_over) && engine.is_over(&self.engine.0))
    }

    /// Waits until every initiator of this device that is inside an access now has left it.
    pub(crate) fn quiesce_initiators(&self) -> bool {
        super::barrier::heavy();
        let qps = self.all_qps();
        let inside: Vec<_> = qps.iter().map(|qp| (qp, Sighting::take(qp.hazard_word()))).collect();
        wait_until(Instant::now() + LEAVE, || inside.iter().all(|(qp, sight)| sight.is_over(qp.hazard_word())))
    }

    pub(crate) fn forget_arena(&self, link: &Link, arena: u32) {
        link.forget_arena(arena, || self.quiesce_initiators());
    }

    /// Device `from` found that its request to queue pair `qpn` was not valid.
    pub(crate) fn fault(&self, from: NodeId, qpn: u32, from_qpn: u32, kind: FaultKind) {
        if let Some(qp) = self.qp(qpn) {
            qp.fault(from, from_qpn, kind);
        }
    }

    /// The process at the other end of `link` is gone.
    pub(crate) fn peer_lost(&self, link: &Arc<Link>) {
        link.end();
        {
            let mut links = lock(&self.links);
            if links.get(&link.peer()).is_some_and(|current| Arc::ptr_eq(current, link)) {
                links.remove(&link.peer());
            }
        }
        for qp in self.all_qps() {
            if qp.peer_lost(link) {
                self.events.raise(AsyncEvent::PeerLost(crate::Qpn(qp.number())));
            }
        }
    }

    /// Carries out an access for a peer that can not reach this process's memory.
    pub(crate) fn bounce(&self, link: &Link, op: BounceOp) -> Option<u64> {
        let (word, hazard) = &self.engine;
        let mut hazard = lock(hazard);
        hazard.enter(word);
        let result = super::bounce::serve(self, link, op);
        hazard.leave(word);
        result
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        lock(&NODES).remove(&self.id);
        let control = lock(&self.control).take();
        if let Some(control) = control {
            control.close();
        }
    }
}

fn write_header(public: &Segment) {
    // SAFETY: the header is made of atomics; the mapping is fresh.
    let Some(header) = (unsafe { public.at::<NodeHeader>(0) }) else { return };
    // SAFETY: mapped as long as `public` lives.
    let header = unsafe { header.as_ref() };
    header.registered.store(super::barrier::registered().into(), Ordering::Relaxed);
    header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
}

fn take_block(segment: &Segment, blocks: &Mutex<Ranges>, len: usize) -> Option<usize> {
    let len = block_len(len);
    let offset = lock(blocks).take(len, BLOCK)?;
    // SAFETY: the block lies within the segment and was free: nobody of this device uses it, and peers leave a block
    // before it is given back (gates and hazards).
    unsafe { segment.base().add(offset).write_bytes(0, len) };
    Some(offset)
}

fn block_len(len: usize) -> usize {
    len.next_multiple_of(BLOCK)
}

fn wait_until(deadline: Instant, mut done: impl FnMut() -> bool) -> bool {
    for spin in 0u32.. {
        if done() {
            return true;
        }
        if spin < 1000 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
            if Instant::now() > deadline {
                return false;
            }
        }
    }
    false
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Longest stay of a peer in an access: copying the longest message takes a second or so, a stopped process is not
/// waited for.
const LEAVE: Duration = Duration::from_secs(3);
const BLOCK: usize = 256;

impl Node {
    pub(crate) fn attributes(&self) -> crate::DeviceAttributes {
        host::attributes(&self.host)
    }

    pub(crate) fn port(&self) -> crate::PortAttributes {
        host::port(&self.host)
    }
}
