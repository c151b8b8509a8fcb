//! The element types, from one list.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::fp8::{F8E4M3, F8E5M2};

/// Calls a macro with the list of element types.
///
/// A new type is one line here: its Rust type, how it calculates (`integer`, `float`, or `narrow`, a
/// float that calculates in `f32`) with the unsigned integer of its size, its names (the first is the
/// one printed) and its doc.
macro_rules! element_types {
    ($then:ident) => {
        $then! {
            I8: i8, integer(u8), ["i8", "int8", "char"], "8-bit two's complement; arithmetic wraps.";
            U8: u8, integer(u8), ["u8", "uint8"], "8 bits without sign; arithmetic wraps.";
            I32: i32, integer(u32), ["i32", "int32", "int"], "32-bit two's complement; arithmetic wraps.";
            U32: u32, integer(u32), ["u32", "uint32"], "32 bits without sign; arithmetic wraps.";
            I64: i64, integer(u64), ["i64", "int64"], "64-bit two's complement; arithmetic wraps.";
            U64: u64, integer(u64), ["u64", "uint64"], "64 bits without sign; arithmetic wraps.";
            F16: f16, narrow(u16), ["f16", "half", "float16"], "IEEE 754 half precision ([`f16`](struct@f16)).";
            Bf16: bf16, narrow(u16), ["bf16", "bfloat16"], "The upper half of an IEEE 754 single ([`bf16`]).";
            F32: f32, float(u32), ["f32", "float", "float32"], "IEEE 754 single precision.";
            F64: f64, float(u64), ["f64", "double", "float64"], "IEEE 754 double precision.";
            F8E4M3: F8E4M3, narrow(u8), ["f8e4m3", "fp8_e4m3", "float8_e4m3fn"], "8 bits, 3 of mantissa ([`F8E4M3`]).";
            F8E5M2: F8E5M2, narrow(u8), ["f8e5m2", "fp8_e5m2", "float8_e5m2"], "8 bits, 2 of mantissa ([`F8E5M2`]).";
        }
    };
}
pub(super) use element_types;

macro_rules! is_integer {
    (integer) => {
        true
    };
    ($float:ident) => {
        false
    };
}

macro_rules! define_types {
    ($($variant:ident: $rust:ty, $kind:ident($bits:ty), [$($name:literal),+], $doc:literal;)+) => {
        /// The type of one element of a vector, in the machine's byte order.
        ///
        /// ```
        /// use qpair_verbs::calc::DataType;
        ///
        /// assert_eq!("float".parse(), Ok(DataType::F32));
        /// assert_eq!(DataType::I64.to_string(), "i64");
        /// assert_eq!(DataType::F64.size(), 8);
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum DataType {
            $(#[doc = $doc] $variant,)+
        }

        impl DataType {
            /// Every type, in declaration order.
            pub const ALL: [DataType; [$(DataType::$variant),+].len()] = [$(DataType::$variant),+];

            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self { $(DataType::$variant => size_of::<$rust>(),)+ }
            }

            /// Whether its elements are integers; else they are floats.
            pub const fn is_integer(self) -> bool {
                match self { $(DataType::$variant => is_integer!($kind),)+ }
            }

            /// All names that parse, the printed one first.
            const fn names(self) -> &'static [&'static str] {
                match self { $(DataType::$variant => &[$($name),+],)+ }
            }
        }

        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const TYPE: DataType = DataType::$variant;
            }
        )+
    };
}
element_types!(define_types);

impl DataType {
    /// The name it prints, for example `f32`.
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = UnknownName;

    /// Reads a printed name, or the name that nccl-tests or PyTorch has for the type: `float`, `half`,
    /// `bfloat16`, `uint8`, `float8_e4m3fn` and the like.
    ///
    /// # Errors
    /// [`UnknownName`] for any other text.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL
            .into_iter()
            .find(|data_type| data_type.names().contains(&text))
            .ok_or_else(|| UnknownName::new("element type", text, Self::ALL.iter().map(|t| t.name())))
    }
}

/// A Rust type that stands for a [`DataType`]; every bit pattern is a value. Sealed.
///
/// ```
/// use qpair_verbs::calc::{DataType, Element};
///
/// fn data_type<T: Element>(_: &[T]) -> DataType {
///     T::TYPE
/// }
/// assert_eq!(data_type(&[1.0_f32]), DataType::F32);
/// ```
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + 'static + PartialEq + fmt::Debug + Default {
    /// The type's value.
    const TYPE: DataType;
}

pub(super) mod sealed {
    /// Keeps [`Element`](super::Element) to the types whose bytes the kernels know.
    pub trait Sealed {}
}

/// A text that names no element type or operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{name}`: use one of {known}")]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: String,
}

impl UnknownName {
    pub(super) fn new(kind: &'static str, name: &str, known: impl Iterator<Item = &'static str>) -> Self {
        let known = known.collect::<Vec<_>>().join(", ");
        Self { kind, name: name.to_owned(), known }
    }
}
