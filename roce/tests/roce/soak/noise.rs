//! Contents of messages: windows of one stretch of random bytes, which differ by where they begin.

use std::sync::OnceLock;

use crate::network::Random;

/// Bytes of the contents that begin at `start`.
pub fn noise(start: u16, offset: u32, len: usize) -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let all = NOISE.get_or_init(|| {
        let mut random = Random(1);
        (0..LEN / 8).flat_map(|_| random.next().to_ne_bytes()).collect()
    });
    &all[usize::from(start) + offset as usize..][..len]
}

/// Every beginning, and the longest message behind it.
const LEN: usize = (1 << 16) + (1 << 15);
