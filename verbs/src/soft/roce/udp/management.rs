//! Packets for queue pair 1, connection management: one process of a host receives them all, and hands them to those that
//! they are for. Messages name their receiver's connection, whose number ends with a slot; requests name a service.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use qpair_roce::Arrival;
use qpair_roce::wire::cm::{LEN, SERVICE_TCP};
use qpair_roce::wire::{Addresses, ICRC_LEN, Identifier, Packet, Part};

use super::SLOTS;
use super::counters::NetworkCounters;
use super::datagram::Datagram;
use super::place::What;
use super::serving::Serving;

/// Whom a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// The device of a slot.
    Slot(u32),
    /// The device that listens at a port.
    Listener(u16),
    /// Whoever has a request of the sender: it does not say.
    All,
    /// Nobody; whoever has it answers.
    Nobody,
}

/// The ports at which a device listens, and what it could not hand on yet.
#[derive(Debug, Default)]
pub(super) struct Desk {
    listening: Vec<(u16, Serving)>,
    waiting: VecDeque<Waiting>,
    /// Bytes that wait.
    waiting_bytes: usize,
    identifier: Identifier,
}

/// Packets for one who had no room, until they are lost.
#[derive(Debug)]
struct Waiting {
    name: What,
    message: Vec<u8>,
    until: Instant,
}

/// What became of packets for another.
enum Handed {
    /// It has them, or will; or they are lost.
    Over,
    /// There is no such one.
    NobodyThere,
}

impl Whom {
    /// Of a packet. It need not be undamaged: who takes it finds out.
    pub(super) fn of(packet: &[u8]) -> Self {
        if packet.len() != MESSAGE + LEN + ICRC_LEN {
            return Whom::Nobody;
        }
        let bytes = |at: usize| packet.get(MESSAGE + at..);
        let word = |at| Some(u32::from_be_bytes(*bytes(at)?.first_chunk()?));
        let Some(attribute) = word(16).map(|word| (word >> 16) as u16) else { return Whom::Nobody };
        if attribute == REQUEST {
            let service = bytes(32).and_then(|bytes| Some(u64::from_be_bytes(*bytes.first_chunk()?)));
            let port = service.and_then(|service| u16::try_from(service.checked_sub(SERVICE_TCP)?).ok());
            return port.map_or(Whom::Nobody, Whom::Listener);
        }
        match word(28) {
            // A refusal by one who gave up before it was told.
            Some(0) if attribute == REJECT => Whom::All,
            Some(id) => Whom::Slot(id % SLOTS),
            None => Whom::Nobody,
        }
    }
}

impl Desk {
    /// Listens at a port, by its name.
    pub(super) fn listen(&mut self, port: u16, serving: Serving) {
        self.listening.push((port, serving));
    }

    /// Listens at a port no more.
    pub(super) fn unlisten(&mut self, port: u16) {
        self.listening.retain(|(other, _)| *other != port);
    }

    /// Where requests for its ports come.
    pub(super) fn listening(&self) -> impl Iterator<Item = &Serving> {
        self.listening.iter().map(|(_, serving)| serving)
    }

    /// True if packets wait to be handed on.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives each packet of a datagram to whom it is for: to `here` where that is the device of slot `own`, or where nobody
    /// else is there, so that the sender gets an answer. To others it is sent by `from`.
    pub(super) fn sort<'a>(
        &mut self,
        datagram: &Datagram<'a>,
        own: u32,
        from: &Serving,
        room: &mut Vec<u8>,
        counters: &mut NetworkCounters,
        mut here: impl FnMut(Arrival<'a>),
    ) {
        let mut for_all = 0;
        for (index, packet) in datagram.packets().enumerate() {
            let whom = Whom::of(packet);
            if whom == Whom::All {
                // Anybody can send such. Each is looked at by itself, and few go on.
                let goes_on = for_all < MOST_FOR_ALL && self.is_whole(datagram, packet);
                for_all += u32::from(goes_on);
                for slot in (0..SLOTS).filter(|&slot| goes_on && slot != own) {
                    let this = |other: &[u8]| std::ptr::eq(other, packet);
                    self.hand_on(What::Serving(slot), datagram, this, from, room, counters);
                }
                here(datagram.arrival(packet));
                continue;
            }
            let same = |packet: &[u8]| Whom::of(packet) == whom;
            if datagram.packets().take(index).any(same) {
                continue; // It went with those.
            }
            let mut hand_on = |name| self.hand_on(name, datagram, same, from, room, counters);
            let is_here = match whom {
                Whom::Nobody | Whom::All => true,
                Whom::Slot(slot) => slot == own || matches!(hand_on(What::Serving(slot)), Handed::NobodyThere),
                Whom::Listener(port) => matches!(hand_on(What::Listening(port)), Handed::NobodyThere),
            };
            if is_here {
                datagram.packets().filter(|packet| same(packet)).for_each(|packet| here(datagram.arrival(packet)));
            }
        }
    }

