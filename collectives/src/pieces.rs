//! A value for every element of a buffer, kept by pieces.

/// Maps `0..len` to values. A piece is cut where a range begins or ends within it.
#[derive(Debug, Clone)]
pub(crate) struct Pieces<T> {
    len: u64,
    /// Where each piece begins; it ends where the next begins, the last at `len`.
    starts: Vec<u64>,
    values: Vec<T>,
}

impl<T: Clone> Pieces<T> {
    /// `value` everywhere.
    pub(crate) fn new(len: u64, value: T) -> Self {
        let (starts, values) = if len > 0 { (vec![0], vec![value]) } else { (Vec::new(), Vec::new()) };
        Self { len, starts, values }
    }

    /// Visits the pieces that make up `start..end`: first element, element after the last, value.
    pub(crate) fn visit<E>(
        &mut self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(u64, u64, &mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        let (first, last) = self.cut_out(start, end);
        for at in first..last {
            let to = self.starts.get(at + 1).copied().unwrap_or(self.len);
            visit(self.starts[at], to, &mut self.values[at])?;
        }
        Ok(())
    }

    /// Sets `start..end` to `value`.
    pub(crate) fn set(&mut self, start: u64, end: u64, value: T) {
        let (first, last) = self.cut_out(start, end);
        if first >= last {
            return;
        }
        self.values[first] = value;
        if last - first > 1 {
            self.starts.drain(first + 1..last);
            self.values.drain(first + 1..last);
        }
    }

    /// Cuts at both ends; the pieces between.
    fn cut_out(&mut self, start: u64, end: u64) -> (usize, usize) {
        let (start, end) = (start.min(self.len), end.min(self.len));
        if start >= end {
            return (0, 0);
        }
        let first = self.cut(start);
        let last = if end == self.len { self.starts.len() } else { self.cut(end) };
        (first, last)
    }

    /// The piece that begins at `at`, which lies within.
    fn cut(&mut self, at: u64) -> usize {
        match self.starts.binary_search(&at) {
            Ok(found) => found,
            Err(next) => {
                let value = self.values[next - 1].clone();
                self.starts.insert(next, at);
                self.values.insert(next, value);
                next
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_sets_and_reads_back() {
        let mut map = Pieces::new(10, 'a');
        map.set(2, 5, 'b');
        map.set(4, 7, 'c');
        let read = |map: &mut Pieces<char>, start, end| -> Vec<(u64, u64, char)> {
            let mut pieces = Vec::new();
            let visited: Result<(), ()> = map.visit(start, end, |from, to, value| {
                pieces.push((from, to, *value));
                Ok(())
            });
            visited.unwrap();
            pieces
        };
        assert_eq!(read(&mut map, 0, 10), [(0, 2, 'a'), (2, 4, 'b'), (4, 7, 'c'), (7, 10, 'a')]);
        assert_eq!(read(&mut map, 3, 5), [(3, 4, 'b'), (4, 5, 'c')]);
        map.set(0, 10, 'd');
        assert_eq!(read(&mut map, 0, 99), [(0, 10, 'd')]);
        assert_eq!(read(&mut map, 5, 5), []);
        assert_eq!(read(&mut Pieces::new(0, 'a'), 0, 1), []);
        let mut open = Pieces::new(u64::MAX, 'a');
        open.set(7, u64::MAX, 'b');
        assert_eq!(read(&mut open, 6, 9), [(6, 7, 'a'), (7, 9, 'b')]);
    }
}
