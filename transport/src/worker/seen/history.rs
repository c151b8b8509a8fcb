//! A flight recorder: the last things that happened on a connection, for when it breaks.

use std::fmt;
use std::time::Duration;

/// The last things that happened on a connection, but for plain messages, of which only the number is kept: recording
/// costs them nothing. Printed it has a line for each, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
    /// Where the next one goes, once all places are taken.
    next: usize,
    /// All that there ever were.
    total: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    at: Duration,
    note: Note,
    sent: u32,
    received: u32,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    what: &'static str,
    /// A message id, a tag or a count, if it has one.
    number: Option<u64>,
    /// A length in bytes, if it has one.
    len: Option<u64>,
}

impl Note {
    pub(crate) const fn new(what: &'static str) -> Self {
        Note { what, number: None, len: None }
    }

    /// With a message id, a tag or a count.
    pub(crate) const fn of(what: &'static str, number: u64) -> Self {
        Note { what, number: Some(number), len: None }
    }

    /// With a message id or a tag, and a length.
    pub(crate) const fn with_len(what: &'static str, number: u64, len: u64) -> Self {
        Note { what, number: Some(number), len: Some(len) }
    }
}

impl History {
    /// Takes note of something, at a time since the worker was made, when so many messages had been sent and received.
    pub(crate) fn note(&mut self, at: Duration, note: Note, (sent, received): (u32, u32)) {
        let record = Record { at, note, sent, received };
        self.total += 1;
        if self.records.len() < PLACES {
            return self.records.push(record);
        }
        self.records[self.next] = record;
        self.next = (self.next + 1) % PLACES;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True if nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let earlier = self.total - self.records.len() as u64;
        if earlier > 0 {
            writeln!(f, "{earlier} earlier")?;
        }
        let (newer, older) = self.records.split_at(self.next);
        for (place, Record { at, note, sent, received }) in older.iter().chain(newer).enumerate() {
            let Note { what, number, len } = note;
            if place > 0 {
                writeln!(f)?;
            }
            write!(f, "{:>12.6} s, {sent} sent, {received} received: {what}", at.as_secs_f64())?;
            if let Some(number) = number {
                write!(f, " {number}")?;
            }
            if let Some(len) = len {
                write!(f, ", {len} bytes")?;
            }
        }
        Ok(())
    }
}

/// Enough to see how it came to an end; some 2 KiB of a connection that has seen much.
const PLACES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_in_order() {
        let mut history = History::default();
        assert!(history.is_empty() && history.to_string().is_empty());
        for number in 0..40 {
            history.note(Duration::from_millis(number), Note::with_len("offered", number, 9), (number as u32, 0));
        }
        history.note(Duration::from_secs(1), Note::new("broken"), (40, 2));
        let text = history.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.len(), history.len(), lines[0]), (33, 32, "9 earlier"));
        assert_eq!(lines[1], "    0.009000 s, 9 sent, 0 received: offered 9, 9 bytes");
        assert_eq!(lines[32], "    1.000000 s, 40 sent, 2 received: broken");
    }
}
