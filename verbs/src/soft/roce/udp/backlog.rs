//! What a full socket holds up: it is kept for a while, in its order, and what goes by other sockets goes on.

use std::time::{Duration, Instant};

use qpair_roce::Departure;

use super::LONGEST_SEND;
use super::outbox;

/// What waits for room at a socket. Nothing is allocated once it is made.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Oldest first, and since when each waits.
    waiting: Vec<(Departure, Instant)>,
    bytes: Vec<u8>,
    /// When the socket is tried next; none: it has room, as far as is known, and nothing waits.
    again: Option<Instant>,
}

/// What became of a departure that a full socket held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldUp {
    /// The socket was tried again, and it waits still.
    Still,
    /// It is lost: it waited for too long, or behind too much.
    TooLong,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Backlog { waiting: Vec::with_capacity(MOST), bytes: Vec::with_capacity(MOST_BYTES), again: None }
    }

    /// True while the socket has no room: whatever goes by it waits here.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.again.is_some()
    }

    /// True if the socket has no room, and was left alone long enough.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.again.is_some_and(|again| again <= now)
    }

    /// The socket has no room, as was just seen.
    pub(super) fn close(&mut self, now: Instant) {
        self.again = Some(now + AGAIN);
    }

    /// The socket has room, and nothing waits any more.
    pub(super) fn open(&mut self) {
        debug_assert!(self.waiting.is_empty(), "what waits goes before what comes");
        self.again = None;
    }

    /// Keeps a departure; false if too much is kept already.
    pub(super) fn hold(&mut self, now: Instant, departure: &Departure, bytes: &[u8]) -> bool {
        let has_room = self.waiting.len() < MOST && self.bytes.len() + bytes.len() <= MOST_BYTES;
        if has_room {
            self.waiting.push((*departure, now));
            self.bytes.extend_from_slice(bytes);
        }
        has_room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What waits, and its bytes.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&Departure, &[u8])> + Clone {
        let mut at = 0;
        self.waiting.iter().map(move |(departure, _)| {
            let bytes = &self.bytes[at..at + departure.len];
            at += departure.len;
            (departure, bytes)
        })
    }

    /// The oldest are gone, so many.
    pub(super) fn gone(&mut self, count: usize) {
        let bytes = self.waiting.drain(..count).map(|(departure, _)| departure.len);
        self.bytes.drain(..bytes.sum::<usize>());
    }

    /// How many have waited too long.
    pub(super) fn too_old(&self, now: Instant) -> usize {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
        self.waiting.iter().take_while(|(_, since)| is_old(*since)).count()
    }
}

/// Departures that are kept, and their bytes: what was made before the socket was seen to be full, and room for what is made
/// though it is, of connection management and of queue pairs that leave.
const MOST: usize = 2 * outbox::MOST;
const MOST_BYTES: usize = LONGEST_SEND + 2 * qpair_roce::LONGEST_PACKET;
/// How long a full socket is left alone. A look at it is a system call, which those that go on pay for; its 4 MiB last a link of
/// 400 Gbit/s for 84 us.
const AGAIN: Duration = Duration::from_micros(20);
/// How long something waits. Peers ask again for what they miss by their retry timers, which are seldom shorter than 67 ms
/// (4.096 us x 2^14, what most programs set): within a quarter of that what waits is of use, and comes in time if it goes at
/// last; after a timer it would come twice. And it is more than a link that works takes: what eight sockets keep, 64 KiB each,
/// lasts one of 1 Gbit/s for 5 ms, and a pause frame stops one of 10 Gbit/s for 3.4 ms.
pub(super) const PATIENCE: Duration = Duration::from_millis(16);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use qpair_roce::wire::Addresses;
    use qpair_roce::{LONGEST_PACKET, Route};

    use super::*;

    fn departure(len: usize) -> Departure {
        let addresses = Addresses::V4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
        let route = Route { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64 };
        Departure { from: None, route, segment: len, len }
    }

    #[test]
    fn what_goes_leaves_its_room_to_others() {
        let (mut backlog, now) = (Backlog::new(), Instant::now());
        let size = (backlog.waiting.capacity(), backlog.bytes.capacity());
        for round in 0..100u8 {
            while backlog.hold(now, &departure(5000), &[round; 5000]) {}
            assert_eq!(backlog.waiting().count(), MOST_BYTES / 5000);
            backlog.gone(3);
        }
        let rounds: Vec<_> = backlog.waiting().map(|(_, bytes)| bytes[0]).collect();
        assert!(rounds.is_sorted() && rounds.ends_with(&[98, 99, 99, 99][1..]), "{rounds:?}");
        assert_eq!((backlog.waiting.capacity(), backlog.bytes.capacity()), size, "nothing is allocated");
    }

    /// As detaching a queue pair needs it: the peer is told of what is done.
    #[test]
    fn behind_a_whole_outbox_there_is_room_for_what_is_made_all_the_same() {
        let (mut backlog, now) = (Backlog::new(), Instant::now());
        for number in 0..outbox::MOST {
            let len = if number == 0 { LONGEST_SEND } else { 0 };
            assert!(backlog.hold(now, &departure(len), &vec![0; len]));
        }
        assert!(backlog.hold(now, &departure(LONGEST_PACKET), &[0; LONGEST_PACKET]));
    }
}
