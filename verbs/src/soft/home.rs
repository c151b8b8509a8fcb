//! What an opened device owns by itself: its mappings, keys, memory and the queue pairs that live on it.
//! Peers, links and threads come above.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use super::blocks::Blocks;
use super::hazard::{Hazard, Sighting};
use super::host::{self, Host};
use super::keys::KeyTable;
use super::layout::{LAYOUT_VERSION, MAGIC, NodeHeader, PUBLIC_BLOCKS, PUBLIC_BYTES, SHARED_BYTES};
use super::roce::{NetworkGid, SLOTS, Slot, network_gids};
use super::roster::Roster;
use super::visited::{Member, Visited};
use super::withdrawal::{PeerSighting, Withdrawal};
use super::{barrier, random};
use crate::address::{NodeId, SoftAddress};
use crate::error::OpenError;
use crate::events::{AsyncEvent, EventHub};
use crate::memory::{ArenaPool, Segment, Writers};
use crate::panics;
use crate::sync::lock;
use crate::types::Rkey;

/// The home of everything that one opened device owns.
pub(crate) struct Home {
    id: NodeId,
    host: Host,
    public: Arc<Segment>,
    shared: Arc<Segment>,
    public_blocks: Blocks,
    shared_blocks: Blocks,
    keys: KeyTable,
    arenas: Arc<ArenaPool>,
    events: EventHub,
    /// A thread that it can not do without has ended.
    has_failed: AtomicBool,
    members: Mutex<Roster>,
    /// Empty: keeps its memory from one visit of the members to the next.
    scratch: Mutex<Vec<Visited>>,
    unsettled: Mutex<Unsettled>,
    /// Boards that no completion queue has now, by their offsets.
    pub(super) boards: Mutex<Vec<usize>>,
    /// The control thread as initiator on behalf of peers.
    engine: (AtomicU32, Mutex<Hazard>),
    /// Has the control thread try stalled work again.
    alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Takes in what the network brought; set once the device uses it.
    network: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Its place among the devices of this host that share the UDP port of the network, if there was one left.
    slot: Option<Arc<Slot>>,
    /// Rows of the GID table that are of the network, and when they were looked up.
    gids: Mutex<Option<(Instant, Vec<NetworkGid>)>>,
    /// Says that it did what peers ask of it, and does nothing.
    #[cfg(test)]
    liar: AtomicBool,
}

/// What peers hold up that are stopped in the middle of an access.
#[derive(Default)]
struct Unsettled {
    /// Such peers, of queue pairs that are closed.
    peers: Vec<PeerSighting>,
    /// Withdrawals that nobody waits for any more; their keys' slots are not free yet.
    withdrawals: Vec<Withdrawal>,
}

impl Home {
    pub(crate) fn new() -> Result<Arc<Self>, OpenError> {
        let soft = |what| move |source: io::Error| OpenError::Soft { what, source };
        let host = Host::this().map_err(soft("identify this host"))?;
        let public =
            Segment::create("qpair-public", PUBLIC_BYTES, Writers::Owner).map_err(soft("create its memory"))?;
        let shared =
            Segment::create("qpair-shared", SHARED_BYTES, Writers::Peers).map_err(soft("create its memory"))?;
        let (public, shared) = (Arc::new(public), Arc::new(shared));
        let slot = Slot::claim().map(|slot| slot.map(Arc::new)).unwrap_or_else(|error| {
            tracing::warn!(%error, "no place at the network's UDP port");
            None
        });
        write_header(&public);
        let Some(keys) = KeyTable::new(public.clone()) else {
            return Err(soft("lay out its memory")(io::Error::other("the public mapping is too short")));
        };
        Ok(Arc::new(Home {
            id: NodeId(random::bytes()),
            host,
            public,
            shared,
            public_blocks: Blocks::new(PUBLIC_BLOCKS, PUBLIC_BYTES),
            shared_blocks: Blocks::new(0, SHARED_BYTES),
            keys,
            arenas: ArenaPool::new(),
            events: EventHub::default(),
            has_failed: AtomicBool::new(false),
            members: Mutex::default(),
            scratch: Mutex::default(),
            unsettled: Mutex::default(),
            boards: Mutex::default(),
            engine: (AtomicU32::new(0), Mutex::new(Hazard::new())),
            alarm: OnceLock::new(),
            network: OnceLock::new(),
            slot,
            gids: Mutex::default(),
            #[cfg(test)]
            liar: AtomicBool::new(false),
        }))
    }

