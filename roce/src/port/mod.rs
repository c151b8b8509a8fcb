//! A port: the queue pairs behind one UDP socket. It tells which one a packet is for, whether it is what it says, and whose
//! turn it is to send.

mod arrival;
mod control;
mod departure;
mod management;
mod slot;
mod table;
#[cfg(test)]
mod tests;
mod turns;

pub use arrival::Arrival;
pub use departure::Departure;
pub use slot::{QueuePair, Route};
pub use table::{AddError, NumberTable};

use std::time::Instant;

use self::control::Control;
use self::management::Management;
use self::slot::Slot;
use self::turns::Turns;
use crate::congestion::DcqcnParameters;
use crate::counters::Counters;
use crate::host::Host;
use crate::types::Qpn;
use crate::wire::Identifier;
use crate::work::{Datagram, PostError, Send};

/// The queue pairs behind one UDP socket.
///
/// ```
/// use std::time::Instant;
///
/// use qpair_roce::{AddError, DatagramConfig, Datagrams, Port, Qpn, QueuePair};
///
/// let mut port = Port::<usize>::new();
/// // Numbers come from the caller, who has random ones.
/// let make = || QueuePair::Datagrams(Datagrams::new(DatagramConfig::new(Qpn(0x1234), 0x1111_1111)));
/// assert_eq!(port.add(Instant::now(), make()), Ok(()));
/// assert_eq!(port.add(Instant::now(), make()), Err(AddError::Taken));
/// ```
#[derive(Debug)]
pub struct Port<L> {
    queue_pairs: NumberTable<Slot<L>>,
    turns: Turns,
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
            queue_pairs: NumberTable::new(),
            turns: Turns::default(),
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

    /// Adds a queue pair under the number that its config has.
    ///
    /// # Errors
    /// [`AddError`]: the number can not be had. The queue pair is dropped.
    pub fn add(&mut self, now: Instant, queue_pair: QueuePair<L>) -> Result<(), AddError> {
        let control = self
            .congestion
            .zip(queue_pair.peer())
            .map(|(parameters, (peer, _))| Box::new(Control::new(now, (peer, queue_pair.pkey()), parameters, BURST)));
        self.queue_pairs.add(queue_pair.qpn(), Slot::new(queue_pair, control))
    }

    /// Removes a queue pair. What is posted to it is not told of; close it before.
    pub fn remove(&mut self, qpn: Qpn) -> Option<QueuePair<L>> {
        let slot = self.queue_pairs.remove(qpn)?;
        self.turns.forget(qpn, &slot);
        Some(slot.queue_pair)
    }

    /// A queue pair.
    pub fn get(&self, qpn: Qpn) -> Option<&QueuePair<L>> {
        self.queue_pairs.get(qpn).map(|slot| &slot.queue_pair)
    }

    /// How many queue pairs there are.
    pub fn len(&self) -> usize {
        self.queue_pairs.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.queue_pairs.is_empty()
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
        let slot = self.queue_pairs.get_mut(qpn).ok_or(PostError::Unsupported)?;
        match &mut slot.queue_pair {
            QueuePair::Reliable(rc, _) => rc.post(work, host),
            QueuePair::Unreliable(uc, _) => uc.post(work, host),
            QueuePair::Datagrams(_) => Err(PostError::Unsupported),
        }?;
        self.turns.enqueue(qpn, slot);
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
        let slot = self.queue_pairs.get_mut(qpn).ok_or(PostError::Unsupported)?;
        let QueuePair::Datagrams(ud) = &mut slot.queue_pair else { return Err(PostError::Unsupported) };
        ud.post(work, host)?;
        self.turns.enqueue(qpn, slot);
        Ok(())
    }

    /// Closes a queue pair: what is posted is flushed. What it owes its peer goes before what other queue pairs have.
    pub fn close<H: Host<Local = L>>(&mut self, qpn: Qpn, host: &mut H) {
        if let Some(slot) = self.queue_pairs.get_mut(qpn) {
            slot.queue_pair.close(host);
            self.turns.prefer(qpn, slot);
        }
    }

    /// Fails a connection since what its peer has sent is lost after it was taken. The peer is told of none of it; a queue pair
    /// of datagrams goes on.
    pub fn lose<H: Host<Local = L>>(&mut self, qpn: Qpn, host: &mut H) {
        match self.queue_pairs.get_mut(qpn).map(|slot| &mut slot.queue_pair) {
            Some(QueuePair::Reliable(rc, _)) => rc.lose(host),
            Some(QueuePair::Unreliable(uc, _)) => uc.lose(host),
            Some(QueuePair::Datagrams(_)) | None => {}
        }
    }

    /// True if [`transmit`](Port::transmit) has nothing to send, and looks at no queue pair to tell so.
    pub fn is_quiet(&self) -> bool {
        self.turns.is_quiet() && self.management.is_quiet() && self.held.is_none()
    }

    /// When [`handle_timeout`](Port::handle_timeout) is due, if nothing comes before; asked once [`transmit`](Port::transmit) has
    /// nothing to send. It may be earlier than anything is due.
    pub fn timeout(&self) -> Option<Instant> {
        self.turns.due()
    }

    /// The time has come that was told, or a later one. What is to be sent then [goes](Port::transmit) in its turn.
    pub fn handle_timeout<H: Host<Local = L>>(&mut self, now: Instant, host: &mut H) {
        self.time_out(now, None, host);
    }

    /// The same where more may have come than was taken in: an answer whose time is over may be among that, and is not late before
    /// `until`.
    pub fn handle_timeout_but_of_answers<H: Host<Local = L>>(&mut self, now: Instant, until: Instant, host: &mut H) {
        self.time_out(now, Some(until), host);
    }

    fn time_out<H: Host<Local = L>>(&mut self, now: Instant, answers_until: Option<Instant>, host: &mut H) {
        while let Some(qpn) = self.turns.take_due(now) {
            if let Some(slot) = self.queue_pairs.get_mut(qpn) {
                slot.armed = None;
                if let (Some(until), QueuePair::Reliable(rc, _)) = (answers_until, &mut slot.queue_pair) {
                    rc.await_answers_until(until);
                }
                slot.queue_pair.handle_timeout(now, host, &mut self.counters);
                // It is armed again in its turn: what is due stays due until then.
                self.turns.enqueue(qpn, slot);
            }
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
