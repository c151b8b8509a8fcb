//! Operations that are a program's own function.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::types::{DataType, Element};

/// A program's own way to combine two elements, for [`UserOp::of`].
pub trait Combine: 'static {
    /// The type of the elements.
    type Element: Element;

    /// What the operation is known by, to other ranks too: give each its own, and functions that differ different names.
    /// 1 to 31 visible ASCII characters.
    const NAME: &'static str;

    /// Combines two elements.
    ///
    /// It must be associative, up to what rounding may cost, since nothing is said about which elements come together first;
    /// and commutative to the last bit, since nothing is said about who is on which side, and two ranks may differ in it: what
    /// they get would differ too. It runs on whichever thread moves data, so it should not wait. If it
    /// panics, the process aborts: no call is there that could fail.
    fn combine(a: Self::Element, b: Self::Element) -> Self::Element;
}

/// A reduction operation that is a program's own function, on one element type.
///
/// It is known by its name alone: two are equal if their names are, and the name is all that is serialised. One that
/// comes from another process can be compared and printed, but not run.
///
/// ```
/// use qpair_verbs::calc::{Calc, Combine, ReduceOp, UserOp, combine};
///
/// struct GreatestMagnitude;
///
/// impl Combine for GreatestMagnitude {
///     type Element = i32;
///     const NAME: &'static str = "greatest-magnitude";
///     fn combine(a: i32, b: i32) -> i32 {
///         std::cmp::max(a.wrapping_abs(), b.wrapping_abs())
///     }
/// }
///
/// const OP: ReduceOp = ReduceOp::User(UserOp::of::<GreatestMagnitude>());
/// let mut greatest = 5_i32.to_ne_bytes();
/// combine(Calc::of::<i32>(OP), &mut greatest, &(-7_i32).to_ne_bytes())?;
/// assert_eq!(i32::from_ne_bytes(greatest), 7);
/// # Ok::<(), qpair_verbs::calc::CalcError>(())
/// ```
#[derive(Clone, Copy)]
pub struct UserOp {
    name: Name,
    function: Option<&'static Function>,
}

impl UserOp {
    /// The operation that `C` is.
    ///
    /// A [`NAME`](Combine::NAME) that is too long or has other characters is an error of compilation:
    ///
    /// ```compile_fail,E0080
    /// # use qpair_verbs::calc::{Combine, UserOp};
    /// struct Last;
    /// impl Combine for Last {
    ///     type Element = i32;
    ///     const NAME: &'static str = "two words";
    ///     fn combine(_: i32, b: i32) -> i32 {
    ///         b
    ///     }
    /// }
    /// UserOp::of::<Last>();
    /// ```
    pub const fn of<C: Combine>() -> Self {
        Self { name: const { Name::of::<C>() }, function: Some(&Of::<C>::FUNCTION) }
    }

    /// The name.
    pub const fn name(&self) -> &str {
        let (name, _) = self.name.bytes.split_at(self.name.len as usize);
        match std::str::from_utf8(name) {
            Ok(name) => name,
            Err(_) => "?", // not so: each way to a name takes ASCII alone
        }
    }

    /// The type that it combines; `None` if it comes from another process.
    pub const fn data_type(&self) -> Option<DataType> {
        match self.function {
            Some(function) => Some(function.data_type),
            None => None,
        }
    }

    pub(super) const fn function(&self) -> Option<&'static Function> {
        self.function
    }
}

impl PartialEq for UserOp {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for UserOp {}

impl Hash for UserOp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for UserOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserOp").field("name", &self.name()).field("data_type", &self.data_type()).finish()
    }
}

impl fmt::Display for UserOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for UserOp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for UserOp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let name =
            Name::new(&text).ok_or_else(|| Error::custom("the name of an operation is 1 to 31 visible characters"))?;
        Ok(Self { name, function: None })
    }
}

/// What runs.
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) data_type: DataType,
    /// Its contract is that of [`combine_raw`](super::combine_raw).
    pub(super) kernel: unsafe extern "C" fn(*mut u8, *const u8, *const u8, usize),
}

/// Gives each `C` a constant.
struct Of<C>(C);

impl<C: Combine> Of<C> {
    const FUNCTION: Function = Function { name: C::NAME, data_type: <C::Element as Element>::TYPE, kernel: each::<C> };
}

/// A loop over `C::combine`; `extern "C"`, since a panic must not leave it: callers hold memory that a device uses.
///
/// # Safety
/// As [`combine_raw`](super::combine_raw).
unsafe extern "C" fn each<C: Combine>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    let (dst, a, b) = (dst.cast::<C::Element>(), a.cast::<C::Element>(), b.cast::<C::Element>());
    for i in 0..len / size_of::<C::Element>() {
        // SAFETY: element `i` is within the `len` bytes that the caller vouches for; all accesses are unaligned ones, any
        // bytes are an element, and the function is given values, which nobody else writes.
        unsafe { dst.add(i).write_unaligned(C::combine(load(a.add(i)), load(b.add(i)))) }
    }
}

/// An element, read once: the function may check it and then go by it, as by a place in a table, and a peer may be
/// writing it.
///
/// # Safety
/// It is valid for reads, and need not be aligned.
#[inline(always)]
unsafe fn load<T: Element>(at: *const T) -> T {
    /// A `T` anywhere.
    #[derive(Clone, Copy)]
    #[repr(C, packed)]
    struct Unaligned<T>(T);

    // SAFETY: by contract; it is as long as a `T`, and has no alignment.
    unsafe { at.cast::<Unaligned<T>>().read_volatile() }.0
}

/// A short name, kept where it stands: one that a peer sends costs no memory that stays.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    len: u8,
    bytes: [u8; 31],
}

impl Name {
    const fn of<C: Combine>() -> Self {
        Self::new(C::NAME).expect("the name of an operation is 1 to 31 visible ASCII characters")
    }

    const fn new(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let mut name = Self { len: text.len() as u8, bytes: [0; 31] };
        if text.is_empty() || text.len() > name.bytes.len() {
            return None;
        }
        let mut at = 0;
        while at < text.len() {
            if !text[at].is_ascii_graphic() {
                return None;
            }
            name.bytes[at] = text[at];
            at += 1;
        }
        Some(name)
    }
}