    /// True in a test that plays a device which does not do what it says.
    pub(crate) fn lies(&self) -> bool {
        #[cfg(test)]
        return self.liar.load(Ordering::Relaxed);
        #[cfg(not(test))]
        false
    }

    #[cfg(test)]
    pub(crate) fn start_lying(&self) {
        self.liar.store(true, Ordering::Relaxed);
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

    /// A thread that the device can not do without has ended: its queue pairs fail.
    pub(crate) fn fail(&self) {
        if self.has_failed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Each, whatever becomes of those before it: what they log may have panicked before.
        let _ = panics::as_error("the log", || self.events.raise(AsyncEvent::DeviceFatal));
        self.visit(|member| {
            let _ = panics::as_error("the log", || member.device_failed());
        });
    }

    /// True once [`fail`](Home::fail) was called: nothing is to be begun any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn address(&self) -> SoftAddress {
        SoftAddress { host: self.host.boot_id, namespace: self.host.namespace, node: self.id }
    }

    /// A zeroed block of the public mapping.
    pub(crate) fn take_public(&self, len: usize) -> Option<usize> {
        self.public_blocks.take(&self.public, len)
    }

    pub(crate) fn give_public(&self, offset: usize, len: usize) {
        self.public_blocks.give(offset, len);
    }

    /// A zeroed block of the shared mapping.
    pub(crate) fn take_shared(&self, len: usize) -> Option<usize> {
        self.shared_blocks.take(&self.shared, len)
    }

    pub(crate) fn give_shared(&self, offset: usize, len: usize) {
        self.shared_blocks.give(offset, len);
    }

