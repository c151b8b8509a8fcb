//! That a barrier holds every rank until all have entered.

use super::error::VerifyError;
use super::matching::Matching;
use super::rank_set::{Allowance, RankSet};
use super::replay::{At, Event, replay};
use crate::plan::Plan;

/// Follows who has entered before what. Only a message tells of another rank, and only the
/// receiver: a send may complete before its receive starts.
pub(super) fn check(plan: &Plan, matching: &Matching) -> Result<(), VerifyError> {
    let ranks = plan.spec.ranks.0;
    // By rank and step: who has entered before the step is complete.
    let mut known: Vec<Vec<RankSet>> =
        plan.by_rank().map(|(rank, program)| vec![RankSet::one(rank); program.len()]).collect();
    let mut allowance = Allowance::for_steps(plan.total_steps());
    let mut count = |At { rank, step }, set: &RankSet| match allowance.takes(set) {
        true => Ok(()),
        false => Err(VerifyError::Sets { rank, step, limit: allowance.limit }),
    };
    replay(plan, matching, |event| {
        match event {
            Event::Local(at, _) => {
                let set = before(plan, &known, at);
                count(at, &set)?;
                known[at.rank as usize][at.step as usize] = set;
            }
            Event::Transfer { send: (send, _), recv: (recv, _) } => {
                let told = before(plan, &known, send);
                let set = before(plan, &known, recv).union(&told);
                count(send, &told)?;
                count(recv, &set)?;
                known[send.rank as usize][send.step as usize] = told;
                known[recv.rank as usize][recv.step as usize] = set;
            }
        }
        Ok(())
    })?;
    let all = RankSet::all(ranks);
    for (rank, known) in (0..).zip(&known) {
        let heard = known.iter().fold(RankSet::one(rank), |set, step| set.union(step));
        if let Some(missing) = all.first_beyond(&heard) {
            return Err(VerifyError::Barrier { rank, missing });
        }
    }
    Ok(())
}

/// Who has entered before a step starts.
fn before(plan: &Plan, known: &[Vec<RankSet>], at: At) -> RankSet {
    let own = RankSet::one(at.rank);
    let deps = plan.programs[at.rank as usize].deps(at.step);
    deps.iter().fold(own, |set, dep| set.union(&known[at.rank as usize][dep as usize]))
}
