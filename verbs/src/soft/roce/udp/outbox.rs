//! Packets that were made and are to be sent: several departures, so that one system call takes them all.

use qpair_roce::Departure;

use super::LONGEST_SEND;

/// Departures, oldest first. Nothing is allocated once it is made.
pub(crate) struct Outbox {
    bytes: Box<[u8]>,
    departures: Vec<Departure>,
    /// Departures that are sent, and their bytes.
    sent: usize,
    sent_bytes: usize,
    filled: usize,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Outbox {
            bytes: vec![0; LONGEST_SEND].into(),
            departures: Vec::with_capacity(MOST),
            sent: 0,
            sent_bytes: 0,
            filled: 0,
        }
    }

    /// True if all is sent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.departures.len()
    }

    /// Where the next departure is to be made, if there is room for some packets of the longest. [`push`](Outbox::push) adds it.
    #[inline]
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        if self.is_empty() {
            self.departures.clear();
            (self.sent, self.sent_bytes, self.filled) = (0, 0, 0);
        }
        let room = &mut self.bytes[self.filled..];
        (room.len() >= LEAST_ROOM && self.departures.len() < MOST).then_some(room)
    }

    /// Adds what was made in the room.
    #[inline]
    pub(crate) fn push(&mut self, departure: Departure) {
        self.filled += departure.len;
        self.departures.push(departure);
    }

    /// Those that are not sent, and their bytes.
    #[inline]
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&Departure, &[u8])> + Clone {
        let mut at = self.sent_bytes;
        self.departures[self.sent..].iter().map(move |departure| {
            let bytes = &self.bytes[at..at + departure.len];
            at += departure.len;
            (departure, bytes)
        })
    }

    /// The oldest are sent, so many.
    #[inline]
    pub(super) fn sent(&mut self, count: usize) {
        let gone = &self.departures[self.sent..self.sent + count];
        self.sent_bytes += gone.iter().map(|departure| departure.len).sum::<usize>();
        self.sent += count;
    }
}

/// Departures at a time. The first waits until the last is made.
pub(super) const MOST: usize = 16;
/// Room that a departure is not begun without. Each takes the system 4.7 us, as long as six packets of 4 KiB take to be put
/// together; behind a full one, of fourteen such packets and an acknowledgment, one has room, which goes in the next with others.
const LEAST_ROOM: usize = 4 * qpair_roce::LONGEST_PACKET;
const _: () = assert!(LONGEST_SEND > 2 * LEAST_ROOM && MOST <= super::io::MOST_SENT);
