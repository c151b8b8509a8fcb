//! A port: the queue pairs behind one UDP socket. It tells which one a packet is for, whether it is what it says, and whose
//! turn it is to send.

mod arrival;
mod control;
mod departure;
mod management;
mod slot;
mod table;
mod timers;

pub use arrival::Arrival;
pub use departure::Departure;
pub use slot::{QueuePair, Route};

use std::collections::VecDeque;
use std::time::Instant;

use self::control::Control;
use self::management::Management;
use self::slot::Slot;
use self::table::Table;
use self::timers::Timers;
use crate::congestion::DcqcnParameters;
use crate::counters::Counters;
use crate::host::Host;
use crate::types::Qpn;
use crate::wire::Identifier;
use crate::work::{Datagram, PostError, Send};

/// The queue pairs behind one UDP socket.
///
/// ```
/// use qpair_roce::{DatagramConfig, Datagrams, Port, Qpn, QueuePair};
///
/// let mut port = Port::<usize>::new();
/// // Numbers come from the caller, who has random ones.
/// let make = |qpn| QueuePair::Datagrams(Datagrams::new(DatagramConfig::new(qpn, 0x1111_1111)));
/// let qpn = port.add(std::time::Instant::now(), || 0x1234, None, make).expect("there is room");
/// assert_eq!(qpn, Qpn(0x1234));
/// ```
#[derive(Debug)]
pub struct Port<L> {
    queue_pairs: Table<Slot<L>>,
    /// Those that may have something to send, in turn.
    active: VecDeque<Qpn>,
    timers: Timers,
    management: Management,
    identifier: Identifier,
    /// How connections that are added are controlled.
    congestion: Option<DcqcnParameters>,
    /// A packet that did not go with those before it.
    held: departure::Held,
    counters: Counters,
}

impl<L: Copy> Port<L> {
    /// Without queue pairs.
    pub fn new() -> Self {
        Port {
            queue_pairs: Table::new(),
            active: VecDeque::new(),
            timers: Timers::default(),
            management: Management::default(),
            identifier: Identifier::new(),
            congestion: None,
            held: departure::Held::default(),
            counters: Counters::default(),
        }
    }

    /// Controls connections that are added from now on: they are paced, told of congestion by their peers, and tell of it.
    pub fn control_congestion(&mut self, parameters: DcqcnParameters) {
        self.congestion = Some(parameters);
    }

    /// Adds a queue pair under a number of `random`, which is asked until one is free; `make` gets it. A connection has a
    /// `route`, datagrams have one each. `None` if there are as many queue pairs as there can be.
    pub fn add(
        &mut self,
        now: Instant,
        random: impl FnMut() -> u32,
        route: Option<Route>,
        make: impl FnOnce(Qpn) -> QueuePair<L>,
    ) -> Option<Qpn> {
        let congestion = self.congestion;
        self.queue_pairs.add(random, |qpn| {
            let mut slot = Slot::new(make(qpn), route);
            if let (Some(parameters), Some(peer)) = (congestion, slot.queue_pair.peer()) {
                let flow = (peer, slot.queue_pair.pkey());
                slot.control = Some(Box::new(Control::new(now, flow, parameters, BURST)));
            }
            slot
        })
    }

    /// Removes a queue pair. What is posted to it is not told of; close it before.
    pub fn remove(&mut self, qpn: Qpn) -> Option<QueuePair<L>> {
        self.queue_pairs.remove(qpn).map(|slot| slot.queue_pair)
    }

    /// A queue pair.
    pub fn get(&self, qpn: Qpn) -> Option<&QueuePair<L>> {
        self.queue_pairs.get(qpn).map(|slot| &slot.queue_pair)
    }

    /// What happened to packets.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Posts to a connection.
    ///
    /// # Errors
    /// [`PostError`]; [`PostError::Unsupported`] also where there is no such connection.
    pub fn post<H: Host<Local = L>>(&mut self, qpn: Qpn, work: Send<L>, host: &mut H) -> Result<(), PostError> {
        match self.queue_pairs.get_mut(qpn).map(|slot| &mut slot.queue_pair) {
            Some(QueuePair::Reliable(rc)) => rc.post(work, host),
            Some(QueuePair::Unreliable(uc)) => uc.post(work, host),
            Some(QueuePair::Datagrams(_)) | None => Err(PostError::Unsupported),
        }?;
        self.activate(qpn);
        Ok(())
    }

    /// Posts a datagram.
    ///
    /// # Errors
    /// As [`post`](Port::post).
    pub fn post_datagram<H: Host<Local = L>>(
        &mut self,
        qpn: Qpn,
        work: Datagram<L, Route>,
        host: &mut H,
    ) -> Result<(), PostError> {
        match self.queue_pairs.get_mut(qpn).map(|slot| &mut slot.queue_pair) {
            Some(QueuePair::Datagrams(ud)) => ud.post(work, host),
            Some(QueuePair::Reliable(_) | QueuePair::Unreliable(_)) | None => Err(PostError::Unsupported),
        }?;
        self.activate(qpn);
        Ok(())
    }

    /// Closes a queue pair: what is posted is flushed.
    pub fn close<H: Host<Local = L>>(&mut self, qpn: Qpn, host: &mut H) {
        if let Some(slot) = self.queue_pairs.get_mut(qpn) {
            slot.queue_pair.close(host);
        }
    }

    /// When [`handle_timeout`](Port::handle_timeout) is due, if nothing comes before. It may be earlier than anything is due.
    pub fn timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The time has come that was told, or a later one. What is to be sent then [goes](Port::transmit) in its turn.
    pub fn handle_timeout<H: Host<Local = L>>(&mut self, now: Instant, host: &mut H) {
        while let Some(qpn) = self.timers.due(now) {
            let Some(slot) = self.queue_pairs.get_mut(qpn) else { continue };
            slot.armed = None;
            slot.queue_pair.handle_timeout(now, host, &mut self.counters);
            // It is armed again in its turn: what is due stays due until then.
            self.enqueue(qpn);
        }
    }

    /// Lets a queue pair send in its turn, and wakes it when it is due.
    fn activate(&mut self, qpn: Qpn) {
        self.enqueue(qpn);
        if let Some(slot) = self.queue_pairs.get_mut(qpn) {
            self.timers.arm(qpn, slot);
        }
    }

    fn enqueue(&mut self, qpn: Qpn) {
        if let Some(slot) = self.queue_pairs.get_mut(qpn)
            && !slot.is_active
        {
            slot.is_active = true;
            self.active.push_back(qpn);
        }
    }
}

impl<L: Copy> Default for Port<L> {
    fn default() -> Self {
        Port::new()
    }
}

/// Bytes of a paced connection that go at once: what Linux takes in one call (UDP_SEGMENT).
const BURST: u32 = 1 << 16;
