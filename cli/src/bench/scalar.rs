//! The arithmetic that the check of results does on its own, apart from what it checks.

use qpair::verbs::calc::{Element, F8E4M3, F8E5M2, ReduceOp, bf16, f16};

/// An element type with its own arithmetic.
pub trait Scalar: Element {
    /// Sums of whole numbers are exact, in any order, as long as they are not above this.
    const EXACT: u64;

    /// A whole number of at most [`EXACT`](Self::EXACT).
    fn whole(value: u64) -> Self;

    /// Any number that is made of these bits; none is -0.
    fn any(bits: u64) -> Self;

    /// `a op b`, or `None` for an operation that this check does not know.
    fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self>;

    /// What a pre-multiplied sum does to each vector.
    fn times(self, factor: f64) -> Self;

    /// What an average does to the sum.
    fn over(self, count: u32) -> Self;
}

macro_rules! floats {
    ($($type:ty: $exact:expr),*) => {$(
        impl Scalar for $type {
            const EXACT: u64 = $exact;

            fn whole(value: u64) -> Self {
                value as $type
            }

            fn any(bits: u64) -> Self {
                <$type>::from(bits as i16)
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self> {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => Some(a + b),
                    ReduceOp::Prod => Some(a * b),
                    ReduceOp::Min => Some(a.min(b)),
                    ReduceOp::Max => Some(a.max(b)),
                    _ => None,
                }
            }

            fn times(self, factor: f64) -> Self {
                self * factor as $type
            }

            fn over(self, count: u32) -> Self {
                self / count as $type
            }
        }
    )*};
}
floats!(f32: 1 << 24, f64: 1 << 53);

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            const EXACT: u64 = <$type>::MAX as u64;

            fn whole(value: u64) -> Self {
                value as $type
            }

            fn any(bits: u64) -> Self {
                bits as $type
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self> {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => Some(a.wrapping_add(b)),
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

            fn times(self, factor: f64) -> Self {
                self.wrapping_mul(factor as $type)
            }

            fn over(self, count: u32) -> Self {
                // A count that the type does not hold is more than any number of it.
                <$type>::try_from(count).map_or(0, |count| self / count)
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

/// These calculate in `f32` and round once.
macro_rules! narrow_floats {
    ($($type:ty: $exact:literal, $any:expr),*) => {$(
        impl Scalar for $type {
            const EXACT: u64 = $exact;

            fn whole(value: u64) -> Self {
                Self::from_f32(value as f32)
            }

            fn any(bits: u64) -> Self {
                let any: fn(u64) -> $type = $any;
                let value = any(bits);
                if value.to_f32().is_finite() && value.to_f32() != 0.0 { value } else { Self::from_bits(0) }
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Option<Self> {
                let (a, b) = (a.to_f32(), b.to_f32());
                let value = match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    _ => return None,
                };
                Some(Self::from_f32(value))
            }

            fn times(self, factor: f64) -> Self {
                Self::from_f32(self.to_f32() * factor as f32)
            }

            fn over(self, count: u32) -> Self {
                Self::from_f32(self.to_f32() / count as f32)
            }
        }
    )*};
}
narrow_floats! {
    f16: 2048, |bits| f16::from_bits(bits as u16),
    bf16: 256, |bits| bf16::from_bits(bits as u16),
    F8E4M3: 16, |bits| F8E4M3::from_bits(bits as u8),
    F8E5M2: 8, |bits| F8E5M2::from_bits(bits as u8)
}
