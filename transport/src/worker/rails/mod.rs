//! Rails: several ways from this host to the peer's, each a port and an address of the device. Every connection has a queue
//! pair on each, beside the one for its messages; long payloads are read over all of them, in slices. A rail that fails is
//! left out and comes back; a connection that recovers takes the next rail for its messages.

mod carry;
mod devices;
mod lanes;
mod place;
mod renew;
mod request;
mod transfer;

use qpair_verbs::{
    CompletionChannel, CompletionQueue, Context, CqError, Inquiry, Local, Prepared, ProtectionDomain, QpAddress,
    RemoteSlice, Rkey, WorkCompletion,
};

use super::config::PacketClass;
use super::error::{ResourceError, WorkerError};
use crate::cm::Fabric;
use crate::engine::{DEPTH, RAILS, RailKeys, RemoteMemory};
pub(super) use lanes::Lanes;
pub(super) use place::Place;
pub use place::Rail;

/// The rails of a worker.
#[derive(Debug)]
pub(super) struct RailSet {
    places: Vec<Place>,
    class: PacketClass,
    /// The worker's own first. Empty if there are no rails to choose from.
    devices: Vec<RailDevice>,
    /// Queue pairs for which the completion queues have room, on each rail.
    room: Vec<usize>,
    /// Queue pairs that there are.
    made: usize,
}

/// A device that rails are on.
#[derive(Debug)]
struct RailDevice {
    context: Context,
    pd: ProtectionDomain,
    /// Where slices complete.
    cq: CompletionQueue,
    /// Where messages do that come and go over it, if they may: of the worker's own device that is the worker's.
    messages: Option<CompletionQueue>,
    /// Unless it is the worker's.
    channel: Option<CompletionChannel>,
    /// It gives no completions any more.
    is_gone: bool,
}

impl RailSet {
    /// The rails of the settings, for so many endpoints of a worker on that device. One or none: all goes over the messages'
    /// queue pairs. `messages`: completions of those, if they may go on over other devices.
    pub(super) fn new(
        (rails, class): (&[Rail], PacketClass),
        (context, pd, channel): (&Context, &ProtectionDomain, &CompletionChannel),
        endpoints: usize,
        messages: Option<u64>,
    ) -> Result<RailSet, WorkerError> {
        let mut contexts = vec![context.clone()];
        let mut places = Vec::with_capacity(rails.len());
        for (number, rail) in rails.iter().enumerate() {
            places.push(rail.find(number, &mut contexts)?);
        }
        if places.len() < 2 {
            return Ok(RailSet { places, class, devices: Vec::new(), room: Vec::new(), made: 0 });
        }
        let (mut devices, mut room) = (Vec::new(), vec![0; places.len()]);
        for (number, context) in contexts.iter().enumerate() {
            let here = places.iter().filter(|place| place.device() == number).count();
            let each = endpoints.min(context.attributes().max_cqe as usize / SLOTS / here.max(1));
            let depth = (each * here.max(1) * SLOTS) as u32;
            let (pd, own) =
                if number == 0 { (pd.clone(), None) } else { (context.alloc_pd()?, Some(context.create_channel()?)) };
            let cq = context.create_cq_on(depth, own.as_ref().unwrap_or(channel))?;
            let messages = match messages {
                Some(count) if number > 0 => queue_for_messages(context, count, own.as_ref().unwrap_or(channel))?,
                _ => None,
            };
            for (room, _) in room.iter_mut().zip(&places).filter(|(_, place)| place.device() == number) {
                *room = each;
            }
            devices.push(RailDevice { context: context.clone(), pd, cq, messages, channel: own, is_gone: false });
        }
        Ok(RailSet { places, class, devices, room, made: 0 })
    }

    /// The worker's domain, with memory that the devices of all rails reach.
    pub(super) fn span(&self, pd: ProtectionDomain) -> Result<ProtectionDomain, WorkerError> {
        let others: Vec<_> = self.devices.iter().skip(1).map(|device| device.pd.clone()).collect();
        Ok(pd.spanning(&others)?)
    }

    /// Rails on which long payloads are read.
    pub(super) fn count(&self) -> usize {
        if self.devices.is_empty() { 0 } else { self.places.len() }
    }

    /// Devices that rails are on.
    fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The rails on the worker's own device, as bits.
    pub(super) fn home(&self) -> u8 {
        self.mask(|device| device == 0)
    }

    /// The rails that messages can go over, as bits.
    pub(super) fn for_messages(&self) -> u8 {
        let is_for_messages = |device: &RailDevice| device.messages.is_some() && !device.is_gone;
        self.mask(|device| device == 0 || self.devices.get(device).is_some_and(is_for_messages))
    }

    fn mask(&self, is_in: impl Fn(usize) -> bool) -> u8 {
        let places = self.places.iter().enumerate().filter(|(_, place)| is_in(place.device()));
        places.fold(0, |mask, (rail, _)| mask | 1 << rail)
    }

    /// The device of that rail; 0 is the worker's own.
    pub(super) fn device_of(&self, rail: usize) -> usize {
        self.places.get(rail).map_or(0, Place::device)
    }

    /// What queue pairs of that rail are made of, where there are several.
    fn context(&self, rail: usize) -> Option<&Context> {
        let place = self.places.get(rail)?;
        self.devices.get(place.device()).map(|device| &device.context)
    }

    /// Asks the peer to whom a queue pair of that rail shall be connected. `own`: the worker's device.
    pub(super) fn ask(&self, inquiry: &mut Inquiry, own: &Context, rail: usize, address: &QpAddress) {
        match self.places.get(rail) {
            Some(place) => place.ask(inquiry, self.context(rail).unwrap_or(own), address),
            None => inquiry.ask(own, address),
        }
    }

