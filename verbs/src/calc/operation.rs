//! The reduction operations: their names, and what each does to two elements.

use std::fmt;
use std::ops::BitOr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::types::{DataType, Element, UnknownName, element_types};

/// A reduction operation.
///
/// Every operation is commutative to the last bit, on every CPU:
/// - Integer sums and products wrap.
/// - A float result that is not a number is the one quiet NaN whose bits are all set, whatever the
///   bits of the NaN that went in. If either operand is NaN, so is the result, of minimum and
///   maximum too.
/// - Minimum and maximum take -0.0 as less than +0.0. They are also associative to the last bit,
///   so their results do not depend on the order of reduction at all; nor do integer
///   sums and products. Float sums and products round, and depend on the grouping.
///
/// ```
/// use qpair_verbs::calc::ReduceOp;
///
/// assert_eq!("max".parse(), Ok(ReduceOp::Max));
/// assert_eq!(ReduceOp::Sum.to_string(), "sum");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ReduceOp {
    /// a + b
    Sum,
    /// a * b
    Prod,
    /// The lesser of a and b.
    Min,
    /// The greater of a and b.
    Max,
}

impl ReduceOp {
    /// Every operation, in declaration order.
    pub const ALL: [ReduceOp; 4] = [Self::Sum, Self::Prod, Self::Min, Self::Max];

    /// The name it prints and parses: `sum`, `prod`, `min` or `max`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| UnknownName::new("operation", text, Self::ALL.iter().map(|op| op.name())))
    }
}

/// A reduction: which operation, on which element type.
///
/// ```
/// use qpair_verbs::calc::{Calc, ReduceOp};
///
/// assert_eq!(Calc::of::<f32>(ReduceOp::Sum).to_string(), "sum of f32");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Calc {
    /// The type of the elements.
    pub data_type: DataType,
    /// What is done with them.
    pub op: ReduceOp,
}

impl Calc {
    /// `op` on elements of type `T`.
    pub const fn of<T: Element>(op: ReduceOp) -> Self {
        Self { data_type: T::TYPE, op }
    }
}

impl fmt::Display for Calc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.op, self.data_type)
    }
}

/// The arithmetic of an element type, as [`ReduceOp`] documents it but for the bits of a NaN.
pub(super) trait Arithmetic: Element {
    /// An unsigned integer of the type's size.
    type Mask: Copy + Default + PartialEq + BitOr<Output = Self::Mask>;

    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;

    /// All bits set if one of the two is NaN, else none.
    fn nan_mask(self, other: Self) -> Self::Mask;

    /// The value, with any NaN replaced by the one NaN.
    fn one_nan(self) -> Self;

    /// Whether the type has NaN.
    const HAS_NAN: bool;
}

/// A [`ReduceOp`] as a type, so that each kernel is compiled for one.
pub(super) trait Operation {
    fn apply<T: Arithmetic>(a: T, b: T) -> T;
}

macro_rules! operations {
    ($($name:ident => $method:ident),+) => {
        $(
            pub(super) struct $name;
            impl Operation for $name {
                #[inline(always)]
                fn apply<T: Arithmetic>(a: T, b: T) -> T {
                    a.$method(b)
                }
            }
        )+
    };
}
operations!(Sum => sum, Prod => prod, Min => min, Max => max);

macro_rules! arithmetic {
    ($($variant:ident: $rust:ty, $kind:ident($bits:ty), $names:tt, $doc:literal;)+) => {
        $(arithmetic!(@$kind $rust, $bits);)+
    };
    (@integer $rust:ty, $bits:ty) => {
        impl Arithmetic for $rust {
            type Mask = $bits;
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn nan_mask(self, _other: Self) -> $bits {
                0
            }
            #[inline(always)]
            fn one_nan(self) -> Self {
                self
            }
            const HAS_NAN: bool = false;
        }
    };
    // For minimum and maximum: a comparison and a select are one vector instruction, which answers
    // with its second operand for equal zeros and for NaN. Asked both ways round, the two answers
    // differ only in those cases: OR of their bits makes -0.0 of unlike zeros, keeps a NaN a NaN.
    (@float $rust:ty, $bits:ty) => {
        impl Arithmetic for $rust {
            type Mask = $bits;
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                <$rust>::from_bits(one.to_bits() | two.to_bits())
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let sign = (-0.0 as $rust).to_bits();
                let one = if self > other { self } else { other };
                let two = if other > self { other } else { self };
                <$rust>::from_bits(((one.to_bits() ^ sign) | (two.to_bits() ^ sign)) ^ sign)
            }
            #[inline(always)]
            fn nan_mask(self, other: Self) -> $bits {
                if self.is_nan() | other.is_nan() { <$bits>::MAX } else { 0 }
            }
            #[inline(always)]
            fn one_nan(self) -> Self {
                <$rust>::from_bits(self.to_bits() | self.nan_mask(self))
            }
            const HAS_NAN: bool = true;
        }
    };
}
element_types!(arithmetic);
