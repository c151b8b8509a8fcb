//! A librdmacm in memory: event channels, ids, and connections between the ids of one process. What has no device yet, since
//! it has no address, counts as every device's.

mod address;
mod channel;
mod handshake;
mod id;

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::fmt;

use qpair_verbs_sys::*;

pub(crate) use address::read as read_address;
pub(crate) use channel::{Channel, break_channels, get, raise_scripted};
pub(crate) use id::{Id, Said, State};

use crate::world::World;

/// All state of the connection manager.
#[derive(Default)]
pub(crate) struct Cm {
    /// By the address of their C structures, which are never freed.
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) ids: BTreeMap<usize, Id>,
    /// What destroyed ones were called.
    dead: HashMap<usize, String>,
    /// Events read and not acknowledged, and the id that waits until they are.
    pub(crate) unacknowledged: HashMap<usize, usize>,
    /// What ids say that they are on, by device: contexts of the library's own, which it never closes.
    contexts: HashMap<usize, *mut ibv_context>,
    handles: u32,
    ports: u16,
}

impl Cm {
    pub(crate) fn new_handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles
    }

    /// A port that was not given out before.
    pub(crate) fn new_port(&mut self) -> u16 {
        self.ports += 1;
        FIRST_PORT + self.ports
    }

    /// What there is of a device, by name.
    pub(crate) fn names(&self, device: usize) -> Vec<String> {
        let channels = self.channels.values().map(|channel| (channel.handle, "cm_channel"));
        let ids = self.ids.values().filter(|id| id.was_told && id.device.is_none_or(|of| of == device));
        let mut found: Vec<_> = channels.chain(ids.map(|id| (id.handle, "cm_id"))).collect();
        found.sort_unstable();
        found.into_iter().map(|(handle, kind)| format!("{kind}{handle}")).collect()
    }

    /// Takes note that an object is gone.
    pub(crate) fn bury(&mut self, address: usize, name: String) {
        self.dead.insert(address, name);
    }

    /// How many events about an id are read and not acknowledged.
    pub(crate) fn unacknowledged_of(&self, id: usize) -> usize {
        self.unacknowledged.values().filter(|of| **of == id).count()
    }
}

impl World {
    /// The devices that something is of: one, or all.
    fn cm_devices(&self, device: Option<usize>) -> std::ops::Range<usize> {
        device.map_or(0..self.devices.len(), |device| device..device + 1)
    }

    /// A call that belongs to a device, or to each; fails if the script of one says so.
    pub(crate) fn cm_call(&mut self, symbol: &str, device: Option<usize>) -> Result<(), c_int> {
        let mut result = Ok(());
        for device in self.cm_devices(device) {
            result = result.and(self.devices[device].script.call(symbol));
        }
        if let Err(errno) = result {
            self.cm_record(device, format_args!("{symbol} -> errno {errno}"));
        }
        result
    }

    /// A call that happens too often to be noted, which the script of any device may have fail.
    pub(crate) fn cm_call_silent(&mut self, symbol: &str) -> Result<(), c_int> {
        self.devices.iter_mut().try_for_each(|device| device.script.call(symbol))
    }

    /// A call of a function on an id: refuses one that is destroyed, fails if the script says so.
    pub(crate) fn cm_enter(&mut self, symbol: &str, id: usize) -> Result<&mut Id, c_int> {
        let Some(live) = self.cm.ids.get(&id) else {
            let name = self.cm.dead.get(&id).cloned().unwrap_or_else(|| "an id".to_owned());
            self.cm_violation(None, format_args!("{symbol}: {name} was destroyed before, or is none"));
            return Err(libc::EINVAL);
        };
        let (device, handle) = (live.device, live.handle);
        self.cm_call(symbol, device)?;
        self.cm_record(device, format_args!("{symbol} cm_id{handle}"));
        self.cm.ids.get_mut(&id).ok_or(libc::EINVAL)
    }

    pub(crate) fn cm_record(&mut self, device: Option<usize>, line: fmt::Arguments<'_>) {
        for device in self.cm_devices(device) {
            self.devices[device].record(line);
        }
    }

    pub(crate) fn cm_violation(&mut self, device: Option<usize>, line: fmt::Arguments<'_>) {
        for device in self.cm_devices(device) {
            self.devices[device].violations.push(line.to_string());
        }
    }

    /// The context that ids on a device name.
    pub(crate) fn cm_context(&mut self, device: usize) -> *mut ibv_context {
        let c = self.devices[device].c;
        *self.cm.contexts.entry(device).or_insert_with(|| {
            // SAFETY: pointers, numbers, functions that may be null, and a lock whose initial value is zero.
            let mut context: ibv_context = unsafe { std::mem::zeroed() };
            context.device = c;
            Box::into_raw(Box::new(context))
        })
    }
}

const FIRST_PORT: u16 = 0x8000;
