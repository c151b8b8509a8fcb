//! The steps of one rank.

use serde::{Deserialize, Serialize};

use super::deps::Deps;
use super::loops::{self, Loops};
use super::step::{Buffer, StepKind};

/// What one rank does: steps with dependencies on earlier steps of the same rank.
///
/// A step may start when all its dependencies are complete, whatever the order in the program.
///
/// Steps that repeat regularly are kept as loops, so that what a ring or a direct exchange does among thousands of ranks
/// takes some KiB.
///
/// ```
/// use qpair_collectives::{Program, Slice, StepKind};
///
/// let mut program = Program::new();
/// let take = program.push(StepKind::Recv { peer: 0, dst: Slice::data(0, 8) }, []);
/// program.push(StepKind::Send { peer: 2, src: Slice::data(0, 8) }, [take]);
/// assert_eq!(program.deps(1), [0]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<StepRecord>", from = "Vec<StepRecord>")]
pub struct Program {
    steps: Loops<StepKind>,
    scratch: u64,
}

/// One step of a program; its number is its index.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// What it does.
    pub kind: StepKind,
    /// The steps that it waits for, ascending.
    pub deps: Deps<'a>,
}

/// All steps of a program, in order.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a>(&'a Program);

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
        self.append(kind, &mut deps.into_iter().collect())
    }

    /// The same with a list that is put in order.
    pub(crate) fn append(&mut self, kind: StepKind, deps: &mut Vec<u32>) -> u32 {
        if deps.len() > 1 {
            deps.sort_unstable();
            deps.dedup();
        }
        for slice in [kind.src(), kind.dst()].into_iter().flatten().filter(|slice| slice.buffer == Buffer::Scratch) {
            self.scratch = self.scratch.max(slice.offset.saturating_add(slice.len));
        }
        self.steps.push(kind, deps);
        self.steps.len() - 1
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len() as usize
    }

    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All steps, in order.
    pub fn steps(&self) -> Steps<'_> {
        Steps(self)
    }

    /// Step `step`; `None` past the end.
    pub fn step(&self, step: u32) -> Option<Step<'_>> {
        self.steps.get(step).map(|(kind, deps)| Step { kind, deps })
    }

    /// What step `step` does; `None` past the end.
    pub fn kind(&self, step: u32) -> Option<StepKind> {
        self.steps.get(step).map(|(kind, _)| kind)
    }

    /// The steps that `step` waits for, ascending; none past the end.
    pub fn deps(&self, step: u32) -> Deps<'_> {
        self.steps.get(step).map_or(Deps::NONE, |(_, deps)| deps)
    }

    /// Elements of scratch that its steps name.
    pub fn scratch(&self) -> u64 {
        self.scratch
    }

    /// Bytes of memory that its steps take.
    pub fn bytes(&self) -> usize {
        self.steps.bytes()
    }

    /// Gives back memory that is kept for more steps.
    pub(crate) fn shrink(&mut self) {
        self.steps.shrink();
    }

    /// All steps with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, Step<'_>)> {
        (0..).zip(self.steps())
    }
}

impl<'a> Steps<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One after the other.
    pub fn iter(&self) -> StepIter<'a> {
        StepIter(self.0.steps.iter())
    }
}

impl<'a> IntoIterator for Steps<'a> {
    type Item = Step<'a>;
    type IntoIter = StepIter<'a>;

    fn into_iter(self) -> StepIter<'a> {
        self.iter()
    }
}

/// Goes through the steps of a program.
#[derive(Debug, Clone)]
pub struct StepIter<'a>(loops::Iter<'a, StepKind>);

impl<'a> Iterator for StepIter<'a> {
    type Item = Step<'a>;

    #[inline]
    fn next(&mut self) -> Option<Step<'a>> {
        let (kind, deps) = self.0.next()?;
        Some(Step { kind, deps })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for StepIter<'_> {}

/// A step as it is serialised.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRecord {
    kind: StepKind,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deps: Vec<u32>,
}

impl From<Program> for Vec<StepRecord> {
    fn from(program: Program) -> Self {
        program.steps().iter().map(|step| StepRecord { kind: step.kind, deps: step.deps.to_vec() }).collect()
    }
}

impl From<Vec<StepRecord>> for Program {
    fn from(records: Vec<StepRecord>) -> Self {
        let mut program = Program::new();
        for record in records {
            program.push(record.kind, record.deps);
        }
        program.shrink();
        program
    }
}
