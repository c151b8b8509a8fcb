//! Floats of 8 and 16 bits as numbers of 32: conversions without branches, which vectorise in 32-bit
//! lanes, and an order of their bits.

/// Where a format keeps its parts. Its sign is the highest bit, its exponent stands above its mantissa.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bits in all.
    pub(super) bits: u32,
    /// Bits of the mantissa.
    mantissa: u32,
    /// What is added to an exponent.
    bias: u32,
    /// The least code, without sign, that is no finite number.
    first_special: u32,
    /// The greatest code that a number is rounded to: infinity, or the greatest finite one.
    most: u32,
}

/// IEEE 754 binary16.
pub(super) const F16: Layout = Layout { bits: 16, mantissa: 10, bias: 15, first_special: 0x7c00, most: 0x7c00 };
/// OCP E4M3.
pub(super) const E4M3: Layout = Layout { bits: 8, mantissa: 3, bias: 7, first_special: 0x7f, most: 0x7e };
/// OCP E5M2.
pub(super) const E5M2: Layout = Layout { bits: 8, mantissa: 2, bias: 15, first_special: 0x7c, most: 0x7b };

/// The number that a code stands for, exactly.
///
/// Subnormal numbers are made by a subtraction of normal ones, since processors may take a hundred times as long to
/// calculate with subnormal ones.
#[inline(always)]
pub(super) const fn decode(layout: Layout, code: u32) -> f32 {
    let sign_bit = 1 << (layout.bits - 1);
    let sign = (code & sign_bit) << (32 - layout.bits);
    let magnitude = code & (sign_bit - 1);
    let shifted = magnitude << (23 - layout.mantissa);
    let least_normal = (128 - layout.bias) << 23;
    let normal = shifted + ((127 - layout.bias) << 23);
    let subnormal = (f32::from_bits(shifted + least_normal) - f32::from_bits(least_normal)).to_bits();
    let value = if magnitude < 1 << layout.mantissa { subnormal } else { normal };
    let value = if magnitude >= layout.first_special { shifted | EXPONENT } else { value };
    f32::from_bits(value | sign)
}

/// The code of the number nearest to `value`, of two that are as near the one whose last bit is 0. Any NaN becomes the
/// one whose bits are all set.
#[inline(always)]
pub(super) const fn encode(layout: Layout, value: f32) -> u32 {
    let sign = (value.to_bits() >> 31) << (layout.bits - 1);
    let magnitude = value.to_bits() & !SIGN;
    let shift = 23 - layout.mantissa;
    let rounded = magnitude + ((magnitude >> shift) & 1) + ((1 << (shift - 1)) - 1);
    let normal = (rounded >> shift).wrapping_sub((127 - layout.bias) << layout.mantissa);
    let normal = if normal < layout.most { normal } else { layout.most };
    // The last bit of this number is worth what the last bit of a subnormal code is: the addition rounds.
    let unit = (127 + 24 - layout.bias - layout.mantissa) << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(unit)).to_bits().wrapping_sub(unit);
    let code = if magnitude < (128 - layout.bias) << 23 { subnormal } else { normal };
    let ones = u32::MAX >> (32 - layout.bits);
    if magnitude > EXPONENT { ones } else { code | sign }
}

/// The upper half of a single as a single.
#[inline(always)]
pub(super) const fn decode_bf16(code: u32) -> f32 {
    f32::from_bits(code << 16)
}

/// A single's upper half, rounded as [`encode`] does.
#[inline(always)]
pub(super) const fn encode_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(((bits >> 16) & 1) + 0x7fff)) >> 16;
    if bits & !SIGN > EXPONENT { 0xffff } else { rounded }
}

const SIGN: u32 = 1 << 31;
/// The bits of a single's exponent: infinity. Magnitudes above are NaN.
const EXPONENT: u32 = 0x7f80_0000;
