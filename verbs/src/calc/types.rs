//! The element types, from one list.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Calls a macro with the list of element types.
///
/// A new type is one line here: its Rust type, whether it calculates as a float or an integer (and
/// the unsigned integer of its size), its names (the first is the one printed) and its doc.
macro_rules! element_types {
    ($then:ident) => {
        $then! {
            F32: f32, float(u32), ["f32", "float", "float32"], "IEEE 754 single precision.";
            F64: f64, float(u64), ["f64", "double", "float64"], "IEEE 754 double precision.";
            I32: i32, integer(u32), ["i32", "int32", "int"], "32-bit two's complement; arithmetic wraps.";
            I64: i64, integer(u64), ["i64", "int64"], "64-bit two's complement; arithmetic wraps.";
        }
    };
}
pub(super) use element_types;

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

    /// Reads a printed name, or the name that nccl-tests has for the type: `float`, `double`,
    /// `int32`, `int64`.
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
