//! The two 8-bit floats of the Open Compute Project.
//!
//! No crate: those that have them convert through tables or branches, which do not vectorise, and a newtype is all that
//! is needed besides.

use std::cmp::Ordering;
use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::narrow::{self, Layout};

macro_rules! float8 {
    ($name:ident, $layout:expr, $max:literal, $tiny:literal, $(#[$doc:meta])*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The greatest number.
            pub const MAX: Self = Self($max);
            /// The least number.
            pub const MIN: Self = Self($max | 0x80);
            /// The least number above zero, a subnormal one.
            pub const MIN_POSITIVE: Self = Self(1);
            /// The NaN that operations give: all bits set.
            pub const NAN: Self = Self(0xff);

            /// The number with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest number, of two as near the one whose last bit is 0. What is beyond the greatest
            /// becomes the greatest, infinity too, as OCP has it for saturating conversion; NaN becomes
            /// [`NAN`](Self::NAN).
            pub const fn from_f32(value: f32) -> Self {
                Self(narrow::encode(Self::LAYOUT, value) as u8)
            }

            /// The same number, exactly.
            pub const fn to_f32(self) -> f32 {
                narrow::decode(Self::LAYOUT, self.0 as u32)
            }

            /// Whether it is no number.
            pub const fn is_nan(self) -> bool {
                self.0 & 0x7f > $tiny
            }

            pub(super) const LAYOUT: Layout = $layout;
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> f32 {
                value.to_f32()
            }
        }

        impl PartialEq for $name {
            /// Compares as floats: zeros are equal, and NaN is not equal to itself.
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    };
}

float8! {
    F8E4M3, narrow::E4M3, 0x7e, 0x7e,
    /// An 8-bit float with 4 bits of exponent and 3 of mantissa: from 2^-9 to 448, without infinities.
    ///
    /// It is E4M3 of the [OCP 8-bit Floating Point Specification][ocp], which others call `e4m3fn`. Its two NaN
    /// are `0x7f` and `0xff`.
    ///
    /// ```
    /// use qpair_verbs::calc::F8E4M3;
    ///
    /// assert_eq!(F8E4M3::from_f32(0.3).to_f32(), 0.3125);
    /// assert_eq!(F8E4M3::from_f32(1e9), F8E4M3::MAX);
    /// assert_eq!(F8E4M3::MAX.to_f32(), 448.0);
    /// ```
    ///
    /// [ocp]: https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1
}

float8! {
    F8E5M2, narrow::E5M2, 0x7b, 0x7c,
    /// An 8-bit float with 5 bits of exponent and 2 of mantissa: from 2^-16 to 57344, and infinity.
    ///
    /// It is E5M2 of the [OCP 8-bit Floating Point Specification][ocp]: the upper half of an IEEE 754 half.
    ///
    /// ```
    /// use qpair_verbs::calc::F8E5M2;
    ///
    /// assert_eq!(F8E5M2::from_f32(0.3).to_f32(), 0.3125);
    /// assert_eq!(F8E5M2::from_f32(f32::INFINITY), F8E5M2::MAX);
    /// assert_eq!(F8E5M2::INFINITY.to_f32(), f32::INFINITY);
    /// ```
    ///
    /// [ocp]: https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1
}

impl F8E5M2 {
    /// Infinity, which no conversion or operation makes of finite numbers.
    pub const INFINITY: Self = Self(0x7c);
}
