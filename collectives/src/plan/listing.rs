//! Plans as text.

use std::fmt;

use super::counts::Counts;
use super::program::Program;
use super::spec::{Collective, Spec};
use super::step::{Buffer, Slice, StepKind};
use super::whole::Plan;

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = match self.buffer {
            Buffer::Input => "input",
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
            Self::Finish { dst } => write!(f, "finish      {dst}"),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Even(count) => write!(f, "{count}"),
            Self::Ragged(blocks) => write!(f, "{}", Few(blocks)),
            Self::Pairs(pairs) => write!(f, "pairs of {}", Few(pairs)),
            Self::Own { rank, gives, gets } => {
                write!(f, "what rank {rank} gives, {}, and gets, {}", Few(gives), Few(gets))
            }
        }
    }
}

/// Some of the counts, and how many there are.
struct Few<'a>(&'a [u64]);

impl fmt::Display for Few<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(8)];
        write!(f, "{shown:?}")?;
        if shown.len() < self.0.len() { write!(f, " and {} more", self.0.len() - shown.len()) } else { Ok(()) }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = if self.ranks.0 == 1 { "rank" } else { "ranks" };
        write!(f, "{} among {} {ranks}", self.collective, self.ranks.0)?;
        if self.collective != Collective::Barrier {
            let what = if self.collective.has_blocks() { "blocks of " } else { "" };
            write!(f, ", {what}{} elements of {} B", self.counts, self.element_size)?;
        }
        if !self.in_place {
            f.write_str(", into another vector")?;
        }
        if self.finish { f.write_str(", finished") } else { Ok(()) }
    }
}

impl Program {
    /// The line of the listing for `step`: what it does, and what it waits for. Empty past the end.
    pub fn line(&self, step: u32) -> String {
        let Some(kind) = self.kind(step) else { return String::new() };
        let deps: Vec<String> = self.deps(step).iter().map(|dep| dep.to_string()).collect();
        let after = if deps.is_empty() { String::new() } else { format!("  after {}", deps.join(", ")) };
        format!("{step:>6}  {kind}{after}")
    }
}

/// The listing of one rank: a line for each step.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.len() as u32).try_for_each(|step| writeln!(f, "{}", self.line(step)))
    }
}

/// The listing: a line for the whole, and one for each step of each rank.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} by {}, hash {}", self.spec, self.algorithm, self.hash())?;
        for (rank, program) in self.by_rank() {
            write!(f, "rank {rank}, scratch of {}\n{program}", program.scratch())?;
        }
        Ok(())
    }
}
