//! Values to calculate with.

use std::sync::OnceLock;

use qpair_verbs::calc::{Calc, DataType, ReduceOp};

/// Each operation, as it is done to two vectors, with each type that it is for.
pub fn every() -> Vec<Calc> {
    let all = DataType::ALL.into_iter().flat_map(|data_type| ReduceOp::ALL.map(|op| (data_type, op)));
    let fixed = all.filter(|(_, op)| *op != ReduceOp::Avg);
    fixed.filter_map(|(data_type, op)| Calc::new(data_type, op).ok()).collect()
}

/// Bits of one element that are more likely than others to be got wrong: zeros, ones, the greatest and least numbers and their
/// neighbours, subnormal ones, infinities, NaN of many kinds.
pub fn special(data_type: DataType) -> Vec<u64> {
    let bits = 8 * data_type.size() as u32;
    let (sign, most) = (1 << (bits - 1), u64::MAX >> (64 - bits));
    let magnitudes: Vec<u64> = match mantissa(data_type) {
        // Powers of two, above all the greatest, and their neighbours.
        None => {
            let some = (0..bits).filter(|bit| bit % 5 == 0 || bit + 2 >= bits);
            some.flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]).collect()
        }
        Some(mantissa) => {
            let one_exponent = 1 << mantissa;
            let infinity = (sign - 1) / one_exponent * one_exponent;
            let one = infinity / 2 / one_exponent * one_exponent;
            let around = [0, one_exponent, 2 * one_exponent, one, one + one_exponent, infinity, infinity / 2, sign];
            let halves =
                [infinity | (one_exponent / 2), one | (one_exponent / 2), (mantissa / 2).pow(2) * one_exponent];
            let all = around.into_iter().chain(halves);
            all.flat_map(|bits| [bits.wrapping_sub(2), bits.wrapping_sub(1), bits, bits + 1, bits + 2]).collect()
        }
    };
    let mut all: Vec<u64> =
        magnitudes.into_iter().flat_map(|bits| [bits & most, (bits ^ sign) & most, !bits & most]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn mantissa(data_type: DataType) -> Option<u64> {
    match data_type {
        DataType::F16 => Some(10),
        DataType::Bf16 => Some(7),
        DataType::F32 => Some(23),
        DataType::F64 => Some(52),
        DataType::F8E4M3 => Some(3),
        DataType::F8E5M2 => Some(2),
        _ => None,
    }
}

/// Elements of these bits, one after another.
pub fn elements(data_type: DataType, bits: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let native = |bits: u64| match data_type.size() {
        1 => vec![bits as u8],
        2 => (bits as u16).to_ne_bytes().to_vec(),
        4 => (bits as u32).to_ne_bytes().to_vec(),
        _ => bits.to_ne_bytes().to_vec(),
    };
    bits.into_iter().flat_map(native).collect()
}

/// All pairs of values, as two vectors.
pub fn pairs(data_type: DataType, values: &[u64]) -> [Vec<u8>; 2] {
    let a = elements(data_type, values.iter().flat_map(|&a| values.iter().map(move |_| a)));
    [a, elements(data_type, values.iter().flat_map(|_| values.iter().copied()))]
}

/// A source of bits, other ones at each run.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        let seed = *SEED.get_or_init(|| {
            let seed = std::env::var("QPAIR_SEED").ok().and_then(|seed| seed.parse().ok());
            seed.unwrap_or_else(|| getrandom::u64().unwrap())
        });
        println!("QPAIR_SEED={seed}");
        Self(seed)
    }

    /// SplitMix64.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Elements, a third of them special. Floats among them are near each other in size often enough for sums to round.
    pub fn vector(&mut self, data_type: DataType, count: usize) -> Vec<u8> {
        let special = special(data_type);
        let low = match mantissa(data_type) {
            Some(mantissa) => (mantissa as u32 + 3).min(8 * data_type.size() as u32 - 2),
            None => 4,
        };
        let bits = (0..count).map(|_| {
            let bits = self.bits();
            match self.bits() % 3 {
                0 => special[bits as usize % special.len()],
                1 => bits,
                // Exponents that differ by at most 8, on either side of one.
                _ => (bits % (1 << low)) | (0xf << low) | (bits & (1 << (8 * data_type.size() - 1))),
            }
        });
        elements(data_type, bits.collect::<Vec<_>>())
    }
}
