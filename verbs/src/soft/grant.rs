//! The right of peers to a region: published as a key, with windows beside it, and withdrawn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::home::Home;
use super::keys::KeySpec;
use super::withdrawal::Withdrawal;
use crate::error::{MemoryError, RevokeBlocked};
use crate::memory::Backing;
use crate::sync::lock;
use crate::types::{Access, Rkey};

/// A published key.
#[derive(Debug)]
pub(crate) struct Grant {
    home: Arc<Home>,
    rkey: Rkey,
    windows: Mutex<Windows>,
    /// Once the key is withdrawn: who may be inside an access still.
    withdrawal: Mutex<Withdrawal>,
}

/// Windows that were bound to a region.
#[derive(Debug, Default)]
struct Windows {
    /// Their keys; dead ones are dropped when looked at.
    keys: Vec<Rkey>,
    /// One was bound since it was looked at last who is inside an access with all of them gone.
    unsighted: bool,
}

impl Grant {
    /// Publishes a key for the whole block. A withdrawal that is over lends its memory.
    ///
    /// # Errors
    /// [`MemoryError::NoKeys`].
    pub(crate) fn publish(
        home: &Arc<Home>,
        backing: &Backing,
        access: Access,
        spare: Option<Withdrawal>,
    ) -> Result<Self, MemoryError> {
        let rkey = home.keys().publish(&KeySpec {
            addr: backing.base().as_ptr() as u64,
            len: backing.len() as u64,
            access,
            domain: backing.domain(),
            arena: backing.arena(),
            bound_qpn: None,
        })?;
        let mut withdrawal = spare.unwrap_or_default();
        withdrawal.reset();
        Ok(Grant { home: home.clone(), rkey, windows: Mutex::default(), withdrawal: Mutex::new(withdrawal) })
    }

    pub(crate) fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// What a grant that is over can lend to the next.
    pub(crate) fn take_spare(&mut self) -> Withdrawal {
        std::mem::take(self.withdrawal.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline(always)]
    pub(crate) fn progress(&self) {
        self.home.progress();
    }

    pub(crate) fn add_window(&self, rkey: Rkey) {
        let Windows { keys, unsighted } = &mut *self.windows();
        if keys.len() == keys.capacity() {
            keys.retain(|&rkey| self.home.keys().is_live(rkey));
        }
        keys.push(rkey);
        *unsighted = true;
    }

    pub(crate) fn has_windows(&self) -> bool {
        let keys = &mut self.windows().keys;
        keys.retain(|&rkey| self.home.keys().is_live(rkey));
        !keys.is_empty()
    }

    /// Whether the key is withdrawn, by an attempt that may not have finished.
    pub(crate) fn is_withdrawn(&self) -> bool {
        lock(&self.withdrawal).rkey.is_some()
    }

    /// Withdraws the key, once.
    ///
    /// # Errors
    /// [`RevokeBlocked::PeerAccess`] while somebody is inside an access: at once, or after some seconds of waiting.
    pub(crate) fn withdraw(&self, wait: bool) -> Result<(), RevokeBlocked> {
        let mut withdrawal = lock(&self.withdrawal);
        self.home.withdraw(self.rkey, &mut withdrawal);
        let left = if wait { self.home.wait_left(&mut withdrawal) } else { self.home.has_left(&mut withdrawal) };
        if left { Ok(()) } else { Err(RevokeBlocked::PeerAccess) }
    }

    /// Once the key is withdrawn, no window is bound, and nothing is posted that would bind one: looks again who is inside an
    /// access, if there were windows. By one that was bound then, or later, somebody may have come in since the key's withdrawal
    /// looked.
    ///
    /// # Errors
    /// As [`withdraw`](Grant::withdraw).
    pub(crate) fn withdraw_windows(&mut self, wait: bool) -> Result<(), RevokeBlocked> {
        let windows = self.windows.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut windows.unsighted) {
            return Ok(());
        }
        self.home.sight(self.withdrawal.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.withdraw(wait)
    }

    /// Withdraws the key and those of windows, for good; false if somebody stays inside an access.
    pub(crate) fn end(&mut self) -> bool {
        let windows = std::mem::take(self.windows.get_mut().unwrap_or_else(PoisonError::into_inner));
        let withdrawal = self.withdrawal.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.home.withdraw(self.rkey, withdrawal);
        // Each, whatever becomes of those before it.
        let held = windows.keys.into_iter().filter(|rkey| !self.home.withdraw_now(*rkey)).count();
        if windows.unsighted {
            self.home.sight(withdrawal);
        }
        if held == 0 && self.home.wait_left_once(withdrawal) {
            return true;
        }
        self.home.abandon(std::mem::take(withdrawal));
        false
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        lock(&self.windows)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::sync::Ordering;
    use crate::{Access, CompletionQueue, Context, ProtectionDomain, QueuePair, RevokeBlocked, WcOpcode, WcStatus};

    /// Two queue pairs of one device that are connected to each other.
    fn pair(pd: &ProtectionDomain, cq: &CompletionQueue) -> (QueuePair, QueuePair) {
        let (a, b) = (pd.rc(cq).build().unwrap(), pd.rc(cq).build().unwrap());
        let (at_a, at_b) = (a.address(), b.address());
        (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap())
    }

    #[test]
    fn one_access_that_does_not_end_is_waited_for_once() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let home = pd.node().home();
        let (mut a, b) = pair(&pd, &cq);
        let regions: Vec<_> = (0..20).map(|_| pd.expose(4096, Access::REMOTE_ALL).unwrap()).collect();
        let later = pd.expose(4096, Access::REMOTE_ALL).unwrap();
        let opened = pd.expose(4096, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
        let windows: Vec<_> = (0..14).map(|_| pd.create_window().unwrap()).collect();
        for window in &windows {
            a.bind(window, &opened, 0..100, Access::REMOTE_WRITE).signaled().post().unwrap();
            while cq.poll().unwrap().is_none() {}
        }
        let peer = home.member(b.number().0).unwrap();
        peer.hazard().store(1, Ordering::SeqCst);
        let start = Instant::now();
        drop(windows);
        drop(regions);
        // Three seconds each would be a minute.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        // Another access is another matter.
        peer.hazard().store(3, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let dropping = scope.spawn(move || drop(later));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!dropping.is_finished(), "it is waited for");
            peer.hazard().store(4, Ordering::SeqCst);
        });
    }

