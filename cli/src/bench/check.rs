//! Inputs whose results are exact in every type, and the comparison with what must come out.

use qpair::verbs::calc::{Element, ReduceOp};

use super::args::Collective;

/// An element type with the arithmetic that this check does on its own, apart from what it checks.
pub trait Scalar: Element {
    /// A small number.
    fn from_small(value: u16) -> Self;

    /// `a op b`, or `None` for an operation that this check does not know.
    fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self>;
}

macro_rules! scalars {
    ($($type:ty, $add:expr, $multiply:expr;)*) => {$(
        impl Scalar for $type {
            fn from_small(value: u16) -> Self {
                value.into()
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self> {
                match op {
                    ReduceOp::Sum => Some($add(a, b)),
                    ReduceOp::Prod => Some($multiply(a, b)),
                    ReduceOp::Min => Some(a.min(b)),
                    ReduceOp::Max => Some(a.max(b)),
                    _ => None,
                }
            }
        }
    )*};
}

scalars! {
    f32, |a, b| a + b, |a, b| a * b;
    f64, |a, b| a + b, |a, b| a * b;
    i32, i32::wrapping_add, i32::wrapping_mul;
    i64, i64::wrapping_add, i64::wrapping_mul;
}

/// One period of a rank's input, and of the result.
#[derive(Clone, Debug)]
pub struct Pattern<T> {
    input: Vec<T>,
    output: Vec<T>,
}

impl<T: Scalar> Pattern<T> {
    /// The pattern of `rank` among `ranks`, or `None` for an operation that this check does not know.
    pub fn new(collective: Collective, rank: usize, ranks: usize) -> Option<Self> {
        let column = |of: usize| (0..PERIOD).map(|at| T::from_small(value(collective, of, at))).collect::<Vec<_>>();
        let (input, output) = match collective {
            Collective::AllReduce(op) => {
                let mut sums = column(0);
                for other in 1..ranks {
                    for (sum, value) in sums.iter_mut().zip(column(other)) {
                        *sum = T::combine(op, *sum, value)?;
                    }
                }
                (column(rank), sums)
            }
            // What the others start with differs from the root's in every element.
            Collective::Broadcast { root } if rank == root => (column(root), column(root)),
            Collective::Broadcast { root } => (column(root + 1), column(root)),
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

/// Small enough that sums over hundreds of thousands of ranks stay exact in f32; powers of two for products.
fn value(collective: Collective, rank: usize, at: usize) -> u16 {
    // Multiplying by 2^32 over the golden ratio spreads neighbours.
    let mixed = ((at as u64 * 2_654_435_761) >> 16) + rank as u64 * 13;
    match collective {
        Collective::AllReduce(ReduceOp::Prod) => 1 + (mixed % 2) as u16,
        Collective::AllReduce(_) | Collective::Broadcast { .. } => (mixed % 31) as u16,
    }
}

/// A prime, so that a block in the wrong place shows whatever its size.
const PERIOD: usize = 4093;

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: Collective = Collective::AllReduce(ReduceOp::Sum);

    fn vector(pattern: &Pattern<f32>, len: usize) -> Vec<f32> {
        let mut vector = vec![-1.0; len];
        pattern.fill(&mut vector);
        vector
    }

    #[test]
    fn a_sum_made_by_hand_is_right() {
        let patterns: Vec<_> = (0..3).map(|rank| Pattern::<f32>::new(SUM, rank, 3).expect("known")).collect();
        let inputs: Vec<_> = patterns.iter().map(|pattern| vector(pattern, 10_000)).collect();
        let sum: Vec<f32> = (0..10_000).map(|i| inputs.iter().map(|input| input[i]).sum()).collect();
        assert!(patterns.iter().all(|pattern| pattern.wrong(&sum) == 0));
    }

    #[test]
    fn each_wrong_element_counts() {
        let pattern = Pattern::<f32>::new(SUM, 0, 1).expect("known");
        let mut sum = vector(&pattern, 3 * PERIOD + 1);
        sum[0] += 1.0;
        sum[2 * PERIOD] += 1.0;
        sum[3 * PERIOD] += 1.0;
        assert_eq!(pattern.wrong(&sum), 3);
    }

    #[test]
    fn blocks_in_the_wrong_place_show() {
        let pattern = Pattern::<f32>::new(SUM, 0, 1).expect("known");
        let mut sum = vector(&pattern, 1 << 14);
        sum.rotate_left(1 << 12);
        assert!(pattern.wrong(&sum) > 1 << 13);
    }

    #[test]
    fn before_a_broadcast_no_element_is_right_by_chance() {
        let collective = Collective::Broadcast { root: 1 };
        for rank in 0..3 {
            let pattern = Pattern::<i64>::new(collective, rank, 3).expect("known");
            let mut input = vec![0; PERIOD];
            pattern.fill(&mut input);
            assert_eq!(pattern.wrong(&input), if rank == 1 { 0 } else { PERIOD as u64 });
        }
    }

    #[test]
    fn every_operation_is_known() {
        for op in ReduceOp::ALL {
            let collective = Collective::AllReduce(op);
            assert!(Pattern::<i32>::new(collective, 0, 5).is_some(), "{op}");
            assert!(Pattern::<f64>::new(collective, 0, 5).is_some(), "{op}");
        }
    }
}
