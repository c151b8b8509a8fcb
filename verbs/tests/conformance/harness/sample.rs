//! Memory by description: what to fill it with, and what was found in it.

use qpair_verbs::{Buffer, HugePages, Local, ProtectionDomain};
use serde::{Deserialize, Serialize};

use super::RegionId;
use super::exposed::on_gpu;

/// Bytes by description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fill {
    /// Pseudo-random bytes of that seed.
    Seed(u64),
    /// One byte, over and over.
    Byte(u8),
}

/// Where a buffer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The domain's allocator.
    Alloc,
    /// The same, on huge pages if there are any.
    Huge,
    /// A vector of the caller's.
    Vector,
}

/// One buffer by description.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub origin: Origin,
    pub len: usize,
    pub fill: Fill,
}

/// Local memory of a work request by description.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Mem {
    None,
    Inline { len: usize, fill: Fill },
    Buffer(Piece),
    Slab(Piece),
    List(Vec<Piece>),
    Region { region: RegionId, start: usize, end: usize },
}

/// What was found in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The memory's form in words.
    pub form: String,
    /// Bytes that count: those received, or all.
    pub len: usize,
    /// Digest of them.
    pub digest: u64,
    /// The first few of them.
    pub head: Vec<u8>,
    /// Whether all bytes behind them are still [`BLANK`].
    pub tail_blank: bool,
}

/// What receives are filled with before they are posted.
pub const BLANK: u8 = 0xee;

impl Fill {
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.put(&mut bytes);
        bytes
    }

    pub fn put(self, into: &mut [u8]) {
        match self {
            Fill::Byte(byte) => into.fill(byte),
            Fill::Seed(seed) => {
                // One block word by word, and the others like it, but for a word that is each one's own: megabytes are
                // filled at the speed of copies where programs are not optimised.
                let (first, others) = into.split_at_mut(into.len().min(BLOCK));
                for (turn, chunk) in (0..).zip(first.chunks_mut(8)) {
                    chunk.copy_from_slice(&splitmix64(seed, turn)[..chunk.len()]);
                }
                for (turn, block) in (BLOCK as u64..).zip(others.chunks_mut(BLOCK)) {
                    block.copy_from_slice(&first[..block.len()]);
                    let own = block.len().min(8);
                    block[..own].copy_from_slice(&splitmix64(seed, turn)[..own]);
                }
            }
        }
    }
}

/// How often pseudo-random bytes are alike but for one word: no multiple of a packet or page, so that one that lands in another's
/// place is found.
const BLOCK: usize = 4096 + 8;

/// A word of the pseudo-random sequence of `seed`.
fn splitmix64(seed: u64, turn: u64) -> [u8; 8] {
    let mut word = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(turn + 1));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)).to_le_bytes()
}

impl Piece {
    pub fn make(self, pd: &ProtectionDomain) -> Result<Buffer, String> {
        let text = |error: qpair_verbs::MemoryError| error.to_string();
        let mut buffer = match self.origin {
            Origin::Alloc => pd.alloc(self.len).map_err(text)?,
            Origin::Huge => pd.alloc_on(self.len, HugePages::Try).map_err(text)?,
            Origin::Vector => return pd.register(self.fill.bytes(self.len)).map_err(text),
        };
        self.fill.put(&mut buffer);
        Ok(buffer)
    }
}

impl Origin {
    pub const ALL: [Origin; 3] = [Origin::Alloc, Origin::Huge, Origin::Vector];
}

impl Mem {
    /// A buffer of pseudo-random bytes; none for length zero.
    pub fn seeded(len: usize, seed: u64) -> Mem {
        Mem::from(Origin::Alloc, len, Fill::Seed(seed))
    }

    /// A buffer to receive into.
    pub fn blank(len: usize) -> Mem {
        Mem::from(Origin::Alloc, len, Fill::Byte(BLANK))
    }

