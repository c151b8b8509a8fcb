//! An opened device: its context, its events, and what it says of itself.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use qpair_verbs_sys::Ibverbs;

use super::cm::Manager;
use super::handle::{DeviceList, Handle};
use super::hub::Hub;
use super::port::{self, Side};
use super::watcher::Watcher;
use super::{attributes, counters, inline, library};
use crate::counters::Counter;
use crate::device::{DeviceAttributes, PortAttributes};
use crate::error::{CmError, CreateError, OpenError};
use crate::events::EventHub;
use crate::sync::lock;

/// An opened device.
#[derive(Debug)]
pub(crate) struct Device {
    // Stopped before the context is closed.
    _watcher: Watcher,
    hub: Arc<Hub>,
    handle: Arc<Handle>,
    /// Its own in this process.
    id: u64,
    attributes: DeviceAttributes,
    max_inline: OnceLock<u32>,
    /// Made with the first connection or listener.
    manager: Mutex<Option<Arc<Manager>>>,
}

/// Names of the devices that libibverbs finds; none where there is no library, or no kernel support.
pub(crate) fn names() -> Vec<String> {
    let Ok(library) = Ibverbs::load() else { return Vec::new() };
    let Ok(list) = DeviceList::new(library) else { return Vec::new() };
    let mut names: Vec<_> = list.iter().map(|device| list.name(device)).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names
}

impl Device {
    pub(crate) fn open(name: &str) -> Result<Arc<Self>, OpenError> {
        let handle = Arc::new(Handle::open(library::load(name)?, name)?);
        let attributes = attributes::device(&handle)?;
        let hub = Arc::new(Hub::default());
        let watcher = Watcher::start(&handle, &hub).map_err(|source| OpenError::System {
            name: name.to_owned(),
            what: "watch its events",
            source,
        })?;
        tracing::debug!(name, library = %handle.library.library_path().display(), "device opened");
        Ok(Arc::new(Device {
            _watcher: watcher,
            hub,
            handle,
            id: OPENED.fetch_add(1, Ordering::Relaxed),
            attributes,
            max_inline: OnceLock::new(),
            manager: Mutex::default(),
        }))
    }

    /// Tells it from all others that this process opens.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.handle.name
    }

    /// Limits and abilities as they were told when it was opened, but for the room for
    /// [inline data](Device::max_inline).
    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// Room for inline data that queue pairs have by default: found out when first asked for, and again until nothing but
    /// the device's limits stands in the way.
    pub(crate) fn max_inline(&self) -> u32 {
        if let Some(&known) = self.max_inline.get() {
            return known;
        }
        let found = inline::greatest(&self.handle);
        if found.lasting { *self.max_inline.get_or_init(|| found.len) } else { found.len }
    }

    /// Port `number` as it is now.
    pub(crate) fn port(&self, number: u8) -> Option<PortAttributes> {
        port::whole(&self.handle, self.attributes.ports, number)
    }

    /// What port `number` has counted.
    pub(crate) fn counters(&self, number: u8) -> Vec<Counter> {
        counters::read(self.name(), number)
    }

    /// What paths from port `number` rest on, as it is now.
    pub(super) fn side(&self, number: u8) -> io::Result<Side> {
        port::side(&self.handle, self.attributes.ports, number)
    }

    /// The row of a partition's key in the table of port `number`.
    pub(super) fn pkey_index(&self, number: u8, pkey: u16) -> Result<u16, CreateError> {
        port::pkey_index(&self.handle, number, pkey)
    }

    pub(crate) fn events(&self) -> &EventHub {
        &self.hub.events
    }

    /// What makes its connections by rdma_cm.
    pub(super) fn manager(&self) -> Result<Arc<Manager>, CmError> {
        let mut manager = lock(&self.manager);
        match &*manager {
            Some(manager) => Ok(manager.clone()),
            None => Ok(manager.insert(Manager::start(&self.handle)?).clone()),
        }
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }
}

/// Devices that this process has opened.
static OPENED: AtomicU64 = AtomicU64::new(0);
