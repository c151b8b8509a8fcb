//! Operations that are a program's own.

use crate::calc::*;

struct Gcd;

impl Combine for Gcd {
    type Element = u32;
    const NAME: &'static str = "gcd";

    fn combine(mut a: u32, mut b: u32) -> u32 {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    }
}

/// Another of that name.
struct Last;

impl Combine for Last {
    type Element = F8E4M3;
    const NAME: &'static str = "gcd";

    fn combine(_: F8E4M3, b: F8E4M3) -> F8E4M3 {
        b
    }
}

const GCD: ReduceOp = ReduceOp::User(UserOp::of::<Gcd>());

#[test]
fn it_combines_each_element_at_any_offset() {
    let calc = Calc::of::<u32>(GCD);
    for count in 0..20_usize {
        let a: Vec<u8> = (0..count).flat_map(|at| (at as u32 * 6 + 12).to_ne_bytes()).collect();
        let b: Vec<u8> = (0..count).flat_map(|_| 9_u32.to_ne_bytes()).collect();
        let (mut dst, src) = ([&[0xa5], &a[..], &[0xa5]].concat(), [&[0; 3], &b[..]].concat());
        combine(calc, &mut dst[1..=a.len()], &src[3..]).unwrap();
        for (at, element) in dst[1..=a.len()].chunks_exact(4).enumerate() {
            assert_eq!(u32::from_ne_bytes(element.try_into().unwrap()), Gcd::combine(at as u32 * 6 + 12, 9));
        }
        assert_eq!((dst[0], dst[a.len() + 1]), (0xa5, 0xa5));
    }
}

#[test]
fn it_is_for_its_own_type_alone() {
    for data_type in DataType::ALL {
        assert_eq!(GCD.supports(data_type), data_type == DataType::U32);
    }
    let (op, data_type) = (GCD, DataType::I32);
    assert_eq!(Calc::new(data_type, op), Err(CalcError::Unsupported { op, data_type }));
}

#[test]
fn it_is_known_by_its_name() {
    assert_eq!(GCD, ReduceOp::User(UserOp::of::<Last>()));
    assert_eq!((GCD.to_string(), GCD.name()), ("gcd".into(), "gcd"));
    assert_eq!(Calc::of::<u32>(GCD).to_string(), "gcd of u32");
    assert_ne!(Calc::of::<u32>(GCD), Calc::of::<u32>(ReduceOp::Sum));
    assert_eq!(Calc::of::<u32>(GCD), Calc::of::<u32>(GCD));
}

#[test]
fn one_of_another_process_is_compared_and_not_run() {
    let json = serde_json::to_string(&GCD).unwrap();
    assert_eq!(json, r#"{"user":"gcd"}"#);
    let theirs: ReduceOp = serde_json::from_str(&json).unwrap();
    assert_eq!((theirs, theirs.to_string()), (GCD, "gcd".into()));
    assert!(!theirs.supports(DataType::U32));
    let ReduceOp::User(op) = theirs else { panic!("{theirs}") };
    assert_eq!(op.data_type(), None);
    assert_eq!(Calc::new(DataType::U32, theirs), Err(CalcError::Foreign(op)));
    // A name is short and can be printed, whatever a peer sends.
    for name in ["", "two words", "\u{1b}[0m", "ä", "12345678901234567890123456789012"] {
        let json = format!(r#"{{"user":{}}}"#, serde_json::to_string(name).unwrap());
        assert!(serde_json::from_str::<ReduceOp>(&json).is_err(), "{name}");
    }
    let longest: ReduceOp = serde_json::from_str(r#"{"user":"1234567890123456789012345678901"}"#).unwrap();
    assert_eq!(longest.name(), "1234567890123456789012345678901");
}
