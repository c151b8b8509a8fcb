//! What can be wrong with a plan.

use std::fmt;

use crate::plan::{FORMAT, Slice};

/// Why a plan is refused. Ranks and steps are numbered as in the plan's listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The plan is of another format.
    #[error("format {format} is unknown: this build takes {FORMAT}; build the plan anew")]
    Format {
        /// The plan's format.
        format: u32,
    },
    /// There is no rank, or not one program for each.
    #[error("{programs} programs for {ranks} ranks: give one to each, and at least one")]
    Programs {
        /// The number of ranks.
        ranks: u32,
        /// The number of programs.
        programs: usize,
    },
    /// The root is no rank.
    #[error("root {root} is no rank: name one below {ranks}")]
    Root {
        /// The root.
        root: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// The vector's size can not be represented, elements have no size, or a barrier has elements.
    #[error("{elements} elements of {element_size} B are no vector for this collective")]
    Size {
        /// The number of elements.
        elements: u64,
        /// Bytes of one.
        element_size: u32,
    },
    /// Counts are not one per rank, or one per pair of ranks, as the collective needs them.
    #[error("counts of {counts} do not fit the collective among {ranks} ranks: give what each rank, or pair, has")]
    Counts {
        /// The counts.
        counts: String,
        /// The number of ranks.
        ranks: u32,
    },
    /// A rank needs too much scratch.
    #[error("rank {rank}: scratch of {scratch} elements is above the limit of {limit}")]
    Scratch {
        /// The rank.
        rank: u32,
        /// What it needs.
        scratch: u64,
        /// The limit: five times all elements, and once more for each halving of the ranks.
        limit: u64,
    },
    /// A transfer has steps of a rank that calls nothing when others transfer.
    #[error("rank {rank}: it has no part in a transfer from rank {from} to rank {to}; have those two do it")]
    NoPart {
        /// The rank.
        rank: u32,
        /// Who gives.
        from: u32,
        /// Who gets.
        to: u32,
    },
    /// A step waits for a step that is no earlier one.
    #[error("rank {rank}, step {step}: waits for step {dep}, which is no earlier one")]
    Dependency {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// What it waits for.
        dep: u32,
    },
    /// A message goes to or comes from the rank itself, or no rank.
    #[error("rank {rank}, step {step}: peer {peer} is no other rank")]
    Peer {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The peer.
        peer: u32,
    },
    /// A slice goes past the end of its buffer.
    #[error("rank {rank}, step {step}: {slice} goes past the buffer's {size} elements")]
    Bounds {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The slice.
        slice: Slice,
        /// Elements of the buffer.
        size: u64,
    },
    /// Source and destination of one step differ in length, or overlap.
    #[error("rank {rank}, step {step}: {src} does not fit {dst}: equal lengths, no overlap")]
    Operands {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The source.
        src: Slice,
        /// The destination.
        dst: Slice,
    },
    /// A step writes into the vector that stays as it is.
    #[error("rank {rank}, step {step}: writes {slice}, which is to stay as it is")]
    InputWritten {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// What it writes.
        slice: Slice,
    },
    /// A step finishes elements before all contributions are in, or twice, or where nothing is to be finished; or it
    /// combines finished elements.
    #[error("rank {rank}, step {step}: {slice} is to be finished once, after the last contribution, if at all")]
    Finish {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// What it finishes.
        slice: Slice,
    },
    /// A message has no counterpart.
    #[error("rank {rank}, step {step}: no step of rank {peer} is its other side")]
    Unmatched {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The peer.
        peer: u32,
    },
    /// A message and its receive differ in length.
    #[error(
        "rank {rank}, step {step}: receives {expected} elements where step {peer_step} of rank \
         {peer} sends {sent}"
    )]
    MessageLength {
        /// The receiving rank.
        rank: u32,
        /// The receiving step.
        step: u32,
        /// Elements received.
        expected: u64,
        /// The sending rank.
        peer: u32,
        /// The sending step.
        peer_step: u32,
        /// Elements sent.
        sent: u64,
    },
    /// Two steps may touch the same elements at once, one of them to write.
    #[error("rank {rank}, step {step}: races with step {other} for {slice}; let it wait for that")]
    Race {
        /// The rank.
        rank: u32,
        /// The later step.
        step: u32,
        /// The earlier step.
        other: u32,
        /// The elements both touch.
        slice: Slice,
    },
    /// Steps read or combine over and over what was first read or combined in other parts, more than can be followed.
    #[error(
        "rank {rank}, step {step}: more than {limit} reads, or combinations, of parts of buffers that other steps take \
         otherwise; let steps take the same parts each time"
    )]
    Reads {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The limit: a million, and 64 for each step.
        limit: usize,
    },
    /// Which ranks have entered before what, or contributed to what, takes too much memory to follow.
    #[error(
        "rank {rank}, step {step}: to follow which ranks have come to what took {limit} B so far; let what is combined, or told, be \
         of ranks in a row"
    )]
    Sets {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The limit: 64 MiB, and 4 KiB for each step.
        limit: usize,
    },
    /// To find that steps wait for others takes too long.
    #[error(
        "rank {rank}, step {step}: so far more than {limit} steps were looked at to find which others steps wait for by way of \
         others, or read what they write; let each name those that it waits for, and few read what is written in pieces"
    )]
    Searches {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The limit, of the steps that are looked at for one rank, and what they wait for.
        limit: u64,
    },
    /// Steps wait for each other.
    #[error("rank {rank}, step {step}: deadlock, waits for {}", Cycle(cycle))]
    Deadlock {
        /// The rank of one step of the cycle.
        rank: u32,
        /// That step.
        step: u32,
        /// Rank and step of those that it waits for, one after the other, and itself last.
        cycle: Vec<(u32, u32)>,
    },
    /// A step reads scratch that nothing has written.
    #[error("rank {rank}, step {step}: reads {slice} before anything is there")]
    Undefined {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// What is undefined.
        slice: Slice,
    },
    /// A step combines different elements of the vector.
    #[error("rank {rank}, step {step}: combines other elements into {slice}")]
    Misplaced {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The destination.
        slice: Slice,
    },
    /// A step adds a contribution for the second time.
    #[error("rank {rank}, step {step}: adds rank {contributor}'s part to {slice} a second time")]
    Duplicate {
        /// The rank.
        rank: u32,
        /// The step.
        step: u32,
        /// The rank whose contribution it is.
        contributor: u32,
        /// The destination.
        slice: Slice,
    },
    /// An output is not what the collective promises.
    #[error("rank {rank}: {slice} ends {fault}")]
    Output {
        /// The rank.
        rank: u32,
        /// The elements.
        slice: Slice,
        /// What is wrong with them.
        fault: OutputFault,
    },
    /// A rank may leave the barrier before another has entered.
    #[error("rank {rank}: leaves the barrier without rank {missing} having entered")]
    Barrier {
        /// The rank that leaves.
        rank: u32,
        /// The rank that it does not hear of.
        missing: u32,
    },
}