    /// Registers a queue pair under a fresh unpredictable number; `None` if there are as many as may be.
    pub(crate) fn add<M: Member + 'static>(&self, make: impl FnOnce(u32) -> Arc<M>) -> Option<Arc<M>> {
        lock(&self.members).add(|| self.numbered(random::u32() & 0x00ff_ffff), make)
    }

    /// A number with the lowest bits that lead packets here.
    fn numbered(&self, random: u32) -> u32 {
        self.slot.as_ref().map_or(random, |slot| random / SLOTS * SLOTS + slot.number())
    }

    /// Its place at the network's UDP port; `None` if all are taken.
    pub(crate) fn slot(&self) -> Option<&Arc<Slot>> {
        self.slot.as_ref()
    }

    /// Forgets a queue pair, if it is known still.
    pub(crate) fn remove<M: Member>(&self, qpn: u32, member: &M) {
        lock(&self.members).remove(qpn, member);
    }

    /// The queue pair of that number.
    pub(crate) fn member(&self, qpn: u32) -> Option<Visited> {
        lock(&self.members).get(qpn)
    }

    /// Shows each queue pair to `look`. None is locked meanwhile; what is kept in the end is dropped outside of locks too,
    /// since a queue pair that goes locks the members.
    pub(crate) fn visit(&self, mut look: impl FnMut(&dyn Member)) {
        let mut all = std::mem::take(&mut *lock(&self.scratch));
        all.extend(lock(&self.members).all());
        all.iter().for_each(|member| look(&**member));
        all.clear();
        *lock(&self.scratch) = all;
    }

    /// Waits until nobody looks at a queue pair any more that was removed before, some seconds at most: nobody of this device
    /// holds its memory then but its completion queues.
    pub(crate) fn wait_for_visits(&self, visits: &AtomicU32) {
        if !wait_until(|| visits.load(Ordering::Acquire) == 0) {
            tracing::warn!("a queue pair that is closed is looked at for long; its memory is held until that is over");
        }
    }

    /// Says whom to call when work stalls; once.
    pub(crate) fn set_alarm(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let _ = self.alarm.set(Box::new(alarm));
    }

    /// Says how the network is driven; once.
    pub(crate) fn set_network(&self, poll: impl Fn() + Send + Sync + 'static) {
        let _ = self.network.set(Box::new(poll));
    }

    /// Takes in what the network brought, if the device uses it.
    #[inline(always)]
    pub(crate) fn progress(&self) {
        if let Some(poll) = self.network.get() {
            poll();
        }
    }

    /// Has the control thread try stalled work again.
    pub(crate) fn attend(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm();
        }
    }

    /// What a greeting carries: public, then shared.
    pub(crate) fn mappings(&self) -> [BorrowedFd<'_>; 2] {
        [self.public.fd(), self.shared.fd()]
    }

    /// Runs `access` as an initiator on behalf of a peer: what a key grants now stays granted meanwhile.
    pub(crate) fn as_engine<R>(&self, access: impl FnOnce() -> R) -> R {
        let _inside = self.enter_as_engine();
        access()
    }

    /// Begins what [`as_engine`](Home::as_engine) runs.
    pub(crate) fn enter_as_engine(&self) -> EngineAccess<'_> {
        let (word, hazard) = &self.engine;
        let mut hazard = lock(hazard);
        hazard.enter(word);
        EngineAccess { word, hazard }
    }

    /// A queue pair is closed whose peer did not leave our memory: keys that are withdrawn go on waiting for it.
    pub(crate) fn linger(&self, peer: PeerSighting) {
        lock(&self.unsettled).peers.push(peer);
    }

    /// A glance at the control thread as initiator on behalf of peers.
    pub(crate) fn sight_engine(&self) -> Sighting {
        Sighting::take(&self.engine.0)
    }

    /// True once the access seen by [`sight_engine`](Home::sight_engine) is over.
    pub(crate) fn engine_left(&self, seen: Sighting) -> bool {
        seen.is_over(&self.engine.0)
    }

    /// Withdraws a key, unless that has begun: nobody begins an access with it any more. [`has_left`](Home::has_left) tells
    /// when those are over that had begun.
    pub(crate) fn withdraw(&self, rkey: Rkey, withdrawal: &mut Withdrawal) {
        if withdrawal.rkey.replace(rkey).is_some() {
            return;
        }
        withdrawal.killed = self.keys.kill(rkey);
        self.sight(withdrawal);
    }

    /// Looks who is inside an access now: a withdrawal waits for them, and no more for who was when this was looked at before.
    pub(crate) fn sight(&self, withdrawal: &mut Withdrawal) {
        fence(Ordering::SeqCst);
        withdrawal.engine = self.sight_engine();
        let peers = &mut withdrawal.peers;
        peers.clear();
        self.visit(|qp| peers.extend(qp.sight_peer().filter(|sight| !sight.is_over())));
        let mut unsettled = lock(&self.unsettled);
        unsettled.peers.retain(|sight| !sight.is_over());
        peers.extend(unsettled.peers.iter().cloned());
        unsettled.withdrawals.retain_mut(|withdrawal| !self.has_left(withdrawal));
    }

    /// True once no access is under way any more that the key may have granted; its slot is free then. The memory must not
    /// be touched before.
    pub(crate) fn has_left(&self, withdrawal: &mut Withdrawal) -> bool {
        if !withdrawal.peers.iter().all(PeerSighting::is_over) || !self.engine_left(withdrawal.engine) {
            return false;
        }
        if let Some(rkey) = withdrawal.rkey.filter(|_| std::mem::take(&mut withdrawal.killed)) {
            self.keys.release(rkey);
        }
        true
    }

    /// Waits for [`has_left`](Home::has_left), some seconds at most: a stopped process is not waited for.
    pub(crate) fn wait_left(&self, withdrawal: &mut Withdrawal) -> bool {
        wait_until(|| self.has_left(withdrawal))
    }

    /// The same for whoever can do without: an access that was waited for in vain is not waited for once more.
    pub(crate) fn wait_left_once(&self, withdrawal: &mut Withdrawal) -> bool {
        self.has_left(withdrawal) || !self.stays(withdrawal) && self.wait_left(withdrawal)
    }

    /// True if all that is left to wait for are accesses that were waited for in vain.
    fn stays(&self, withdrawal: &Withdrawal) -> bool {
        let mut inside = withdrawal.peers.iter().filter(|peer| !peer.is_over());
        self.engine_left(withdrawal.engine) && inside.all(|peer| self.was_waited_for(peer))
    }

    /// True of an access that was waited for in vain.
    fn was_waited_for(&self, peer: &PeerSighting) -> bool {
        let unsettled = lock(&self.unsettled);
        unsettled.withdrawals.iter().flat_map(|abandoned| &abandoned.peers).any(|known| known.is_same(peer))
    }

    /// Withdraws a key and waits until nobody uses it; false if a peer does not leave.
    pub(crate) fn withdraw_now(&self, rkey: Rkey) -> bool {
        let mut withdrawal = Withdrawal::default();
        self.withdraw(rkey, &mut withdrawal);
        let left = self.wait_left_once(&mut withdrawal);
        if !left {
            self.abandon(withdrawal);
        }
        left
    }

    /// The same of a key that one queue pair's peer alone may use, as of a window that it bound: other peers are not waited for,
    /// whatever they are inside of.
    pub(crate) fn withdraw_bound(&self, rkey: Rkey, qpn: u32) -> bool {
        let Some(qp) = self.member(qpn) else { return self.withdraw_now(rkey) };
        let mut withdrawal = Withdrawal::default();
        self.withdraw(rkey, &mut withdrawal);
        let peer = qp.sight_peer().filter(|peer| !peer.is_over());
        // One that was waited for in vain is not once more.
        let stays = peer.as_ref().is_some_and(|peer| self.was_waited_for(peer));
        let left = !stays
            && wait_until(|| self.engine_left(withdrawal.engine) && peer.as_ref().is_none_or(PeerSighting::is_over));
        // They may be about to look at the key's slot, which is not given to another before.
        if !self.has_left(&mut withdrawal) {
            self.abandon(withdrawal);
        }
        left
    }

    /// The same of a key that the protocol of the network alone has used, as of a window bound by a queue pair on the network:
    /// whatever access peers in shared memory are inside of, it is none that this key granted, and they are not waited for.
    pub(crate) fn withdraw_on_network(&self, rkey: Rkey) -> bool {
        let mut withdrawal = Withdrawal::default();
        self.withdraw(rkey, &mut withdrawal);
        let left = wait_until(|| self.engine_left(withdrawal.engine));
        // They may be about to look at the key's slot, which is not given to another before.
        if !self.has_left(&mut withdrawal) {
            self.abandon(withdrawal);
        }
        left
    }

    /// Gives the key's slot back some time, since nobody waits for that any more.
    pub(crate) fn abandon(&self, withdrawal: Withdrawal) {
        lock(&self.unsettled).withdrawals.push(withdrawal);
    }

    /// Waits until every initiator of this device that is inside an access now has left it, some seconds at most.
    pub(crate) fn quiesce_initiators(&self) -> bool {
        let mut inside = self.sight_initiators();
        wait_until(|| self.have_left(&mut inside))
    }

    /// The initiators of this device that are inside an access now.
    pub(crate) fn sight_initiators(&self) -> Initiators {
        barrier::heavy();
        let mut inside = Vec::new();
        self.visit(|qp| {
            let sight = Sighting::take(qp.hazard());
            if !sight.is_over(qp.hazard()) {
                inside.push((qp.info().who.qpn, sight));
            }
        });
        Initiators(inside)
    }

    /// True once all of them have left it.
    pub(crate) fn have_left(&self, Initiators(inside): &mut Initiators) -> bool {
        // A queue pair that is closed has left.
        inside.retain(|(qpn, sight)| self.member(*qpn).is_some_and(|qp| !sight.is_over(qp.hazard())));
        inside.is_empty()
    }

    /// Rows of the GID table that are of the network, looked up once a second at most.
    pub(crate) fn network_gids(&self) -> Vec<NetworkGid> {
        let mut known = lock(&self.gids);
        let now = Instant::now();
        match &*known {
            Some((at, rows)) if now < *at + GIDS => rows.clone(),
            _ => known.insert((now, network_gids())).1.clone(),
        }
    }

    pub(crate) fn attributes(&self) -> crate::DeviceAttributes {
        host::attributes(&self.host)
    }

    pub(crate) fn port(&self) -> crate::PortAttributes {
        host::port(&self.host, self.network_gids().iter().map(NetworkGid::entry).collect())
    }
}

