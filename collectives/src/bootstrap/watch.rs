//! How a rank tells the others of a fault, and hears of theirs.

use std::sync::Arc;
use std::time::Duration;

use super::alarm::Alarm;
use super::client::StoreClient;
use super::muster::{Muster, Remnant};
use super::regroup::Spot;
use crate::error::BootstrapError;
use crate::fault::Fault;

/// How a rank tells the others of a fault, and hears of theirs.
#[derive(Debug)]
pub(crate) enum Watch {
    /// All ranks are in this process.
    Shared(Shared),
    /// By way of rank 0's store.
    Store(Box<StoreClient>),
}

/// What ranks that are threads of one process have in common.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    alarm: Arc<Alarm>,
    muster: Arc<Muster>,
}

impl Shared {
    pub(crate) fn new(ranks: u32) -> Self {
        Shared { alarm: Alarm::new(ranks), muster: Muster::new(ranks) }
    }
}

impl Watch {
    #[inline]
    pub(crate) fn alarm(&self) -> &Alarm {
        match self {
            Watch::Shared(shared) => &shared.alarm,
            Watch::Store(client) => client.alarm(),
        }
    }

    /// Tells all ranks of a fault. Gives the one that counts, which may be another.
    pub(crate) fn report(&mut self, fault: Fault) -> Fault {
        match self {
            Watch::Shared(Shared { alarm, .. }) => alarm.raise(match fault {
                Fault::TimedOut { by, place, limit, .. } => {
                    Fault::TimedOut { by, place, limit, waits: alarm.all_places() }
                }
                fault => fault,
            }),
            Watch::Store(client) => client.report(fault),
        }
    }

    /// Tells all ranks that this one drops its communicator.
    pub(crate) fn leave(&mut self, rank: u32) {
        match self {
            Watch::Shared(Shared { alarm, muster }) => {
                alarm.leave(rank);
                muster.leave(rank);
            }
            Watch::Store(client) => client.leave(),
        }
    }

    /// This rank does not go on with those that are left, though it asked who is.
    pub(crate) fn stay_behind(&mut self) {
        match self {
            // To those of a process it is gone, whatever it does then.
            Watch::Shared(_) => {}
            Watch::Store(client) => client.stay_behind(),
        }
    }

    /// Asks who is left, as all do that are, for which they have that long. To the others this rank has left.
    pub(crate) fn ask_who_is_left(&mut self, rank: u32, spot: Spot, limit: Duration) {
        match self {
            Watch::Shared(Shared { alarm, muster }) => {
                alarm.leave(rank);
                muster.ask(rank, spot, limit);
            }
            Watch::Store(client) => client.ask_who_is_left(spot, limit),
        }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`BootstrapError::LeftOut`]; [`BootstrapError::RankZeroGone`] and [`BootstrapError::TooFewLeft`], of ranks of a store.
    pub(crate) fn who_is_left(&mut self, rank: u32, spot: Spot, limit: Duration) -> Result<Remnant, BootstrapError> {
        let remnant = match self {
            Watch::Shared(Shared { muster, .. }) => muster.wait(rank),
            Watch::Store(client) => Some(client.who_is_left(spot, limit)?),
        };
        remnant.filter(|remnant| remnant.ranks.contains(&rank)).ok_or(BootstrapError::LeftOut { rank })
    }
}
