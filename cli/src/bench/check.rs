//! Inputs whose results are exact in every type, and the comparison with what must come out.

use qpair::verbs::calc::{Element, F8E4M3, F8E5M2, ReduceOp, bf16, f16};

use super::args::Subject;

/// An element type with the arithmetic that this check does on its own, apart from what it checks.
pub trait Scalar: Element {
    /// A small number.
    fn from_small(value: u16) -> Self;

    /// `a op b`, or `None` for an operation that this check does not know.
    fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self>;
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            fn from_small(value: u16) -> Self {
                value.into()
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self> {
                match op {
                    ReduceOp::Sum => Some(a + b),
                    ReduceOp::Prod => Some(a * b),
                    ReduceOp::Min => Some(a.min(b)),
                    ReduceOp::Max => Some(a.max(b)),
                    _ => None,
                }
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            fn from_small(value: u16) -> Self {
                value as $type
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self> {
                match op {
                    ReduceOp::Sum => Some(a.wrapping_add(b)),
                    ReduceOp::Prod => Some(a.wrapping_mul(b)),
                    ReduceOp::Min => Some(a.min(b)),
                    ReduceOp::Max => Some(a.max(b)),
                    ReduceOp::LogicalAnd => Some((a != 0 && b != 0).into()),
                    ReduceOp::LogicalOr => Some((a != 0 || b != 0).into()),
                    ReduceOp::LogicalXor => Some(((a != 0) != (b != 0)).into()),
                    ReduceOp::BitAnd => Some(a & b),
                    ReduceOp::BitOr => Some(a | b),
                    ReduceOp::BitXor => Some(a ^ b),
                    _ => None,
                }
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

/// Of these, sums and products round, in an order that this check does not know.
macro_rules! narrow_floats {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            fn from_small(value: u16) -> Self {
                Self::from_f32(value.into())
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self> {
                match op {
                    ReduceOp::Min => Some(if a < b { a } else { b }),
                    ReduceOp::Max => Some(if a > b { a } else { b }),
                    _ => None,
                }
            }
        }
    )*};
}
narrow_floats!(f16, bf16, F8E4M3, F8E5M2);

/// One period of a rank's input, and of the result.
#[derive(Clone, Debug)]
pub struct Pattern<T> {
    input: Vec<T>,
    output: Vec<T>,
}

impl<T: Scalar> Pattern<T> {
    /// The pattern of `rank` among `ranks`, or `None` for an operation that this check does not know.
    pub fn new(subject: Subject, rank: usize, ranks: usize) -> Option<Self> {
        let column = |value: &dyn Fn(usize) -> u16| (0..PERIOD).map(|at| T::from_small(value(at))).collect::<Vec<_>>();
        let (input, output) = match subject {
            Subject::AllReduce(op) => {
                let of = |rank| column(&|at| contribution(op, rank, ranks, at));
                let mut result = of(0);
                for other in 1..ranks {
                    for (cell, value) in result.iter_mut().zip(of(other)) {
                        *cell = T::combine(op, *cell, value)?;
                    }
                }
                (of(rank), result)
            }
            Subject::Broadcast { root } => {
                let sent = |at| (hash(root, at) % 31) as u16;
                // What the others start with differs from the root's in every element.
                let input = if rank == root { column(&sent) } else { column(&|at| sent(at) + 1) };
                (input, column(&sent))
            }
        };
        Some(Pattern { input, output })
    }

    /// Fills `vector` with the input.
    pub fn fill(&self, vector: &mut [T]) {
        for chunk in vector.chunks_mut(PERIOD) {
            chunk.copy_from_slice(&self.input[..chunk.len()]);
        }
    }

    /// Number of elements that are not what they must be.
    pub fn wrong(&self, vector: &[T]) -> u64 {
        let wrong_in = |chunk: &[T]| {
            if *chunk == self.output[..chunk.len()] {
                return 0;
            }
            chunk.iter().zip(&self.output).filter(|(is, must)| is != must).count() as u64
        };
        vector.chunks(PERIOD).map(wrong_in).sum()
    }
}

/// What a rank contributes. Every result is exact in f32 and i32, and tells which ranks are in it and where it belongs.
fn contribution(op: ReduceOp, rank: usize, ranks: usize, at: usize) -> u16 {
    let hash = hash(rank, at);
    match op {
        // A factor of 2 from about eight ranks, however many there are: the product stays below 2^31.
        ReduceOp::Prod => 1 + u16::from(hash % ranks.max(16) as u64 <= 7),
        // Wide apart, or with many ranks the least and the greatest are the same everywhere.
        ReduceOp::Min | ReduceOp::Max => hash as u16,
        // Sums over half a million ranks stay below 2^24.
        _ => (hash % 31) as u16,
    }
}

/// Spreads a rank and a place: the finalizer of splitmix64.
fn hash(rank: usize, at: usize) -> u64 {
    let mut bits = ((rank as u64) << 32 | at as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A prime, so that a block in the wrong place shows whatever its size.
const PERIOD: usize = 4093;

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: Subject = Subject::AllReduce(ReduceOp::Sum);
    const LEN: usize = 1 << 14;
    const KNOWN: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

    fn input(pattern: &Pattern<f32>, len: usize) -> Vec<f32> {
        let mut vector = vec![-1.0; len];
        pattern.fill(&mut vector);
        vector
    }

    /// The inputs of all ranks, made one vector.
    fn combined(op: ReduceOp, inputs: &[Vec<f32>]) -> Vec<f32> {
        let at = |i: usize| inputs.iter().map(|input| input[i]).reduce(|a, b| f32::combine(op, a, b).expect("known"));
        (0..LEN).map(|i| at(i).expect("a rank")).collect()
    }

    #[test]
    fn a_result_made_by_hand_is_right() {
        for (op, ranks) in KNOWN.into_iter().flat_map(|op| [2, 3, 4].map(|ranks| (op, ranks))) {
            let new = |rank| Pattern::<f32>::new(Subject::AllReduce(op), rank, ranks).expect("known");
            let patterns: Vec<_> = (0..ranks).map(new).collect();
            let inputs: Vec<_> = patterns.iter().map(|pattern| input(pattern, LEN)).collect();
            let result = combined(op, &inputs);
            assert!(patterns.iter().all(|pattern| pattern.wrong(&result) == 0), "{op} of {ranks} ranks");
        }
    }

    #[test]
    fn blocks_in_the_wrong_place_and_of_the_wrong_rank_show() {
        for (op, ranks) in KNOWN.into_iter().flat_map(|op| [2, 4, 16].map(|ranks| (op, ranks))) {
            let new = |rank| Pattern::<f32>::new(Subject::AllReduce(op), rank, ranks).expect("known");
            let mut inputs: Vec<_> = (0..ranks).map(|rank| input(&new(rank), LEN)).collect();
            let mut moved = combined(op, &inputs);
            moved.rotate_left(LEN / 4);
            assert!(new(0).wrong(&moved) > LEN as u64 / 3, "{op} of {ranks} ranks: a block in the wrong place");
            inputs[1] = inputs[0].clone();
            let wrong = new(0).wrong(&combined(op, &inputs));
            assert!(wrong > LEN as u64 / 100, "{op} of {ranks} ranks: one taken twice, one left out, {wrong} show");
        }
    }

    #[test]
    fn results_are_exact_and_differ_from_place_to_place_among_many_ranks() {
        for op in KNOWN {
            let wide = Pattern::<f64>::new(Subject::AllReduce(op), 0, 256).expect("known");
            let narrow = Pattern::<f32>::new(Subject::AllReduce(op), 0, 256).expect("known");
            let whole = Pattern::<i32>::new(Subject::AllReduce(op), 0, 256).expect("known");
            for ((wide, narrow), whole) in wide.output.iter().zip(&narrow.output).zip(&whole.output) {
                assert_eq!((f64::from(*narrow), f64::from(*whole)), (*wide, *wide), "{op}");
            }
            let changes = wide.output.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!(changes > PERIOD / 2, "{op}: {changes}");
        }
    }

    #[test]
    fn each_wrong_element_counts() {
        let pattern = Pattern::<f32>::new(SUM, 0, 1).expect("known");
        let mut sum = input(&pattern, 3 * PERIOD + 1);
        sum[0] += 1.0;
        sum[2 * PERIOD] += 1.0;
        sum[3 * PERIOD] += 1.0;
        assert_eq!(pattern.wrong(&sum), 3);
    }

    #[test]
    fn before_a_broadcast_no_element_is_right_by_chance() {
        let subject = Subject::Broadcast { root: 1 };
        for rank in 0..3 {
            let pattern = Pattern::<i64>::new(subject, rank, 3).expect("known");
            let mut input = vec![0; PERIOD];
            pattern.fill(&mut input);
            assert_eq!(pattern.wrong(&input), if rank == 1 { 0 } else { PERIOD as u64 });
        }
    }
}
