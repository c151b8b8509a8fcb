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
    /// Rank `by` waited too long. What the others waited for is gathered then.
    TimedOut {
        by: u32,
        place: Place,
        limit: Duration,
        #[serde(with = "packed")]
        waits: Vec<(u32, Option<Place>)>,
    },
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

/// What ranks waited for when one of them gave up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits(Vec<(u32, Option<Place>)>);

impl Waits {
    pub(crate) fn new(mut waits: Vec<(u32, Option<Place>)>) -> Self {
        waits.sort_by_key(|(rank, _)| *rank);
        Self(waits)
    }

    /// Each rank that answered, and where it waited; `None` if it was in no operation.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<&Place>)> {
        self.0.iter().map(|(rank, place)| (*rank, place.as_ref()))
    }

    /// The rank at the end of those that wait for each other, if one waits for `rank`: that which waits for none, or does not
    /// answer. `None` where they wait in a circle.
    pub fn culprit(&self, rank: u32) -> Option<u32> {
        let mut seen = Vec::new();
        let mut at = rank;
        while !seen.contains(&at) {
            seen.push(at);
            match self.iter().find(|(rank, _)| *rank == at) {
                Some((_, Some(place))) => at = place.rank,
                Some((_, None)) | None => return Some(at),
            }
        }
        None
    }

    /// From whom a rank waits for, to the culprit, in words.
    pub(crate) fn tell(&self, rank: u32) -> String {
        let mut words = String::new();
        let mut seen = Vec::new();
        let mut at = rank;
        while !seen.contains(&at) {
            seen.push(at);
            match self.iter().find(|(rank, _)| *rank == at) {
                Some((_, Some(place))) => {
                    words += &format!("; rank {at} waits for rank {} at {place}", place.rank);
                    at = place.rank;
                }
                Some((_, None)) => return words + &format!("; rank {at} is in no operation"),
                None if self.0.is_empty() => return words,
                None => return words + &format!("; rank {at} does not answer"),
            }
        }
        words
    }
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

impl Fault {
    /// As others are told of it: of a long reason the beginning, as it may be a whole file's.
    pub(crate) fn to_tell(&self) -> Fault {
        let mut fault = self.clone();
        if let Fault::Failed { reason, .. } | Fault::Aborted { reason, .. } = &mut fault
            && let Some((end, _)) = reason.char_indices().nth(REASON)
        {
            reason.truncate(end);
        }
        fault
    }
}

/// What all ranks wait for, with the operations that several are in said once: every rank is told of every other.
mod packed {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Call, Place};
    use crate::distinct::Distinct;

    /// For whom a rank waits, at which step of which of the operations.
    type At = (u32, u32, u32);

    #[derive(Serialize, Deserialize)]
    struct Packed {
        calls: Vec<Call>,
        waits: Vec<(u32, Option<At>)>,
    }

    pub(super) fn serialize<S: Serializer>(waits: &[(u32, Option<Place>)], to: S) -> Result<S::Ok, S::Error> {
        let mut calls = Distinct::default();
        let mut at = |place: &Place| (place.rank, place.step, calls.number(place.call));
        let waits = waits.iter().map(|(rank, place)| (*rank, place.as_ref().map(&mut at))).collect();
        Packed { calls: calls.all, waits }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u32, Option<Place>)>, D::Error> {
        let Packed { calls, waits } = Packed::deserialize(from)?;
        let place = |(rank, step, number): At| {
            let call = calls.get(number as usize).copied();
            call.map(|call| Place { rank, step, call })
                .ok_or_else(|| D::Error::custom("a rank is in an operation of none"))
        };
        waits.into_iter().map(|(rank, its)| Ok((rank, its.map(place).transpose()?))).collect()
    }
}

/// Characters of a reason that other ranks are told.
const REASON: usize = 4096;

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

#[cfg(test)]
mod tests {
    use qpair_verbs::calc::{DataType, ReduceOp};

    use super::*;
    use crate::algorithms::Algorithm;
    use crate::plan::{Collective, PlanHash};

    #[test]
    fn what_all_ranks_wait_for_is_told_in_few_words() {
        let call = |elements| Call {
            collective: Collective::AllReduce,
            data_type: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            elements,
            in_place: true,
            on_gpu: false,
            algorithm: Algorithm::Ring,
            hash: PlanHash(7),
        };
        let place = |rank| Place { rank: rank / 2, step: 9, call: call(u64::from(rank % 2)) };
        let waits = (0..4096).map(|rank| (rank, (rank != 5).then(|| place(rank)))).collect();
        let fault = Fault::TimedOut { by: 3, place: place(3), limit: Duration::from_secs(1), waits };
        let text = serde_json::to_string(&fault).unwrap();
        assert!(text.len() < 100_000, "{} bytes", text.len());
        assert_eq!(serde_json::from_str::<Fault>(&text).unwrap(), fault);
        let wrong = text.replace("[0,[0,9,0]]", "[0,[0,9,2]]");
        assert!(wrong != text && serde_json::from_str::<Fault>(&wrong).is_err());
    }

    #[test]
    fn others_are_told_the_beginning_of_a_long_reason() {
        let failed = |reason: String| Fault::Failed { rank: 1, reason };
        assert_eq!(failed("short".into()).to_tell(), failed("short".into()));
        assert_eq!(failed("\u{20ac}".repeat(5000)).to_tell(), failed("\u{20ac}".repeat(4096)));
        assert_eq!(Fault::Gone { rank: 2 }.to_tell(), Fault::Gone { rank: 2 });
    }
}
