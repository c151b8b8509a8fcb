//! Numbers of network order in bytes whose length is known.

use super::error::WireError;

/// `N` bytes from `at` on.
#[inline]
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], WireError> {
    let truncated = WireError::Truncated { needed: at + N, len: bytes.len() };
    let rest = bytes.get(at..).ok_or(truncated)?;
    rest.first_chunk().copied().ok_or(truncated)
}

#[inline]
pub(super) const fn be16(bytes: &[u8], at: usize) -> u16 {
    (bytes[at] as u16) << 8 | bytes[at + 1] as u16
}

#[inline]
pub(super) const fn be24(bytes: &[u8], at: usize) -> u32 {
    (bytes[at] as u32) << 16 | be16(bytes, at + 1) as u32
}

#[inline]
pub(super) const fn be32(bytes: &[u8], at: usize) -> u32 {
    (be16(bytes, at) as u32) << 16 | be16(bytes, at + 2) as u32
}

#[inline]
pub(super) const fn be64(bytes: &[u8], at: usize) -> u64 {
    (be32(bytes, at) as u64) << 32 | be32(bytes, at + 4) as u64
}
