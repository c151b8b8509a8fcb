use proptest::prelude::*;

use super::kernels::{Isa, Table};
use super::types::Element;
use super::*;

const F32_NAN: u32 = u32::MAX;
const F64_NAN: u64 = u64::MAX;

/// What one operation means, written for clarity, on native bytes.
fn model(calc: Calc, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! integer {
        ($rust:ty) => {{
            let a = <$rust>::from_ne_bytes(a.try_into().unwrap());
            let b = <$rust>::from_ne_bytes(b.try_into().unwrap());
            let result = match calc.op {
                ReduceOp::Sum => a.wrapping_add(b),
                ReduceOp::Prod => a.wrapping_mul(b),
                ReduceOp::Min => Ord::min(a, b),
                ReduceOp::Max => Ord::max(a, b),
            };
            result.to_ne_bytes().to_vec()
        }};
    }
    macro_rules! float {
        ($rust:ty, $nan:expr) => {{
            let a = <$rust>::from_ne_bytes(a.try_into().unwrap());
            let b = <$rust>::from_ne_bytes(b.try_into().unwrap());
            let result = match calc.op {
                ReduceOp::Sum => a + b,
                ReduceOp::Prod => a * b,
                _ if a.is_nan() || b.is_nan() => <$rust>::NAN,
                ReduceOp::Min => std::cmp::min_by(a, b, <$rust>::total_cmp),
                ReduceOp::Max => std::cmp::max_by(a, b, <$rust>::total_cmp),
            };
            let bits = if result.is_nan() { $nan } else { result.to_bits() };
            bits.to_ne_bytes().to_vec()
        }};
    }
    match calc.data_type {
        DataType::F32 => float!(f32, F32_NAN),
        DataType::F64 => float!(f64, F64_NAN),
        DataType::I32 => integer!(i32),
        DataType::I64 => integer!(i64),
    }
}

fn model_all(calc: Calc, a: &[u8], b: &[u8]) -> Vec<u8> {
    let size = calc.data_type.size();
    let pairs = a.chunks_exact(size).zip(b.chunks_exact(size));
    pairs.flat_map(|(a, b)| model(calc, a, b)).collect()
}

/// Every table that this CPU can run.
fn tables() -> Vec<(Isa, Table)> {
    let mut isas = vec![Isa::Baseline];
    if Isa::detect() != Isa::Baseline {
        isas.push(Isa::detect());
    }
    isas.into_iter().map(|isa| (isa, isa.table())).collect()
}

fn calcs() -> impl Strategy<Value = Calc> {
    (prop::sample::select(&DataType::ALL[..]), prop::sample::select(&ReduceOp::ALL[..]))
        .prop_map(|(data_type, op)| Calc { data_type, op })
}

/// One element's bytes, half of them of values that are special in some type.
fn element(size: usize) -> BoxedStrategy<Vec<u8>> {
    let special32 = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_0001,
        0x7f80_0001,
        0xff81_2345,
        0x7f7f_ffff,
        0xff7f_ffff,
        u32::MAX,
    ];
    let special64 = [
        0,
        1 << 63,
        1,
        (1 << 63) | 1,
        0x3ff0 << 48,
        0xbff0 << 48,
        0x7ff0 << 48,
        0xfff0 << 48,
        0x7ff8 << 48,
        0xfff8_0000_0000_0001,
        0x7ff0_0000_0000_0001,
        0xfff1_2345_0000_0000,
        0x7fef_ffff_ffff_ffff,
        i64::MAX as u64,
        u64::MAX,
    ];
    if size == 4 {
        prop_oneof![any::<u32>(), prop::sample::select(special32.to_vec())]
            .prop_map(|bits| bits.to_ne_bytes().to_vec())
            .boxed()
    } else {
        prop_oneof![any::<u64>(), prop::sample::select(special64.to_vec())]
            .prop_map(|bits| bits.to_ne_bytes().to_vec())
            .boxed()
    }
}

fn vector(calc: Calc, count: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(element(calc.data_type.size()), count).prop_map(|v| v.concat())
}

/// A reduction, two vectors for it, and how far from alignment each lies.
fn case() -> impl Strategy<Value = (Calc, Vec<u8>, Vec<u8>, [usize; 3])> {
    // Some of several blocks: 1 KiB is 256 or 128 elements.
    let counts = prop_oneof![8 => 0_usize..150, 2 => 128_usize..900];
    (calcs(), counts).prop_flat_map(|(calc, count)| {
        let (a, b) = (vector(calc, count), vector(calc, count));
        (Just(calc), a, b, prop::array::uniform3(0_usize..16))
    })
}

