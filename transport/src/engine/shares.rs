//! Receive slots that all connections of a worker share: they go to the peers that send most.

/// How many slots a connection has for good, how many at most, and how many more there are for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    own: u32,
    most: u32,
    left: u32,
}

impl Shares {
    /// `own` slots for each connection, `most` for one that needs them, `shared` beyond their own for all together.
    pub(crate) fn new(own: u32, most: u32, shared: u32) -> Self {
        Shares { own, most, left: shared }
    }

    /// Slots that each connection has for good.
    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Slots that a connection may have.
    pub(crate) fn most(&self) -> u32 {
        self.most.max(self.own)
    }

    /// Takes slots for a connection that has used up its window: as many again, if there are.
    #[inline]
    pub(crate) fn take(&mut self, window: u32) -> u32 {
        let slots = window.min(self.most.saturating_sub(window)).min(self.left);
        self.left -= slots;
        slots
    }

    /// Slots come back.
    pub(crate) fn give(&mut self, slots: u32) {
        self.left += slots;
    }

    /// A connection with that window ends.
    pub(crate) fn end(&mut self, window: u32) {
        self.give(window.saturating_sub(self.own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_as_long_as_there_are_slots() {
        let mut shares = Shares::new(2, 10, 12);
        let mut windows = [2, 2];
        let mut grow = |which: usize| {
            windows[which] += shares.take(windows[which]);
            windows[which]
        };
        assert_eq!([grow(0), grow(0), grow(0), grow(0)], [4, 8, 10, 10]);
        assert_eq!([grow(1), grow(1), grow(1)], [4, 6, 6], "no more than there are");
        shares.end(10);
        assert_eq!(shares.take(6), 4);
        assert_eq!(shares.take(2), 2);
    }
}
