//! Send slots of the queue pair: how many requests may be posted, and which of them must be signaled.

/// The slots of a send queue. Unsignaled requests retire with the next signaled one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkSlots {
    depth: u32,
    /// Requests between two signaled ones.
    interval: u32,
    posted: u32,
    retired: u32,
    signaled: u32,
}

/// One request to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Running number, to be handed back by [`WorkSlots::retire`].
    pub(crate) number: u32,
    /// Whether to ask for a completion.
    pub(crate) signal: bool,
}

impl WorkSlots {
    /// `depth` is at least 4.
    pub(crate) fn new(depth: u32) -> Self {
        WorkSlots { depth, interval: (depth / 4).max(1), posted: 0, retired: 0, signaled: 0 }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    #[inline(always)]
    pub(crate) fn available(&self) -> u32 {
        self.depth - self.posted.wrapping_sub(self.retired)
    }

    /// Requests so far, as a running count.
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }

    /// True if the first `count` requests have retired.
    pub(crate) fn has_retired(&self, count: u32) -> bool {
        is_past(self.retired, count)
    }

    /// True if the first `count` requests retire without further ones: a signaled one is behind them, or the last of them.
    pub(crate) fn will_retire(&self, count: u32) -> bool {
        is_past(self.signaled, count)
    }

    /// All slots are free: the queue pair is gone, and another takes its place.
    pub(crate) fn restart(&mut self) {
        (self.retired, self.signaled) = (self.posted, self.posted);
    }

    /// Takes a slot; the caller has seen that there is one. `signal`: the request must be signaled in any case.
    #[inline(always)]
    pub(crate) fn take(&mut self, signal: bool) -> Work {
        debug_assert!(self.available() > 0);
        self.posted = self.posted.wrapping_add(1);
        let signal = signal || self.posted.wrapping_sub(self.signaled) >= self.interval;
        if signal {
            self.signaled = self.posted;
        }
        Work { number: self.posted, signal }
    }

    /// Gives the slot back that was taken last: the device did not take the request. The next one is signaled, since this
    /// one may have been meant to be.
    pub(crate) fn untake(&mut self, work: Work) {
        debug_assert_eq!(work.number, self.posted);
        self.posted = self.posted.wrapping_sub(1);
        if self.signaled == work.number {
            self.signaled = self.posted.wrapping_sub(self.interval);
        }
    }

    /// The request of that number completed, and with it all before. The lowest 24 bits of it will do, since there are far
    /// fewer slots. Gives the whole number, if it can be.
    #[inline(always)]
    pub(crate) fn retire(&mut self, number: u32) -> Option<u32> {
        let ahead = number.wrapping_sub(self.retired) & LOW_BITS;
        if ahead > self.posted.wrapping_sub(self.retired) {
            return None;
        }
        self.retired = self.retired.wrapping_add(ahead);
        Some(self.retired)
    }
}

/// The bits of a number that come back.
const LOW_BITS: u32 = (1 << 24) - 1;

/// Whether one running number is before another of the same time, modulo 2^32.
pub(crate) fn is_before(number: u32, other: u32) -> bool {
    !is_past(number, other)
}

/// Whether one running count has come to another.
pub(super) fn is_past(count: u32, goal: u32) -> bool {
    count.wrapping_sub(goal) < u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_full_queue_has_a_signaled_request() {
        let mut slots = WorkSlots::new(8);
        let works: Vec<_> = (0..8).map(|_| slots.take(false)).collect();
        assert_eq!(slots.available(), 0);
        let signaled: Vec<_> = works.iter().filter(|work| work.signal).map(|work| work.number).collect();
        assert_eq!(signaled, [2, 4, 6, 8]);
        slots.retire(6);
        assert_eq!(slots.available(), 6);
        slots.retire(4);
        assert_eq!(slots.available(), 6, "an older number changes nothing");
        slots.retire(77);
        assert_eq!(slots.available(), 6, "nor does one that was not posted");
    }

    #[test]
    fn the_low_bits_of_a_number_will_do() {
        let mut slots = WorkSlots::new(8);
        (slots.posted, slots.retired, slots.signaled) = (0xffff_fffe, 0xffff_fffe, 0xffff_fffe);
        let works: Vec<_> = (0..6).map(|_| slots.take(true).number).collect();
        assert_eq!(works[..3], [0xffff_ffff, 0, 1]);
        assert_eq!(slots.retire(0xff_ffff), Some(0xffff_ffff));
        assert_eq!((slots.retire(works[3] & 0xff_ffff), slots.available()), (Some(works[3]), 6));
        assert_eq!(slots.retire(works[2] & 0xff_ffff), None);
    }

    #[test]
    fn the_last_request_retires_all_if_it_is_signaled() {
        let mut slots = WorkSlots::new(8);
        assert!(slots.has_retired(0) && slots.will_retire(0));
        let silent = slots.take(false);
        assert!(!silent.signal && slots.posted() == 1 && !slots.has_retired(1) && !slots.will_retire(1));
        let last = slots.take(true);
        slots.take(false);
        assert!(slots.will_retire(1) && slots.will_retire(2) && !slots.will_retire(3) && !slots.has_retired(1));
        slots.retire(last.number);
        assert!(slots.has_retired(1) && slots.has_retired(2) && !slots.has_retired(3));
    }

    #[test]
    fn a_request_that_was_not_taken_leaves_no_trace() {
        let mut slots = WorkSlots::new(8);
        let first = slots.take(true);
        let refused = slots.take(true);
        slots.untake(refused);
        assert_eq!(slots.available(), 7);
        let next = slots.take(false);
        assert_eq!((next.number, next.signal), (refused.number, true));
        slots.retire(first.number);
        slots.retire(next.number);
        assert_eq!(slots.available(), 8);
    }
}
