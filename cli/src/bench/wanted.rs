//! Arguments that name one thing, several or all.

use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

use qpair::collectives::Algorithm;
use qpair::verbs::calc::{ReduceOp, UnknownName};

use crate::algorithm;

/// Things by name, or all there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted<T> {
    /// All there are.
    All,
    /// Those, in this order.
    These(Vec<T>),
}

impl<T: FromStr> FromStr for Wanted<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        Self::parse(text, str::parse)
    }
}

impl<T> Wanted<T> {
    fn parse<E>(text: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<Self, E> {
        if text == "all" {
            Ok(Self::All)
        } else {
            text.split(',').map(parse).collect::<Result<_, _>>().map(Self::These)
        }
    }
}

/// Reads algorithms. Which of them an operation has is another matter.
///
/// # Errors
/// What there is, for any other text.
pub fn algorithms(text: &str) -> Result<Wanted<Algorithm>, String> {
    Wanted::parse(text, |name| name.parse().map_err(|_| format!("{}, or all", algorithm::unknown(name))))
}

/// Reads reductions: as they print, here or elsewhere, so that of a sum of multiples `premul:FACTOR` and `premulsum(FACTOR)`.
///
/// # Errors
/// What there is, for any other text.
pub fn operations(text: &str) -> Result<Wanted<ReduceOp>, String> {
    Wanted::parse(text, operation)
}

fn operation(text: &str) -> Result<ReduceOp, String> {
    let wrong = |factor: &dyn Display| format!("`{factor}` is no factor; write a finite number, as in premul:0.5");
    let op = match text.strip_prefix("premul:") {
        Some(factor) => factor.parse().map(ReduceOp::pre_mul_sum).map_err(|_| wrong(&factor))?,
        None => text.parse().map_err(|unknown: UnknownName| format!("{unknown}, premul:FACTOR, or all"))?,
    };
    match op {
        // Beyond that, it is infinite for most types.
        ReduceOp::PreMulSum(factor) if factor.get().is_nan() || factor.get().abs() > f32::MAX.into() => {
            Err(wrong(&factor))
        }
        op => Ok(op),
    }
}

/// The root of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// That rank.
    Rank(usize),
    /// Each rank, one after the other.
    All,
}

impl Root {
    /// The ranks that are the root, of so many.
    pub fn ranks(self, ranks: usize) -> Range<usize> {
        match self {
            Self::Rank(rank) => rank..rank + 1,
            Self::All => 0..ranks,
        }
    }
}

impl FromStr for Root {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            _ => {
                text.parse().map(Self::Rank).map_err(|_| format!("`{text}` is no rank; write a number from 0, or all"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use qpair::verbs::calc::DataType;

    use super::super::operation::op_name;
    use super::*;

    #[test]
    fn lists_and_all_are_read() {
        assert_eq!("all".parse::<Wanted<DataType>>(), Ok(Wanted::All));
        assert_eq!("f32,half".parse(), Ok(Wanted::These(vec![DataType::F32, DataType::F16])));
        let ops = operations("sum,premul:-0.5").expect("operations");
        assert_eq!(ops, Wanted::These(vec![ReduceOp::Sum, ReduceOp::pre_mul_sum(-0.5)]));
        assert_eq!(("all".parse(), "3".parse()), (Ok(Root::All), Ok(Root::Rank(3))));
    }

    #[test]
    fn operations_are_read_as_they_print() {
        for op in ReduceOp::ALL.into_iter().chain([0.5, -2.0, 1e-9].map(ReduceOp::pre_mul_sum)) {
            for text in [op_name(Some(op)), op.to_string()] {
                assert_eq!(operations(&text), Ok(Wanted::These(vec![op])), "{text}");
            }
        }
    }

    #[test]
    fn other_texts_are_errors_that_say_what_to_write() {
        for (text, part) in [
            ("mean", "sum, prod"),
            ("premul:x", "finite number"),
            ("premul:1e300", "finite"),
            ("premul:nan", "finite"),
            ("premulsum(inf)", "finite"),
            ("premulsum(x)", "premul:FACTOR, or all"),
            ("", "sum"),
        ] {
            let error = operations(text).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
        assert!("f32,".parse::<Wanted<DataType>>().is_err());
        assert!("-1".parse::<Root>().expect_err("no rank").contains("from 0"));
    }
}
