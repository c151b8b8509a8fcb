//! Names, as text and serialised.

use std::collections::HashSet;

use half::{bf16, f16};

use crate::calc::*;

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
    for (name, data_type) in [
        ("double", DataType::F64),
        ("int32", DataType::I32),
        ("int64", DataType::I64),
        ("uint8", DataType::U8),
        ("half", DataType::F16),
        ("bfloat16", DataType::Bf16),
        ("float8_e4m3fn", DataType::F8E4M3),
        ("fp8_e5m2", DataType::F8E5M2),
    ] {
        assert_eq!(name.parse(), Ok(data_type));
    }
    assert_eq!(
        "f8".parse::<DataType>().unwrap_err().to_string(),
        "unknown element type `f8`: use one of i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, f8e4m3, f8e5m2"
    );
    assert_eq!(
        "mean".parse::<ReduceOp>().unwrap_err().to_string(),
        "unknown operation `mean`: use one of sum, prod, min, max, avg, land, lor, lxor, band, bor, bxor, premulsum(FACTOR)"
    );
}

#[test]
fn names_are_unique() {
    let types: HashSet<_> = DataType::ALL.into_iter().map(DataType::name).collect();
    let ops: HashSet<_> = ReduceOp::ALL.iter().map(|op| op.to_string()).collect();
    assert_eq!((types.len(), ops.len()), (DataType::ALL.len(), ReduceOp::ALL.len()));
}

#[test]
fn factors_are_equal_if_their_bits_are() {
    for factor in [0.5, -0.0, 0.0, f64::INFINITY, f64::MIN_POSITIVE, 1.0 / 3.0] {
        let op = ReduceOp::pre_mul_sum(factor);
        assert_eq!(op.to_string().parse(), Ok(op));
        let json = serde_json::to_string(&op).unwrap();
        assert_eq!(serde_json::from_str::<ReduceOp>(&json).unwrap(), op);
    }
    assert_eq!(ReduceOp::pre_mul_sum(f64::NAN), ReduceOp::pre_mul_sum(f64::NAN));
    assert_ne!(ReduceOp::pre_mul_sum(0.0), ReduceOp::pre_mul_sum(-0.0));
    assert_eq!(ReduceOp::pre_mul_sum(0.5).to_string(), "premulsum(0.5)");
    assert_eq!(ReduceOp::pre_mul_sum(0.5).name(), "premulsum");
    assert!("premulsum(half)".parse::<ReduceOp>().is_err() && "premulsum".parse::<ReduceOp>().is_err());
}

#[test]
fn types_know_their_size() {
    fn check<T: Element>(data_type: DataType) {
        assert_eq!((T::TYPE, T::TYPE.size()), (data_type, size_of::<T>()));
    }
    check::<i8>(DataType::I8);
    check::<u8>(DataType::U8);
    check::<i32>(DataType::I32);
    check::<u32>(DataType::U32);
    check::<i64>(DataType::I64);
    check::<u64>(DataType::U64);
    check::<f16>(DataType::F16);
    check::<bf16>(DataType::Bf16);
    check::<f32>(DataType::F32);
    check::<f64>(DataType::F64);
    check::<F8E4M3>(DataType::F8E4M3);
    check::<F8E5M2>(DataType::F8E5M2);
}
