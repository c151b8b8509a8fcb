//! An opened device.

use std::sync::Arc;

use crate::cq::{CompletionChannel, CompletionQueue};
use crate::device::{Device, DeviceAttributes, PortAttributes};
use crate::error::{CreateError, OpenError};
use crate::events::AsyncEvents;
use crate::pd::ProtectionDomain;
use crate::soft::{self, Node};

/// An opened device. Clones share it; it stays open as long as anything made from it lives.
///
/// ```
/// let ctx = qpair_verbs::Context::open("soft0")?;
/// assert_eq!(ctx.name(), "soft0");
/// assert!(!ctx.port(1).unwrap().gids.is_empty());
/// # Ok::<(), qpair_verbs::OpenError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    node: Arc<Node>,
}

impl Context {
    /// Opens the device of that name; [`Device::list`] tells the names.
    ///
    /// # Errors
    /// [`OpenError`] if there is no such device, or it can not be set up.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        if name != soft::DEVICE_NAME {
            let names: Vec<_> = Device::list().iter().map(|device| device.name().to_owned()).collect();
            return Err(OpenError::NotFound { name: name.to_owned(), known: names.join(", ") });
        }
        Ok(Context { node: Node::open()? })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        soft::DEVICE_NAME
    }

    /// Limits and abilities.
    pub fn attributes(&self) -> DeviceAttributes {
        self.node.home().attributes()
    }

    /// Port `number`, counted from 1; `None` if there is no such port.
    pub fn port(&self, number: u8) -> Option<PortAttributes> {
        (number == 1).then(|| self.node.home().port())
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`CreateError`] if the device has no more.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, CreateError> {
        Ok(ProtectionDomain::new(self.node.clone()))
    }

    /// Creates a completion queue for `depth` completions.
    ///
    /// # Errors
    /// [`CreateError`] if the depth is not possible or the system refuses an event descriptor.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, CreateError> {
        CompletionQueue::new(self.node.home(), depth, None)
    }

    /// Creates a completion queue whose events go to `channel`.
    ///
    /// # Errors
    /// As [`create_cq`](Context::create_cq).
    pub fn create_cq_on(&self, depth: u32, channel: &CompletionChannel) -> Result<CompletionQueue, CreateError> {
        CompletionQueue::new(self.node.home(), depth, Some(channel))
    }

    /// Creates a completion channel, for sleeping until something completes.
    ///
    /// # Errors
    /// [`CreateError::System`] if the system refuses an event descriptor.
    pub fn create_channel(&self) -> Result<CompletionChannel, CreateError> {
        CompletionChannel::new()
    }

    /// The device's asynchronous events: a reader of its own, which sees all events from now on.
    ///
    /// # Errors
    /// [`CreateError::System`] if the system refuses an event descriptor.
    pub fn events(&self) -> Result<AsyncEvents, CreateError> {
        self.node.home().events().subscribe()
    }
}

impl Device {
    /// Opens the device.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub fn open(&self) -> Result<Context, OpenError> {
        Context::open(self.name())
    }
}
