//! Writing to a peer's memory and telling it: by a value of its own, or by a counter that it waits for.

use qpair_verbs::Local;
use serde::{Deserialize, Serialize};
use slab::Slab;

use super::post::{NOTHING, has_memory_now};
use crate::engine::{Class, Envelope, RemoteMemory, Seeds};
use crate::worker::Worker;
use crate::worker::error::{OneSidedError, OneSidedFailure, SendCopyError};
use crate::worker::event::{Event, Returned};
use crate::worker::ids::{EndpointId, OpId};
use crate::worker::memory::Message;

/// How a peer is told of a [`put_notify`](Worker::put_notify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// By [`Event::Notified`] with this value.
    Value(u64),
    /// By adding to a counter of its own, which needs no event for each.
    Count {
        /// The peer's counter.
        counter: RemoteCounter,
        /// What to add.
        add: u32,
    },
}

/// A counter of this worker's, to which peers add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counter(u32);

/// The same counter for peers: plain data, to be sent to them by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteCounter(u32);

/// The counters of a worker.
#[derive(Debug, Default)]
pub(in crate::worker) struct CounterTable {
    slots: Slab<Slot>,
    serial: u16,
}

#[derive(Debug)]
struct Slot {
    serial: u16,
    value: u64,
    /// Operations that wait for a value, and which.
    waiting: Vec<(u64, u64)>,
}

impl Counter {
    /// To give to peers.
    pub fn remote(self) -> RemoteCounter {
        RemoteCounter(self.0)
    }
}

impl CounterTable {
    fn get(&self, id: u32) -> Option<&Slot> {
        self.slots.get((id & 0xffff) as usize).filter(|slot| u32::from(slot.serial) == id >> 16)
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut Slot> {
        self.slots.get_mut((id & 0xffff) as usize).filter(|slot| u32::from(slot.serial) == id >> 16)
    }

    /// An operation waits no more. False if none of that number did.
    pub(in crate::worker) fn cancel(&mut self, number: u64) -> bool {
        self.slots.iter_mut().any(|(_, slot)| {
            let place = slot.waiting.iter().position(|&(waiting, _)| waiting == number);
            place.map(|place| slot.waiting.swap_remove(place)).is_some()
        })
    }
}

impl Worker {
    /// Writes the first bytes of `from` to `remote`, and then tells the peer's program that they are in place, once.
    /// [`Event::Put`] follows here. The rest is as of [`put`](Worker::put).
    ///
    /// # Errors
    /// As [`put`](Worker::put); nothing is written then.
    ///
    /// ```
    /// use qpair_transport::{Config, Event, Flow, Notice, Worker};
    /// use qpair_verbs::Access;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let board = worker.domain().expose(64, Access::REMOTE_WRITE)?;
    /// let counter = worker.counter()?;
    /// worker.when_counted(counter, 2)?;
    /// let ep = worker.connect(server.local_addr())?;
    /// worker.run(|event, worker| match event {
    ///     Event::Connected { .. } => {
    ///         for at in [0, 32] {
    ///             let half = worker.domain().alloc(32).expect("there is memory");
    ///             let notice = Notice::Count { counter: counter.remote(), add: 1 };
    ///             worker.put_notify(ep, half, board.remote(at..at + 32), notice).expect("there is room");
    ///         }
    ///         Flow::Continue
    ///     }
    ///     Event::Counted { value, .. } => {
    ///         assert_eq!(value, 2, "both halves are in place");
    ///         Flow::Stop
    ///     }
    ///     _ => Flow::Continue,
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_notify(
        &mut self,
        ep: EndpointId,
        from: impl Into<Local>,
        remote: impl Into<RemoteMemory>,
        notice: Notice,
    ) -> Result<OpId, OneSidedError> {
        let from = from.into();
        // Both go, or none.
        if let Some(endpoint) = self.endpoints.get(ep).filter(|endpoint| endpoint.up) {
            let error = match has_memory_now(endpoint, &mut self.pool, self.max_inline, NOTHING.len()) {
                _ if !endpoint.link.takes_messages() => Some(OneSidedFailure::Closed(ep)),
                Ok(has_memory) if has_memory && endpoint.link.has_room(2) => None,
                Ok(_) => Some(OneSidedFailure::WouldBlock),
                Err(error) => Some(OneSidedFailure::Memory(error.to_string().into())),
            };
            if let Some(error) = error {
                return Err(OneSidedError { error, memory: from });
            }
        }
        let op = self.put(ep, from, remote)?;
        // If it could not be posted, the connection breaks.
        let _ = self.submit_copy(ep, notice.envelope(), &[]);
        Ok(op)
    }

