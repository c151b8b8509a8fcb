//! A value for every element of a buffer, kept by pieces.

/// Maps `0..len` to values. A piece is cut where a range begins or ends within it.
///
/// Pieces are kept in chunks of some dozens, so that what a cut moves is little, however many pieces there are; and the
/// piece that was looked at last is looked at first, with those beside it, since ranges mostly follow each other.
#[derive(Debug, Clone)]
pub(crate) struct Pieces<T> {
    len: u64,
    /// Where each chunk begins.
    firsts: Vec<u64>,
    chunks: Vec<Chunk<T>>,
    /// The piece that was looked at last, by chunk and place.
    last: (usize, usize),
}

/// Pieces in a row, at least one: where each begins, and its value. It ends where the next begins, the last of all at `len`.
type Chunk<T> = Vec<(u64, T)>;

impl<T> Pieces<T> {
    /// Pieces of a chunk, at most: those of a KiB, since half of them are moved for a cut.
    const CHUNK: usize = {
        let fit = 1024 / size_of::<(u64, T)>();
        if fit < 8 { 8 } else { fit }
    };
}

impl<T: Clone> Pieces<T> {
    /// `value` everywhere.
    pub(crate) fn new(len: u64, value: T) -> Self {
        let mut pieces = Self { len, firsts: Vec::new(), chunks: Vec::new(), last: (0, 0) };
        if len > 0 {
            pieces.firsts.push(0);
            pieces.chunks.push(vec![(0, value)]);
        }
        pieces
    }

