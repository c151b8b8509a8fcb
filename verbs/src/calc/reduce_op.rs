//! The reduction operations that a program names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::scale::Scale;
use super::types::{DataType, UnknownName};
use super::user::UserOp;

/// A reduction operation.
///
/// Every operation is commutative to the last bit, on every CPU; a program's own has to be. Of the others:
/// - Integer sums and products wrap.
/// - Sums and products of `f16`, `bf16` and the 8-bit floats are calculated in `f32` and rounded once, to nearest, of two
///   as near to even. Those of 8-bit floats saturate: what is beyond the greatest number becomes it, infinity too.
/// - A float result that is not a number is the one quiet NaN whose bits are all set, whatever the
///   bits of the NaN that went in. If either operand is NaN, so is the result, of minimum and
///   maximum too.
/// - Minimum and maximum take -0.0 as less than +0.0. They are also associative to the last bit,
///   so their results do not depend on the order of reduction at all; nor do integer
///   sums and products, or logical and bitwise operations. Float sums and products round, and depend on the grouping.
///
/// [`Avg`](Self::Avg) and [`PreMulSum`](Self::PreMulSum) are sums as far as two vectors are combined. What is left is done
/// to one vector by [`scale`](super::scale()): see [`scale_before`](Self::scale_before) and
/// [`scale_after`](Self::scale_after).
///
/// Equality and what is serialised are those of names and factors, so that processes can compare what they do.
///
/// ```
/// use qpair_verbs::calc::{DataType, ReduceOp};
///
/// assert_eq!("max".parse(), Ok(ReduceOp::Max));
/// assert_eq!(ReduceOp::Sum.to_string(), "sum");
/// assert!(!ReduceOp::BitAnd.supports(DataType::F32));
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
    /// The sum of all, divided by how many they are. The sum must be within the type: with `f16` and 8-bit floats, of which a few large
    /// ones go beyond it, [`pre_mul_sum`](Self::pre_mul_sum) of one divided by how many they are stays within.
    Avg,
    /// 1 if a and b are not 0, else 0. Of integers.
    #[serde(rename = "land")]
    LogicalAnd,
    /// 1 if a or b is not 0, else 0. Of integers.
    #[serde(rename = "lor")]
    LogicalOr,
    /// 1 if one of a and b is 0 and the other is not, else 0. Of integers.
    #[serde(rename = "lxor")]
    LogicalXor,
    /// a & b. Of integers.
    #[serde(rename = "band")]
    BitAnd,
    /// a | b. Of integers.
    #[serde(rename = "bor")]
    BitOr,
    /// a ^ b. Of integers.
    #[serde(rename = "bxor")]
    BitXor,
    /// The sum of all after each was multiplied by this factor, which may differ from vector to vector. For integers the
    /// factor must be a whole number that their type holds: a rank whose factor is none is refused, and keeps the others
    /// waiting.
    PreMulSum(Factor),
    /// A program's own function.
    User(UserOp),
}

impl ReduceOp {
    /// Every operation that takes no more to name, in declaration order.
    pub const ALL: [ReduceOp; 11] = [
        Self::Sum,
        Self::Prod,
        Self::Min,
        Self::Max,
        Self::Avg,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
    ];

    /// [`PreMulSum`](Self::PreMulSum) by a factor.
    pub const fn pre_mul_sum(factor: f64) -> Self {
        Self::PreMulSum(Factor::new(factor))
    }

    /// The name: `sum`, `prod`, `min`, `max`, `avg`, those of MPI for logical and bitwise operations (`land`, `bxor`, ...),
    /// `premulsum` without its factor, or the name of a program's own.
    pub const fn name(&self) -> &str {
        match self {
            Self::User(op) => op.name(),
            other => other.fixed_name(),
        }
    }

    /// Whether elements of a type can be reduced by it.
    ///
    /// | | Integers | Floats |
    /// |---|---|---|
    /// | `Sum`, `Prod`, `Min`, `Max`, `Avg` | yes | yes |
    /// | `Logical...`, `Bit...` | yes | no |
    /// | `PreMulSum` | by a whole number that the type holds | yes |
    /// | `User` | its own type only | its own type only |
    pub const fn supports(&self, data_type: DataType) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Min | Self::Max | Self::Avg => true,
            Self::LogicalAnd | Self::LogicalOr | Self::LogicalXor | Self::BitAnd | Self::BitOr | Self::BitXor => {
                data_type.is_integer()
            }
            Self::PreMulSum(factor) => !data_type.is_integer() || factor.whole(data_type).is_some(),
            Self::User(op) => match op.data_type() {
                Some(own) => own as u8 == data_type as u8,
                None => false,
            },
        }
    }

    /// What each vector is to be scaled by before it is combined with others.
    pub const fn scale_before(&self) -> Option<Scale> {
        match self {
            Self::PreMulSum(factor) => Some(Scale::Multiply(factor.get())),
            _ => None,
        }
    }

    /// What the combination of `count` vectors is to be scaled by to give the result.
    pub const fn scale_after(&self, count: u32) -> Option<Scale> {
        match self {
            Self::Avg => Some(Scale::Divide(count)),
            _ => None,
        }
    }

    const fn fixed_name(&self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::LogicalAnd => "land",
            Self::LogicalOr => "lor",
            Self::LogicalXor => "lxor",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
            Self::PreMulSum(_) => "premulsum",
            Self::User(_) => "user",
        }
    }
}

impl fmt::Display for ReduceOp {
    /// The name, and the factor of a pre-multiplied sum: `premulsum(0.5)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreMulSum(factor) => f.pad(&format!("premulsum({factor})")),
            other => f.pad(other.name()),
        }
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    /// Reads what it prints, but for the name of a program's own, which stands for no function here.
    ///
    /// # Errors
    /// [`UnknownName`] for any other text.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let unknown = || {
            let fixed = Self::ALL.iter().map(|op| op.fixed_name());
            UnknownName::new("operation", text, fixed.chain(["premulsum(FACTOR)"]))
        };
        if let Some(factor) = text.strip_prefix("premulsum(").and_then(|rest| rest.strip_suffix(')')) {
            return factor.parse().map(Self::pre_mul_sum).map_err(|_| unknown());
        }
        Self::ALL.into_iter().find(|op| op.fixed_name() == text).ok_or_else(unknown)
    }
}

/// What a vector is multiplied by. Two are equal if all their bits are: 0.0 is not -0.0, and a NaN is itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Factor(u64);

impl Factor {
    /// The factor of this value.
    pub const fn new(factor: f64) -> Self {
        Self(factor.to_bits())
    }

    /// Its value.
    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }

    /// Its value if it is a whole number that the integer type holds.
    pub(super) const fn whole(self, data_type: DataType) -> Option<i128> {
        let value = self.get();
        // Casts of floats saturate: the range of `i128` holds that of each type, so no other number becomes one of it.
        let whole = value as i128;
        let (least, most) = match data_type {
            DataType::I8 => (i8::MIN as i128, i8::MAX as i128),
            DataType::U8 => (0, u8::MAX as i128),
            DataType::I32 => (i32::MIN as i128, i32::MAX as i128),
            DataType::U32 => (0, u32::MAX as i128),
            DataType::I64 => (i64::MIN as i128, i64::MAX as i128),
            DataType::U64 => (0, u64::MAX as i128),
            _ => return None,
        };
        if whole as f64 == value && least <= whole && whole <= most { Some(whole) } else { None }
    }
}

impl fmt::Debug for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}
