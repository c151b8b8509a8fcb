//! What each operation means, written for clarity, and values to try it on.

use half::{bf16, f16};
use proptest::prelude::*;

use crate::calc::*;

/// The number that the code of an 8-bit float stands for, by its definition.
pub(super) fn fp8_value(data_type: DataType, code: u8) -> f64 {
    let (mantissa_bits, bias) = if data_type == DataType::F8E4M3 { (3, 7) } else { (2, 15) };
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let magnitude = code & 0x7f;
    let (exponent, mantissa) = (i32::from(magnitude >> mantissa_bits), f64::from(magnitude % (1 << mantissa_bits)));
    match (data_type, magnitude) {
        (DataType::F8E4M3, 0x7f) | (DataType::F8E5M2, 0x7d..) => f64::NAN,
        (DataType::F8E5M2, 0x7c) => sign * f64::INFINITY,
        _ if exponent == 0 => sign * mantissa * 2_f64.powi(1 - bias - mantissa_bits),
        _ => sign * (1.0 + mantissa / 2_f64.powi(mantissa_bits)) * 2_f64.powi(exponent - bias),
    }
}

/// The code of the nearest finite 8-bit float, by search.
pub(super) fn fp8_nearest(data_type: DataType, value: f64) -> u8 {
    if value.is_nan() {
        return 0xff;
    }
    let most = if data_type == DataType::F8E4M3 { 0x7e } else { 0x7b };
    let magnitude = value.abs().min(fp8_value(data_type, most));
    let distance = |code: u8| (fp8_value(data_type, code) - magnitude).abs();
    let nearest = (0..=most).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2))));
    nearest.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
}

/// The bytes of a float of any type as a number, exactly.
pub(super) fn number(data_type: DataType, bytes: &[u8]) -> f64 {
    match data_type {
        DataType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::Bf16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).into(),
        DataType::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()),
        _ => fp8_value(data_type, bytes[0]),
    }
}

/// An `f32`, or for `f64` an `f64`, as the nearest number of the type, in bytes.
pub(super) fn rounded(data_type: DataType, value: f64) -> Vec<u8> {
    if value.is_nan() {
        return vec![0xff; data_type.size()];
    }
    match data_type {
        DataType::F16 => f16::from_f32(value as f32).to_ne_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f32(value as f32).to_ne_bytes().to_vec(),
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => value.to_ne_bytes().to_vec(),
        _ => vec![fp8_nearest(data_type, value)],
    }
}

/// What one operation makes of the native bytes of two elements.
pub(super) fn model(data_type: DataType, op: ReduceOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! integer {
        ($rust:ty) => {{
            let a = <$rust>::from_ne_bytes(a.try_into().unwrap());
            let b = <$rust>::from_ne_bytes(b.try_into().unwrap());
            let result = match op {
                ReduceOp::Sum | ReduceOp::Avg => a.wrapping_add(b),
                ReduceOp::Prod => a.wrapping_mul(b),
                ReduceOp::Min => Ord::min(a, b),
                ReduceOp::Max => Ord::max(a, b),
                ReduceOp::LogicalAnd => <$rust>::from(a != 0 && b != 0),
                ReduceOp::LogicalOr => <$rust>::from(a != 0 || b != 0),
                ReduceOp::LogicalXor => <$rust>::from((a != 0) != (b != 0)),
                ReduceOp::BitAnd => a & b,
                ReduceOp::BitOr => a | b,
                ReduceOp::BitXor => a ^ b,
                other => panic!("{other}"),
            };
            result.to_ne_bytes().to_vec()
        }};
    }
    match data_type {
        DataType::I8 => integer!(i8),
        DataType::U8 => integer!(u8),
        DataType::I32 => integer!(i32),
        DataType::U32 => integer!(u32),
        DataType::I64 => integer!(i64),
        DataType::U64 => integer!(u64),
        _ => float(data_type, op, a, b),
    }
}