    /// Of windows, which the peer of the queue pair that bound them alone can use.
    #[test]
    fn a_window_ends_whatever_other_peers_are_inside_of() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let home = pd.node().home();
        let [(mut a, mut b), (_c, d)] = [(); 2].map(|()| pair(&pd, &cq));
        let stopped = home.member(d.number().0).unwrap();
        stopped.hazard().store(1, Ordering::SeqCst);
        let region = pd.expose(4096, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
        let mut next = || loop {
            if let Some(completion) = cq.poll().unwrap() {
                break (completion.opcode(), completion.status());
            }
        };
        for of_peer in [false, true] {
            let window = pd.create_window().unwrap();
            a.bind(&window, &region, 0..100, Access::REMOTE_WRITE).signaled().post().unwrap();
            assert_eq!(next(), (WcOpcode::BIND_MW, WcStatus::SUCCESS));
            let rkey = window.remote().unwrap().rkey;
            if of_peer {
                a.recv(pd.alloc(8).unwrap()).post().unwrap();
                b.send_inline(b"done").invalidating(rkey).post().unwrap();
                assert_eq!(next(), (WcOpcode::RECV, WcStatus::SUCCESS));
            } else {
                a.invalidate(rkey).signaled().post().unwrap();
                assert_eq!(next(), (WcOpcode::LOCAL_INV, WcStatus::SUCCESS));
            }
            assert_eq!(window.remote(), None);
        }
        // By another bind, and by its drop.
        let window = pd.create_window().unwrap();
        for _ in 0..2 {
            a.bind(&window, &region, 0..100, Access::REMOTE_WRITE).signaled().post().unwrap();
            assert_eq!(next(), (WcOpcode::BIND_MW, WcStatus::SUCCESS));
        }
        let inside = home.member(b.number().0).unwrap();
        inside.hazard().store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let dropping = scope.spawn(move || drop(window));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!dropping.is_finished(), "its own peer is waited for");
            inside.hazard().store(2, Ordering::SeqCst);
        });
        stopped.hazard().store(2, Ordering::SeqCst);
    }

    #[test]
    fn all_windows_of_a_region_end_with_it() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let home = pd.node().home();
        let (mut a, b) = pair(&pd, &cq);
        let region = pd.expose(4096, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
        let windows = [(); 3].map(|()| pd.create_window().unwrap());
        for window in &windows {
            a.bind(window, &region, 0..100, Access::REMOTE_WRITE).signaled().post().unwrap();
            while cq.poll().unwrap().is_none() {}
        }
        let rkeys = windows.each_ref().map(|window| window.remote().unwrap().rkey);
        let is_bound = |rkey| home.keys().view().is_bound(rkey, a.number().0, pd.id());
        assert_eq!(rkeys.map(is_bound), [true; 3]);
        let peer = home.member(b.number().0).unwrap();
        peer.hazard().store(1, Ordering::SeqCst);
        drop(region);
        assert_eq!(rkeys.map(is_bound), [false; 3]);
        peer.hazard().store(2, Ordering::SeqCst);
    }

    /// The window is bound by a request that was posted before the region was to be revoked, and gone before that is tried again.
    #[test]
    fn who_came_in_by_a_window_that_is_gone_is_waited_for() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let home = pd.node().home();
        let (mut a, mut b) = pair(&pd, &cq);
        let region = pd.expose(4096, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
        let window = pd.create_window().unwrap();
        // Without a receive it waits, and the bind behind it.
        a.send_inline(b"waits").id(1).post().unwrap();
        a.bind(&window, &region, 0..100, Access::REMOTE_WRITE).id(2).signaled().post().unwrap();
        let failed = region.try_revoke().expect_err("a bind is posted");
        assert_eq!(failed.why, RevokeBlocked::PostedWork);
        b.recv(pd.alloc(64).unwrap()).id(3).post().unwrap();
        let mut ended = 0;
        while ended < 2 {
            if let Some(completion) = cq.poll().unwrap() {
                assert!(completion.status().is_success(), "{completion:?}");
                ended += 1;
            }
        }
        let peer = home.member(b.number().0).unwrap();
        peer.hazard().store(1, Ordering::SeqCst);
        // As the drop of the window does before it waits.
        assert!(home.keys().kill(window.remote().unwrap().rkey));
        let failed = failed.region.try_revoke().expect_err("the peer is inside");
        assert_eq!(failed.why, RevokeBlocked::PeerAccess);
        let failed = failed.region.try_revoke().expect_err("it is inside still");
        assert_eq!(failed.why, RevokeBlocked::PeerAccess);
        peer.hazard().store(2, Ordering::SeqCst);
        failed.region.try_revoke().expect("the peer has left");
    }
}
