//! Combining two vectors.

use proptest::prelude::*;

use super::model::{calc, case, every, model, model_all};
use crate::calc::kernels::{Isa, Table};
use crate::calc::operation::Way;
use crate::calc::*;

const F32_NAN: u32 = u32::MAX;
const F64_NAN: u64 = u64::MAX;

/// Every table that this CPU can run.
fn tables() -> Vec<(Isa, Table)> {
    let mut isas = vec![Isa::Baseline];
    if Isa::detect() != Isa::Baseline {
        isas.push(Isa::detect());
    }
    isas.into_iter().map(|isa| (isa, isa.table())).collect()
}

/// `a op b` by the kernel of a table, into memory of `shift` bytes from alignment.
fn by_table(isa: Isa, table: &Table, calc: Calc, [a, b]: [&[u8]; 2], shift: usize) -> Vec<u8> {
    let Way::Fixed(data_type, fixed) = calc.way() else { panic!("{isa:?} has no kernel for {calc}") };
    let kernel = table[data_type as usize][fixed as usize].unwrap();
    assert_eq!(a.len(), b.len());
    let mut dst = vec![0x5a; shift + a.len() + 1];
    // SAFETY: three slices of at least `a.len()` bytes, apart from each other; `tables` gives only what the CPU has.
    unsafe { kernel(dst[shift..].as_mut_ptr(), a.as_ptr(), b.as_ptr(), a.len()) };
    assert_eq!(dst.pop(), Some(0x5a), "{isa:?} wrote beyond the end");
    dst.split_off(shift)
}

proptest! {
    #[test]
    fn agrees_with_the_model_in_place((data_type, op, a, b, shift) in case()) {
        let expected = model_all(data_type, op, &a, &b);
        let mut dst = vec![0xa5; shift[0]];
        dst.extend(&a);
        dst.extend([0xa5; 64]);
        let mut src = vec![0; shift[1]];
        src.extend(&b);
        combine(calc(data_type, op), &mut dst[shift[0]..shift[0] + a.len()], &src[shift[1]..]).unwrap();
        prop_assert_eq!(&dst[shift[0]..shift[0] + a.len()], &expected[..]);
        prop_assert!(dst[..shift[0]].iter().all(|&byte| byte == 0xa5));
        prop_assert!(dst[shift[0] + a.len()..].iter().all(|&byte| byte == 0xa5));
    }

    #[test]
    fn agrees_on_every_instruction_set((data_type, op, a, b, shift) in case()) {
        let expected = model_all(data_type, op, &a, &b);
        let (a_at, b_at) = ([vec![0; shift[1]], a].concat(), [vec![0; shift[2]], b].concat());
        for (isa, table) in tables() {
            let operands = [&a_at[shift[1]..], &b_at[shift[2]..]];
            let result = by_table(isa, &table, calc(data_type, op), operands, shift[0]);
            prop_assert_eq!(&result, &expected, "{:?}, {} of {}", isa, op, data_type);
        }
    }

    #[test]
    fn commutes_to_the_last_bit((data_type, op, a, b, _) in case()) {
        let (mut one, mut two) = (a.clone(), b.clone());
        combine(calc(data_type, op), &mut one, &b).unwrap();
        combine(calc(data_type, op), &mut two, &a).unwrap();
        prop_assert_eq!(one, two);
    }

    #[test]
    fn what_does_not_round_associates_to_the_last_bit((data_type, op, a, b, _) in case()) {
        let rounds = matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Avg) && !data_type.is_integer();
        let calc = calc(data_type, if rounds { ReduceOp::Min } else { op });
        let mut c = b.clone();
        c.rotate_left(if b.is_empty() { 0 } else { data_type.size() });
        // (a op b) op c
        let mut left = a.clone();
        combine(calc, &mut left, &b).unwrap();
        combine(calc, &mut left, &c).unwrap();
        // a op (b op c)
        let mut right = b.clone();
        combine(calc, &mut right, &c).unwrap();
        combine(calc, &mut right, &a).unwrap();
        prop_assert_eq!(left, right);
    }
}