fn float(data_type: DataType, op: ReduceOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (a, b) = (number(data_type, a), number(data_type, b));
    let single = data_type != DataType::F64;
    match op {
        ReduceOp::Sum | ReduceOp::Avg if single => rounded(data_type, (a as f32 + b as f32).into()),
        ReduceOp::Prod if single => rounded(data_type, (a as f32 * b as f32).into()),
        ReduceOp::Sum | ReduceOp::Avg => rounded(data_type, a + b),
        ReduceOp::Prod => rounded(data_type, a * b),
        _ if a.is_nan() || b.is_nan() => rounded(data_type, f64::NAN),
        // No rounding: an infinity stays one.
        ReduceOp::Min | ReduceOp::Max => {
            let least = if op == ReduceOp::Min { a.total_cmp(&b).is_le() } else { a.total_cmp(&b).is_ge() };
            let value = if least { a } else { b };
            match (data_type, value.is_infinite()) {
                (DataType::F8E5M2, true) => vec![if value > 0.0 { 0x7c } else { 0xfc }],
                _ => rounded(data_type, value),
            }
        }
        other => panic!("{other}"),
    }
}

pub(super) fn model_all(data_type: DataType, op: ReduceOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    let size = data_type.size();
    let pairs = a.chunks_exact(size).zip(b.chunks_exact(size));
    pairs.flat_map(|(a, b)| model(data_type, op, a, b)).collect()
}

/// Each operation with each type that it is for.
pub(super) fn every() -> Vec<(DataType, ReduceOp)> {
    let all = DataType::ALL.into_iter().flat_map(|data_type| ReduceOp::ALL.map(|op| (data_type, op)));
    all.filter(|(data_type, op)| op.supports(*data_type)).collect()
}

/// One element's bits, half of them special: zeros, ones, the greatest and least numbers and their neighbours, subnormal
/// ones, infinities, NaN of many kinds.
pub(super) fn element(data_type: DataType) -> BoxedStrategy<Vec<u8>> {
    let bits = 8 * data_type.size() as u32;
    let mantissa = match data_type {
        DataType::F16 => 10,
        DataType::Bf16 => 7,
        DataType::F32 => 23,
        DataType::F64 => 52,
        DataType::F8E4M3 => 3,
        DataType::F8E5M2 => 2,
        _ => bits / 2,
    };
    let (sign, infinity) = (1_u64 << (bits - 1), (u64::MAX >> (65 - bits)) >> mantissa << mantissa);
    let magnitudes = [0, 1, 2, infinity, infinity / 2, infinity / 2 + 1, infinity + 1, infinity - 1, infinity - 2];
    let more = [1 << mantissa, (1 << mantissa) - 1, (1 << mantissa) + 1, infinity | (1 << (mantissa - 1)), sign - 1];
    let special: Vec<u64> = magnitudes.into_iter().chain(more).flat_map(|bits| [bits, bits | sign]).collect();
    let native = move |word: u64| match bits {
        8 => vec![word as u8],
        16 => (word as u16).to_ne_bytes().to_vec(),
        32 => (word as u32).to_ne_bytes().to_vec(),
        _ => word.to_ne_bytes().to_vec(),
    };
    prop_oneof![any::<u64>(), prop::sample::select(special)].prop_map(native).boxed()
}

pub(super) fn vector(data_type: DataType, count: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(element(data_type), count).prop_map(|v| v.concat())
}

/// A reduction, two vectors for it, and how far from alignment each lies.
pub(super) fn case() -> impl Strategy<Value = (DataType, ReduceOp, Vec<u8>, Vec<u8>, [usize; 3])> {
    // Some of several blocks: 1 KiB is 256 or 128 elements.
    let counts = prop_oneof![8 => 0_usize..150, 2 => 128_usize..900];
    (prop::sample::select(every()), counts).prop_flat_map(|((data_type, op), count)| {
        let (a, b) = (vector(data_type, count), vector(data_type, count));
        (Just(data_type), Just(op), a, b, prop::array::uniform3(0_usize..16))
    })
}

/// A reduction that there is.
pub(super) fn calc(data_type: DataType, op: ReduceOp) -> Calc {
    Calc::new(data_type, op).unwrap()
}
