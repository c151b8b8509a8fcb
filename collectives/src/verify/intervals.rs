//! A value for every element of a buffer, kept by pieces.

use std::collections::BTreeMap;

/// Maps `0..len` to values. A piece is cut where a range begins or ends within it.
pub(super) struct IntervalMap<T> {
    len: u64,
    /// By first element; a piece ends where the next begins, the last at `len`.
    pieces: BTreeMap<u64, T>,
}

impl<T: Clone> IntervalMap<T> {
    /// `value` everywhere.
    pub(super) fn new(len: u64, value: T) -> Self {
        let pieces = (len > 0).then_some((0, value)).into_iter().collect();
        Self { len, pieces }
    }

    /// The pieces that make up `start..end`: first element, element after the last, value.
    pub(super) fn pieces(&mut self, start: u64, end: u64) -> Vec<(u64, u64, &mut T)> {
        let (start, end) = (start.min(self.len), end.min(self.len));
        if start >= end {
            return Vec::new();
        }
        self.cut(start);
        self.cut(end);
        let mut pieces: Vec<(u64, u64, &mut T)> = Vec::new();
        for (&at, value) in self.pieces.range_mut(start..end) {
            if let Some(last) = pieces.last_mut() {
                last.1 = at;
            }
            pieces.push((at, end, value));
        }
        pieces
    }

    /// Sets `start..end` to `value`.
    pub(super) fn set(&mut self, start: u64, end: u64, value: T) {
        let (start, end) = (start.min(self.len), end.min(self.len));
        if start >= end {
            return;
        }
        self.cut(start);
        self.cut(end);
        let inner: Vec<u64> = self.pieces.range(start..end).map(|(&at, _)| at).collect();
        for at in inner {
            self.pieces.remove(&at);
        }
        self.pieces.insert(start, value);
    }

    fn cut(&mut self, at: u64) {
        if at >= self.len || self.pieces.contains_key(&at) {
            return;
        }
        if let Some((_, value)) = self.pieces.range(..at).next_back() {
            let value = value.clone();
            self.pieces.insert(at, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_sets_and_reads_back() {
        let mut map = IntervalMap::new(10, 'a');
        map.set(2, 5, 'b');
        map.set(4, 7, 'c');
        let read = |map: &mut IntervalMap<char>, start, end| -> Vec<(u64, u64, char)> {
            let pieces = map.pieces(start, end).into_iter();
            pieces.map(|(from, to, value)| (from, to, *value)).collect()
        };
        assert_eq!(read(&mut map, 0, 10), [(0, 2, 'a'), (2, 4, 'b'), (4, 7, 'c'), (7, 10, 'a')]);
        assert_eq!(read(&mut map, 3, 5), [(3, 4, 'b'), (4, 5, 'c')]);
        map.set(0, 10, 'd');
        assert_eq!(read(&mut map, 0, 99), [(0, 10, 'd')]);
        assert_eq!(read(&mut map, 5, 5), []);
        assert_eq!(read(&mut IntervalMap::new(0, 'a'), 0, 1), []);
    }
}
