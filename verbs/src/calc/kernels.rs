//! The loops, compiled for each instruction set that pays, and the choice among them.

use std::sync::OnceLock;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::f16c;
use super::fp8::{F8E4M3, F8E5M2};
use super::operation::{
    Arithmetic, BitAnd, BitOr, BitXor, Calc, Fixed, Integer, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Narrow,
    Operation, Prod, Sum, Way,
};
use super::reduce_op::{Factor, ReduceOp};
use super::types::{DataType, Element, element_types};
use super::user::UserOp;

/// Combines two vectors: `dst[i] = dst[i] op src[i]` for each element.
///
/// Lengths are in bytes; the slices need no alignment. The bits of the result are the same on
/// every CPU.
///
/// ```
/// use qpair_verbs::calc::{Calc, ReduceOp, combine};
///
/// let mut sum = 2_i64.to_ne_bytes();
/// combine(Calc::of::<i64>(ReduceOp::Sum), &mut sum, &3_i64.to_ne_bytes())?;
/// assert_eq!(i64::from_ne_bytes(sum), 5);
/// # Ok::<(), qpair_verbs::calc::CalcError>(())
/// ```
///
/// # Errors
/// [`CalcError`] if the lengths differ or are no multiple of the element's size; `dst` is then
/// unchanged.
pub fn combine(calc: Calc, dst: &mut [u8], src: &[u8]) -> Result<(), CalcError> {
    if dst.len() != src.len() {
        return Err(CalcError::LengthMismatch { dst: dst.len(), src: src.len() });
    }
    if !dst.len().is_multiple_of(calc.data_type().size()) {
        return Err(CalcError::PartialElement { len: dst.len(), data_type: calc.data_type() });
    }
    let (len, dst) = (dst.len(), dst.as_mut_ptr());
    // SAFETY: `dst` and `src` are live slices of `len` bytes, and the exclusive borrow of `dst`
    // keeps them apart; the first operand is `dst` itself, which the contract allows.
    unsafe { combine_raw(calc, dst, dst, src.as_ptr(), len) };
    Ok(())
}

/// Combines two vectors: `dst[i] = a[i] op b[i]` for each whole element in `len` bytes.
///
/// Nothing needs alignment. `a` and `b` may be memory that another process maps.
///
/// # Safety
/// - `dst` is valid for writes, `a` and `b` for reads, of `len` bytes during the call.
/// - `dst` either equals `a` or does not overlap it. If it overlaps `b`, values are unspecified: the
///   kernels work on raw pointers, which may alias.
/// - Nobody else accesses `dst`, or writes `a` or `b`, during the call. Where a peer process can
///   break this in spite of its protocol, the values of the elements it wrote are unspecified;
///   no address or length in a kernel is computed from the data. A program's own function may do
///   that: each element is read once for it, so that what it checks is what it goes by.
pub(crate) unsafe fn combine_raw(calc: Calc, dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: the caller keeps the contract of this function, which is the kernels' too; the table
    // holds only kernels of an instruction set that `detect` found on this CPU.
    unsafe {
        match calc.way() {
            Way::Fixed(data_type, fixed) => {
                let table = TABLE.get_or_init(|| Isa::detect().table());
                // There is one: `Calc::new` refuses what has none.
                if let Some(kernel) = table[data_type as usize][fixed as usize] {
                    kernel(dst, a, b, len);
                }
            }
            Way::User(function) => (function.kernel)(dst, a, b, len),
        }
    }
}

