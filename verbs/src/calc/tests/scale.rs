//! Scaling one vector.

use half::{bf16, f16};
use proptest::prelude::*;

use super::model::{number, rounded, vector};
use crate::calc::*;

/// What scaling makes of an element's native bytes.
fn model(data_type: DataType, factor: Scale, element: &[u8]) -> Vec<u8> {
    macro_rules! integer {
        ($rust:ty) => {{
            let value = i128::from(<$rust>::from_ne_bytes(element.try_into().unwrap()));
            let result = match factor {
                Scale::Divide(count) => value / i128::from(count),
                // Two numbers of 64 bits, neither signed, may have a product of more than 127.
                Scale::Multiply(factor) => value.wrapping_mul(factor as i128),
            };
            (result as $rust).to_ne_bytes().to_vec()
        }};
    }
    match data_type {
        DataType::I8 => integer!(i8),
        DataType::U8 => integer!(u8),
        DataType::I32 => integer!(i32),
        DataType::U32 => integer!(u32),
        DataType::I64 => integer!(i64),
        DataType::U64 => integer!(u64),
        DataType::F64 => {
            let value = number(data_type, element);
            rounded(
                data_type,
                match factor {
                    Scale::Divide(count) => value / f64::from(count),
                    Scale::Multiply(factor) => value * factor,
                },
            )
        }
        _ => {
            let value = number(data_type, element) as f32;
            let result = match factor {
                Scale::Divide(count) => value / count as f32,
                Scale::Multiply(factor) => value * factor as f32,
            };
            rounded(data_type, result.into())
        }
    }
}

fn case() -> impl Strategy<Value = (DataType, Scale, Vec<u8>, usize)> {
    let factors = prop_oneof![
        (1..=70_u32).prop_map(Scale::Divide),
        (1..=u32::MAX).prop_map(Scale::Divide),
        (-128..=127_i32).prop_map(|factor| Scale::Multiply(factor.into())),
        any::<i64>().prop_map(|factor| Scale::Multiply(factor as f64)),
        any::<u64>().prop_map(|factor| Scale::Multiply(factor as f64)),
        any::<f64>().prop_map(Scale::Multiply),
    ];
    (prop::sample::select(&DataType::ALL[..]), factors, 0..200_usize, 0..16_usize).prop_flat_map(
        |(data_type, factor, count, shift)| (Just(data_type), Just(factor), vector(data_type, count), Just(shift)),
    )
}

proptest! {
    #[test]
    fn agrees_with_the_model((data_type, factor, bytes, shift) in case()) {
        let mut scaled = [vec![0xa5; shift], bytes.clone(), vec![0xa5; 9]].concat();
        let result = scale(data_type, &mut scaled[shift..shift + bytes.len()], factor);
        let ok = match factor {
            Scale::Multiply(factor) => ReduceOp::pre_mul_sum(factor).supports(data_type),
            Scale::Divide(_) => true,
        };
        prop_assert_eq!(result.is_ok(), ok);
        let expected: Vec<u8> = if ok {
            bytes.chunks_exact(data_type.size()).flat_map(|element| model(data_type, factor, element)).collect()
        } else {
            bytes
        };
        prop_assert_eq!(&scaled[shift..shift + expected.len()], &expected[..], "{} by {:?}", data_type, factor);
        prop_assert!(scaled[..shift].iter().chain(&scaled[shift + expected.len()..]).all(|&byte| byte == 0xa5));
    }
}

#[test]
fn integers_are_divided_toward_zero() {
    for (sum, average) in [(-7_i32, -3), (7, 3), (-1, 0), (i32::MIN, i32::MIN / 2), (i32::MAX, i32::MAX / 2)] {
        let mut bytes = sum.to_ne_bytes();
        scale(DataType::I32, &mut bytes, Scale::Divide(2)).unwrap();
        assert_eq!(i32::from_ne_bytes(bytes), average);
    }
    // Every 8-bit integer by every count that could matter, and some that are no single.
    for count in (1..300).chain([(1 << 24) + 1, u32::MAX]) {
        let all: Vec<u8> = (0..=255).collect();
        let (mut signed, mut unsigned) = (all.clone(), all.clone());
        scale(DataType::I8, &mut signed, Scale::Divide(count)).unwrap();
        scale(DataType::U8, &mut unsigned, Scale::Divide(count)).unwrap();
        for byte in all {
            assert_eq!(i64::from(signed[byte as usize] as i8), i64::from(byte as i8) / i64::from(count));
            assert_eq!(u32::from(unsigned[byte as usize]), u32::from(byte) / count);
        }
    }
    // Quotients that come closest to a whole number from below.
    for count in [3_u32, 7, 65_537, 641, 0x8000_0001, u32::MAX] {
        for multiple in (1..=u32::MAX / count).rev().take(1000).map(|n| n * count) {
            for value in [multiple, multiple - 1] {
                let mut bytes = value.to_ne_bytes();
                scale(DataType::U32, &mut bytes, Scale::Divide(count)).unwrap();
                assert_eq!(u32::from_ne_bytes(bytes), value / count);
            }
        }
    }
}

#[test]
fn narrow_floats_are_rounded_once() {
    // A third of a half: by way of a product with a rounded 1/3 it would be another.
    for code in 0..0x7c00_u16 {
        let mut bytes = code.to_ne_bytes();
        scale(DataType::F16, &mut bytes, Scale::Divide(3)).unwrap();
        let expected = f16::from_f64(f16::from_bits(code).to_f64() / 3.0);
        assert_eq!(f16::from_ne_bytes(bytes).to_bits(), expected.to_bits());
    }
    let mut bytes = bf16::from_f32(3.0).to_ne_bytes();
    scale(DataType::Bf16, &mut bytes, Scale::Multiply(0.5)).unwrap();
    assert_eq!(bf16::from_ne_bytes(bytes).to_f32(), 1.5);
    let mut bytes = [F8E4M3::MAX.to_bits()];
    scale(DataType::F8E4M3, &mut bytes, Scale::Multiply(2.0)).unwrap();
    assert_eq!(F8E4M3::from_bits(bytes[0]), F8E4M3::MAX);
}

#[test]
fn what_can_not_be_scaled_is_unchanged() {
    let mut bytes = [7; 8];
    let (factor, data_type) = (Factor::new(0.5), DataType::I32);
    assert_eq!(scale(data_type, &mut bytes, Scale::Multiply(0.5)), Err(CalcError::Factor { factor, data_type }));
    assert_eq!(scale(data_type, &mut bytes, Scale::Divide(0)), Err(CalcError::DivideByZero));
    let partial = Err(CalcError::PartialElement { len: 6, data_type });
    assert_eq!(scale(data_type, &mut bytes[..6], Scale::Divide(2)), partial);
    assert_eq!(bytes, [7; 8]);
}
