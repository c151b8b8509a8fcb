//! The 8-bit floats' conversions, and those of halves that share their code.

use half::{bf16, f16};

use super::model::{fp8_nearest, fp8_value};
use crate::calc::narrow::{self, decode, decode_bf16, encode, encode_bf16};
use crate::calc::*;

#[test]
fn all_codes_are_their_numbers_and_come_back() {
    for code in 0..=255 {
        let (e4m3, e5m2) = (F8E4M3::from_bits(code), F8E5M2::from_bits(code));
        for (data_type, single) in [(DataType::F8E4M3, e4m3.to_f32()), (DataType::F8E5M2, e5m2.to_f32())] {
            let expected = fp8_value(data_type, code) as f32;
            assert!(single.to_bits() == expected.to_bits() || single.is_nan() && expected.is_nan(), "{code:#x}");
            let back = if data_type == DataType::F8E4M3 {
                F8E4M3::from_f32(single).to_bits()
            } else {
                F8E5M2::from_f32(single).to_bits()
            };
            let infinite = if code & 0x80 == 0 { 0x7b } else { 0xfb };
            let expected = match () {
                _ if single.is_nan() => 0xff,
                _ if single.is_infinite() => infinite,
                _ => code,
            };
            assert_eq!(back, expected, "{data_type} {code:#x}");
        }
        assert_eq!((e4m3.is_nan(), e5m2.is_nan()), (e4m3.to_f32().is_nan(), e5m2.to_f32().is_nan()));
    }
}

#[test]
fn singles_are_rounded_to_the_nearest_code() {
    let check = |single: f32| {
        let e4m3 = F8E4M3::from_f32(single).to_bits();
        assert_eq!(e4m3, fp8_nearest(DataType::F8E4M3, single.into()), "{single:e} ({:#x})", single.to_bits());
        let e5m2 = F8E5M2::from_f32(single).to_bits();
        assert_eq!(e5m2, fp8_nearest(DataType::F8E5M2, single.into()), "{single:e} ({:#x})", single.to_bits());
    };
    // Each number, what is halfway to the next, and the singles beside both.
    for data_type in [DataType::F8E4M3, DataType::F8E5M2] {
        for code in 0..0x7b {
            let (one, next) = (fp8_value(data_type, code), fp8_value(data_type, code + 1));
            for exact in [one as f32, ((one + next) / 2.0) as f32] {
                for single in [exact, exact.next_up(), exact.next_down()] {
                    check(single);
                    check(-single);
                }
            }
        }
    }
    // A spread of all singles: a prime apart.
    (0..=u32::MAX).step_by(65_537).for_each(|bits| check(f32::from_bits(bits)));
    for single in
        [448.0, 463.99, 464.0, 480.0, 57344.0, 61440.0, 65536.0, f32::MAX, f32::INFINITY, f32::MIN_POSITIVE, 1e-45]
    {
        check(single);
        check(-single);
    }
}

#[test]
fn constants_are_what_they_say() {
    assert_eq!(
        (F8E4M3::MAX.to_f32(), F8E4M3::MIN.to_f32(), F8E4M3::MIN_POSITIVE.to_f32()),
        (448.0, -448.0, 0.001953125)
    );
    assert_eq!((F8E5M2::MAX.to_f32(), F8E5M2::MIN.to_f32()), (57344.0, -57344.0));
    assert_eq!(F8E5M2::MIN_POSITIVE.to_f32(), 2_f32.powi(-16));
    assert_eq!(F8E5M2::INFINITY.to_f32(), f32::INFINITY);
    assert!(F8E4M3::NAN.is_nan() && F8E5M2::NAN.is_nan());
    assert!(F8E4M3::NAN != F8E4M3::NAN && F8E4M3::from_bits(0x80) == F8E4M3::default());
    assert!(F8E4M3::MIN < F8E4M3::default() && F8E4M3::NAN.partial_cmp(&F8E4M3::MAX).is_none());
    assert_eq!(format!("{} {:?}", F8E5M2::from_f32(1.5), F8E4M3::from_f32(2.0)), "1.5 2.0");
}

#[test]
fn halves_convert_as_those_of_the_half_crate() {
    for code in 0..=u16::MAX {
        let (ours, theirs) = (decode(narrow::F16, code.into()), f16::from_bits(code).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}");
        let (ours, theirs) = (decode_bf16(code.into()), bf16::from_bits(code).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}");
    }
    let check = |single: f32| {
        let half = if single.is_nan() { u16::MAX } else { f16::from_f32(single).to_bits() };
        assert_eq!(encode(narrow::F16, single), u32::from(half), "{single:e}");
        let brain = if single.is_nan() { u16::MAX } else { bf16::from_f32(single).to_bits() };
        assert_eq!(encode_bf16(single), u32::from(brain), "{single:e}");
    };
    (0..=u32::MAX).step_by(4093).for_each(|bits| check(f32::from_bits(bits)));
    for code in 0..0x7c00_u16 {
        let (one, next) = (f16::from_bits(code).to_f32(), f16::from_bits(code + 1).to_f32());
        let halfway = if next.is_finite() { (one + next) / 2.0 } else { 65520.0 };
        for single in [halfway, halfway.next_up(), halfway.next_down()] {
            check(single);
            check(-single);
        }
    }
}