#[test]
fn every_type_and_operation_is_right_at_each_length_and_offset() {
    for (data_type, op) in every() {
        let calc = calc(data_type, op);
        // Pseudorandom bits, in which floats of 8 and 16 bits meet all their special values.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut byte = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        };
        let (a, b): (Vec<u8>, Vec<u8>) = (0..131 * data_type.size() + 8).map(|_| (byte(), byte())).unzip();
        for count in 0..=130 {
            let len = count * data_type.size();
            for (into, from) in [(0, 0), (1, 0), (0, 1), (3, 5)] {
                let mut dst = a.clone();
                combine(calc, &mut dst[into..into + len], &b[from..from + len]).unwrap();
                let mut expected = a.clone();
                let result = model_all(data_type, op, &a[into..into + len], &b[from..from + len]);
                expected[into..into + len].copy_from_slice(&result);
                assert_eq!(dst, expected, "{calc}, {count} elements at {into} from {from}");
            }
        }
    }
}

#[test]
fn all_pairs_of_8_bit_floats_are_right_and_commute() {
    let a: Vec<u8> = (0..=255_u8).flat_map(|a| [a; 256]).collect();
    let b: Vec<u8> = (0..256).flat_map(|_| 0..=255_u8).collect();
    for data_type in [DataType::F8E4M3, DataType::F8E5M2] {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            let expected = model_all(data_type, op, &a, &b);
            for (isa, table) in tables() {
                for operands in [[&a[..], &b], [&b, &a]] {
                    let result = by_table(isa, &table, calc(data_type, op), operands, 1);
                    let wrong = result.iter().zip(&expected).position(|(is, must)| is != must);
                    assert_eq!(wrong, None, "{isa:?}, {op} of {data_type}");
                }
            }
        }
    }
}

#[test]
fn halves_are_right_with_each_half() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for data_type in [DataType::F16, DataType::Bf16] {
        // One, halfway between numbers, the least and the greatest, subnormal ones, infinity, NaN.
        for other in [0x3c01_u16, 0x8001, 0x7bff, 0x0400, 0xfc00, 0x7f80] {
            let others = other.to_ne_bytes().repeat(1 << 16);
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
                let expected = model_all(data_type, op, &all, &others);
                for (isa, table) in tables() {
                    for operands in [[&all[..], &others], [&others, &all]] {
                        let result = by_table(isa, &table, calc(data_type, op), operands, 0);
                        assert!(result == expected, "{isa:?}, {op} of {data_type} with {other:#x}");
                    }
                }
            }
        }
    }
}

#[test]
fn nan_propagates_and_is_one_nan() {
    let signalling = f32::from_bits(0xff81_2345);
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
        for (a, b) in [(signalling, 1.0), (1.0, signalling), (f32::INFINITY, signalling)] {
            let mut dst = a.to_ne_bytes();
            combine(Calc::of::<f32>(op), &mut dst, &b.to_ne_bytes()).unwrap();
            assert_eq!(u32::from_ne_bytes(dst), F32_NAN, "{op} of {a} and {b}");
        }
    }
    // The CPUs differ in the sign of the NaN they make here.
    let mut dst = f64::INFINITY.to_ne_bytes();
    combine(Calc::of::<f64>(ReduceOp::Sum), &mut dst, &f64::NEG_INFINITY.to_ne_bytes()).unwrap();
    assert_eq!(u64::from_ne_bytes(dst), F64_NAN);
}

#[test]
fn long_vectors_without_nan_and_with_one() {
    let values = |from: u32| (from..from + 1000).map(|i| i as f32).collect::<Vec<_>>();
    let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>();
    let (a, b) = (values(1), values(5000));
    for nan in [None, Some(0), Some(127), Some(128), Some(700), Some(999)] {
        let mut a = a.clone();
        if let Some(at) = nan {
            a[at] = f32::NAN;
        }
        let mut dst = bytes(&a);
        combine(Calc::of::<f32>(ReduceOp::Sum), &mut dst, &bytes(&b)).unwrap();
        for (i, element) in dst.chunks_exact(4).enumerate() {
            let bits = u32::from_ne_bytes(element.try_into().unwrap());
            let expected = if nan == Some(i) { F32_NAN } else { (a[i] + b[i]).to_bits() };
            assert_eq!(bits, expected, "element {i}, NaN at {nan:?}");
        }
    }
}

