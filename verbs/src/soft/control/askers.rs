//! Who has asked where the parts of a queue pair lie: they may look at them until they are asked to let that pass.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::link::Link;
use crate::sync::lock;

/// The links over which a queue pair was asked about, by their numbers, with what tells that they are over.
#[derive(Debug, Default)]
pub(crate) struct Askers(Mutex<HashMap<u64, Arc<AtomicBool>>>);

impl Askers {
    pub(crate) fn note(&self, link: &Link) {
        let mut links = lock(&self.0);
        if links.len().is_power_of_two() {
            links.retain(|_, dead| !dead.load(Ordering::Acquire));
        }
        links.insert(link.number(), link.dead_flag().clone());
    }

    pub(crate) fn has(&self, link: &Link) -> bool {
        lock(&self.0).contains_key(&link.number())
    }
}