    /// What that rail is on, if it is one of the settings.
    pub(super) fn fabric(&self, rail: usize) -> Option<Fabric> {
        self.places.get(rail).map(Place::fabric)
    }

    /// What a queue pair for messages on that rail is made of, on another device than the worker's.
    ///
    /// # Errors
    /// [`ResourceError::Device`] if that device is gone.
    pub(super) fn for_messages_on(&self, rail: usize) -> Result<(&ProtectionDomain, &CompletionQueue), ResourceError> {
        let device = self.devices.get(self.device_of(rail));
        match device {
            Some(RailDevice { pd, messages: Some(cq), is_gone: false, .. }) => Ok((pd, cq)),
            _ => Err(ResourceError::Device {
                name: device.map(|device| device.context.name().to_owned()).unwrap_or_default(),
            }),
        }
    }

    /// The completion queues, but for the worker's own.
    pub(super) fn queues(&mut self) -> impl Iterator<Item = &mut CompletionQueue> {
        let devices = self.devices.iter_mut().filter(|device| !device.is_gone);
        devices.flat_map(|device| std::iter::once(&mut device.cq).chain(&mut device.messages))
    }

    /// What messages brought next that go over one of the further devices, and the memory that is back with that.
    fn poll_messages(&mut self, device: usize) -> Result<Option<(WorkCompletion, Local)>, CqError> {
        let Some(device) = self.devices.get_mut(device).filter(|device| !device.is_gone) else { return Ok(None) };
        let Some(cq) = &mut device.messages else { return Ok(None) };
        Ok(cq.poll()?.map(|completion| (completion.values(), completion.into_memory())))
    }

    /// What completed next on one of the devices. A slice's part of its memory is back with that.
    fn poll(&mut self, device: usize) -> Result<Option<WorkCompletion>, CqError> {
        let Some(device) = self.devices.get_mut(device).filter(|device| !device.is_gone) else { return Ok(None) };
        Ok(device.cq.poll()?.map(|completion| {
            let wc = completion.values();
            drop(completion.into_memory());
            wc
        }))
    }

    /// What tells of completions, beside the worker's own.
    pub(super) fn channels(&mut self) -> impl Iterator<Item = &mut CompletionChannel> {
        self.devices.iter_mut().filter_map(|device| device.channel.as_mut())
    }

    /// Where the queue pair of that rail is made, if the settings say.
    pub(super) fn place(&self, rail: usize) -> Option<&Place> {
        self.places.get(rail)
    }

    /// Memory that peers may read, by a key for each rail. `key`: the one for the device of that domain.
    pub(super) fn remote(&self, remote: RemoteSlice, key: impl Fn(&ProtectionDomain) -> Option<Rkey>) -> RemoteMemory {
        if self.devices.len() < 2 {
            return remote.into();
        }
        let rails = self.places.iter().enumerate().skip(1).fold(RailKeys::first_alone(), |keys, (rail, place)| {
            let key = match place.device() {
                0 => Some(remote.rkey),
                other => self.devices.get(other).and_then(|device| key(&device.pd)),
            };
            key.map_or(keys, |key| keys.with(rail, key))
        });
        RemoteMemory { remote, rails }
    }

    /// A queue pair on that rail. `None` if there is no room for it.
    fn prepare(&mut self, rail: usize) -> Result<Option<Prepared>, ResourceError> {
        let Some(place) = self.places.get(rail) else { return Ok(None) };
        let Some(RailDevice { pd, cq, .. }) = self.devices.get(place.device()).filter(|device| !device.is_gone) else {
            return Ok(None);
        };
        let Some(room) = self.room.get_mut(rail).filter(|room| **room > 0) else { return Ok(None) };
        let builder = self.class.of(pd.rc(cq)).send_depth(SLOTS as u32).recv_depth(1);
        let prepared = place.of(builder).build()?;
        *room -= 1;
        self.made += 1;
        Ok(Some(prepared))
    }

    /// Requests that may be with the devices.
    fn posted_at_most(&self) -> usize {
        self.made * SLOTS
    }

    fn device_name(&self, device: usize) -> &str {
        self.devices.get(device).map_or("", |device| device.context.name())
    }

    /// No rail on that device can be used any more.
    pub(super) fn lose_device(&mut self, device: usize) {
        if let Some(device) = self.devices.get_mut(device) {
            device.is_gone = true;
        }
    }

    /// True for a rail on a device that is gone.
    pub(in crate::worker) fn is_gone(&self, rail: usize) -> bool {
        let device = self.places.get(rail).and_then(|place| self.devices.get(place.device()));
        device.is_some_and(|device| device.is_gone)
    }

    /// Queue pairs that can still be made.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.room.iter().sum()
    }

    /// A queue pair is gone from that rail.
    fn give_back(&mut self, rail: usize) {
        if let Some(room) = self.room.get_mut(rail) {
            *room += 1;
            self.made -= 1;
        }
    }
}

/// A completion queue for messages on a further device, if that has such long ones.
fn queue_for_messages(
    context: &Context,
    count: u64,
    channel: &CompletionChannel,
) -> Result<Option<CompletionQueue>, WorkerError> {
    let limit = context.attributes().max_cqe;
    match u32::try_from(count) {
        Ok(count) if count <= limit => Ok(Some(context.create_cq_on(count, channel)?)),
        _ => {
            tracing::warn!(device = context.name(), count, limit, "its completion queues are too short for messages");
            Ok(None)
        }
    }
}

/// Requests of a queue pair at most: slices, and a probe.
const SLOTS: usize = DEPTH + 1;

const _: () = assert!(crate::cm::RAILS_LIMIT == RAILS);
