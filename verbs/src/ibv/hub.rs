//! What an opened device knows of its objects: who is meant by an event, and which window has which key.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

use super::last_receive::LastReceives;
use super::listeners::{CqFailure, CqListener, QpListener, WindowListener};
use super::numbers::Numbers;
use crate::events::EventHub;
use crate::sync::lock;
use crate::types::Rkey;

/// The objects of an opened device.
#[derive(Debug, Default)]
pub(super) struct Hub {
    pub(super) events: EventHub,
    pub(super) numbers: Mutex<Numbers>,
    pub(super) last_receives: LastReceives,
    qps: Mutex<HashMap<usize, Weak<dyn QpListener>>>,
    cqs: Mutex<HashMap<usize, Weak<dyn CqListener>>>,
    windows: Mutex<HashMap<Rkey, Weak<dyn WindowListener>>>,
}

impl Hub {
    /// Enters a queue pair under its address in the library, which events name.
    pub(super) fn enter_qp<T>(&self, at: *mut T, qp: Weak<dyn QpListener>) {
        lock(&self.qps).insert(at.addr(), qp);
    }

    pub(super) fn leave_qp<T>(&self, at: *mut T) {
        lock(&self.qps).remove(&at.addr());
    }

    /// The queue pair at that address, if it is one of ours.
    pub(super) fn qp<T>(&self, at: *mut T) -> Option<Arc<dyn QpListener>> {
        lock(&self.qps).get(&at.addr()).and_then(Weak::upgrade)
    }

    /// Notes that the device is gone: nothing that is under way will end, and nobody is to wait for it. Gives back the queues
    /// that were told, to be let go where that does no harm.
    pub(super) fn fail(&self) -> Vec<Arc<dyn CqListener>> {
        let qps: Vec<_> = lock(&self.qps).values().filter_map(Weak::upgrade).collect();
        let cqs: Vec<_> = lock(&self.cqs).values().filter_map(Weak::upgrade).collect();
        self.last_receives.close();
        qps.iter().for_each(|qp| qp.fail());
        cqs.iter().for_each(|cq| cq.fail(CqFailure::DeviceGone));
        cqs
    }

    pub(super) fn enter_cq(&self, at: *mut c_void, cq: Weak<dyn CqListener>) {
        lock(&self.cqs).insert(at.addr(), cq);
    }

    pub(super) fn leave_cq(&self, at: *mut c_void) {
        lock(&self.cqs).remove(&at.addr());
    }

    pub(super) fn cq(&self, at: *mut c_void) -> Option<Arc<dyn CqListener>> {
        lock(&self.cqs).get(&at.addr()).and_then(Weak::upgrade)
    }

    /// Enters the key that a window has from now on.
    pub(super) fn enter_window(&self, rkey: Rkey, window: Weak<dyn WindowListener>) {
        let mut windows = lock(&self.windows);
        if windows.len() == windows.capacity() {
            windows.retain(|_, window| window.strong_count() > 0);
        }
        windows.insert(rkey, window);
    }

    /// A key that was invalidated, by this side or the peer: its window is bound no more.
    pub(super) fn window_gone(&self, rkey: Rkey) {
        // Not dropped under the lock: a window that goes may come here.
        let window = lock(&self.windows).remove(&rkey);
        if let Some(window) = window.as_ref().and_then(Weak::upgrade) {
            window.unbound(rkey);
        }
    }
}
