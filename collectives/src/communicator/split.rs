//! Communicators of some of the ranks.

use std::time::Duration;

use super::comm::Communicator;
use crate::bootstrap::{Host, SPOT, Spot, regroup};
use crate::error::{BootstrapError, CollectiveError, SplitError};
use crate::fault::Fault;
use crate::fnv::Fnv;

impl Communicator {
    /// A communicator of the ranks that name the same colour, numbered in the order of their keys, and by rank where those are
    /// the same. `None` for a rank that names none. All ranks call it.
    ///
    /// The new one is independent: it has connections of its own, may be moved to another thread, and has operations under
    /// way beside those of this one; neither's messages or errors reach the other. It has this one's [timeout](Self::set_timeout),
    /// [tuning](Self::set_tuning) and [cost model](Self::set_cost_model), as they are now.
    ///
    /// A call of one communicator moves its own operations on, and none of another's. So, with `a` and `b` of the same ranks, they
    /// wait for each other until time is over where one calls `let p = b.start().all_reduce(..)?; a.barrier()?; p.wait()?` and
    /// another `b.all_reduce(..)?; a.barrier()?`: the first waits in `a` for the second, which waits in `b` for the first. It does
    /// not come to that where a thread waits for what it has started in one communicator before it calls another that waits, and
    /// all ranks wait in the same order. Else [test](crate::Pending::test) what was started until it is done, or have a thread for
    /// each communicator.
    ///
    /// ```
    /// use qpair_collectives::{Communicator, ReduceOp};
    ///
    /// # fn rank(comm: Communicator) -> Result<(), Box<dyn std::error::Error>> {
    /// // Two rows of two, of a grid.
    /// let row = comm.split(Some(comm.rank() as u32 / 2), 0)?.ok_or("in a row")?;
    /// let mut vector = row.buffer::<i64>(10)?;
    /// vector.fill(comm.rank() as i64);
    /// row.all_reduce(&mut vector, ReduceOp::Sum)?;
    /// assert_eq!(vector[0], [1, 1, 5, 5][comm.rank()]);
    /// # Ok(())
    /// # }
    /// # std::thread::scope(|scope| {
    /// #     for comm in Communicator::group(4).unwrap() {
    /// #         scope.spawn(|| rank(comm).unwrap());
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`SplitError::Collective`] if this communicator ends; [`SplitError::Bootstrap`] if the ranks of a colour do not find
    /// each other, which ends neither this one nor other colours': ranks have their numbers here in it.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>, SplitError> {
        let size = self.size();
        let mut all = self.needed(self.buffer::<i64>(2 * size))?;
        let own = 2 * self.rank();
        all[own..own + 2].copy_from_slice(&[color.map_or(NO_COLOR, i64::from), key]);
        self.all_gather(&mut all)?;
        let mut members: Vec<usize> = match color {
            Some(color) => (0..size).filter(|&rank| all[2 * rank] == i64::from(color)).collect(),
            None => Vec::new(),
        };
        members.sort_by_key(|&rank| (all[2 * rank + 1], rank));
        let host = match members.first() {
            Some(&first) if first == self.rank() => Some(Host::new(self.ip())),
            _ => None,
        };
        // Where it can not listen, the others hear that nobody does.
        let (host, refused) = match host {
            Some(Ok(host)) => (Some(host), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let mut spots = self.needed(self.buffer::<u64>(SPOT * size))?;
        if let Some(host) = &host {
            spots[SPOT * self.rank()..][..SPOT].copy_from_slice(&host.spot.encode());
        }
        self.all_gather(&mut spots)?;
        let Some(&first) = members.first() else { return Ok(None) };
        let place: [u64; SPOT] = std::array::from_fn(|at| spots[SPOT * first + at]);
        let Some(spot) = Spot::decode(place) else {
            let nobody = || BootstrapError::RankFailed { rank: first as u32, reason: "it could not listen".into() };
            return Err(refused.unwrap_or_else(nobody).into());
        };
        let me = members.iter().position(|&rank| rank == self.rank()).unwrap_or(0) as u32;
        let whereabouts = self.members()[self.rank()].whereabouts.clone();
        let near = self.near_among(members.iter().copied());
        let new = regroup((me, members.len() as u32), spot, host, whereabouts, near, self.known(), LIMIT);
        let new = new.map_err(|error| error.renumbered(numbers_of(&members)))?;
        new.set_timeout(self.timeout());
        new.inherit(self);
        new.set_tuning(self.tuner().tuning);
        Ok(Some(new))
    }

    /// Memory without which this rank can not do what all do: where there is none, nobody waits for it.
    pub(crate) fn needed<V>(&self, memory: Result<V, CollectiveError>) -> Result<V, CollectiveError> {
        memory.or_else(|error| {
            let fault = Fault::Failed { rank: self.rank() as u32, reason: error.to_string() };
            let ended = self.core().borrow_mut().fail_all(fault, None);
            ended.result.and(Err(error))
        })
    }

    /// Ends the communicator for what another rank did, so that nobody waits for it or this one.
    pub(crate) fn end_for(&self, rank: usize, reason: String) {
        let fault = Fault::Failed { rank: rank as u32, reason };
        self.core().borrow_mut().fail_all(fault, None);
    }

    /// A communicator of these ranks, in this order; `None` for ranks that are not among them. All ranks call it: those that are
    /// among them with the same list, others with any list in which they are not, or with that of another group, which is made
    /// as well.
    ///
    /// # Errors
    /// As [`split`](Self::split); [`CollectiveError::NoSuchPeer`] if one is no rank, or is named twice; [`SplitError::Lists`], on
    /// those that gave a list, if others of it did not.
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Option<Communicator>, SplitError> {
        let wrong = ranks.iter().enumerate().find(|&(at, &rank)| rank >= self.size() || ranks[..at].contains(&rank));
        if let Some((_, &rank)) = wrong {
            return Err(CollectiveError::NoSuchPeer { rank, ranks: self.size() }.into());
        }
        let place = ranks.iter().position(|&rank| rank == self.rank());
        // Those that give the same list find each other by it.
        let color = Fnv::of_numbers(ranks.iter().copied()) as u32;
        let group = self.split(place.map(|_| color), place.unwrap_or(0) as i64)?;
        match group {
            Some(group) if group.size() != ranks.len() => {
                Err(SplitError::Lists { named: ranks.len(), came: group.size() })
            }
            group => Ok(group),
        }
    }

    /// A communicator of the same ranks, for another thread or library. All ranks call it. Who uses both in one thread has to
    /// [wait in one order](Self::split).
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn duplicate(&self) -> Result<Communicator, SplitError> {
        let twin = self.split(Some(0), 0)?;
        twin.ok_or_else(|| SplitError::Bootstrap(BootstrapError::RankGone { rank: self.rank() as u32 }))
    }

    /// A communicator of the ranks of this one's [node](Self::node), numbered as here. All ranks call it.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn split_by_node(&self) -> Result<Communicator, SplitError> {
        let local = self.split(Some(self.node() as u32), 0)?;
        local.ok_or_else(|| SplitError::Bootstrap(BootstrapError::RankGone { rank: self.rank() as u32 }))
    }
}

/// The number that a member has here, by its number among them.
pub(super) fn numbers_of<N: Copy + TryInto<u32>>(members: &[N]) -> impl Fn(u32) -> u32 {
    |rank| members.get(rank as usize).and_then(|&member| member.try_into().ok()).unwrap_or(rank)
}

/// What a rank without a colour names.
const NO_COLOR: i64 = -1;

/// How long the ranks of a group may take to meet.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use qpair_verbs::MemoryError;

    use super::*;

    #[test]
    fn nobody_waits_for_a_rank_without_memory() {
        let mut comms = Communicator::group(2).unwrap();
        let (other, comm) = (comms.remove(1), comms.remove(0));
        let none = || CollectiveError::from(MemoryError::Length { len: 0, limit: 1 });
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || {
                other.set_timeout(Duration::from_secs(60));
                other.barrier().unwrap_err()
            });
            let errors = [comm.needed::<()>(Err(none())).unwrap_err(), waits.join().unwrap()];
            for error in errors {
                assert!(matches!(error, CollectiveError::RankFailed { rank: 0, .. }), "{error}");
            }
        });
    }
}