/// Initiators that were inside an access, by the numbers of their queue pairs.
#[derive(Debug)]
pub(crate) struct Initiators(Vec<(u32, Sighting)>);

/// An initiator is at work on behalf of peers, until this is dropped.
pub(crate) struct EngineAccess<'a> {
    word: &'a AtomicU32,
    hazard: MutexGuard<'a, Hazard>,
}

impl Drop for EngineAccess<'_> {
    fn drop(&mut self) {
        self.hazard.leave(self.word);
    }
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home").field("id", &self.id).finish_non_exhaustive()
    }
}

fn write_header(public: &Segment) {
    // SAFETY: the header is made of atomics; the mapping is fresh.
    let Some(header) = (unsafe { public.at::<NodeHeader>(0) }) else { return };
    // SAFETY: mapped as long as `public` lives.
    let header = unsafe { header.as_ref() };
    header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
}

/// Waits for `done` up to [`LEAVE`]; looks at the clock only where it takes long.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..SPINS {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    let deadline = Instant::now() + LEAVE;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Longest stay of a peer in an access: copying the longest message takes a second or so, a stopped process is not
/// waited for.
const LEAVE: Duration = Duration::from_secs(3);
/// How long the network's addresses are taken to be what they were.
const GIDS: Duration = Duration::from_secs(1);
/// Looks before the clock is asked: some microseconds.
const SPINS: u32 = 1000;
