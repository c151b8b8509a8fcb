//! The right of peers to a region, as its provider gives it and takes it back.

use crate::error::RevokeBlocked;
use crate::ibv::NotRegistered;
use crate::memory::{Backing, Reach};
use crate::types::{Access, Rkey};
use crate::{ibv, soft};

/// What lets peers reach a region.
#[derive(Debug)]
pub(crate) enum Grant {
    Soft(soft::Grant),
    Ibv(ibv::Grant),
}

impl Grant {
    /// Lets peers reach a block. A grant that is over lends what it had allocated.
    ///
    /// # Errors
    /// [`NotRegistered`] if the device has no key left, or refuses.
    pub(crate) fn new(backing: &Backing, access: Access, spare: Option<&mut Grant>) -> Result<Self, NotRegistered> {
        match backing.reach() {
            Reach::Soft(home) => {
                let spare = match spare {
                    Some(Grant::Soft(spare)) => Some(spare.take_spare()),
                    _ => None,
                };
                Ok(Grant::Soft(soft::Grant::publish(home, backing, access, spare)?))
            }
            Reach::Ibv(pd) => Ok(Grant::Ibv(ibv::Grant::register(pd, backing, access)?)),
            #[cfg(test)]
            Reach::Nowhere => Err(crate::error::MemoryError::NoKeys { limit: 0 }.into()),
        }
    }

    pub(crate) fn rkey(&self) -> Rkey {
        match self {
            Grant::Soft(grant) => grant.rkey(),
            Grant::Ibv(grant) => grant.rkey(),
        }
    }

    /// Whether peers' access is withdrawn, by an attempt to revoke it that may not have finished.
    pub(crate) fn is_withdrawn(&self) -> bool {
        match self {
            Grant::Soft(grant) => grant.is_withdrawn(),
            Grant::Ibv(grant) => grant.is_withdrawn(),
        }
    }

    /// The key that peers present to the device of a further domain.
    pub(crate) fn rkey_in(&self, domain: u64) -> Option<Rkey> {
        match self {
            Grant::Soft(_) => None,
            Grant::Ibv(grant) => grant.rkey_in(domain),
        }
    }

    /// Whoever looks at the memory may wait for a peer: takes in what the network brought, where the device is software.
    #[inline(always)]
    pub(crate) fn progress(&self) {
        if let Grant::Soft(grant) = self {
            grant.progress();
        }
    }

    /// True while windows are bound to the region.
    pub(crate) fn has_windows(&self) -> bool {
        match self {
            Grant::Soft(grant) => grant.has_windows(),
            Grant::Ibv(grant) => grant.has_windows(),
        }
    }

    /// Takes the right back: nobody begins an access any more.
    ///
    /// # Errors
    /// [`RevokeBlocked`] while accesses are under way, which are waited for only where asked.
    pub(crate) fn withdraw(&self, wait: bool) -> Result<(), RevokeBlocked> {
        match self {
            Grant::Soft(grant) => grant.withdraw(wait),
            Grant::Ibv(grant) => grant.withdraw(),
        }
    }

    /// Once nothing is posted that would bind a window, and none is bound: the right that windows gave is taken back too.
    ///
    /// # Errors
    /// As [`withdraw`](Grant::withdraw).
    pub(crate) fn withdraw_windows(&mut self, wait: bool) -> Result<(), RevokeBlocked> {
        match self {
            Grant::Soft(grant) => grant.withdraw_windows(wait),
            // Their devices have let go of what windows gave when these are unbound.
            Grant::Ibv(_) => Ok(()),
        }
    }

    /// Takes the right back for good, with that of windows; false if the memory is reached still.
    pub(crate) fn end(&mut self) -> bool {
        match self {
            Grant::Soft(grant) => grant.end(),
            Grant::Ibv(grant) => grant.end(),
        }
    }
}
