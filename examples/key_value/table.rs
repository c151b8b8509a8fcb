//! The table: buckets of four entries each, every bucket with a version before and behind it.
//!
//! A bucket is changed between two steps of its versions: the first becomes odd, the contents change, then both become the
//! next even number. A READ that meets a change gives an odd number, or two that differ; and whatever it gives otherwise has
//! the check sum of its contents, since no order is promised between the bytes of a READ.

use std::ops::Range;

pub const BUCKETS: usize = 1 << 14;
pub const BUCKET: usize = 512;
const ENTRIES: usize = 4;
const ENTRY: usize = (BUCKET - 24) / ENTRIES;
/// Longest key and value.
pub const KEY: usize = 40;
pub const VALUE: usize = ENTRY - KEY - 4;

/// A bucket, as it was read or is to be written.
pub struct Bucket {
    bytes: [u8; BUCKET],
}

impl Bucket {
    pub fn empty() -> Self {
        Bucket { bytes: [0; BUCKET] }
    }

    /// One that was read; `None` if it was in the middle of a change.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bucket = Bucket { bytes: bytes.try_into().ok()? };
        let [first, last] = [bucket.word(0), bucket.word(BUCKET - 8)];
        (first == last && first % 2 == 0 && bucket.word(BUCKET - 16) == bucket.sum()).then_some(bucket)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        (0..ENTRIES).map(|entry| self.entry(entry)).find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Sets the value of a key, as a change that nobody has read in part. False if there is no room.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let place = (0..ENTRIES).find(|&entry| self.entry(entry).0 == key);
        let Some(entry) = place.or_else(|| (0..ENTRIES).find(|&entry| self.entry(entry).0.is_empty())) else {
            return false;
        };
        let at = 8 + entry * ENTRY;
        self.bytes[at] = key.len() as u8;
        self.bytes[at + 1..at + 3].copy_from_slice(&(value.len() as u16).to_le_bytes());
        self.bytes[at + 4..at + 4 + key.len()].copy_from_slice(key);
        self.bytes[at + 4 + KEY..at + 4 + KEY + value.len()].copy_from_slice(value);
        let version = (self.word(0) + 2).to_le_bytes();
        self.bytes[..8].copy_from_slice(&version);
        self.bytes[BUCKET - 8..].copy_from_slice(&version);
        let sum = self.sum().to_le_bytes();
        self.bytes[BUCKET - 16..BUCKET - 8].copy_from_slice(&sum);
        true
    }

    /// The first version while a change is under way.
    pub fn changing(&self) -> u64 {
        self.word(0) + 1
    }

    fn entry(&self, entry: usize) -> (&[u8], &[u8]) {
        let bytes = &self.bytes[8 + entry * ENTRY..][..ENTRY];
        let key = usize::from(bytes[0]).min(KEY);
        let value = usize::from(u16::from_le_bytes([bytes[1], bytes[2]])).min(VALUE);
        (&bytes[4..4 + key], &bytes[4 + KEY..4 + KEY + value])
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(word)
    }

    fn sum(&self) -> u64 {
        hash(&self.bytes[..BUCKET - 16])
    }
}

/// Where the bucket of a key is in the table.
pub fn place(key: &[u8]) -> Range<usize> {
    let at = hash(key) as usize % BUCKETS * BUCKET;
    at..at + BUCKET
}

/// FNV-1a of 64-bit words (<http://www.isthe.com/chongo/tech/comp/fnv/>), with the length.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words
        .iter()
        .fold(0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let mixed = rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)));
    mixed ^ mixed >> 32
}
