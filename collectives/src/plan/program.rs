//! The steps of one rank.

use serde::{Deserialize, Serialize};

use super::step::{Buffer, StepKind};

/// What one rank does: steps with dependencies on earlier steps of the same rank.
///
/// A step may start when all its dependencies are complete, whatever the order in the program.
///
/// ```
/// use qpair_collectives::{Program, Slice, StepKind};
///
/// let mut program = Program::new();
/// let take = program.push(StepKind::Recv { peer: 0, dst: Slice::data(0, 8) }, []);
/// program.push(StepKind::Send { peer: 2, src: Slice::data(0, 8) }, [take]);
/// assert_eq!(program.deps(1), &[0]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<StepRecord>", from = "Vec<StepRecord>")]
pub struct Program {
    steps: Vec<Step>,
    deps: Vec<u32>,
}

/// One step of a program; its number is its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    deps_start: u32,
    deps_len: u32,
}

impl Program {
    /// No steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a step that waits for the steps `deps`, and returns its number.
    ///
    /// A dependency that is no earlier step is kept, for [`Plan::verify`](crate::Plan::verify) to
    /// refuse. One named twice is kept once.
    pub fn push(&mut self, kind: StepKind, deps: impl IntoIterator<Item = u32>) -> u32 {
        let start = self.deps.len();
        self.deps.extend(deps);
        if self.deps.len() - start > 1 {
            self.deps[start..].sort_unstable();
            let mut kept = start + 1;
            for at in start + 1..self.deps.len() {
                if self.deps[at] != self.deps[kept - 1] {
                    self.deps[kept] = self.deps[at];
                    kept += 1;
                }
            }
            self.deps.truncate(kept);
        }
        // 2^32 steps or dependencies would be 16 GiB at least: memory ends before the numbers.
        self.steps.push(Step { kind, deps_start: start as u32, deps_len: (self.deps.len() - start) as u32 });
        (self.steps.len() - 1) as u32
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// All steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What step `step` does; `None` past the end.
    pub fn kind(&self, step: u32) -> Option<&StepKind> {
        self.steps.get(step as usize).map(|step| &step.kind)
    }

    /// The steps that `step` waits for, ascending; none past the end.
    pub fn deps(&self, step: u32) -> &[u32] {
        let range = self.steps.get(step as usize).and_then(|step| {
            let start = step.deps_start as usize;
            self.deps.get(start..start + step.deps_len as usize)
        });
        range.unwrap_or_default()
    }

    /// Elements of scratch that its steps name.
    pub fn scratch(&self) -> u64 {
        let slices = self.steps.iter().flat_map(|step| [step.kind.src(), step.kind.dst()]).flatten();
        let scratch = slices.filter(|slice| slice.buffer == Buffer::Scratch);
        scratch.map(|slice| slice.offset.saturating_add(slice.len)).max().unwrap_or(0)
    }

    /// All steps with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, &StepKind)> {
        (0..).zip(self.steps.iter().map(|step| &step.kind))
    }
}

/// A step as it is serialised.
#[derive(Serialize, Deserialize)]
struct StepRecord {
    kind: StepKind,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deps: Vec<u32>,
}

impl From<Program> for Vec<StepRecord> {
    fn from(program: Program) -> Self {
        let records = program.numbered().map(|(step, &kind)| StepRecord { kind, deps: program.deps(step).to_vec() });
        records.collect()
    }
}

impl From<Vec<StepRecord>> for Program {
    fn from(records: Vec<StepRecord>) -> Self {
        let mut program = Program::new();
        for record in records {
            program.push(record.kind, record.deps);
        }
        program
    }
}