    /// Visits the pieces that make up `start..end`: first element, element after the last, value.
    pub(crate) fn visit<E>(
        &mut self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(u64, u64, &mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = end.min(self.len);
        if start >= end {
            return Ok(());
        }
        let (mut number, mut at) = self.cut_out(start, end);
        loop {
            let next = self.firsts.get(number + 1).copied().unwrap_or(self.len);
            let chunk = &mut self.chunks[number];
            while at < chunk.len() {
                let to = chunk.get(at + 1).map_or(next, |piece| piece.0);
                let (from, value) = &mut chunk[at];
                if *from >= end {
                    return Ok(());
                }
                at += 1;
                visit(*from, to, value)?;
            }
            (number, at) = (number + 1, 0);
            if next >= end {
                return Ok(());
            }
        }
    }

    /// Reads what makes up `start..end`, without a cut: first element, element after the last, value.
    pub(crate) fn read<E>(
        &mut self,
        start: u64,
        end: u64,
        mut read: impl FnMut(u64, u64, &T) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = end.min(self.len);
        if start >= end {
            return Ok(());
        }
        let (mut number, mut at) = self.find(start);
        loop {
            let next = self.firsts.get(number + 1).copied().unwrap_or(self.len);
            let chunk = &self.chunks[number];
            while let Some((from, value)) = chunk.get(at) {
                if *from >= end {
                    return Ok(());
                }
                at += 1;
                let to = chunk.get(at).map_or(next, |piece| piece.0);
                read(start.max(*from), to.min(end), value)?;
            }
            (number, at) = (number + 1, 0);
            if next >= end {
                return Ok(());
            }
        }
    }

    /// Sets `start..end` to `value`.
    pub(crate) fn set(&mut self, start: u64, end: u64, value: T) {
        let end = end.min(self.len);
        if start >= end {
            return;
        }
        let (number, at) = self.cut_out(start, end);
        let chunk = &mut self.chunks[number];
        chunk[at].1 = value;
        let covered = chunk[at + 1..].iter().take_while(|piece| piece.0 < end).count();
        if covered > 0 {
            chunk.drain(at + 1..at + 1 + covered);
        }
        if at + 1 == chunk.len() {
            self.drop_until(number + 1, end);
        }
    }

    /// Drops pieces that begin before `end`, from chunk `number` on.
    fn drop_until(&mut self, number: usize, end: u64) {
        let after = |at: usize| self.firsts.get(at + 1).copied().unwrap_or(self.len);
        let mut whole = number;
        while whole < self.chunks.len() && after(whole) <= end {
            whole += 1;
        }
        self.firsts.drain(number..whole);
        self.chunks.drain(number..whole);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        // A piece begins at `end`, where it was cut.
        let dropped = chunk.partition_point(|piece| piece.0 < end);
        if dropped > 0 && dropped < chunk.len() {
            chunk.drain(..dropped);
            self.firsts[number] = chunk[0].0;
        }
    }

    /// Cuts at both ends; where the first piece between is, by chunk and place.
    fn cut_out(&mut self, start: u64, end: u64) -> (usize, usize) {
        let (number, at) = self.find(start);
        let chunk = &mut self.chunks[number];
        let next = chunk.get(at + 1).map(|piece| piece.0);
        let next = next.unwrap_or_else(|| self.firsts.get(number + 1).copied().unwrap_or(self.len));
        let first = chunk[at].0;
        if (first, next) == (start, end) {
            return (number, at);
        }
        // Mostly one piece holds all of it.
        if end <= next && chunk.len() + 2 <= Self::CHUNK {
            let value = chunk[at].1.clone();
            if end < next {
                chunk.insert(at + 1, (end, value.clone()));
            }
            if first == start {
                return (number, at);
            }
            chunk.insert(at + 1, (start, value));
            return (number, at + 1);
        }
        if end < self.len {
            self.cut(end);
        }
        self.cut(start)
    }

    /// The piece that begins at `at`, which lies within.
    #[inline]
    fn cut(&mut self, at: u64) -> (usize, usize) {
        let (mut number, mut place) = self.find(at);
        if self.chunks[number][place].0 == at {
            return (number, place);
        }
        if self.chunks[number].len() >= Self::CHUNK {
            self.split(number);
            (number, place) = self.find(at);
        }
        let chunk = &mut self.chunks[number];
        let value = chunk[place].1.clone();
        chunk.insert(place + 1, (at, value));
        (number, place + 1)
    }

    /// Makes two of a chunk.
    #[cold]
    fn split(&mut self, number: usize) {
        let chunk = &mut self.chunks[number];
        let other = chunk.split_off(chunk.len() / 2);
        self.firsts.insert(number + 1, other[0].0);
        self.chunks.insert(number + 1, other);
    }

    /// The piece that holds `at`, which lies within.
    #[inline]
    fn find(&mut self, at: u64) -> (usize, usize) {
        let begins = |number: usize| self.firsts.get(number).copied().unwrap_or(self.len);
        let (last, place) = self.last;
        let number = if self.chunks.len() == 1 {
            0
        } else if last < self.chunks.len() && begins(last) <= at && at < begins(last + 1) {
            last
        } else {
            self.firsts.partition_point(|&first| first <= at) - 1
        };
        let chunk = &self.chunks[number];
        let place = if number == last { near(chunk, place, at) } else { None };
        let place = place.unwrap_or_else(|| chunk.partition_point(|piece| piece.0 <= at) - 1);
        self.last = (number, place);
        self.last
    }
}

/// The piece that holds `at`, which lies within the chunk, if it is the one at `place` or beside it.
#[inline]
fn near<T>(chunk: &Chunk<T>, place: usize, at: u64) -> Option<usize> {
    let begins = |place: usize| chunk.get(place).map_or(u64::MAX, |piece| piece.0);
    if begins(place) <= at {
        (place..place + 2).find(|&place| at < begins(place + 1))
    } else {
        place.checked_sub(1).filter(|&before| begins(before) <= at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn visited(map: &mut Pieces<char>, start: u64, end: u64) -> Vec<(u64, u64, char)> {
        let mut pieces = Vec::new();
        let visited: Result<(), ()> = map.visit(start, end, |from, to, value| {
            pieces.push((from, to, *value));
            Ok(())
        });
        visited.unwrap();
        pieces
    }

    fn read(map: &mut Pieces<char>, start: u64, end: u64) -> Vec<(u64, u64, char)> {
        let mut pieces = Vec::new();
        let read: Result<(), ()> = map.read(start, end, |from, to, value| {
            pieces.push((from, to, *value));
            Ok(())
        });
        read.unwrap();
        pieces
    }

    #[test]
    fn cuts_sets_and_reads_back() {
        let mut map = Pieces::new(10, 'a');
        map.set(2, 5, 'b');
        map.set(4, 7, 'c');
        assert_eq!(read(&mut map, 3, 9), [(3, 4, 'b'), (4, 7, 'c'), (7, 9, 'a')]);
        assert_eq!(visited(&mut map, 0, 10), [(0, 2, 'a'), (2, 4, 'b'), (4, 7, 'c'), (7, 10, 'a')]);
        assert_eq!(visited(&mut map, 3, 5), [(3, 4, 'b'), (4, 5, 'c')]);
        map.set(0, 10, 'd');
        assert_eq!(visited(&mut map, 0, 99), [(0, 10, 'd')]);
        assert_eq!(visited(&mut map, 5, 5), []);
        assert_eq!(visited(&mut Pieces::new(0, 'a'), 0, 1), []);
        assert_eq!(read(&mut Pieces::new(0, 'a'), 0, 1), []);
        let mut open = Pieces::new(u64::MAX, 'a');
        open.set(7, u64::MAX, 'b');
        assert_eq!(visited(&mut open, 6, 9), [(6, 7, 'a'), (7, 9, 'b')]);
    }

    proptest! {
        #[test]
        fn it_agrees_with_an_array(
            len in 1..400_u64,
            ranges in prop::collection::vec((0..420_u64, 0..60_u64, 0..3_u8), 0..400)
        ) {
            let (mut map, mut array) = (Pieces::new(len, 'a'), vec!['a'; len as usize]);
            for ((start, long, what), letter) in ranges.into_iter().zip(('b'..='z').cycle()) {
                // Some are long.
                let end = start + if long % 9 == 0 { 7 * long } else { long };
                let within = start.min(len) as usize..end.min(len) as usize;
                match what {
                    0 => {
                        map.set(start, end, letter);
                        array[within].fill(letter);
                    }
                    _ => {
                        let pieces = if what == 1 { visited(&mut map, start, end) } else { read(&mut map, start, end) };
                        let mut at = within.start as u64;
                        for (from, to, value) in pieces {
                            prop_assert_eq!(from, at);
                            prop_assert!(to > from && array[from as usize..to as usize].iter().all(|&held| held == value));
                            at = to;
                        }
                        prop_assert_eq!(at, within.end.max(within.start) as u64);
                    }
                }
            }
        }
    }
}
