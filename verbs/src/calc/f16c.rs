//! Sums and products of 16- and 8-bit floats on CPUs that convert IEEE 754 halves in hardware (F16C).
//!
//! An 8-bit float goes through a half on both ways. E5M2 is a half's upper byte. E4M3 is one too, shifted, but for a
//! factor of 2^8 and its NaN. A half holds so many more bits than either that what is rounded twice is as if it were
//! rounded once; the tests have all pairs.

use std::arch::x86_64::*;

use half::f16;

use super::fp8::{F8E4M3, F8E5M2};
use super::kernels::{self, Kernel};
use super::operation::{Arithmetic, Operation, Prod, Sum};
use super::types::DataType;

/// Sum and product of a type that profits. To call them is sound only where the CPU has AVX2 and F16C.
pub(super) fn kernels(data_type: DataType) -> Option<[Kernel; 2]> {
    match data_type {
        DataType::F16 => Some([half::<Sum, false>, half::<Prod, true>]),
        DataType::F8E4M3 => Some([e4m3::<Sum, false>, e4m3::<Prod, true>]),
        DataType::F8E5M2 => Some([e5m2::<Sum, false>, e5m2::<Prod, true>]),
        _ => None,
    }
}

/// # Safety
/// As [`combine_raw`](kernels::combine_raw), and the CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn half<O: Operation<f16>, const PROD: bool>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe {
        steps::<f16, O>(dst, a, b, len, |a, b| {
            let (a, b) = (halves(a), halves(b));
            let bits = _mm256_set_m128i(narrow(wide::<PROD>(a[1], b[1])), narrow(wide::<PROD>(a[0], b[0])));
            _mm256_or_si256(bits, nan(magnitude(bits)))
        })
    }
}

/// # Safety
/// As [`combine_raw`](kernels::combine_raw), and the CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn e5m2<O: Operation<F8E5M2>, const PROD: bool>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe {
        steps::<F8E5M2, O>(dst, a, b, len, |a, b| {
            let (a, b) = (upper(a), upper(b));
            let halves = [
                calculate::<PROD>(a[0], b[0], _mm256_set1_ps(1.0)),
                calculate::<PROD>(a[1], b[1], _mm256_set1_ps(1.0)),
            ];
            let [low, high] = halves.map(|bits| nan(magnitude(bits)));
            _mm256_or_si256(bytes::<8, 0x7b>(halves), _mm256_packs_epi16(low, high))
        })
    }
}

/// # Safety
/// As [`combine_raw`](kernels::combine_raw), and the CPU has AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
unsafe fn e4m3<O: Operation<F8E4M3>, const PROD: bool>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe {
        steps::<F8E4M3, O>(dst, a, b, len, |one, two| {
            // A half of these bits is the number times 2^-8; a product has that twice, once too often.
            let half = |bits| _mm256_and_si256(_mm256_srai_epi16::<1>(bits), _mm256_set1_epi16(0xbfff_u16 as i16));
            let (a, b) = (upper(one).map(half), upper(two).map(half));
            let halves = [
                calculate::<PROD>(a[0], b[0], _mm256_set1_ps(256.0)),
                calculate::<PROD>(a[1], b[1], _mm256_set1_ps(256.0)),
            ];
            let code = bytes::<7, 0x7e>(halves);
            let top = _mm256_set1_epi8(0x7f);
            let magnitude = |code| _mm256_and_si256(code, top);
            let nan = _mm256_cmpeq_epi8(_mm256_max_epu8(magnitude(one), magnitude(two)), top);
            _mm256_or_si256(code, nan)
        })
    }
}

/// All whole steps of 32 bytes, and the rest element by element.
///
/// # Safety
/// As [`combine_raw`](kernels::combine_raw), and the CPU has AVX2 and F16C.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn steps<T: Arithmetic, O: Operation<T>>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    len: usize,
    step: impl Fn(__m256i, __m256i) -> __m256i,
) {
    let whole = len - len % STEP;
    for at in (0..whole).step_by(STEP) {
        // SAFETY: the step from `at` ends within the `len` bytes that the caller vouches for; these loads and stores
        // need no alignment.
        unsafe {
            let value = step(_mm256_loadu_si256(a.add(at).cast()), _mm256_loadu_si256(b.add(at).cast()));
            _mm256_storeu_si256(dst.add(at).cast(), value);
        }
    }
    // SAFETY: as above; the caller keeps the rest of the contract, which is the callee's too.
    unsafe { kernels::avx2::<T, O>(dst.add(whole), a.add(whole), b.add(whole), len - whole) }
}

/// Sums, or products times `scale`, of 16 halves each, as halves.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn calculate<const PROD: bool>(a: __m256i, b: __m256i, scale: __m256) -> __m256i {
    let (a, b) = (halves(a), halves(b));
    let each = |a, b| {
        let value = wide::<PROD>(a, b);
        narrow(if PROD { _mm256_mul_ps(value, scale) } else { value })
    };
    _mm256_set_m128i(each(a[1], b[1]), each(a[0], b[0]))
}

/// 16 halves in two parts.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(bits: __m256i) -> [__m128i; 2] {
    [_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)]
}

/// Sum or product of 8 halves.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn wide<const PROD: bool>(a: __m128i, b: __m128i) -> __m256 {
    let (a, b) = (_mm256_cvtph_ps(a), _mm256_cvtph_ps(b));
    if PROD { _mm256_mul_ps(a, b) } else { _mm256_add_ps(a, b) }
}

/// The nearest halves.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(value: __m256) -> __m128i {
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)
}

/// 32 bytes as the upper bytes of 16-bit words: in each half of the register the first 8, and the last 8. Packing the
/// two brings them back into their order.
#[inline]
#[target_feature(enable = "avx2")]
fn upper(bytes: __m256i) -> [__m256i; 2] {
    let zero = _mm256_setzero_si256();
    [_mm256_unpacklo_epi8(zero, bytes), _mm256_unpackhi_epi8(zero, bytes)]
}

/// Halves without their sign.
#[inline]
#[target_feature(enable = "avx2")]
fn magnitude(bits: __m256i) -> __m256i {
    _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff))
}

/// All bits set where a half without sign is NaN.
#[inline]
#[target_feature(enable = "avx2")]
fn nan(magnitude: __m256i) -> __m256i {
    _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7c00))
}

/// Halves without the last `SHIFT` bits of their magnitude, rounded to nearest even and `MOST` at most, as bytes in the
/// order that [`upper`] took them from. That of a NaN is of no meaning.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes<const SHIFT: i32, const MOST: i8>(halves: [__m256i; 2]) -> __m256i {
    // The product rounds halves up; where the last bit that stays is 0, 1 less makes them go down.
    let factor = _mm256_set1_epi16(1 << (15 - SHIFT));
    let round = |bits| {
        let magnitude = magnitude(bits);
        let even = _mm256_andnot_si256(_mm256_srli_epi16::<SHIFT>(magnitude), _mm256_set1_epi16(1));
        _mm256_mulhrs_epi16(_mm256_sub_epi16(magnitude, even), factor)
    };
    let code = _mm256_packus_epi16(round(halves[0]), round(halves[1]));
    let code = _mm256_min_epu8(code, _mm256_set1_epi8(MOST));
    // Packing to signed bytes keeps the sign bit.
    let sign = _mm256_and_si256(_mm256_packs_epi16(halves[0], halves[1]), _mm256_set1_epi8(-0x80));
    _mm256_or_si256(code, sign)
}

/// Bytes in a register.
const STEP: usize = 32;
