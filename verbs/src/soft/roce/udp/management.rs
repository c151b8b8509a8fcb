//! Packets for queue pair 1, connection management: one process of a host receives them all, and hands them to those that
//! they are for. Messages name their receiver's connection, whose number ends with a slot; requests name a service.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use qpair_roce::Arrival;
use qpair_roce::wire::cm::{LEN, Reason, SERVICE_TCP};
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
    for_all: Allowance,
}

/// How many packets may go to all: anybody can send such, and each costs a call of the system for each slot.
#[derive(Debug, Default)]
struct Allowance {
    since: Option<Instant>,
    used: u32,
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
            Some(0) if attribute == REJECT => {
                if gave_up(packet) {
                    Whom::All
                } else {
                    Whom::Nobody
                }
            }
            Some(id) => Whom::Slot(id % SLOTS),
            None => Whom::Nobody,
        }
    }
}

/// Whether a refusal is by one who gave up before it was told whom it refuses, and says what names the request.
fn gave_up(packet: &[u8]) -> bool {
    let fields = packet.get(MESSAGE + 32..).and_then(|bytes| bytes.first_chunk());
    fields.is_some_and(|&[_, info_len, high, low]| {
        Reason(u16::from_be_bytes([high, low])) == Reason::TIMEOUT && info_len >> 1 >= GUID_LEN
    })
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
        for (index, packet) in datagram.packets().enumerate() {
            let whom = Whom::of(packet);
            if whom == Whom::All {
                // Each is looked at by itself, and few go on. Where there is no room they are lost: nobody repeats them.
                let goes_on = self.is_whole(datagram, packet) && self.for_all.take(Instant::now());
                for slot in (0..SLOTS).filter(|&slot| goes_on && slot != own) {
                    let this = |other: &[u8]| std::ptr::eq(other, packet);
                    let count = datagram.hand_on(room, this);
                    match from.send(What::Serving(slot), room) {
                        Ok(()) => counters.forwarded += count,
                        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                        Err(_) => counters.dropped_forwards += count,
                    }
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
        let (mut full, now) = (Vec::new(), Instant::now());
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { return };
            // Who has no room for one has none for those behind it.
            let sent = if full.contains(&waiting.name) {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                from.send(waiting.name, &waiting.message)
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && now < waiting.until => {
                    full.push(waiting.name);
                    self.waiting.push_back(waiting);
                    continue;
                }
                Ok(()) => counters.forwarded += 1,
                Err(_) => counters.dropped_forwards += 1,
            }
            self.waiting_bytes -= waiting.message.len();
        }
    }
}

impl Allowance {
    /// Takes one, if one is left.
    fn take(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            *self = Allowance { since: Some(now), used: 0 };
        }
        let is_left = self.used < MOST_FOR_ALL;
        self.used += u32::from(is_left);
        is_left
    }
}

/// Bytes of a packet before its message: the base header, and that of datagrams.
const MESSAGE: usize = 12 + 8;
const REQUEST: u16 = 0x10;
const REJECT: u16 = 0x12;
/// Bytes of messages that wait for room: Linux gives each receiver room for ten messages, and a busy host is to bear hundreds
/// at once, of 280 bytes or so.
const MOST_WAITING: usize = 1 << 19;
/// Packets that go to all in a period, at most: 63 calls each, and so 2 or 3 % of a core's time.
const MOST_FOR_ALL: u32 = 16;
const PERIOD: Duration = Duration::from_millis(100);
/// Bytes of the GUID by which such a refusal names the request.
const GUID_LEN: u8 = 8;
/// How long they wait. Their senders repeat them after that.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use qpair_roce::wire::cm::{Message, Pair, Refused, Reject};

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
            info_len: 8,
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
        // What names no request is nobody's.
        let Message::Reject(named) = reject(0) else { unreachable!() };
        for reject in [Reject { info_len: 7, ..named }, Reject { reason: Reason::CONSUMER, ..named }] {
            assert_eq!(Whom::of(&packet(Message::Reject(reject))), Whom::Nobody);
        }
        let mut cut_off = packet(reject(ids.remote));
        cut_off.pop();
        assert_eq!(Whom::of(&cut_off), Whom::Nobody);
    }

    #[test]
    fn few_packets_go_to_all_in_a_period() {
        let (mut allowance, start) = (Allowance::default(), Instant::now());
        let taken = |allowance: &mut Allowance, at| (0..1000).filter(|_| allowance.take(start + at)).count();
        assert_eq!(taken(&mut allowance, Duration::ZERO), MOST_FOR_ALL as usize);
        assert_eq!(taken(&mut allowance, PERIOD / 2), 0);
        assert_eq!(taken(&mut allowance, PERIOD), MOST_FOR_ALL as usize);
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
