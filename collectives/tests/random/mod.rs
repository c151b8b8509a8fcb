//! Numbers at random, the same for the same seed.

/// A small generator (xorshift64*); the seed says it all.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// The seed of a test, printed so that a failure shows it.
pub fn seed() -> u64 {
    let given = std::env::var("QPAIR_TEST_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok()).unwrap_or(20_260_731);
    println!("QPAIR_TEST_SEED={seed}");
    seed
}
