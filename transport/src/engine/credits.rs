//! Credits: how many messages may be sent before the receiver is known to have a slot for the next.
//!
//! Both sides count slots since the session began, modulo 2^32: the receiver says how many it gave in all, so that a
//! credit is never lost nor counted twice.

use super::violation::Violation;

/// The sender's side: slots of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credits {
    given: u32,
    used: u32,
    /// Slots that are this side's for good; it may have more while it needs them.
    own: u32,
}

/// The receiver's side: slots given to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grants {
    /// Slots given so far, those not told yet included.
    given: u32,
    /// What the peer was last told.
    told: u32,
    /// Messages that took a slot, and slots that the peer gave up.
    received: u32,
    /// Slots in all: with the peer, in use here, or to be given back. Those that are the peer's for good are part of it.
    window: u32,
    own: u32,
    /// Slots to give back before a message is sent for that alone.
    threshold: u32,
}

impl Credits {
    /// So many slots to begin with, as the peer said while connecting.
    pub(crate) fn start(&mut self, own: u32) -> Result<(), Violation> {
        self.own = own;
        self.update(own)
    }

    /// Gives up the slots beyond those that are this side's for good. Gives their number.
    pub(crate) fn give_up(&mut self) -> u32 {
        let excess = self.available().saturating_sub(self.own);
        self.used = self.used.wrapping_add(excess);
        excess
    }

    /// Messages that may be sent now.
    #[inline(always)]
    pub(crate) fn available(&self) -> u32 {
        self.given.wrapping_sub(self.used)
    }

    /// Uses one; the caller has seen that there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self) {
        debug_assert!(self.available() > 0);
        self.used = self.used.wrapping_add(1);
    }

    /// Takes note of the peer's count.
    #[inline(always)]
    pub(crate) fn update(&mut self, given: u32) -> Result<(), Violation> {
        if given.wrapping_sub(self.used) > MAX_WINDOW {
            return Err(Violation::Credits { said: given, used: self.used });
        }
        self.given = given;
        Ok(())
    }
}

impl Grants {
    /// `window` slots, told to the peer while connecting.
    pub(crate) fn new(window: u32) -> Self {
        Grants { given: window, told: window, received: 0, window, own: window, threshold: window.div_ceil(2).max(1) }
    }

    /// The peer's own slots, all free, and no others: another queue pair takes the place of one that failed.
    pub(crate) fn restart(&mut self) {
        *self = Grants::new(self.own);
    }

    /// Slots in all.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// True if the peer has used all slots that it knows of.
    #[inline(always)]
    pub(crate) fn is_used_up(&self) -> bool {
        self.told == self.received
    }

    /// Gives the peer so many more. It has used up all that it knows of: see [`is_due`](Grants::is_due).
    pub(crate) fn grow(&mut self, slots: u32) {
        debug_assert!(self.is_used_up());
        self.window += slots;
        self.given = self.given.wrapping_add(slots);
        self.threshold = self.window.div_ceil(2).max(1);
    }

    /// The peer gave up so many.
    pub(crate) fn given_up(&mut self, slots: u32) -> Result<(), Violation> {
        if slots > self.told.wrapping_sub(self.received) || slots > self.window - self.own {
            return Err(Violation::NoCredit);
        }
        self.received = self.received.wrapping_add(slots);
        self.window -= slots;
        Ok(())
    }

    /// A message took a slot.
    #[inline(always)]
    pub(crate) fn receive(&mut self) -> Result<(), Violation> {
        if self.told == self.received {
            return Err(Violation::NoCredit);
        }
        self.received = self.received.wrapping_add(1);
        if self.told == self.received {
            // It has read all that it was told, so that a smaller window counts from now on.
            self.threshold = self.window.div_ceil(2).max(1);
        }
        Ok(())
    }

    /// A slot is free again.
    #[inline(always)]
    pub(crate) fn give(&mut self) {
        self.given = self.given.wrapping_add(1);
    }

    /// The count for the next header.
    #[inline(always)]
    pub(crate) fn tell(&mut self) -> u32 {
        self.told = self.given;
        self.given
    }

    /// True if the peer should be told even though nothing else is to be sent: half the window is free again, or the
    /// peer has used up all that it knows of.
    ///
    /// So never more than two such messages wait unread: they tell of at most `window` slots together, each of half of
    /// them, or of what the peer, having read all before, had no credit left without.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        let owed = self.given.wrapping_sub(self.told);
        owed >= self.threshold || (owed > 0 && self.told == self.received)
    }

    /// Slots that the peer may still take, as far as this side knows; those not told yet included.
    pub(crate) fn outstanding(&self) -> u32 {
        self.given.wrapping_sub(self.received)
    }
}

/// Greatest window of a connection, in slots: as many messages a peer may have on their way to it at once.
pub(crate) const MAX_WINDOW: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_wrap() {
        let mut credits = Credits { given: u32::MAX, used: u32::MAX, own: 0 };
        assert_eq!(credits.available(), 0);
        credits.update(2).unwrap();
        assert_eq!(credits.available(), 3);
        credits.take();
        assert_eq!(credits.available(), 2);
    }

    #[test]
    fn a_count_below_what_was_used_is_a_violation() {
        let mut credits = Credits { given: 8, used: 5, own: 0 };
        assert!(matches!(credits.update(4), Err(Violation::Credits { said: 4, used: 5 })));
        assert!(credits.update(5).is_ok());
        assert!(credits.update(5 + MAX_WINDOW + 1).is_err());
    }

    #[test]
    fn a_window_grows_when_it_is_used_up_and_shrinks_when_the_peer_gives_it_up() {
        let (mut credits, mut grants) = (Credits::default(), Grants::new(1));
        credits.start(1).unwrap();
        credits.take();
        grants.receive().unwrap();
        assert!(grants.is_used_up());
        grants.grow(3);
        assert!(grants.is_due());
        credits.update(grants.tell()).unwrap();
        assert_eq!((credits.available(), grants.window(), grants.outstanding()), (3, 4, 3));
        grants.give();
        assert!(!grants.is_due(), "half of four");
        assert_eq!((credits.give_up(), credits.available(), credits.give_up()), (2, 1, 0));
        assert_eq!(grants.given_up(4), Err(Violation::NoCredit), "more than it got beyond its own");
        grants.given_up(2).unwrap();
        assert_eq!((grants.window(), grants.outstanding()), (2, 2));
        credits.take();
        grants.receive().unwrap();
        assert!(grants.is_due(), "it has none left");
        credits.update(grants.tell()).unwrap();
        assert_eq!(credits.available(), 1);
    }

    #[test]
    fn a_message_without_credit_is_a_violation() {
        let mut grants = Grants::new(1);
        grants.receive().unwrap();
        grants.give();
        assert_eq!(grants.receive(), Err(Violation::NoCredit));
        grants.tell();
        grants.receive().unwrap();
    }

    #[test]
    fn due_at_half_the_window_or_when_the_peer_has_none() {
        let mut grants = Grants::new(4);
        for _ in 0..3 {
            grants.receive().unwrap();
        }
        grants.give();
        assert!(!grants.is_due());
        grants.give();
        assert!(grants.is_due());
        grants.tell();
        assert!(!grants.is_due());
        for _ in 0..3 {
            grants.receive().unwrap();
        }
        assert!(!grants.is_due());
        grants.give();
        assert!(grants.is_due(), "the peer has used all that it was told of");
        assert_eq!(grants.outstanding(), 1);
    }
}
