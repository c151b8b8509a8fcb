//! Inputs whose results are the same bits in whatever order they are made, and the comparison with what must come out.

use bytemuck::{bytes_of, cast_slice, cast_slice_mut};
use qpair::collectives::{Collective, Counts, Spec};
use qpair::verbs::calc::ReduceOp;

use super::operation::Operation;
use super::scalar::Scalar;

/// What the ranks give, over and over, and what must come out.
///
/// Where elements only move, all ranks give one table, each from another place on: so any place of any rank's input is a
/// place of the table.
#[derive(Clone, Debug)]
pub struct Pattern<T> {
    /// By period.
    tables: [Table<T>; 2],
    rank: usize,
    ranks: usize,
    operation: Operation,
}

/// What a rank gives, and what must come out.
#[derive(Clone, Debug)]
struct Table<T> {
    given: Vec<T>,
    result: Vec<T>,
}

impl<T: Scalar> Table<T> {
    fn new(period: usize, op: Option<ReduceOp>, rank: usize, ranks: usize) -> Option<Self> {
        let Some(op) = op else {
            let given: Vec<T> = (0..period).map(|at| visible(T::any(hash(0, at)))).collect();
            return Some(Table { result: given.clone(), given });
        };
        let of = |rank| -> Vec<T> { (0..period).map(|at| contribution(op, rank, ranks, at)).collect() };
        Some(Table { given: of(rank), result: combined(op, ranks, of)? })
    }
}

impl<T: Scalar> Pattern<T> {
    /// The pattern of `rank` among `ranks`, or `None` for an operation that this check does not know.
    pub fn new(operation: Operation, op: Option<ReduceOp>, rank: usize, ranks: usize) -> Option<Self> {
        let [first, second] = PERIODS.map(|period| Table::new(period, op, rank, ranks));
        Some(Pattern { tables: [first?, second?], rank, ranks, operation })
    }

    /// The table for such blocks, the same on all ranks: none whose period they have.
    fn table(&self, spec: &Spec) -> &Table<T> {
        let repeats = matches!(spec.counts, Counts::Even(block) if block.is_multiple_of(PERIODS[0] as u64));
        &self.tables[usize::from(repeats)]
    }

