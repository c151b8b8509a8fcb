//! A small seeded generator: the same numbers on every machine.

/// SplitMix64 (Steele, Lea and Flood, 2014): one 64-bit word of state, every seed is good.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose numbers depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from -1 to 1, evenly distributed.
    pub fn signed_unit(&mut self) -> f32 {
        let steps = (self.next() >> 40) as f32; // 24 bits: exact in f32
        steps / (1 << 23) as f32 - 1.0
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            items.swap(last, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let mut rng = Rng::new(1_234_567); // the reference implementation's first numbers
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn shuffle_permutes() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(5).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn signed_unit_is_in_range() {
        let mut rng = Rng::new(11);
        let values: Vec<f32> = (0..1000).map(|_| rng.signed_unit()).collect();
        assert!(values.iter().all(|v| (-1.0..1.0).contains(v)));
        let mean = values.iter().sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.05, "mean {mean}");
    }
}