    pub fn from(origin: Origin, len: usize, fill: Fill) -> Mem {
        if len == 0 { Mem::None } else { Mem::Buffer(Piece { origin, len, fill }) }
    }

    pub fn inline(len: usize, seed: u64) -> Mem {
        Mem::Inline { len, fill: Fill::Seed(seed) }
    }

    /// Buffers of these lengths, to gather from, each with a seed of its own.
    pub fn list(lens: &[usize], seed: u64) -> Mem {
        Mem::List(
            (seed..)
                .zip(lens)
                .map(|(seed, len)| Piece { origin: Origin::Alloc, len: *len, fill: Fill::Seed(seed) })
                .collect(),
        )
    }

    /// Buffers of these lengths, to scatter to.
    pub fn blank_list(lens: &[usize]) -> Mem {
        Mem::List(lens.iter().map(|len| Piece { origin: Origin::Alloc, len: *len, fill: Fill::Byte(BLANK) }).collect())
    }

    /// Buffers with these contents, in order; the bytes of `inline` go by another way.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Mem::None | Mem::Region { .. } => Vec::new(),
            Mem::Inline { len, fill } => fill.bytes(*len),
            Mem::Buffer(piece) | Mem::Slab(piece) => piece.fill.bytes(piece.len),
            Mem::List(list) => list.iter().flat_map(|piece| piece.fill.bytes(piece.len)).collect(),
        }
    }
}

impl Content {
    /// The first `len` bytes of `memory`, without the `skip` in front of them.
    pub fn of(memory: Local, skip: usize, len: Option<usize>) -> Content {
        let form = memory.form().to_owned();
        let bytes = match memory {
            Local::Buffer(buffer) => buffer.to_vec(),
            Local::Slab(slab) => slab.share(0..slab.len()).to_vec(),
            Local::List(list) => list.iter().map(|buffer| &buffer[..]).collect::<Vec<_>>().concat(),
            Local::Region(slice) if on_gpu() => {
                let mut bytes = vec![0; slice.len()];
                slice.read(0, &mut bytes).expect("its own memory");
                bytes
            }
            Local::Region(slice) => return Content { len: slice.len(), ..Content::found(form, &[], &[]) },
            Local::None => Vec::new(),
            other => panic!("no case posts {}", other.form()),
        };
        let end = len.unwrap_or(bytes.len()).min(bytes.len());
        Content::found(form, &bytes[skip.min(end)..end], &bytes[end..])
    }

    pub fn found(form: String, bytes: &[u8], tail: &[u8]) -> Content {
        Content {
            form,
            len: bytes.len(),
            digest: digest(bytes),
            head: bytes[..bytes.len().min(16)].to_vec(),
            tail_blank: tail == vec![BLANK; tail.len()],
        }
    }

    /// Asserts that exactly these bytes were found.
    #[track_caller]
    pub fn assert_is(&self, bytes: &[u8]) {
        let want = Content::found(self.form.clone(), bytes, &[]);
        assert_eq!((self.len, &self.head), (want.len, &want.head), "other bytes than were sent");
        assert_eq!(self.digest, want.digest, "other bytes than were sent, behind the first 16");
    }

    /// The eight bytes as a number of this machine.
    #[track_caller]
    pub fn word(&self) -> u64 {
        assert_eq!(self.len, 8, "not eight bytes");
        u64::from_ne_bytes(self.head[..8].try_into().unwrap())
    }
}

/// A digest that changes with each bit of `bytes`, and with their number.
pub fn digest(bytes: &[u8]) -> u64 {
    (bytes.len() as u64) << 32 | u64::from(crc32fast::hash(bytes))
}

#[test]
fn digests_tell_bytes_and_lengths_apart() {
    let bytes = Fill::Seed(1).bytes(1000);
    let mut other = bytes.clone();
    other[999] ^= 1;
    assert_ne!(digest(&bytes), digest(&other));
    assert_ne!(digest(&bytes), digest(&bytes[..999]));
    assert_ne!(digest(&[0]), digest(&[0, 0]));
}
