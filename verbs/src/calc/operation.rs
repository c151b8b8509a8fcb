//! What is done to two elements: a reduction as verbs take it, and each type's arithmetic.

use std::fmt;
use std::hash::{Hash, Hasher};

use half::{bf16, f16};

use super::fp8::{F8E4M3, F8E5M2};
use super::kernels::CalcError;
use super::narrow;
use super::reduce_op::ReduceOp;
use super::types::{DataType, Element, element_types};
use super::user::Function;

/// How two vectors are combined, element by element: an operation, on an element type that it is for.
///
/// Of an average and a pre-multiplied sum it is the sum; the rest is done to one vector, by
/// [`scale`](super::scale()).
///
/// ```
/// use qpair_verbs::calc::{Calc, CalcError, DataType, ReduceOp};
///
/// assert_eq!(Calc::new(DataType::F32, ReduceOp::Sum)?.to_string(), "sum of f32");
/// assert_eq!(Calc::of::<f32>(ReduceOp::Avg), Calc::of::<f32>(ReduceOp::Sum));
/// assert!(Calc::new(DataType::F32, ReduceOp::BitAnd).is_err());
/// # Ok::<(), CalcError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Calc(Way);

/// What runs.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Fixed(DataType, Fixed),
    User(&'static Function),
}

impl Calc {
    /// `op` on elements of a type.
    ///
    /// # Errors
    /// [`CalcError::Factor`] for a factor that is no integer of an integer type, [`CalcError::Unsupported`] for any
    /// other operation that is not for the type ([`ReduceOp::supports`]).
    pub const fn new(data_type: DataType, op: ReduceOp) -> Result<Self, CalcError> {
        let fixed = match op {
            ReduceOp::User(op) if op.data_type().is_none() => return Err(CalcError::Foreign(op)),
            ReduceOp::PreMulSum(factor) if !op.supports(data_type) => {
                return Err(CalcError::Factor { factor, data_type });
            }
            _ if !op.supports(data_type) => return Err(CalcError::Unsupported { op, data_type }),
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => Fixed::Sum,
            ReduceOp::Prod => Fixed::Prod,
            ReduceOp::Min => Fixed::Min,
            ReduceOp::Max => Fixed::Max,
            ReduceOp::LogicalAnd => Fixed::LogicalAnd,
            ReduceOp::LogicalOr => Fixed::LogicalOr,
            ReduceOp::LogicalXor => Fixed::LogicalXor,
            ReduceOp::BitAnd => Fixed::BitAnd,
            ReduceOp::BitOr => Fixed::BitOr,
            ReduceOp::BitXor => Fixed::BitXor,
            ReduceOp::User(op) => match op.function() {
                Some(function) => return Ok(Self(Way::User(function))),
                None => return Err(CalcError::Foreign(op)),
            },
        };
        Ok(Self(Way::Fixed(data_type, fixed)))
    }

    /// `op` on elements of type `T`, where both are known to go together. In a constant, what does not is an error of
    /// compilation.
    ///
    /// # Panics
    /// Where [`new`](Self::new) fails.
    pub const fn of<T: Element>(op: ReduceOp) -> Self {
        match Self::new(T::TYPE, op) {
            Ok(calc) => calc,
            Err(_) => panic!("the operation is not for this type: see ReduceOp::supports"),
        }
    }

    /// The type of the elements.
    pub const fn data_type(&self) -> DataType {
        match self.0 {
            Way::Fixed(data_type, _) => data_type,
            Way::User(function) => function.data_type,
        }
    }

    /// The name of what is done: `sum` for an average too.
    pub const fn name(&self) -> &'static str {
        match self.0 {
            Way::Fixed(_, fixed) => fixed.name(),
            Way::User(function) => function.name,
        }
    }

    /// True for an operation of the program's own, which runs on the processor alone.
    pub const fn is_own(&self) -> bool {
        self.fixed().is_none()
    }

    /// How many operations there are beside a program's own.
    pub(crate) const FIXED: usize = Fixed::COUNT;

    /// Which of these it is, by a number below [`FIXED`](Calc::FIXED); `None` of a program's own.
    pub(crate) const fn fixed(self) -> Option<usize> {
        match self.0 {
            Way::Fixed(_, fixed) => Some(fixed as usize),
            Way::User(_) => None,
        }
    }

    pub(super) const fn way(self) -> Way {
        self.0
    }
}

impl PartialEq for Calc {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Way::Fixed(data_type, fixed), Way::Fixed(other_type, other)) => (data_type, fixed) == (other_type, other),
            (Way::User(one), Way::User(two)) => (one.name, one.data_type) == (two.name, two.data_type),
            _ => false,
        }
    }
}

impl Eq for Calc {}

impl Hash for Calc {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.data_type(), self.name()).hash(state);
    }
}

impl fmt::Debug for Calc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calc({self})")
    }
}

impl fmt::Display for Calc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name(), self.data_type())
    }
}

