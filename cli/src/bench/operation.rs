//! The operations there are to measure: one row of a table each. What follows from their collective is asked of that.

use qpair::collectives::{Algorithm, Collective, Counts, Recipe, Spec};
use qpair::collectives::{Elements, Ranks};
use qpair::verbs::calc::{DataType, ReduceOp};

/// An operation of all ranks of a communicator; transfers from one to another are not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Each rank gets the combination of all vectors.
    AllReduce,
    /// Each rank gets its block of that.
    ReduceScatter,
    /// Each rank gets the blocks of all.
    AllGather,
    /// Block b of rank a becomes block a of rank b.
    AllToAll,
    /// The same with blocks of any lengths.
    AllToAllV,
    /// Each rank gets the root's vector.
    Broadcast,
    /// The root gets the combination of all vectors.
    Reduce,
    /// Each rank gets its block of the root's vector.
    Scatter,
    /// The root gets the blocks of all.
    Gather,
    /// No rank leaves before all have entered.
    Barrier,
}

/// Where the result is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Placement {
    /// Into another vector than what is given.
    #[value(name = "out")]
    OutOfPlace,
    /// Into the vector that is given.
    #[value(name = "in")]
    InPlace,
}

/// What each rank must send or receive at least, for each byte of the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// 2(n-1)/n
    ThereAndBack,
    /// (n-1)/n
    AllButOwn,
    /// 1
    Whole,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    /// With rank 0 as the root, where there is one.
    collective: Collective,
    /// In the order in which they are measured.
    placements: &'static [Placement],
    bus: Bus,
}

const BOTH: &[Placement] = &[Placement::OutOfPlace, Placement::InPlace];
const OUT: &[Placement] = &[Placement::OutOfPlace];
const IN: &[Placement] = &[Placement::InPlace];

impl Operation {
    fn row(self) -> Row {
        use {Bus as B, Collective as C};
        let row = |name, collective, placements, bus| Row { name, collective, placements, bus };
        match self {
            Self::AllReduce => row("all-reduce", C::AllReduce, BOTH, B::ThereAndBack),
            Self::ReduceScatter => row("reduce-scatter", C::ReduceScatter, BOTH, B::AllButOwn),
            Self::AllGather => row("all-gather", C::AllGather, BOTH, B::AllButOwn),
            Self::AllToAll => row("all-to-all", C::AllToAll, BOTH, B::AllButOwn),
            Self::AllToAllV => row("all-to-all-v", C::AllToAll, OUT, B::AllButOwn),
            Self::Broadcast => row("broadcast", C::Broadcast { root: 0 }, IN, B::Whole),
            Self::Reduce => row("reduce", C::Reduce { root: 0 }, BOTH, B::Whole),
            Self::Scatter => row("scatter", C::Scatter { root: 0 }, OUT, B::AllButOwn),
            Self::Gather => row("gather", C::Gather { root: 0 }, OUT, B::AllButOwn),
            Self::Barrier => row("barrier", C::Barrier, IN, B::Whole),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its collective, with rank 0 as the root.
    pub fn collective(self) -> Collective {
        self.row().collective
    }

    /// Where communicators can put its result.
    pub fn placements(self) -> &'static [Placement] {
        self.row().placements
    }

    /// What busbw counts.
    pub fn bus(self) -> Bus {
        self.row().bus
    }

    /// Whether it moves elements, which have a type and a number and can be checked.
    pub fn has_elements(self) -> bool {
        self.collective() != Collective::Barrier
    }

    /// The blocks that a size is cut into: sizes are those of all blocks together, counts those of one.
    pub fn blocks(self, ranks: usize) -> usize {
        if self.collective().has_blocks() { ranks } else { 1 }
    }

    /// What `rank` calls it with.
    pub fn spec(self, call: &Call, rank: usize, ranks: usize) -> Spec {
        let (size, count) = (call.dtype.size() as u32, Elements(call.count as u64));
        let collective = self.collective().with_root(call.root as u32);
        let spec = Spec::new(collective, Ranks(ranks as u32), count, size);
        let spec = match self {
            Self::AllToAllV => spec.with_counts(self.own_counts(call.count, rank, ranks)),
            _ => spec,
        };
        let finish = call.op.is_some_and(|op| op.scale_after(ranks as u32).is_some());
        Spec { in_place: call.placement == Placement::InPlace, finish, ..spec }
    }

    /// Elements that `from` gives to `to` in an all-to-all whose blocks have `count` on average. In that with blocks of any
    /// lengths, a rank gives itself the average, and others the more the further they are: from none to twice the average.
    /// So all ranks give and get the same.
    pub fn pair(self, count: usize, (from, to): (usize, usize), ranks: usize) -> usize {
        let distance = (to + ranks - from) % ranks;
        if self != Self::AllToAllV || distance == 0 || ranks == 2 {
            return count;
        }
        let (place, last) = (distance - 1, ranks - 2);
        let below = |place: usize| 2 * count * place / last;
        // Rounded so that two places that mirror each other have twice the average.
        if 2 * place <= last { below(place) } else { 2 * count - below(last - place) }
    }

    fn own_counts(self, count: usize, rank: usize, ranks: usize) -> Counts {
        let list = |pair: &dyn Fn(usize) -> (usize, usize)| {
            (0..ranks).map(|other| self.pair(count, pair(other), ranks) as u64).collect::<Vec<_>>().into()
        };
        let (gives, gets) = (list(&|other| (rank, other)), list(&|other| (other, rank)));
        Counts::Own { rank: rank as u32, gives, gets }
    }

    /// The algorithms that do it.
    pub fn algorithms(self) -> Vec<Algorithm> {
        let call = Call { placement: self.placements()[0], ..Call::default() };
        let spec = self.spec(&call, 0, 2);
        Algorithm::ALL.into_iter().filter(|&named| Recipe::new(spec.clone(), named).is_ok()).collect()
    }
}

/// With what an operation is called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// Type of the elements.
    pub dtype: DataType,
    /// How they are combined, if they are.
    pub op: Option<ReduceOp>,
    /// Where the result goes.
    pub placement: Placement,
    /// The root, where there is one.
    pub root: usize,
    /// Elements of the vector, or of each block.
    pub count: usize,
}