    /// Tells the peer's program something without a message: [`Event::Notified`], or a counter. All that was put before on
    /// the same connection is in place by then.
    ///
    /// # Errors
    /// As [`send_copy`](Worker::send_copy).
    pub fn notify(&mut self, ep: EndpointId, notice: Notice) -> Result<(), SendCopyError> {
        self.submit_copy(ep, notice.envelope(), &[])
    }

    /// A counter, at 0, to which peers add who know its [`remote`](Counter::remote) name: by
    /// [`put_notify`](Worker::put_notify) and [`notify`](Worker::notify).
    ///
    /// # Errors
    /// [`OneSidedFailure::TooManyCounters`] above 65,536.
    pub fn counter(&mut self) -> Result<Counter, OneSidedFailure> {
        let table = &mut self.counter_table;
        if table.slots.len() >= COUNTERS {
            return Err(OneSidedFailure::TooManyCounters { limit: COUNTERS });
        }
        table.serial = table.serial.wrapping_add(1);
        let serial = table.serial;
        let key = table.slots.insert(Slot { serial, value: 0, waiting: Vec::new() });
        Ok(Counter(key as u32 | u32::from(serial) << 16))
    }

    /// What has been added to a counter so far. `None` if it was removed.
    pub fn counted(&self, counter: Counter) -> Option<u64> {
        self.counter_table.get(counter.0).map(|slot| slot.value)
    }

    /// Waits until a counter has come to a value: [`Event::Counted`] follows.
    ///
    /// # Errors
    /// [`OneSidedFailure::UnknownCounter`].
    pub fn when_counted(&mut self, counter: Counter, value: u64) -> Result<OpId, OneSidedFailure> {
        let number = self.op();
        let slot = self.counter_table.get_mut(counter.0).ok_or(OneSidedFailure::UnknownCounter)?;
        slot.waiting.push((number, value));
        self.count(counter.0, 0);
        Ok(OpId::new(number, None))
    }

    /// Removes a counter: what peers add to it from now on is ignored, and whoever waits for it gets [`Event::Failed`].
    pub fn remove_counter(&mut self, counter: Counter) {
        if self.counter_table.get(counter.0).is_none() {
            return;
        }
        let slot = self.counter_table.slots.remove((counter.0 & 0xffff) as usize);
        for (number, _) in slot.waiting {
            let (op, error) = (OpId::new(number, None), crate::OpError::Cancelled);
            self.ready.push_back(Event::Failed { op, ep: None, error, returned: Returned::Nothing });
        }
    }

    /// A notification came.
    pub(in crate::worker) fn noticed(&mut self, ep: EndpointId, envelope: Envelope, message: Message) {
        match envelope.port {
            VALUE => {
                self.ready.push_back(Event::Notified { ep, value: envelope.tag });
                if let Some(notices) = &mut self.notices {
                    notices.push_back(Some(message));
                }
            }
            COUNT => self.count(envelope.tag as u32, envelope.tag >> 32),
            // A kind of notice that a later release may have.
            _ => {}
        }
    }

    /// From now on [`last_notice`](Worker::last_notice) gives what it says.
    pub(crate) fn keep_notices(&mut self) {
        let before = self.ready.iter().filter(|event| event.is_notice()).count();
        self.notices.get_or_insert_with(|| std::iter::repeat_n(None, before).collect());
    }

    /// For tables of what belongs to it.
    pub(crate) fn seeds(&self) -> Seeds {
        self.seeds
    }

    /// Whether short messages take their peers' windows until they are dropped, and notifications until their
    /// [`last_notice`](Worker::last_notice) is. Else that is as [`Config::lend_short`](crate::Config::lend_short) says.
    pub(crate) fn lend_short(&mut self, lends: bool) {
        self.lends_from = if lends { 0 } else { self.config.lends_from() };
    }

    /// What has the window of the [`Event::Notified`], or of the [`Event::StreamEnded`], that was polled last.
    pub(crate) fn last_notice(&mut self) -> Option<Message> {
        self.notice.take()
    }

    fn count(&mut self, id: u32, add: u64) {
        let Some(slot) = self.counter_table.get_mut(id) else { return };
        slot.value = slot.value.wrapping_add(add);
        let value = slot.value;
        let ready = &mut self.ready;
        slot.waiting.retain(|&(number, awaited)| {
            let waits = value < awaited;
            if !waits {
                ready.push_back(Event::Counted { op: OpId::new(number, None), counter: Counter(id), value });
            }
            waits
        });
    }
}

impl Notice {
    fn envelope(self) -> Envelope {
        let (port, tag) = match self {
            Notice::Value(value) => (VALUE, value),
            Notice::Count { counter, add } => (COUNT, u64::from(counter.0) | u64::from(add) << 32),
        };
        Envelope { class: Class::Notice, port, tag }
    }
}

const VALUE: u16 = 0;
const COUNT: u16 = 1;
/// Counters of a worker.
const COUNTERS: usize = 1 << 16;
