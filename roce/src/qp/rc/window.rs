//! How many packets may be under way. A lost packet has all behind it sent again, so that many of them are worth it only where
//! hardly any is lost; and a peer that does not answer at all, since it has no time to, is not helped by more of them.

use super::config::WINDOW;

/// A window that follows what is lost: as wide as it may be where nothing is, that of `rdma_rxe` where something is, and half of
/// that, and so on, each time that no answer comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    size: u32,
    most: u32,
    /// Packets answered since it changed.
    answered: u32,
}

impl Window {
    pub(super) fn new(most: u32) -> Self {
        Window { size: most.min(WINDOW), most, answered: 0 }
    }

    /// Packets.
    #[inline]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Packets that one part of a READ has that is posted now. A longer READ is asked for in parts, so that one brings no more than
    /// half of the window, or of the one that it began with where it is less now, nor than that: the peer answers as fast as it
    /// can.
    pub(super) fn longest_read(&self) -> u32 {
        (self.size.max(self.most.min(WINDOW)) / 2).clamp(1, WINDOW)
    }

    /// Packets were answered.
    #[inline]
    pub(super) fn answered(&mut self, count: u32) {
        if self.size == self.most {
            return;
        }
        self.answered = self.answered.saturating_add(count);
        let windows = if self.size < WINDOW { 1 } else { PROOF };
        if self.answered >= windows * self.size {
            (self.size, self.answered) = ((2 * self.size).min(self.most), 0);
        }
    }

    /// Something was lost, as the peer told.
    pub(super) fn lost(&mut self) {
        (self.size, self.answered) = (self.size.min(WINDOW), 0);
    }

    /// No answer came in time.
    pub(super) fn unanswered(&mut self) {
        self.lost();
        self.size = (self.size / 2).max(LEAST.min(self.most));
    }
}

/// Windows without a loss before one of more packets than usual is tried.
const PROOF: u32 = 8;
/// What is left of it where no answer comes: enough for answers to tell of a loss.
const LEAST: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_reads_are_half_of_it_but_not_of_one_that_shrank_by_a_loss() {
        let mut window = Window::new(1000);
        assert_eq!(window.longest_read(), 64);
        window.answered(128 * 8);
        assert_eq!((window.size(), window.longest_read()), (256, 128));
        window.answered(256 * 8);
        assert_eq!((window.size(), window.longest_read()), (512, 128));
        (0..9).for_each(|_| window.unanswered());
        assert_eq!((window.size(), window.longest_read()), (8, 64));
        assert_eq!([1, 2, 100, 200].map(|most| Window::new(most).longest_read()), [1, 1, 50, 64]);
    }

    #[test]
    fn it_grows_where_nothing_is_lost_and_shrinks_where_something_is() {
        let mut window = Window::new(1000);
        let mut sizes = vec![window.size()];
        let mut answer = |window: &mut Window, packets: u32| {
            for _ in 0..packets {
                window.answered(1);
                sizes.extend(Some(window.size()).filter(|size| sizes.last() != Some(size)));
            }
        };
        answer(&mut window, 128 * 8 + 256 * 8 + 512 * 8);
        window.lost();
        assert_eq!(window.size(), 128);
        window.answered(128 * 8 - 1);
        window.lost();
        window.answered(1);
        assert_eq!(window.size(), 128, "since the last loss");
        (0..10).for_each(|_| window.unanswered());
        assert_eq!(window.size(), 8);
        answer(&mut window, 8 + 16 + 32 + 64 + 128 * 8);
        assert_eq!(sizes, [128, 256, 512, 1000, 8, 16, 32, 64, 128, 256]);
    }

    #[test]
    fn it_is_never_wider_than_it_may_be() {
        for most in [1, 2, 7, 8, 100, 129] {
            let mut window = Window::new(most);
            for round in 0..100 {
                window.answered(1000);
                assert!((1..=most).contains(&window.size()));
                if round % 3 == 0 {
                    window.unanswered();
                    assert!((1..=most).contains(&window.size()));
                }
            }
        }
    }
}