    /// True if the CRC of a packet is right.
    fn is_whole(&mut self, datagram: &Datagram<'_>, packet: &[u8]) -> bool {
        let flow = datagram.flow();
        Packet::parse(packet).is_ok_and(|packet| match flow.addresses {
            Addresses::V4(..) => self.identifier.find(&flow, &packet).is_some(),
            Addresses::V6(..) => flow.verifies(Part::WHOLE, &packet),
        })
    }

    fn hand_on(
        &mut self,
        name: What,
        datagram: &Datagram<'_>,
        which: impl Fn(&[u8]) -> bool,
        from: &Serving,
        room: &mut Vec<u8>,
        counters: &mut NetworkCounters,
    ) -> Handed {
        let is_own = |port| self.listening.iter().any(|(own, _)| *own == port);
        if let What::Listening(port) = name
            && is_own(port)
        {
            return Handed::NobodyThere; // Nobody else.
        }
        let count = datagram.hand_on(room, which);
        match from.send(name, room) {
            Ok(()) => counters.forwarded += count,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Handed::NobodyThere,
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && self.waiting_bytes + room.len() <= MOST_WAITING =>
            {
                self.waiting_bytes += room.len();
                self.waiting.push_back(Waiting { name, message: room.clone(), until: Instant::now() + PATIENCE });
            }
            Err(_) => counters.dropped_forwards += count,
        }
        Handed::Over
    }

    /// Tries once more what there was no room for.
    pub(super) fn hand_on_waiting(&mut self, from: &Serving, counters: &mut NetworkCounters) {
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= waiting.message.len();
            match from.send(waiting.name, &waiting.message) {
                Ok(()) => counters.forwarded += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < waiting.until => {
                    self.waiting_bytes += waiting.message.len();
                    self.waiting.push_back(waiting);
                }
                Err(_) => counters.dropped_forwards += 1,
            }
        }
    }
}

/// Bytes of a packet before its message: the base header, and that of datagrams.
const MESSAGE: usize = 12 + 8;
const REQUEST: u16 = 0x10;
const REJECT: u16 = 0x12;
/// Bytes of messages that wait for room: Linux gives each receiver room for ten messages, and a busy host is to bear hundreds
/// at once, of 280 bytes or so.
const MOST_WAITING: usize = 1 << 19;
/// Packets of a datagram that go to all, at most.
const MOST_FOR_ALL: u32 = 4;
/// How long they wait. Their senders repeat them after that.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use qpair_roce::wire::cm::{Message, Pair, Reason, Refused, Reject};

    use super::*;

    /// The headers of a packet, and a message.
    fn packet(message: Message) -> Vec<u8> {
        let message = qpair_roce::wire::cm::Packet { transaction: 7, message };
        [&[0; MESSAGE][..], &message.emit(), &[0; ICRC_LEN]].concat()
    }

    fn reject(remote: u32) -> Message {
        Message::Reject(Reject {
            ids: Pair { local: 9, remote },
            refused: Refused::Other,
            reason: Reason::TIMEOUT,
            info_len: 0,
            info: [0; 72],
            private: [0; 148],
        })
    }

    #[test]
    fn messages_are_for_the_slot_of_their_receivers_number() {
        let ids = Pair { local: 1, remote: 0x1000 + 7 };
        for message in [
            Message::ReadyToUse { ids, private: [0; 224] },
            Message::Disconnected { ids, private: [0; 224] },
            Message::Wait { ids, message: Refused::Request, timeout: 3, private: [0; 222] },
            reject(ids.remote),
        ] {
            assert_eq!(Whom::of(&packet(message)), Whom::Slot(7));
        }
        assert_eq!(Whom::of(&packet(reject(0))), Whom::All);
        let mut cut_off = packet(reject(ids.remote));
        cut_off.pop();
        assert_eq!(Whom::of(&cut_off), Whom::Nobody);
    }

    #[test]
    fn requests_are_for_the_listener_of_their_service() {
        let mut bytes = packet(reject(5));
        bytes[MESSAGE + 16..MESSAGE + 18].copy_from_slice(&REQUEST.to_be_bytes());
        for (service, whom) in [
            (SERVICE_TCP + 18515, Whom::Listener(18515)),
            (SERVICE_TCP + 0x1_0000, Whom::Nobody),
            (SERVICE_TCP - 1, Whom::Nobody),
        ] {
            bytes[MESSAGE + 32..MESSAGE + 40].copy_from_slice(&service.to_be_bytes());
            assert_eq!(Whom::of(&bytes), whom, "{service:#x}");
        }
    }
}