/// Replaces each whole element of a vector by what `f` makes of it.
pub(super) fn map<T: Element>(bytes: &mut [u8], f: impl Fn(T) -> T) {
    match Isa::detect() {
        Isa::Baseline => map_each(bytes, f),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX2 and F16C on this CPU.
        Isa::Avx2 => unsafe { map_avx2(bytes, f) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn map_avx2<T: Element>(bytes: &mut [u8], f: impl Fn(T) -> T) {
    map_each(bytes, f);
}

#[inline(always)]
fn map_each<T: Element>(bytes: &mut [u8], f: impl Fn(T) -> T) {
    for element in bytes.chunks_exact_mut(size_of::<T>()) {
        element.copy_from_slice(bytemuck::bytes_of(&f(bytemuck::pod_read_unaligned(element))));
    }
}

/// Why vectors can not be combined or scaled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalcError {
    /// The vectors differ in length.
    #[error("can not combine {src} bytes into {dst} bytes: pass slices of one length")]
    LengthMismatch {
        /// Bytes of the destination.
        dst: usize,
        /// Bytes of the source.
        src: usize,
    },
    /// The vectors end within an element.
    #[error("{len} bytes end within an element: pass a multiple of the {} bytes of {data_type}", data_type.size())]
    PartialElement {
        /// Bytes of each vector.
        len: usize,
        /// The element type.
        data_type: DataType,
    },
    /// The operation is not for the type.
    #[error(
        "no {op} of {data_type}: logical and bitwise operations are for integers, a program's own for its own type"
    )]
    Unsupported {
        /// The operation.
        op: ReduceOp,
        /// The element type.
        data_type: DataType,
    },
    /// The operation is another process's own function, of which this one knows only the name.
    #[error("`{0}` is a function of another process: make it here by UserOp::of")]
    Foreign(UserOp),
    /// Integers can not be multiplied by the factor.
    #[error("can not multiply {data_type} by {factor}: give a whole number that {data_type} holds")]
    Factor {
        /// The factor.
        factor: Factor,
        /// The element type.
        data_type: DataType,
    },
    /// A vector was to be divided by 0.
    #[error("can not divide by 0: give the number of vectors that were summed")]
    DivideByZero,
}

/// A kernel for one type, operation and instruction set; the contract is `combine_raw`'s.
pub(super) type Kernel = unsafe fn(*mut u8, *const u8, *const u8, usize);

/// Kernels by data type and operation, in declaration order of both.
pub(super) type Table = [Row; DataType::ALL.len()];

/// Kernels of one type; `None` for what it does not support.
pub(super) type Row = [Option<Kernel>; Fixed::COUNT];

/// Chosen at the first use.
static TABLE: OnceLock<Table> = OnceLock::new();

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isa {
    /// What every CPU of the target has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// And F16C, which every CPU with AVX2 has.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The best one that this CPU has.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            return Self::Avx2;
        }
        Self::Baseline
    }

    /// Its kernels. To call one is sound only where the CPU has the instruction set.
    pub(super) fn table(self) -> Table {
        macro_rules! rows {
            ($($variant:ident: $rust:ty, $kind:ident($bits:ty), $names:tt, $doc:literal;)+) => {
                [$(self.$kind::<$rust>()),+]
            };
        }
        element_types!(rows)
    }

    fn integer<T: Integer>(self) -> Row {
        let [sum, prod, min, max, ..] = self.float::<T>();
        let (and, or, xor) =
            (self.kernel::<T, LogicalAnd>(), self.kernel::<T, LogicalOr>(), self.kernel::<T, LogicalXor>());
        let (bit_and, bit_or, bit_xor) =
            (self.kernel::<T, BitAnd>(), self.kernel::<T, BitOr>(), self.kernel::<T, BitXor>());
        [sum, prod, min, max, Some(and), Some(or), Some(xor), Some(bit_and), Some(bit_or), Some(bit_xor)]
    }

    fn float<T: Arithmetic>(self) -> Row {
        let (sum, prod) = (self.kernel::<T, Sum>(), self.kernel::<T, Prod>());
        let (min, max) = (self.kernel::<T, Min>(), self.kernel::<T, Max>());
        [Some(sum), Some(prod), Some(min), Some(max), None, None, None, None, None, None]
    }

    fn narrow<T: Narrow>(self) -> Row {
        let mut row = self.float::<T>();
        #[cfg(target_arch = "x86_64")]
        if self == Self::Avx2
            && let Some([sum, prod]) = f16c::kernels(T::TYPE)
        {
            (row[Fixed::Sum as usize], row[Fixed::Prod as usize]) = (Some(sum), Some(prod));
        }
        row
    }

    fn kernel<T: Arithmetic, O: Operation<T>>(self) -> Kernel {
        match self {
            Self::Baseline => baseline::<T, O>,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::<T, O>,
        }
    }
}

