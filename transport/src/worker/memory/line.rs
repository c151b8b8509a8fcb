//! Who waits for memory to send from, and whose turn it is.

use std::collections::VecDeque;

/// Connections that wait, those first that wait longest. With each turn one takes the memory of one message, and goes to the end if
/// it has more; those that do not wait yet stand behind, also where memory is free just then. So that none waits while others send
/// on and on, nor a long message while short ones do.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<u32>,
    /// Whose turn it is, until it has taken its memory.
    turn: Option<u32>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if that connection may take memory, if there is some.
    pub(super) fn lets(&self, index: u32) -> bool {
        self.waiting.is_empty() || self.turn == Some(index)
    }

    /// It is gone.
    pub(super) fn forget(&mut self, index: u32) {
        self.waiting.retain(|&waiting| waiting != index);
    }

    /// It took its memory.
    pub(super) fn served(&mut self, index: u32) {
        self.turn.take_if(|turn| *turn == index);
    }

    /// `waits`: whether it stands there already.
    pub(super) fn join(&mut self, index: u32, waits: &mut bool) {
        if !std::mem::replace(waits, true) {
            self.waiting.push_back(index);
        }
    }

    /// Takes the first out: it is its turn. It stands behind the others if it joins again.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.turn = self.waiting.pop_front();
        self.turn
    }

    /// The turn is over. `waits`: whose it was waits again. True if it took nothing, though it waits: it is the first then, as it
    /// was.
    pub(super) fn end_turn(&mut self, waits: bool) -> bool {
        let got_none = self.turn.take().is_some() && waits;
        if got_none {
            self.waiting.rotate_right(1);
        }
        got_none
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_its_turn_after_the_other() {
        let (mut line, mut waits) = (Line::default(), [false; 3]);
        assert!(line.lets(2));
        for index in [1, 0, 1, 2] {
            line.join(index, &mut waits[index as usize]);
        }
        assert!(!line.lets(1) && !line.lets(2), "they have no turn yet");
        let mut order = Vec::new();
        for _ in 0..5 {
            let index = line.next().unwrap();
            waits[index as usize] = false;
            assert!(line.lets(index) && !line.lets(3));
            line.served(index);
            line.join(index, &mut waits[index as usize]);
            assert!(!line.end_turn(true));
            order.push(index);
        }
        assert_eq!(order, [1, 0, 2, 1, 0]);
        line.forget(2);
        let first = line.next().unwrap();
        line.join(first, &mut false);
        assert!(line.end_turn(true) && line.next() == Some(first), "it got nothing");
        assert!(!line.end_turn(false) && !line.lets(first), "it needs nothing any more");
    }
}
