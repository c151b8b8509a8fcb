//! Communicators of the ranks that are left.

use std::time::Duration;

use super::comm::Communicator;
use super::split::{LIMIT, numbers_of};
use crate::bootstrap::{Host, Remnant, regroup};
use crate::error::BootstrapError;

impl Communicator {
    /// A communicator of the ranks that are left, numbered in the order of their numbers here. All that are left call it: after
    /// an error that [is fatal](crate::CollectiveError::is_fatal), of which all hear; or without one, where some have dropped
    /// their communicators by plan.
    ///
    /// It waits for the ranks that have neither ended nor dropped their communicators. Those that have not called it within
    /// `limit` of the first that did are left out: one that waits in an operation hears that the others have left, and may still
    /// call this in time; one that does too late gets [`BootstrapError::LeftOut`].
    ///
    /// The new one is independent of this one and has its timeout, as one that is [split](Self::split) off; tuning, plans and
    /// buffers are to be made anew. It can be shrunk again. Buffers of this one keep what is in them.
    ///
    /// Operations under way have ended with the error. Without one, those that were started and not waited for are run to their
    /// end first, until nothing has come for 5 s, as when this one is dropped. All ranks should give the same `limit`.
    ///
    /// Ranks that are processes find each other by rank 0, which need not call this. If it has ended, dropped its communicator, or
    /// does not answer within `limit`, others stand in for it: of its machine the next two ranks, and the first of each of three
    /// other machines, one after the other. One that lives is waited for as long as `limit` to call this; from then on the others
    /// have as long to come. It does not know who else has ended, but for the first of whom all heard: where several have, it takes
    /// all of that time.
    ///
    /// At least half of all ranks have to come to one that stands in, or get [`BootstrapError::TooFewLeft`], so that no two groups go
    /// on; and a rank 0 that comes back gets [`BootstrapError::LeftOut`] if it is left with no more than half. That it goes on itself,
    /// with ranks that the others do not reach, they can not know. If none is left that stands in, or they have gone on, a rank gets
    /// [`BootstrapError::RankZeroGone`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use qpair_collectives::{CollectiveError, Communicator, ReduceOp};
    ///
    /// fn train(mut comm: Communicator) -> Result<(), Box<dyn std::error::Error>> {
    ///     let me = comm.rank();
    ///     for round in 0..20 {
    ///         if (me, round) == (1, 7) {
    ///             return Ok(()); // as if it had been killed
    ///         }
    ///         let mut vector = comm.buffer::<i32>(100)?;
    ///         vector.fill(1);
    ///         match comm.all_reduce(&mut vector, ReduceOp::Sum) {
    ///             Ok(()) => assert_eq!(vector[0], comm.size() as i32),
    ///             Err(error) if error.is_fatal() => {
    ///                 comm = comm.shrink(Duration::from_secs(60))?;
    ///                 break; // to where all go on from, such as the last checkpoint
    ///             }
    ///             Err(error) => return Err(error.into()),
    ///         }
    ///     }
    ///     assert_eq!((comm.rank(), comm.size()), ([0, 9, 1, 2][me], 3));
    ///     comm.barrier()?;
    ///     Ok(())
    /// }
    /// std::thread::scope(|scope| {
    ///     for comm in Communicator::group(4).unwrap() {
    ///         scope.spawn(|| train(comm).unwrap());
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// [`BootstrapError::LeftOut`], [`BootstrapError::RankZeroGone`], [`BootstrapError::TooFewLeft`]; others as of
    /// [`Environment::connect`] if a rank can not be set up, or ranks end one after the other while the rest meet, in which ranks have their numbers here. It ends in any case:
    /// there are three tries at most, each of which takes `limit`, a minute more after the first, twice as long again for each that
    /// stands in for rank 0, lives and does not answer, and three minutes to meet.
    ///
    /// [`Environment::connect`]: crate::Environment::connect
    pub fn shrink(mut self, limit: Duration) -> Result<Communicator, BootstrapError> {
        let new = self.of_those_left(limit);
        if new.is_err() {
            self.core_mut().watch.stay_behind();
        }
        new
    }

    fn of_those_left(&mut self, limit: Duration) -> Result<Communicator, BootstrapError> {
        let timeout = self.timeout();
        self.core_mut().run_last();
        // Not all notice at the same time that they could not meet.
        let limits = [limit].into_iter().chain([limit.saturating_add(LIMIT); MEETINGS - 1]);
        let mut failed = BootstrapError::RankZeroGone;
        for limit in limits {
            let (remnant, host) = self.remain(limit)?;
            match self.meet(&remnant, host) {
                Ok(new) => {
                    new.set_timeout(timeout);
                    new.inherit(self);
                    return Ok(new);
                }
                Err(error) if is_of_another(&error) => {
                    tracing::debug!(rank = self.rank(), %error, "those that are left could not meet");
                    failed = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    /// Who is left, where this rank listens in case it is the first of them.
    fn remain(&mut self, limit: Duration) -> Result<(Remnant, Host), BootstrapError> {
        let (rank, host) = (self.rank() as u32, Host::new(self.ip())?);
        let core = self.core_mut();
        core.watch.ask_who_is_left(rank, host.spot, limit);
        // There is nothing more to say; and room for the new one.
        core.say_goodbye();
        Ok((core.watch.who_is_left(rank, host.spot, limit)?, host))
    }

    fn meet(&self, remnant: &Remnant, host: Host) -> Result<Communicator, BootstrapError> {
        let own = self.rank() as u32;
        let me = remnant.ranks.iter().position(|&rank| rank == own);
        let me = me.ok_or(BootstrapError::LeftOut { rank: own })? as u32;
        let size = self.size();
        let near = self.near_among(remnant.ranks.iter().map(|&rank| rank as usize).filter(|&rank| rank < size));
        let whereabouts = self.members()[self.rank()].whereabouts.clone();
        let host = (me == 0).then_some(host);
        let new = regroup((me, remnant.ranks.len() as u32), remnant.spot, host, whereabouts, near, self.known(), LIMIT);
        new.map_err(|error| error.renumbered(numbers_of(&remnant.ranks)))
    }
}

/// Whether another rank kept them from meeting: the rest may do without it.
fn is_of_another(error: &BootstrapError) -> bool {
    matches!(
        error,
        BootstrapError::Absent { .. }
            | BootstrapError::NoAnswer { .. }
            | BootstrapError::NotSetUp { .. }
            | BootstrapError::RankFailed { .. }
            | BootstrapError::RankGone { .. }
    )
}

/// How often those that are left try to meet: so many may end one after the other, each after it was counted in.
const MEETINGS: usize = 3;
