//! The hash by which ranks agree that they hold one plan.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::whole::Plan;
use crate::fnv::Fnv;

/// A stable 64-bit hash of a plan or recipe: equal for equal ones, on every machine and in every build of a release.
///
/// It is FNV-1a over the JSON: what is hashed is what is written to a file. It guards against mistakes, not against a
/// forger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlanHash(pub u64);

impl fmt::Display for PlanHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl PlanHash {
    /// The hash of what `value` is serialised as.
    pub(crate) fn of(value: &impl Serialize) -> Self {
        let mut fnv = Fnv::new();
        // Only a type that refuses to be serialised could fail, and these do not.
        let _ = serde_json::to_writer(&mut fnv, value);
        PlanHash(fnv.sum())
    }
}

impl Plan {
    /// The plan's hash. Takes time in proportion to the number of steps of all ranks.
    pub fn hash(&self) -> PlanHash {
        PlanHash::of(self)
    }
}
