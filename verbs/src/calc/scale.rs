//! What averages and pre-multiplied sums do to one vector.

use half::{bf16, f16};

use super::fp8::{F8E4M3, F8E5M2};
use super::kernels::{CalcError, map};
use super::operation::{Arithmetic, Narrow};
use super::reduce_op::Factor;
use super::types::{DataType, element_types};

/// How a vector is scaled: see [`ReduceOp::scale_before`](super::ReduceOp::scale_before) and
/// [`ReduceOp::scale_after`](super::ReduceOp::scale_after).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Divided by a count, for an average. Integers are rounded toward zero.
    Divide(u32),
    /// Multiplied by a factor. Integers take whole numbers that their type holds, and wrap.
    Multiply(f64),
}

/// Scales each element of a vector.
///
/// `f64` calculates in `f64`, the other floats in `f32`, to which the count (above 2^24) or factor is rounded first; the
/// result is rounded once, to nearest even, 8-bit floats saturating. Any NaN becomes the one whose bits are all set.
/// `bytes` needs no alignment. The bits of the result are the same on every CPU.
///
/// ```
/// use qpair_verbs::calc::{DataType, Scale, scale};
///
/// let mut sum = (-7_i64).to_ne_bytes();
/// scale(DataType::I64, &mut sum, Scale::Divide(2))?;
/// assert_eq!(i64::from_ne_bytes(sum), -3);
/// # Ok::<(), qpair_verbs::calc::CalcError>(())
/// ```
///
/// # Errors
/// `bytes` is then unchanged.
/// - [`CalcError::PartialElement`] if the length is no multiple of the element's size.
/// - [`CalcError::DivideByZero`]
/// - [`CalcError::Factor`] if integers are to be multiplied by a number that their type does not hold.
pub fn scale(data_type: DataType, bytes: &mut [u8], factor: Scale) -> Result<(), CalcError> {
    if !bytes.len().is_multiple_of(data_type.size()) {
        return Err(CalcError::PartialElement { len: bytes.len(), data_type });
    }
    if factor == Scale::Divide(0) {
        return Err(CalcError::DivideByZero);
    }
    macro_rules! scale_each {
        ($($variant:ident: $rust:ty, $kind:ident($bits:ty), $names:tt, $doc:literal;)+) => {
            match data_type { $(DataType::$variant => <$rust>::scale(bytes, factor)?,)+ }
        };
    }
    element_types!(scale_each);
    Ok(())
}

trait Scalable {
    /// The count is not 0.
    fn scale(bytes: &mut [u8], factor: Scale) -> Result<(), CalcError>;
}

macro_rules! floats {
    ($($rust:ty),+) => {$(
        impl Scalable for $rust {
            fn scale(bytes: &mut [u8], factor: Scale) -> Result<(), CalcError> {
                match factor {
                    Scale::Divide(count) => map(bytes, |x: $rust| (x / count as $rust).one_nan()),
                    Scale::Multiply(factor) => map(bytes, |x: $rust| (x * factor as $rust).one_nan()),
                }
                Ok(())
            }
        }
    )+};
}
floats!(f32, f64);

macro_rules! narrow_floats {
    ($($rust:ty),+) => {$(
        impl Scalable for $rust {
            fn scale(bytes: &mut [u8], factor: Scale) -> Result<(), CalcError> {
                match factor {
                    Scale::Divide(count) => map(bytes, |x: $rust| Narrow::of_wide(x.wide() / count as f32)),
                    Scale::Multiply(factor) => map(bytes, |x: $rust| Narrow::of_wide(x.wide() * factor as f32)),
                }
                Ok(())
            }
        }
    )+};
}
narrow_floats!(f16, bf16, F8E4M3, F8E5M2);

/// Division where vectors have one: for 32 bits that of `f64`, since a quotient that is no whole number is further from
/// one, in proportion, than it rounds; for 8 bits a product, see [`reciprocal`].
macro_rules! integers {
    ($($rust:ident: $data_type:ident, $divide:expr;)+) => {$(
        impl Scalable for $rust {
            fn scale(bytes: &mut [u8], factor: Scale) -> Result<(), CalcError> {
                match factor {
                    Scale::Divide(count) => map(bytes, $divide(count)),
                    Scale::Multiply(factor) => {
                        let (factor, data_type) = (Factor::new(factor), DataType::$data_type);
                        let whole = factor.whole(data_type).ok_or(CalcError::Factor { factor, data_type })?;
                        let whole = whole as $rust;
                        map(bytes, |x: $rust| x.wrapping_mul(whole));
                    }
                }
                Ok(())
            }
        }
    )+};
}
integers! {
    i8: I8, |count| move |x: i8| {
        // Turned round twice where it is negative, without a branch.
        let sign = x >> 7;
        let quotient = ((u32::from(x.unsigned_abs()) * reciprocal(count)) >> 16) as i8;
        (quotient ^ sign).wrapping_sub(sign)
    };
    u8: U8, |count| move |x: u8| ((u32::from(x) * reciprocal(count)) >> 16) as u8;
    i32: I32, |count| move |x: i32| (f64::from(x) / f64::from(count)) as i32;
    u32: U32, |count| move |x: u32| (f64::from(x) / f64::from(count)) as u32;
    i64: I64, |count| move |x: i64| x / i64::from(count);
    u64: U64, |count| move |x: u64| x / u64::from(count);
}

/// What a number below 2^8 is multiplied by to give 2^16 times its quotient, and less than that times `1 / count` more.
fn reciprocal(count: u32) -> u32 {
    (1 << 16) / count + 1
}
