//! An opened device.

use std::sync::Arc;

use crate::cq::{CompletionChannel, CompletionQueue};
use crate::device::{Device, DeviceAttributes, PortAttributes};
use crate::error::{CreateError, OpenError};
use crate::events::AsyncEvents;
use crate::ibv;
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
    provider: Provider,
}

/// An opened device of one of the providers.
#[derive(Clone, Debug)]
enum Provider {
    Soft(Arc<Node>),
    Ibv(Arc<ibv::Device>),
}

impl Context {
    /// Opens the device of that name: `soft0`, or one that libibverbs drives. [`Device::list`] tells the names.
    ///
    /// # Errors
    /// [`OpenError`] if there is no such device, or it can not be set up.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        if name == soft::DEVICE_NAME {
            return Ok(Context { provider: Provider::Soft(Node::open()?) });
        }
        Ok(Context { provider: Provider::Ibv(ibv::Device::open(name)?) })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        match &self.provider {
            Provider::Soft(_) => soft::DEVICE_NAME,
            Provider::Ibv(device) => device.name(),
        }
    }

    /// Limits and abilities.
    pub fn attributes(&self) -> DeviceAttributes {
        match &self.provider {
            Provider::Soft(node) => node.home().attributes(),
            Provider::Ibv(device) => {
                DeviceAttributes { max_inline: device.max_inline(), ..device.attributes().clone() }
            }
        }
    }

    /// Port `number`, counted from 1, as it is now; `None` if there is no such port.
    pub fn port(&self, number: u8) -> Option<PortAttributes> {
        match &self.provider {
            Provider::Soft(node) => (number == 1).then(|| node.home().port()),
            Provider::Ibv(device) => device.port(number),
        }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`CreateError`] if the device has no more.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, CreateError> {
        match &self.provider {
            Provider::Soft(node) => Ok(ProtectionDomain::soft(node.clone())),
            Provider::Ibv(device) => ProtectionDomain::ibv(device),
        }
    }

    /// Creates a completion queue for `depth` completions.
    ///
    /// # Errors
    /// [`CreateError`] if the depth is not possible or the system refuses an event descriptor.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, CreateError> {
        match &self.provider {
            Provider::Soft(node) => CompletionQueue::soft(node.home(), depth, None),
            Provider::Ibv(device) => CompletionQueue::ibv(device, depth, None, false),
        }
    }

    /// Creates a completion queue whose events go to `channel`.
    ///
    /// # Errors
    /// As [`create_cq`](Context::create_cq), and [`CreateError::ForeignObject`] if the channel is of another kind of device.
    pub fn create_cq_on(&self, depth: u32, channel: &CompletionChannel) -> Result<CompletionQueue, CreateError> {
        match &self.provider {
            Provider::Soft(node) => CompletionQueue::soft(node.home(), depth, Some(channel)),
            Provider::Ibv(device) => CompletionQueue::ibv(device, depth, Some(channel), false),
        }
    }

    /// Creates a completion queue that tells when the device completed each request
    /// ([`Completion::timestamp`](crate::Completion::timestamp)), with events to `channel` if one is given.
    ///
    /// # Errors
    /// As [`create_cq_on`](Context::create_cq_on), and [`CreateError::NoTimestamps`] where the device has none.
    pub fn create_cq_with_timestamps(
        &self,
        depth: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, CreateError> {
        match &self.provider {
            Provider::Soft(_) => Err(CreateError::NoTimestamps { device: soft::DEVICE_NAME.to_owned() }),
            Provider::Ibv(device) => CompletionQueue::ibv(device, depth, channel, true),
        }
    }

    /// Creates a completion channel, for sleeping until something completes.
    ///
    /// # Errors
    /// [`CreateError::System`] if the system refuses an event descriptor.
    pub fn create_channel(&self) -> Result<CompletionChannel, CreateError> {
        match &self.provider {
            Provider::Soft(_) => CompletionChannel::soft(),
            Provider::Ibv(device) => CompletionChannel::ibv(device),
        }
    }

    /// The device's asynchronous events: a reader of its own, which sees all events from now on.
    ///
    /// # Errors
    /// [`CreateError::System`] if the system refuses an event descriptor.
    pub fn events(&self) -> Result<AsyncEvents, CreateError> {
        match &self.provider {
            Provider::Soft(node) => node.home().events().subscribe(),
            Provider::Ibv(device) => device.events().subscribe(),
        }
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