    /// Fills what a rank gives with its pattern, and all else with what no result is: `input` and `data` of the operation.
    pub fn fill(&self, spec: &Spec, input: &mut [T], data: &mut [T]) {
        cast_slice_mut::<T, u8>(input).fill(UNTOUCHED);
        cast_slice_mut::<T, u8>(data).fill(UNTOUCHED);
        if matches!(spec.collective, Collective::Broadcast { root } if root as usize != self.rank) {
            return;
        }
        let given = spec.contribution(self.rank as u32);
        let vector = if spec.in_place { data } else { input };
        let vector = &mut vector[given.offset as usize..][..given.len as usize];
        let mut done = 0;
        for piece in pieces(&self.table(spec).given, self.turn(self.rank), vector.len()) {
            vector[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
    }

    /// Number of elements of the operation's result that have other bits than they must.
    pub fn wrong(&self, spec: &Spec, data: &[T]) -> u64 {
        let output = spec.output(self.rank as u32);
        let mut output = &data[output.offset as usize..][..output.len as usize];
        let mut wrong = 0;
        for (len, at) in self.parts(spec, output.len()) {
            for piece in pieces(&self.table(spec).result, at, len) {
                let (is, rest) = output.split_at(piece.len());
                wrong += differing(is, piece);
                output = rest;
            }
        }
        wrong + output.len() as u64
    }

    /// The parts of a result of `len` elements: how long each is, and from where on it is what the table says.
    fn parts(&self, spec: &Spec, len: usize) -> Vec<(usize, usize)> {
        let (rank, ranks) = (self.rank, self.ranks);
        let offset = spec.offset(rank as u32) as usize;
        let each = |part: &dyn Fn(usize) -> (usize, usize)| (0..ranks).map(part).collect();
        match spec.collective {
            Collective::ReduceScatter => vec![(len, offset)],
            Collective::Broadcast { root } => vec![(len, self.turn(root as usize))],
            Collective::Scatter { root } => vec![(len, self.turn(root as usize) + offset)],
            Collective::AllGather => each(&|from| (len / ranks, self.turn(from))),
            Collective::Gather { .. } => each(&|from| (len / ranks, self.turn(from))),
            Collective::AllToAll => {
                let count = len / ranks;
                let pair = |from, to| self.operation.pair(count, (from, to), ranks);
                each(&|from| (pair(from, rank), self.turn(from) + (0..rank).map(|to| pair(from, to)).sum::<usize>()))
            }
            _ => vec![(len, 0)],
        }
    }

    /// Where a rank's input begins in the table.
    fn turn(&self, rank: usize) -> usize {
        if self.operation.collective().reduces() { 0 } else { rank * TURN }
    }
}

/// `len` elements of a table that goes on for ever, from `at` on.
fn pieces<T>(table: &[T], at: usize, len: usize) -> impl Iterator<Item = &[T]> {
    let (mut at, mut left) = (at % table.len(), len);
    std::iter::from_fn(move || {
        let piece = &table[at..table.len().min(at + left)];
        (at, left) = (0, left - piece.len());
        (!piece.is_empty()).then_some(piece)
    })
}

fn differing<T: Scalar>(is: &[T], must: &[T]) -> u64 {
    if cast_slice::<T, u8>(is) == cast_slice::<T, u8>(must) {
        return 0;
    }
    is.iter().zip(must).filter(|(is, must)| bytes_of(*is) != bytes_of(*must)).count() as u64
}

/// The value, unless it looks like what was not touched.
fn visible<T: Scalar>(value: T) -> T {
    if bytes_of(&value).iter().all(|&byte| byte == UNTOUCHED) { T::default() } else { value }
}

/// What all ranks' contributions come to.
fn combined<T: Scalar>(op: ReduceOp, ranks: usize, of: impl Fn(usize) -> Vec<T>) -> Option<Vec<T>> {
    let scaled = |rank| -> Vec<T> {
        let vector = of(rank);
        match op {
            ReduceOp::PreMulSum(factor) => vector.into_iter().map(|value| value.times(factor.get())).collect(),
            _ => vector,
        }
    };
    let mut result = scaled(0);
    for other in 1..ranks {
        for (cell, value) in result.iter_mut().zip(scaled(other)) {
            *cell = T::combine(op, *cell, value)?;
        }
    }
    if op == ReduceOp::Avg {
        result.iter_mut().for_each(|cell| *cell = cell.over(ranks as u32));
    }
    Some(result)
}

/// What a rank contributes at a place. At most [`givers`] ranks give something that makes a difference, others nothing, so
/// that no order of combining rounds; what is given tells which ranks are in a result, and where it belongs.
fn contribution<T: Scalar>(op: ReduceOp, rank: usize, ranks: usize, at: usize) -> T {
    let hash = hash(rank, at);
    // Ranks take turns to give.
    let turns = ranks.div_ceil(givers::<T>(op));
    let gives = (rank + at).is_multiple_of(turns);
    match op {
        ReduceOp::Min | ReduceOp::Max => T::any(hash),
        ReduceOp::Prod => T::whole(1 + u64::from(gives && hash & 1 == 1)),
        ReduceOp::LogicalAnd => T::whole(u64::from(!gives || hash & 1 == 1)),
        ReduceOp::LogicalOr | ReduceOp::LogicalXor => T::whole(if gives && hash & 1 == 1 { 1 + hash % 5 } else { 0 }),
        // All bits set.
        ReduceOp::BitAnd if !gives => T::any(u64::MAX),
        ReduceOp::BitOr | ReduceOp::BitXor if !gives => T::default(),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => T::any(hash),
        _ if gives => T::whole(hash % (1 + (T::EXACT / ranks.div_ceil(turns) as u64).min(30))),
        _ => T::default(),
    }
}

/// The most ranks that may give something at one place.
fn givers<T: Scalar>(op: ReduceOp) -> usize {
    match op {
        // 2^6 is a number of every type.
        ReduceOp::Prod => 6,
        // Of more, the result would be the same nearly everywhere.
        ReduceOp::LogicalAnd | ReduceOp::LogicalOr | ReduceOp::LogicalXor => 3,
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => 3,
        // One product is the sum of it and nothing, whatever it was rounded to.
        ReduceOp::PreMulSum(factor) if !T::TYPE.is_integer() && !keeps_sums_exact(factor.get()) => 1,
        _ => usize::try_from(T::EXACT).unwrap_or(usize::MAX),
    }
}

/// Whether multiples of whole numbers by this factor are as far from rounding, and from the least and the greatest number
/// of every type, as the whole numbers.
fn keeps_sums_exact(factor: f64) -> bool {
    [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0].contains(&factor.abs())
}

/// Spreads a rank and a place: the finalizer of splitmix64.
fn hash(rank: usize, at: usize) -> u64 {
    let mut bits = ((rank as u64) << 32 | at as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Primes, one of which no block up to 16 million elements is a multiple of: so that one in the wrong place shows.
const PERIODS: [usize; 2] = [4093, 4091];
/// From one rank's place in the table to the next; no two ranks of a few thousand have the same.
const TURN: usize = 1009;
/// The bytes of memory that an operation did not write. No input that moves is made of them.
const UNTOUCHED: u8 = 0xff;

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
