//! Plans as text.

use std::fmt;

use super::step::{Buffer, Slice, StepKind};
use super::whole::Plan;

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = match self.buffer {
            Buffer::Data => "data",
            Buffer::Scratch => "scratch",
        };
        let end = self.offset.saturating_add(self.len);
        write!(f, "{buffer}[{}..{end}]", self.offset)
    }
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { peer, src } => write!(f, "send        to {peer:<4} {src}"),
            Self::Recv { peer, dst } => write!(f, "recv        of {peer:<4} {dst}"),
            Self::RecvReduce { peer, dst } => write!(f, "recv-reduce of {peer:<4} {dst}"),
            Self::Copy { src, dst } => write!(f, "copy        {src} to {dst}"),
            Self::Reduce { src, dst } => write!(f, "reduce      {src} into {dst}"),
        }
    }
}

/// The listing: a line for the whole, and one for each step of each rank.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} by {}, {} ranks, {} elements of {} B, segments of {}, scratch of {}, hash {}",
            self.collective,
            self.algorithm,
            self.ranks.0,
            self.elements.0,
            self.element_size,
            self.segment,
            self.scratch,
            self.hash()
        )?;
        for (rank, program) in self.by_rank() {
            writeln!(f, "rank {rank}")?;
            for (step, kind) in program.numbered() {
                write!(f, "{step:>6}  {kind}")?;
                for (i, dep) in program.deps(step).iter().enumerate() {
                    write!(f, "{}{dep}", if i == 0 { "  after " } else { ", " })?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
