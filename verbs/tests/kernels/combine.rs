//! `combine`, by the kernels.

use qpair_verbs::calc::{Calc, DataType, combine};

use crate::run::{Grid, Vector, kernels};
use crate::values::{Random, every, pairs, special};

/// By the crate.
fn expected(calc: Calc, a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut into = a.to_vec();
    combine(calc, &mut into, b).unwrap();
    into
}

fn assert_same(calc: Calc, [a, b]: [&[u8]; 2], is: &[u8], must: &[u8]) {
    let size = calc.data_type().size();
    assert_eq!(is.len(), must.len());
    if let Some(i) = is.chunks(size).zip(must.chunks(size)).position(|(is, must)| is != must) {
        let [a, b, is, must] = [a, b, is, must].map(|v| &v[i * size..][..size]);
        panic!("{calc}, element {i}: {a:02x?} and {b:02x?} are {is:02x?}, not {must:02x?}");
    }
}

fn check(calc: Calc, [a, b]: [&[u8]; 2], shifts: [usize; 3], grid: Grid) {
    let Some(kernels) = kernels() else { return };
    let must = expected(calc, a, b);
    let (from_a, from_b) = (Vector::new(a, shifts[1]), Vector::new(b, shifts[2]));
    let mut into = Vector::new(&vec![0x5a; a.len()], shifts[0]);
    kernels.combine(calc, &mut into, Some(&from_a), &from_b, grid);
    assert_same(calc, [a, b], into.checked(), &must);
    let mut into = Vector::new(a, shifts[0]);
    kernels.combine(calc, &mut into, None, &from_b, grid);
    assert_same(calc, [a, b], into.checked(), &must);
}

/// Where the grid is not what is looked at.
const GRID: Grid = (3, 64);

#[test]
fn all_pairs_of_bytes() {
    let all: Vec<u64> = (0..256).collect();
    for calc in every().into_iter().filter(|calc| calc.data_type().size() == 1) {
        let [a, b] = pairs(calc.data_type(), &all);
        check(calc, [&a, &b], [0; 3], GRID);
    }
}

#[test]
fn all_pairs_of_special_values() {
    for calc in every() {
        let [a, b] = pairs(calc.data_type(), &special(calc.data_type()));
        check(calc, [&a, &b], [0; 3], GRID);
    }
}

#[test]
fn random_pairs() {
    let mut random = Random::new();
    for calc in every() {
        let (a, b) = (random.vector(calc.data_type(), 20_000), random.vector(calc.data_type(), 20_000));
        check(calc, [&a, &b], [0; 3], GRID);
    }
}

#[test]
fn each_half_with_some() {
    for calc in every().into_iter().filter(|calc| matches!(calc.data_type(), DataType::F16 | DataType::Bf16)) {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        // One, halfway between numbers, the least and the greatest, subnormal ones, infinity, NaN.
        for other in [0x3c01_u16, 0x8001, 0x7bff, 0x0400, 0xfc00, 0x7f80] {
            check(calc, [&all, &other.to_ne_bytes().repeat(1 << 16)], [0; 3], GRID);
        }
    }
}

#[test]
fn every_alignment_length_and_grid() {
    let mut random = Random::new();
    for calc in every() {
        let size = calc.data_type().size();
        let most = 16 / size * 40 + 3;
        let (a, b) = (random.vector(calc.data_type(), most), random.vector(calc.data_type(), most));
        // Within a piece, some pieces, some rounds; as many threads as pieces, fewer, more; more than there are elements.
        for grid in [(1, 1), (1, 3), (2, 5), (3, 32)] {
            for count in [0, 1, 2, 16 / size, 16 / size + 1, 16 / size * 7, most - 1, most] {
                let len = count * size;
                for shifts in [[0; 3], [1; 3], [16 / size - 1; 3], [0, 1, 0], [0, 0, 1], [1, 0, 3], [2, 2, 1]] {
                    check(calc, [&a[..len], &b[..len]], shifts.map(|shift| shift * size), grid);
                }
            }
        }
    }
}
