//! Ranks as threads, and numbers that look random.

use qpair_collectives::Communicator;

/// As many ranks as tests run on.
pub const RANKS: [usize; 4] = [1, 2, 3, 5];

/// Runs `rank` on `ranks` threads, a communicator each; gives what they return, by rank.
pub fn group<R: Send>(ranks: usize, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let group = Communicator::group(ranks).expect("a group");
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