/// The arithmetic of an element type, as [`ReduceOp`] documents it but for the bits of a NaN.
pub(super) trait Arithmetic: Element {
    /// An unsigned integer of the type's size.
    type Mask: Copy + Default + PartialEq + std::ops::BitOr<Output = Self::Mask>;

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

/// What integers can besides.
pub(super) trait Integer: Arithmetic {
    fn logical_and(self, other: Self) -> Self;
    fn logical_or(self, other: Self) -> Self;
    fn logical_xor(self, other: Self) -> Self;
    fn bit_and(self, other: Self) -> Self;
    fn bit_or(self, other: Self) -> Self;
    fn bit_xor(self, other: Self) -> Self;
}

/// An operation as a type, so that each kernel is compiled for one.
pub(super) trait Operation<T> {
    fn apply(a: T, b: T) -> T;
}

macro_rules! operations {
    ($($name:ident, $trait:ident => $method:ident, $text:literal;)+) => {
        /// An operation that has kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Fixed {
            $($name,)+
        }

        impl Fixed {
            pub(super) const COUNT: usize = [$(Fixed::$name),+].len();

            const fn name(self) -> &'static str {
                match self { $(Fixed::$name => $text,)+ }
            }
        }

        $(
            pub(super) struct $name;
            impl<T: $trait> Operation<T> for $name {
                #[inline(always)]
                fn apply(a: T, b: T) -> T {
                    a.$method(b)
                }
            }
        )+
    };
}
operations! {
    Sum, Arithmetic => sum, "sum";
    Prod, Arithmetic => prod, "prod";
    Min, Arithmetic => min, "min";
    Max, Arithmetic => max, "max";
    LogicalAnd, Integer => logical_and, "land";
    LogicalOr, Integer => logical_or, "lor";
    LogicalXor, Integer => logical_xor, "lxor";
    BitAnd, Integer => bit_and, "band";
    BitOr, Integer => bit_or, "bor";
    BitXor, Integer => bit_xor, "bxor";
}

/// A float's bits as an unsigned integer that is in the order of the floats, -0.0 before +0.0.
macro_rules! in_order {
    ($code:expr, $bits:ty) => {{
        let code: $bits = $code;
        let negative = (code >> (<$bits>::BITS - 1)).wrapping_neg();
        code ^ (negative | !(<$bits>::MAX >> 1))
    }};
}

/// The float's bits that an integer was made of by [`in_order`].
macro_rules! out_of_order {
    ($code:expr, $bits:ty) => {{
        let code: $bits = $code;
        let negative = (code >> (<$bits>::BITS - 1)).wrapping_sub(1);
        code ^ (negative | !(<$bits>::MAX >> 1))
    }};
}

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

        impl Integer for $rust {
            #[inline(always)]
            fn logical_and(self, other: Self) -> Self {
                ((self != 0) & (other != 0)) as $rust
            }
            #[inline(always)]
            fn logical_or(self, other: Self) -> Self {
                (self | other != 0) as $rust
            }
            #[inline(always)]
            fn logical_xor(self, other: Self) -> Self {
                ((self != 0) ^ (other != 0)) as $rust
            }
            #[inline(always)]
            fn bit_and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn bit_or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn bit_xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    };
    // Sums and products have the one NaN from their rounding. Minimum and maximum need no conversion.
    (@narrow $rust:ty, $bits:ty) => {
        impl Arithmetic for $rust {
            type Mask = $bits;
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                Self::of_wide(self.wide() + other.wide())
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                Self::of_wide(self.wide() * other.wide())
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let least = Ord::min(in_order!(self.to_bits(), $bits), in_order!(other.to_bits(), $bits));
                Self::from_bits(out_of_order!(least, $bits) | self.nan_mask(other))
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let greatest = Ord::max(in_order!(self.to_bits(), $bits), in_order!(other.to_bits(), $bits));
                Self::from_bits(out_of_order!(greatest, $bits) | self.nan_mask(other))
            }
            #[inline(always)]
            fn nan_mask(self, other: Self) -> $bits {
                if self.is_nan() | other.is_nan() { <$bits>::MAX } else { 0 }
            }
            /// The value: its NaN is the one NaN already.
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

/// A float that calculates in `f32`.
pub(super) trait Narrow: Arithmetic {
    fn wide(self) -> f32;
    fn of_wide(value: f32) -> Self;
}

macro_rules! narrow {
    ($($rust:ty, $bits:ty, $decode:expr, $encode:expr;)+) => {
        $(impl Narrow for $rust {
            #[inline(always)]
            fn wide(self) -> f32 {
                $decode(u32::from(self.to_bits()))
            }
            #[inline(always)]
            fn of_wide(value: f32) -> Self {
                Self::from_bits($encode(value) as $bits)
            }
        })+
    };
}
narrow! {
    f16, u16, |code| narrow::decode(narrow::F16, code), |value| narrow::encode(narrow::F16, value);
    bf16, u16, narrow::decode_bf16, narrow::encode_bf16;
    F8E4M3, u8, |code| narrow::decode(narrow::E4M3, code), |value| narrow::encode(narrow::E4M3, value);
    F8E5M2, u8, |code| narrow::decode(narrow::E5M2, code), |value| narrow::encode(narrow::E5M2, value);
}