/// What is wrong with an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutputFault {
    /// A contribution is not there.
    #[error("without rank {0}'s part")]
    Missing(u32),
    /// A contribution should not be there.
    #[error("with rank {0}'s part, which does not belong")]
    Foreign(u32),
    /// It is the value of other elements.
    #[error("as the value of other elements")]
    Misplaced,
    /// Nothing was put there.
    #[error("undefined")]
    Undefined,
    /// It was not finished.
    #[error("unfinished")]
    Unfinished,
    /// Rank 0 combines the same contributions in another order, so that the last bits may differ.
    #[error("combined in another order than on rank 0, where each rank is to have the same bits")]
    Differs,
}

struct Cycle<'a>(&'a [(u32, u32)]);

impl fmt::Display for Cycle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(cycle) = self;
        let shown = if cycle.len() > MOST_SHOWN { MOST_SHOWN - 1 } else { cycle.len() };
        for (i, (rank, step)) in cycle[..shown].iter().enumerate() {
            let then = if i == 0 { "" } else { ", that for " };
            write!(f, "{then}step {step} of rank {rank}")?;
        }
        match cycle[shown..] {
            [ref more @ .., (rank, step)] => {
                write!(f, ", that by way of {} more for step {step} of rank {rank}", more.len())
            }
            [] => Ok(()),
        }
    }
}

/// Steps of a cycle that are named.
const MOST_SHOWN: usize = 12;
