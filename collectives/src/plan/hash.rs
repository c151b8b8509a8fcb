//! The hash by which ranks agree that they hold one plan.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::spec::Collective;
use super::step::{Buffer, Slice, StepKind};
use super::whole::Plan;

/// A stable 64-bit hash of a plan: equal for equal plans, on every machine and in every build.
///
/// It is FNV-1a over this encoding, all integers little-endian:
/// - `format` u32; collective u8 (0 all-reduce, 1 broadcast, 2 barrier); root u32 (0 if none);
/// - the algorithm's length in bytes u32, and its UTF-8;
/// - `ranks` u32, `elements` u64, `element_size` u32, `segment` u64, `scratch` u64;
/// - the number of programs u32; for each, its number of steps u32; for each step:
///   - kind u8 (0 send, 1 recv, 2 recv-reduce, 3 copy, 4 reduce); peer u32 (0 if none);
///   - source, then destination, each if there is one: buffer u8 (0 data, 1 scratch), offset u64,
///     length u64;
///   - the number of dependencies u32, and each u32.
///
/// It guards against mistakes, not against a forger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlanHash(pub u64);

impl fmt::Display for PlanHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Plan {
    /// The plan's hash. Takes time in proportion to the number of steps of all ranks.
    pub fn hash(&self) -> PlanHash {
        let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
        let (collective, root) = match self.collective {
            Collective::AllReduce => (0, 0),
            Collective::Broadcast { root } => (1, root),
            Collective::Barrier => (2, 0),
        };
        fnv.u32(self.format);
        fnv.bytes(&[collective]);
        fnv.u32(root);
        fnv.u32(self.algorithm.len() as u32);
        fnv.bytes(self.algorithm.as_bytes());
        fnv.u32(self.ranks.0);
        fnv.u64(self.elements.0);
        fnv.u32(self.element_size);
        fnv.u64(self.segment);
        fnv.u64(self.scratch);
        fnv.u32(self.programs.len() as u32);
        for program in &self.programs {
            fnv.u32(program.len() as u32);
            for (step, kind) in program.numbered() {
                fnv.kind(kind);
                let deps = program.deps(step);
                fnv.u32(deps.len() as u32);
                deps.iter().for_each(|&dep| fnv.u32(dep));
            }
        }
        PlanHash(fnv.0)
    }
}

struct Fnv(u64);

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn kind(&mut self, kind: &StepKind) {
        self.bytes(&[match kind {
            StepKind::Send { .. } => 0,
            StepKind::Recv { .. } => 1,
            StepKind::RecvReduce { .. } => 2,
            StepKind::Copy { .. } => 3,
            StepKind::Reduce { .. } => 4,
        }]);
        self.u32(kind.peer().unwrap_or(0));
        for slice in [kind.src(), kind.dst()].into_iter().flatten() {
            self.slice(slice);
        }
    }

    fn slice(&mut self, slice: Slice) {
        self.bytes(&[match slice.buffer {
            Buffer::Data => 0,
            Buffer::Scratch => 1,
        }]);
        self.u64(slice.offset);
        self.u64(slice.len);
    }
}
