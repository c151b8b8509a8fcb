//! An opened device.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::cm::{self, ConnectOptions, Connecting, Listener};
use crate::counters::Counter;
use crate::cq::{CompletionChannel, CompletionQueue};
use crate::device::{Device, DeviceAttributes, PortAttributes};
use crate::error::{CmError, CreateError, OpenError};
use crate::events::AsyncEvents;
use crate::ibv;
use crate::pd::ProtectionDomain;
use crate::qp::Prepared;
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
pub(crate) enum Provider {
    Soft(Arc<Node>),
    Ibv(Arc<ibv::Device>),
}

impl Context {
    /// Opens the device of that name: `soft0`, or one that libibverbs drives. [`Device::list`] tells the names. On a host
    /// with several NUMA nodes, `soft1` and so on are the same device as `soft0`: topology has a name for it at each node.
    ///
    /// A process that forks while a device is open, as for workers that load data: the child is not to use what it has of the
    /// device, since none of its threads are there; and it keeps the software device's place at the network's UDP port for as
    /// long as it lives, also after its parent has ended. With a device of libibverbs, on Linux before 5.12, `IBV_FORK_SAFE=1`
    /// has to be in the environment, so that what a NIC reads and writes stays the parent's (`ibv_fork_init(3)`).
    ///
    /// # Errors
    /// [`OpenError`] if there is no such device, or it can not be set up.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        if soft::is_name(name) {
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

    /// What port `number` has counted, by name; empty if there is no such port, or the system does not show it.
    ///
    /// ```
    /// let ctx = qpair_verbs::Context::open("soft0")?;
    /// assert!(ctx.counters(1).iter().any(|counter| counter.name == "out_of_sequence"));
    /// # Ok::<(), qpair_verbs::OpenError>(())
    /// ```
    pub fn counters(&self, number: u8) -> Vec<Counter> {
        match &self.provider {
            Provider::Soft(node) if number == 1 => node.counters(),
            Provider::Soft(_) => Vec::new(),
            Provider::Ibv(device) => device.counters(number),
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
    /// [`CreateError`] if the depth is not possible or the system refuses descriptors.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, CreateError> {
        match &self.provider {
            Provider::Soft(node) => CompletionQueue::soft(node.home(), depth, None),
            Provider::Ibv(device) => CompletionQueue::ibv(device, depth, None, false),
        }
    }

    /// Creates a completion queue whose events go to `channel`.
    ///
    /// # Errors
    /// As [`create_cq`](Context::create_cq), and [`CreateError::ForeignObject`] if the channel is of another kind of device, or
    /// with libibverbs of another context.
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

    /// Listens for connections by rdma_cm at `port`, on all addresses of the device; at port 0 for one that is free.
    /// Programs of other hosts connect with [`connect_to`](Context::connect_to), or with Linux' rdma_cm (`RDMA_PS_TCP`).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Duration::from_secs(10);
    /// let ctx = qpair_verbs::Context::open("soft0")?;
    /// let (pd, mut cq) = (ctx.alloc_pd()?, ctx.create_cq(64)?);
    /// # if let Err(qpair_verbs::CmError::Network(error)) = ctx.listen(0) {
    /// #     return Ok(println!("skipped: {error}"));
    /// # }
    /// let listener = ctx.listen(0)?;
    ///
    /// // The other side, which is in the same process here.
    /// let peer = ([127, 0, 0, 1], listener.port()).into();
    /// let mut asking = ctx.connect_to(peer, pd.rc(&cq).build()?, b"hello")?;
    ///
    /// let request = listener.wait(limit)?;
    /// assert!(request.private_data().starts_with(b"hello"));
    /// let mut answer = pd.rc(&cq).build()?;
    /// answer.recv(pd.alloc(64)?).post()?;
    /// let mut accepting = request.accept(answer, b"welcome")?;
    ///
    /// let mut near = asking.wait(limit)?;
    /// let far = accepting.wait(limit)?;
    /// assert!(near.private_data.starts_with(b"welcome"));
    /// near.queue_pair.send_inline(b"ping").signaled().post()?;
    /// assert!(cq.wait()?.status().is_success());
    /// assert!(cq.wait()?.status().is_success());
    ///
    /// drop(near);
    /// far.connection.wait(limit)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CmError::AddressInUse`] if another listener of this host has the port; [`CmError::NotSupported`] on a device of
    /// libibverbs where Linux' connection manager is not to be had, and on iWARP devices; others if the device can not use the network.
    pub fn listen(&self, port: u16) -> Result<Listener, CmError> {
        Listener::new(&self.provider, port)
    }

    /// Asks who listens at `peer` for a connection by rdma_cm, and tells its application `private`, 56 bytes at most. The
    /// queue pair is at the address from which the system sends to the peer, unless its builder chose one.
    ///
    /// Both ends share what they agree on: the MTU and the retry counts of this queue pair, and the smaller number of READs. With a
    /// device of libibverbs the MTU is that of the way, as Linux' connection manager knows it: one above the queue pair's
    /// [`mtu`](crate::QpBuilder::mtu) is [`CmError::MtuTooLong`], and an address other than the one that its builder chose
    /// [`CmError::OtherAddress`]. There service level, traffic class and hop limit are also the manager's unless the builder chose
    /// others than the defaults.
    ///
    /// # Errors
    /// [`CmError`] if the peer can not be asked; [`CmError::NotSupported`] as of [`listen`](Context::listen). What it answers, [`Connecting`] tells.
    pub fn connect_to(&self, peer: SocketAddr, prepared: Prepared, private: &[u8]) -> Result<Connecting, CmError> {
        self.connect_with(peer, prepared, &ConnectOptions::new().private(private))
    }

    /// The same with other times and counts than usual.
    ///
    /// # Errors
    /// As [`connect_to`](Context::connect_to).
    pub fn connect_with(
        &self,
        peer: SocketAddr,
        prepared: Prepared,
        options: &ConnectOptions,
    ) -> Result<Connecting, CmError> {
        cm::connect(&self.provider, peer, prepared, options)
    }

    pub(crate) fn provider(&self) -> &Provider {
        &self.provider
    }

    /// The software device, if it is that.
    #[cfg(test)]
    pub(crate) fn soft(&self) -> Option<&Arc<Node>> {
        match &self.provider {
            Provider::Soft(node) => Some(node),
            Provider::Ibv(_) => None,
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