impl Default for Call {
    fn default() -> Self {
        Call { dtype: DataType::U8, op: None, placement: Placement::InPlace, root: 0, count: 1 }
    }
}

impl Bus {
    /// The factor from algbw to busbw.
    pub fn factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            Self::ThereAndBack => 2.0 * (ranks - 1.0) / ranks,
            Self::AllButOwn => (ranks - 1.0) / ranks,
            Self::Whole => 1.0,
        }
    }

    /// The same as a formula.
    pub const fn formula(self) -> &'static str {
        match self {
            Self::ThereAndBack => "busbw = algbw x 2(n-1)/n",
            Self::AllButOwn => "busbw = algbw x (n-1)/n",
            Self::Whole => "busbw = algbw",
        }
    }
}

impl Placement {
    /// As nccl-tests calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out-of-place",
            Self::InPlace => "in-place",
        }
    }
}

/// The name of a reduction as `--op` takes it.
pub fn op_name(op: Option<ReduceOp>) -> String {
    match op {
        None => "none".to_owned(),
        Some(ReduceOp::PreMulSum(factor)) => format!("premul:{factor}"),
        Some(op) => op.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Operation; 10] = [
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::AllToAll,
        Operation::AllToAllV,
        Operation::Broadcast,
        Operation::Reduce,
        Operation::Scatter,
        Operation::Gather,
        Operation::Barrier,
    ];

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        let of = |operation: Operation| [1, 2, 4].map(|ranks| operation.bus().factor(ranks));
        assert_eq!(of(Operation::AllReduce), [0.0, 1.0, 1.5]);
        for operation in [Operation::ReduceScatter, Operation::AllGather, Operation::AllToAll, Operation::Scatter] {
            assert_eq!(of(operation), [0.0, 0.5, 0.75], "{operation:?}");
        }
        assert_eq!(of(Operation::Gather), [0.0, 0.5, 0.75]);
        assert_eq!((of(Operation::Broadcast), of(Operation::Reduce)), ([1.0; 3], [1.0; 3]));
    }

    #[test]
    fn in_an_all_to_all_of_any_lengths_all_ranks_give_and_get_the_same() {
        for (ranks, count) in [1, 2, 3, 4, 5, 8, 13].into_iter().flat_map(|ranks| [1, 7, 100].map(|n| (ranks, n))) {
            let pair = |from, to| Operation::AllToAllV.pair(count, (from, to), ranks);
            for rank in 0..ranks {
                let given: usize = (0..ranks).map(|to| pair(rank, to)).sum();
                let gotten: usize = (0..ranks).map(|from| pair(from, rank)).sum();
                assert_eq!((given, gotten), (count * ranks, count * ranks), "{ranks} ranks");
                assert_eq!((pair(rank, rank), ranks < 3 || pair(rank, (rank + 1) % ranks) == 0), (count, true));
            }
        }
    }

    #[test]
    fn every_operation_has_algorithms_and_those_of_its_collective_only() {
        for operation in ALL {
            let algorithms = operation.algorithms();
            assert!(algorithms.len() >= 2, "{operation:?}: {algorithms:?}");
            assert!(!algorithms.contains(&Algorithm::Auto) && !algorithms.contains(&Algorithm::Listed));
            assert!(algorithms.iter().all(|named| named.does(operation.collective())), "{operation:?}");
        }
        assert!(!Operation::AllToAllV.algorithms().contains(&Algorithm::Bruck), "it takes blocks of one length");
    }

    #[test]
    fn operations_are_named_as_their_flags() {
        assert_eq!(op_name(Some(ReduceOp::pre_mul_sum(0.5))), "premul:0.5");
        assert_eq!((op_name(Some(ReduceOp::Avg)), op_name(None)), ("avg".to_owned(), "none".to_owned()));
    }
}
