//! What ends a communicator, in the form in which ranks tell it to each other.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::execute::{Call, size};

/// Why no rank can go on. The first one that is known counts, on all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// A rank ended without saying so.
    Gone { rank: u32 },
    /// A rank dropped its communicator while others needed it.
    Left { rank: u32 },
    /// Rank `by` waited too long.
    TimedOut { by: u32, place: Place, limit: Duration },
    /// Two ranks were asked for different things.
    Differs(Mismatch),
    /// A rank can not go on by itself.
    Failed { rank: u32, reason: String },
    /// A rank's program ended the communicator.
    Aborted { rank: u32, reason: String },
}

/// Where a rank waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The rank waited for.
    pub rank: u32,
    /// The step of the waiting rank's program.
    pub step: u32,
    /// The operation.
    pub call: Call,
}

/// Two ranks that were asked for different things.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The side that found it.
    pub one: Side,
    /// The other.
    pub other: Side,
}

/// What one rank does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// The rank.
    pub rank: u32,
    /// The number of the operation, from 0.
    pub number: u64,
    /// What it was asked for.
    pub call: Call,
}

/// The result of what may end the communicator.
pub(crate) type Outcome<T> = Result<T, Box<Fault>>;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of {} {}", self.step, self.call.algorithm, self.call.collective)?;
        if self.call.data_type.is_some() {
            write!(f, " of {}", size(self.call.bytes()))?;
        }
        Ok(())
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, other) = (&self.one, &self.other);
        if one.number == other.number {
            write!(f, "operation {} is {} on rank {}, ", one.number, one.call, one.rank)?;
            write!(f, "but {} on rank {}", other.call, other.rank)?;
        } else {
            write!(f, "rank {} is in operation {}, {}, ", one.rank, one.number, one.call)?;
            write!(f, "for which rank {} has nothing; that is in operation ", other.rank)?;
            write!(f, "{}, {}", other.number, other.call)?;
        }
        f.write_str(": all ranks must call the same operations in the same order, with the same counts")
    }
}
