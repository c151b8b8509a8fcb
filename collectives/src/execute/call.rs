//! What a rank was asked to do, so that two ranks can see whether they were asked for the same.

use std::fmt;

use qpair_verbs::calc::{DataType, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::algorithms::Algorithm;
use crate::plan::{Collective, PlanHash};

/// One rank's view of an operation: what it calls, on how much of what, and by which plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// The collective, with its root.
    pub collective: Collective,
    /// The type of the elements; `None` for a barrier.
    pub data_type: Option<DataType>,
    /// The operation of a reduction; a pre-multiplied sum with 1 for the factor, which may be another on each rank.
    pub op: Option<ReduceOp>,
    /// The number of elements: of the vector, or of all blocks together.
    pub elements: u64,
    /// Whether the result replaces what is given.
    pub in_place: bool,
    /// Whether the vectors are memory of GPUs.
    #[serde(default)]
    pub on_gpu: bool,
    /// The algorithm that was decided.
    pub algorithm: Algorithm,
    /// The plan's hash.
    pub hash: PlanHash,
}

impl Call {
    /// The length of the vector in bytes.
    pub fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.data_type.map_or(0, |data_type| data_type.size() as u64))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective)?;
        if let Some(op) = self.op {
            // Of a factor nothing is known.
            write!(f, " ({})", op.name())?;
        }
        if let Some(data_type) = self.data_type {
            write!(f, " of {} {data_type}", self.elements)?;
        }
        if !self.in_place && !matches!(self.collective, Collective::Transfer { .. }) {
            f.write_str(" into another vector")?;
        }
        if self.on_gpu {
            f.write_str(" on GPUs")?;
        }
        write!(f, " by {} (plan {})", self.algorithm, self.hash)
    }
}

/// `bytes` in the largest unit that gives a whole number.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reads_as_what_was_called() {
        let call = Call {
            collective: Collective::AllReduce,
            data_type: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            elements: 1000,
            in_place: true,
            on_gpu: false,
            algorithm: Algorithm::Ring,
            hash: PlanHash(1),
        };
        assert_eq!(call.to_string(), "all-reduce (sum) of 1000 f32 by ring (plan 0000000000000001)");
        assert_eq!(call.bytes(), 4000);
        assert_eq!(size(4 << 20), "4 MiB");
        assert_eq!(size(4000), "4000 B");
    }
}