#[test]
fn negative_zero_is_less_than_positive_zero() {
    for data_type in DataType::ALL.into_iter().filter(|data_type| !data_type.is_integer()) {
        let zero = vec![0; data_type.size()];
        let mut negative = zero.clone();
        negative[if cfg!(target_endian = "little") { data_type.size() - 1 } else { 0 }] = 0x80;
        for (a, b) in [(&zero, &negative), (&negative, &zero)] {
            for (op, least) in [(ReduceOp::Min, &negative), (ReduceOp::Max, &zero)] {
                let mut dst = a.clone();
                combine(calc(data_type, op), &mut dst, b).unwrap();
                assert_eq!(&dst, least, "{op} of {data_type}");
                assert_eq!(&model(data_type, op, a, b), least);
            }
        }
    }
}

#[test]
fn integers_wrap() {
    let mut dst = [i8::MAX as u8, 0x80];
    combine(Calc::of::<i8>(ReduceOp::Sum), &mut dst, &[1, 0x80]).unwrap();
    assert_eq!(dst, [0x80, 0]);
    combine(Calc::of::<u8>(ReduceOp::Prod), &mut dst, &[3, 3]).unwrap();
    assert_eq!(dst, [0x80, 0]);
}

#[test]
fn refuses_unequal_and_partial_vectors() {
    let calc = Calc::of::<i32>(ReduceOp::Sum);
    let mut dst = [1; 8];
    assert_eq!(combine(calc, &mut dst, &[0; 4]), Err(CalcError::LengthMismatch { dst: 8, src: 4 }));
    assert_eq!(
        combine(calc, &mut dst[..6], &[0; 6]),
        Err(CalcError::PartialElement { len: 6, data_type: DataType::I32 })
    );
    assert_eq!(dst, [1; 8]);
    assert_eq!(combine(calc, &mut [], &[]), Ok(()));
}

#[test]
fn operations_are_only_for_the_types_that_they_support() {
    use ReduceOp::*;
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            let always = matches!(op, Sum | Prod | Min | Max | Avg);
            assert_eq!(op.supports(data_type), always || data_type.is_integer(), "{op} of {data_type}");
            let expected = if op.supports(data_type) { None } else { Some(CalcError::Unsupported { op, data_type }) };
            assert_eq!(Calc::new(data_type, op).err(), expected);
        }
    }
    // Each that is supported has a kernel, on every instruction set.
    for (isa, table) in tables() {
        for (data_type, op) in every() {
            let Way::Fixed(_, fixed) = calc(data_type, op).way() else { panic!("{op}") };
            assert!(table[data_type as usize][fixed as usize].is_some(), "{isa:?}, {op} of {data_type}");
        }
    }
}

#[test]
fn averages_and_premultiplied_sums_combine_as_sums() {
    for op in [ReduceOp::Avg, pre_mul_sum(2.0)] {
        assert_eq!(Calc::of::<i32>(op), Calc::of::<i32>(ReduceOp::Sum));
        assert_eq!(Calc::of::<i32>(op).to_string(), "sum of i32");
    }
    assert_eq!(ReduceOp::Avg.scale_after(3), Some(Scale::Divide(3)));
    assert_eq!((ReduceOp::Avg.scale_before(), ReduceOp::Sum.scale_after(3)), (None, None));
    assert_eq!(pre_mul_sum(2.5).scale_before(), Some(Scale::Multiply(2.5)));

    for (factor, data_type, supported) in [
        (0.5, DataType::F8E4M3, true),
        (f64::NAN, DataType::F64, true),
        (0.5, DataType::I32, false),
        (-3.0, DataType::I8, true),
        (-3.0, DataType::U8, false),
        (255.0, DataType::U8, true),
        (256.0, DataType::U8, false),
        (9_223_372_036_854_775_808.0, DataType::I64, false),
        (9_223_372_036_854_775_808.0, DataType::U64, true),
        (18_446_744_073_709_551_616.0, DataType::U64, false),
        (f64::NAN, DataType::I32, false),
        (f64::INFINITY, DataType::U64, false),
    ] {
        let op = pre_mul_sum(factor);
        assert_eq!(op.supports(data_type), supported, "{factor} times {data_type}");
        let expected =
            if supported { None } else { Some(CalcError::Factor { factor: Factor::new(factor), data_type }) };
        assert_eq!(Calc::new(data_type, op).err(), expected);
    }
}

fn pre_mul_sum(factor: f64) -> ReduceOp {
    ReduceOp::pre_mul_sum(factor)
}

#[test]
fn a_calc_is_small() {
    assert!(size_of::<Calc>() <= 16);
    assert!(size_of::<Option<Calc>>() <= 16);
}
