//! What went out and may have to go out again over another queue pair: messages until the peer says that it has them,
//! writes of copies until its device has acknowledged them.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::credits::MAX_WINDOW;
use super::rail_keys::RemoteMemory;
use super::slots::is_past;
use super::violation::Violation;

/// Of one connection, in the order in which it went out.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    messages: Queue<Sent>,
    writes: Queue<Written>,
    /// The request of the last message that the peer is known to have.
    had: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Its request's running number.
    number: u32,
    sequence: u32,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    /// Its request's running number.
    number: u32,
    remote: RemoteMemory,
}

/// Something that the peer may not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unconfirmed {
    /// Its request's running number: all is to go out in the order of these.
    pub(crate) number: u32,
    pub(crate) what: Again,
}

/// What is to go out again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// A message, with the header that it had.
    Message(Box<[u8]>),
    /// A write of these bytes.
    Write(RemoteMemory, Box<[u8]>),
}

impl Retained {
    /// A message goes out, as these bytes. Apart, so that the code of connections that do not recover stays short.
    #[inline(never)]
    pub(crate) fn message(&mut self, number: u32, sequence: u32, bytes: &[u8]) {
        self.messages.push(Sent { number, sequence }, bytes);
    }

    /// A write of a copy goes out.
    #[inline(never)]
    pub(crate) fn write(&mut self, number: u32, remote: RemoteMemory, bytes: &[u8]) {
        self.writes.push(Written { number, remote }, bytes);
    }

    /// The peer has so many messages, modulo 2^16. A count that can not be changes nothing.
    ///
    /// # Errors
    /// It has said so of too few for too long: what is kept for it would grow without end.
    #[inline(never)]
    pub(crate) fn confirm(&mut self, count: u16) -> Result<(), Violation> {
        let Some(&Sent { sequence, .. }) = self.messages.front() else { return Ok(()) };
        let ahead = usize::from(count.wrapping_sub(sequence as u16));
        if ahead <= self.messages.len() {
            self.drop_messages(ahead);
        }
        if self.messages.len() > UNCONFIRMED { Err(Violation::Unconfirmed { limit: UNCONFIRMED }) } else { Ok(()) }
    }

    /// The peer's device has the first `count` requests.
    #[inline(never)]
    pub(crate) fn retire(&mut self, count: u32) {
        while self.writes.front().is_some_and(|write| is_past(count, write.number)) {
            self.writes.pop();
        }
        // It says nothing more, and running numbers come round.
        self.had.take_if(|had| is_past(count, *had));
    }

    /// The queue pair is gone, and the peer has so many messages, of `sent` that were: takes out what it may not have, in
    /// order, and tells the number of the last request that it has surely seen to, if that says something: not more than
    /// `depth` were under way, of the `posted` so far.
    ///
    /// # Errors
    /// It can not have so many, or had more before.
    pub(crate) fn take(
        &mut self,
        received: u32,
        sent: u32,
        (posted, depth): (u32, u32),
    ) -> Result<(Vec<Unconfirmed>, Option<u32>), Violation> {
        let first = sent.wrapping_sub(self.messages.len() as u32);
        let ahead = received.wrapping_sub(first) as usize;
        if ahead > self.messages.len() {
            return Err(Violation::Received { said: received, sent });
        }
        self.drop_messages(ahead);
        // Requests are carried out in order: with a message, the peer has all that went before it.
        let had = self.had.take().filter(|had| posted.wrapping_sub(*had) <= depth);
        if let Some(had) = had {
            self.retire(had);
        }
        let messages = self.messages.drain();
        let writes = self.writes.drain();
        let messages = messages.map(|(sent, bytes)| Unconfirmed { number: sent.number, what: Again::Message(bytes) });
        let writes = writes.map(|(write, bytes)| {
            let what = Again::Write(write.remote, bytes);
            Unconfirmed { number: write.number, what }
        });
        let mut all: Vec<_> = messages.chain(writes).collect();
        all.sort_by_key(|one| Reverse(posted.wrapping_sub(one.number)));
        Ok((all, had))
    }

    fn drop_messages(&mut self, count: usize) {
        for sent in (0..count).map_while(|_| self.messages.pop()) {
            self.had = Some(sent.number);
        }
    }
}

/// Messages that a peer may leave unconfirmed when it says something. Of one that obeys they are no more than its window, as it
/// tells with each slot which messages it has, and a few that take none. Counts modulo 2^16 tell so many apart.
pub(super) const UNCONFIRMED: usize = 2 * MAX_WINDOW as usize;

