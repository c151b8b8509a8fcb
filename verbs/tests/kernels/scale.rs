//! `scale`, by the kernels.

use qpair_verbs::calc::{DataType, Scale, scale};

use crate::run::{Grid, Vector, kernels};
use crate::values::{Random, elements, special};

/// Compares, where the crate does not refuse.
fn check(data_type: DataType, vector: &[u8], by: Scale, shift: usize, grid: Grid) {
    let Some(kernels) = kernels() else { return };
    let mut must = vector.to_vec();
    if scale(data_type, &mut must, by).is_err() {
        return;
    }
    let mut scaled = Vector::new(vector, shift);
    kernels.scale(data_type, &mut scaled, by, grid);
    let (size, is) = (data_type.size(), scaled.checked());
    if let Some(i) = is.chunks(size).zip(must.chunks(size)).position(|(is, must)| is != must) {
        let [from, is, must] = [vector, is, &must].map(|v| &v[i * size..][..size]);
        panic!("{data_type}, {by:?}, element {i}: {from:02x?} is {is:02x?}, not {must:02x?}");
    }
}

/// Divisors and factors: small ones, powers of two and their neighbours, those that a single does not hold, special floats.
fn scales(random: &mut Random) -> Vec<Scale> {
    let powers = (0..32).map(|bit| 1_u32 << bit);
    let divisors = powers.flat_map(|power| [power - 1, power, power + 1]).chain([u32::MAX, 1 << 24 | 1]);
    let mut scales: Vec<Scale> = divisors.chain(1..70).filter(|&divisor| divisor != 0).map(Scale::Divide).collect();
    let whole = (-129..=256).map(f64::from);
    let large =
        [2.0_f64.powi(31), -2.0_f64.powi(31), 2.0_f64.powi(32) - 1.0, 2.0_f64.powi(63), -2.0_f64.powi(63), 1e18];
    let floats =
        [0.5, -0.0, 1.0 / 3.0, f64::MAX, 1e-310, 1e-40, 1e30, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
    scales.extend(whole.chain(large).chain(floats).map(Scale::Multiply));
    scales.extend((0..20).map(|_| Scale::Divide(random.bits() as u32 | 1)));
    scales.extend((0..20).map(|_| Scale::Multiply(f64::from_bits(random.bits()))));
    scales
}

/// Where the grid is not what is looked at.
const GRID: Grid = (3, 64);

#[test]
fn each_byte_and_half_and_special_values() {
    let mut random = Random::new();
    for data_type in DataType::ALL {
        let values = match data_type.size() {
            1 => (0..256).collect(),
            2 => (0..65536).step_by(7).chain(special(data_type)).collect(),
            _ => special(data_type),
        };
        let vector = elements(data_type, values);
        for by in scales(&mut random) {
            check(data_type, &vector, by, 0, GRID);
        }
    }
}

#[test]
fn random_values() {
    let mut random = Random::new();
    for data_type in DataType::ALL {
        let vector = random.vector(data_type, 2_000);
        for by in scales(&mut random) {
            check(data_type, &vector, by, 0, GRID);
        }
    }
}

#[test]
fn every_alignment_length_and_grid() {
    let mut random = Random::new();
    for data_type in DataType::ALL {
        let size = data_type.size();
        let most = 16 / size * 40 + 3;
        let vector = random.vector(data_type, most);
        for by in [Scale::Divide(3), Scale::Multiply(3.0)] {
            for grid in [(1, 1), (2, 5), (3, 32)] {
                for count in [0, 1, 2, 16 / size, 16 / size * 7, most - 1, most] {
                    for shift in [0, 1, 16 / size - 1] {
                        check(data_type, &vector[..count * size], by, shift * size, grid);
                    }
                }
            }
        }
    }
}