proptest! {
    #[test]
    fn agrees_with_the_model_in_place((calc, a, b, shift) in case()) {
        let expected = model_all(calc, &a, &b);
        let mut dst = vec![0xa5; shift[0]];
        dst.extend(&a);
        dst.extend([0xa5; 64]);
        let mut src = vec![0; shift[1]];
        src.extend(&b);
        combine(calc, &mut dst[shift[0]..shift[0] + a.len()], &src[shift[1]..]).unwrap();
        prop_assert_eq!(&dst[shift[0]..shift[0] + a.len()], &expected[..]);
        prop_assert!(dst[..shift[0]].iter().all(|&byte| byte == 0xa5));
        prop_assert!(dst[shift[0] + a.len()..].iter().all(|&byte| byte == 0xa5));
    }

    #[test]
    fn agrees_on_every_instruction_set((calc, a, b, shift) in case()) {
        let expected = model_all(calc, &a, &b);
        let (a_at, b_at) = ([vec![0; shift[1]], a].concat(), [vec![0; shift[2]], b].concat());
        for (isa, table) in tables() {
            let mut dst = vec![0; shift[0] + expected.len()];
            let kernel = table[calc.data_type as usize][calc.op as usize];
            let (a, b) = (&a_at[shift[1]..], &b_at[shift[2]..]);
            // SAFETY: three slices of one length, apart from each other; `tables` gives only what
            // the CPU has.
            unsafe { kernel(dst[shift[0]..].as_mut_ptr(), a.as_ptr(), b.as_ptr(), expected.len()) };
            prop_assert_eq!(&dst[shift[0]..], &expected[..], "{:?}", isa);
        }
    }

    #[test]
    fn commutes_to_the_last_bit((calc, a, b, _) in case()) {
        let (mut one, mut two) = (a.clone(), b.clone());
        combine(calc, &mut one, &b).unwrap();
        combine(calc, &mut two, &a).unwrap();
        prop_assert_eq!(one, two);
    }

    #[test]
    fn minimum_and_maximum_associate_to_the_last_bit(
        (calc, a, b, _) in case(),
        op in prop::sample::select(vec![ReduceOp::Min, ReduceOp::Max]),
    ) {
        let calc = Calc { op, ..calc };
        let size = calc.data_type.size();
        let mut c = b.clone();
        c.rotate_left(if b.is_empty() { 0 } else { size });
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
fn nan_propagates_and_is_one_nan() {
    let signalling = f32::from_bits(0xff81_2345);
    for op in ReduceOp::ALL {
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
    for (a, b) in [(0.0_f64, -0.0_f64), (-0.0, 0.0)] {
        for (op, sign) in [(ReduceOp::Min, true), (ReduceOp::Max, false)] {
            let mut dst = a.to_ne_bytes();
            combine(Calc::of::<f64>(op), &mut dst, &b.to_ne_bytes()).unwrap();
            assert_eq!(f64::from_ne_bytes(dst).is_sign_negative(), sign, "{op} of {a:?}, {b:?}");
        }
    }
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
fn names_parse_print_and_serialise_alike() {
    for data_type in DataType::ALL {
        assert_eq!(data_type.to_string().parse(), Ok(data_type));
        let json = serde_json::to_string(&data_type).unwrap();
        assert_eq!(json, format!("\"{data_type}\""));
        assert_eq!(serde_json::from_str::<DataType>(&json).unwrap(), data_type);
    }
    for op in ReduceOp::ALL {
        assert_eq!(op.to_string().parse(), Ok(op));
        let json = serde_json::to_string(&op).unwrap();
        assert_eq!(json, format!("\"{op}\""));
        assert_eq!(serde_json::from_str::<ReduceOp>(&json).unwrap(), op);
    }
    assert_eq!("double".parse(), Ok(DataType::F64));
    assert_eq!("int32".parse(), Ok(DataType::I32));
    assert_eq!("int64".parse(), Ok(DataType::I64));
    assert_eq!(
        "f8".parse::<DataType>().unwrap_err().to_string(),
        "unknown element type `f8`: use one of f32, f64, i32, i64"
    );
    assert_eq!(
        "avg".parse::<ReduceOp>().unwrap_err().to_string(),
        "unknown operation `avg`: use one of sum, prod, min, max"
    );
}

#[test]
fn types_know_their_size() {
    fn check<T: Element>() {
        assert_eq!(T::TYPE.size(), size_of::<T>());
    }
    check::<f32>();
    check::<f64>();
    check::<i32>();
    check::<i64>();
}