/// Entries with bytes each, in buffers that are used again and again.
#[derive(Debug)]
struct Queue<T> {
    entries: VecDeque<(T, usize)>,
    bytes: VecDeque<u8>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { entries: VecDeque::new(), bytes: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn front(&self) -> Option<&T> {
        self.entries.front().map(|(entry, _)| entry)
    }

    fn push(&mut self, entry: T, bytes: &[u8]) {
        self.entries.push_back((entry, bytes.len()));
        self.bytes.extend(bytes);
    }

    fn pop(&mut self) -> Option<T> {
        let (entry, len) = self.entries.pop_front()?;
        self.bytes.drain(..len);
        Some(entry)
    }

    /// All of them.
    fn drain(&mut self) -> impl Iterator<Item = (T, Box<[u8]>)> + '_ {
        let Queue { entries, bytes } = self;
        entries.drain(..).map(|(entry, len)| (entry, bytes.drain(..len).collect()))
    }
}

#[cfg(test)]
mod tests {
    use qpair_verbs::{RemoteSlice, Rkey};

    use super::*;

    fn remote() -> RemoteMemory {
        RemoteSlice { addr: 8, len: 1, rkey: Rkey(9) }.into()
    }

    fn bytes(what: &Again) -> &[u8] {
        match what {
            Again::Message(bytes) | Again::Write(_, bytes) => bytes,
        }
    }

    #[test]
    fn what_is_not_known_to_have_come_goes_out_again_in_order() {
        let mut retained = Retained::default();
        let start = u32::MAX - 2;
        let number = |ahead: u32| start.wrapping_add(ahead);
        retained.message(number(0), 65535, b"a");
        retained.write(number(1), remote(), b"b");
        retained.message(number(2), 65536, b"cc");
        retained.write(number(3), remote(), b"d");
        retained.message(number(4), 65537, b"");
        retained.write(number(5), remote(), b"e");
        retained.retire(number(0));
        retained.confirm(0).unwrap();
        assert_eq!((retained.messages.len(), retained.writes.len()), (2, 3));
        retained.confirm(9).unwrap();
        assert_eq!(retained.messages.len(), 2, "nine messages more were not sent");
        let (again, had) = retained.take(65537, 65538, (number(5), 16)).unwrap();
        assert_eq!(had, Some(number(2)), "with the second message it has the first write");
        let order: Vec<_> = again.iter().map(|one| (one.number, bytes(&one.what))).collect();
        assert_eq!(order, [(number(3), &b"d"[..]), (number(4), b""), (number(5), b"e")]);
        assert_eq!(retained.take(65538, 65538, (number(5), 16)), Ok((Vec::new(), None)));
    }

    #[test]
    fn a_write_that_was_acknowledged_does_not_go_out_again() {
        let mut retained = Retained::default();
        (1..=4).for_each(|number| retained.write(number, remote(), &[number as u8]));
        retained.retire(3);
        let (again, had) = retained.take(0, 0, (4, 16)).unwrap();
        assert_eq!(again, [Unconfirmed { number: 4, what: Again::Write(remote(), [4].into()) }]);
        assert_eq!(had, None);
    }

    #[test]
    fn a_message_of_long_ago_says_nothing_of_what_went_out_since() {
        let mut retained = Retained::default();
        retained.message(5, 0, b"a");
        retained.confirm(1).unwrap();
        let late = 5 + (1 << 31) + 100;
        for count in [1000, 1 << 30, 2 << 30, late - 1] {
            retained.retire(count);
        }
        retained.write(late, remote(), b"b");
        let (again, had) = retained.take(1, 1, (late, 16)).unwrap();
        assert_eq!((again.len(), had), (1, None), "the write is not known to have come");
    }

    #[test]
    fn a_message_that_is_confirmed_long_after_it_came_says_nothing_of_what_went_out_since() {
        let mut retained = Retained::default();
        retained.message(5, 0, b"a");
        let late = 5 + (1 << 31) + 100;
        for count in [1000, 1 << 30, 2 << 30, late - 1] {
            retained.retire(count);
        }
        retained.write(late, remote(), b"b");
        let (again, had) = retained.take(1, 1, (late, 16)).unwrap();
        assert_eq!((again.len(), had), (1, None), "the write is not known to have come");
        retained.message(late + 1, 1, b"c");
        retained.confirm(2).unwrap();
        assert_eq!(retained.take(2, 2, (late + 1, 16)), Ok((Vec::new(), Some(late + 1))));
    }

    #[test]
    fn a_peer_that_confirms_nothing_is_not_kept_for_without_end() {
        let mut retained = Retained::default();
        for sequence in 0..=UNCONFIRMED as u32 {
            assert_eq!(retained.confirm(0), Ok(()));
            retained.message(sequence, sequence, b"a");
        }
        assert_eq!(retained.confirm(0), Err(Violation::Unconfirmed { limit: UNCONFIRMED }));
        assert_eq!(retained.confirm(1), Ok(()));
    }

    #[test]
    fn a_count_that_can_not_be_is_a_violation() {
        let mut retained = Retained::default();
        retained.message(1, 7, b"a");
        for said in [6, 9, u32::MAX] {
            assert_eq!(retained.take(said, 8, (1, 16)), Err(Violation::Received { said, sent: 8 }));
        }
        assert_eq!(retained.take(8, 8, (1, 16)), Ok((Vec::new(), Some(1))));
    }
}
