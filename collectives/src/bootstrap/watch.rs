//! How a rank tells the others of a fault, and hears of theirs.

use std::sync::Arc;

use super::alarm::Alarm;
use super::client::StoreClient;
use crate::fault::Fault;

/// How a rank tells the others of a fault, and hears of theirs.
#[derive(Debug)]
pub(crate) enum Watch {
    /// All ranks are in this process.
    Shared(Arc<Alarm>),
    /// By way of rank 0's store.
    Store(StoreClient),
}

impl Watch {
    #[inline]
    pub(crate) fn alarm(&self) -> &Alarm {
        match self {
            Watch::Shared(alarm) => alarm,
            Watch::Store(client) => client.alarm(),
        }
    }

    /// Tells all ranks of a fault. Gives the one that counts, which may be another.
    pub(crate) fn report(&mut self, fault: Fault) -> Fault {
        match self {
            Watch::Shared(alarm) => alarm.raise(match fault {
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
            Watch::Shared(alarm) => alarm.leave(rank),
            Watch::Store(client) => client.leave(),
        }
    }
}