/// # Safety
/// As [`combine_raw`].
unsafe fn baseline<T: Arithmetic, O: Operation<T>>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: the caller keeps the contract of `combine_raw`, which is the callee's too.
    unsafe { each::<T, O>(dst, a, b, len) }
}

/// # Safety
/// As [`combine_raw`], and the CPU has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn avx2<T: Arithmetic, O: Operation<T>>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: the caller keeps the contract of `combine_raw`, which is the callee's too.
    unsafe { each::<T, O>(dst, a, b, len) }
}

/// The whole vector, in blocks; vectorised for the features of the function it is inlined into.
///
/// # Safety
/// As [`combine_raw`].
#[inline(always)]
unsafe fn each<T: Arithmetic, O: Operation<T>>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    let count = len / size_of::<T>();
    let (dst, a, b) = (dst.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    // Two loops, since the compiler's overlap check sends `dst == a` to the scalar loop unless it
    // sees that they are one pointer.
    // SAFETY: the caller keeps the contract of `combine_raw`, which is the callees' too.
    unsafe {
        if dst.cast_const() == a {
            blocks::<T, O>(dst, dst, b, count);
        } else {
            blocks::<T, O>(dst, a, b, count);
        }
    }
}

/// Combines `count` elements. A long vector of floats goes in blocks of two halves: one comparison
/// looks for NaN in both, and a block that has one is gone over again. This is as fast as a loop
/// that does not care for NaN, where a fix of each element costs 8 %.
///
/// # Safety
/// As [`combine_raw`], with `count` elements for `len` bytes.
#[inline(always)]
unsafe fn blocks<T: Arithmetic, O: Operation<T>>(dst: *mut T, a: *const T, b: *const T, count: usize) {
    let half = HALF_BLOCK / size_of::<T>();
    let mut at = 0;
    while T::HAS_NAN && count - at >= 2 * half {
        // SAFETY: the block of `2 * half` elements from `at` is within the `count` elements that
        // the caller vouches for; all accesses are unaligned ones, and any bytes are a value of
        // `T`. The caller keeps the rest of the contract.
        unsafe {
            let (dst, b) = (dst.add(at), b.add(at));
            let a = a.add(at);
            let mut nan = T::Mask::default();
            for i in 0..half {
                let one = O::apply(a.add(i).read_unaligned(), b.add(i).read_unaligned());
                let two = O::apply(a.add(i + half).read_unaligned(), b.add(i + half).read_unaligned());
                dst.add(i).write_unaligned(one);
                dst.add(i + half).write_unaligned(two);
                nan = nan | one.nan_mask(two);
            }
            if nan != T::Mask::default() {
                fix_nan(dst, 2 * half);
            }
        }
        at += 2 * half;
    }
    for i in at..count {
        // SAFETY: element `i` is within the `count` elements; otherwise as above.
        unsafe {
            let value = O::apply(a.add(i).read_unaligned(), b.add(i).read_unaligned());
            dst.add(i).write_unaligned(value.one_nan());
        }
    }
}

/// Replaces each NaN of `count` elements by the one NaN.
///
/// # Safety
/// `dst` is valid for reads and writes of `count` elements, and nobody else accesses them.
#[cold]
#[inline(never)]
unsafe fn fix_nan<T: Arithmetic>(dst: *mut T, count: usize) {
    for i in 0..count {
        // SAFETY: element `i` is within the `count` that the caller vouches for.
        unsafe {
            let element = dst.add(i);
            element.write_unaligned(element.read_unaligned().one_nan());
        }
    }
}

/// Bytes of half a block. By measurement of 512 B to 4 KiB: at 512 B a vector of 64 KiB and more sums
/// as fast as by a loop that does not care for NaN.
const HALF_BLOCK: usize = 512;
