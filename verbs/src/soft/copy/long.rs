//! The copies of long ranges on x86-64, by AVX2: into the caches, and past them ([`choice`](super::choice) says when).
//!
//! The C library copies long ranges by `rep movsb`, whose stores do not ask for a line before they need it. Asking ahead,
//! for what is read and for what is written, is faster wherever the ranges come from the second-level cache, and never
//! slower. GB/s on one core of a Xeon (Sapphire Rapids), shared memory to shared memory, each copy in a loop of its own:
//!
//! | | 64 KiB | 256 KiB | 1 MiB | 16 MiB |
//! |---|---|---|---|---|
//! | `memcpy` | 49.0 | 49.3 | 32.9 | 14.0 |
//! | this, asking 512 bytes ahead | 55.9 | 55.8 | 33.2 | 14.7 |
//! | this, asking 2 KiB ahead | 55.0 | 55.4 | 36.4 | 14.8 |
//!
//! Of an AMD EPYC (Zen 4), from what another core has written before:
//!
//! | | 64 KiB | 256 KiB | 1 MiB | 4 MiB | 16 MiB |
//! |---|---|---|---|---|---|
//! | `memcpy` | 40.5 | 41.5 | 44.8 | 34.1 | 11.5 |
//! | this, asking 256 bytes ahead | 42.9 | 43.4 | 48.1 | 46.5 | 17.8 |
//! | this, asking 2 KiB ahead | 40.2 | 40.0 | 40.0 | 41.2 | 14.5 |

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256, _rdtsc};
use std::sync::LazyLock;

/// True if this processor can run [`copy`].
#[inline]
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Copies `len` bytes, first to last.
///
/// # Safety
/// [`is_supported`]; both ranges are mapped for `len` bytes and do not overlap.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    if len < BY_BLOCKS {
        // SAFETY: passed on to the caller.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
    let ahead = *AHEAD;
    // SAFETY: passed on to the caller. What is asked for ahead lies within the `len` bytes too, which no prefetch cares about.
    unsafe {
        by_blocks(to, from, len, |to, from, left| {
            if left >= ahead {
                ask_to_read(from.wrapping_add(ahead));
                ask_to_write(to.wrapping_add(ahead));
            }
            copy_block::<false>(to, from);
        });
    }
}

/// The same past the caches, where the target's lines go to memory. Whoever sees what is stored after it sees all of it.
///
/// # Safety
/// As [`copy`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn copy_past(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: passed on to the caller; blocks begin at a line of the target.
    unsafe {
        by_blocks(to, from, len, |to, from, left| {
            if left >= PAST_AHEAD {
                ask_to_read(from.wrapping_add(PAST_AHEAD));
            }
            copy_block::<true>(to, from);
        });
        // Such stores overtake others. It changes no register or flag.
        asm!("sfence", options(nostack, preserves_flags));
    }
}

/// Copies a head that ends where a line of the target begins, then block by block, each with how many bytes follow it, then
/// what is left.
///
/// # Safety
/// Both ranges are mapped for `len` bytes and do not overlap; `block` copies [`BLOCK`] bytes.
#[inline(always)]
unsafe fn by_blocks(to: *mut u8, from: *const u8, len: usize, mut block: impl FnMut(*mut u8, *const u8, usize)) {
    let head = to.align_offset(LINE).min(len);
    // SAFETY: head, blocks and tail make up the `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let mut done = head;
        while len - done >= BLOCK {
            block(to.add(done), from.add(done), len - done - BLOCK);
            done += BLOCK;
        }
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
    }
}

/// A count that goes on evenly, as long as this processor does.
#[inline]
pub(super) fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has it, and it touches no memory.
    unsafe { _rdtsc() }
}

/// Asks for the lines of a block, to read them. Touches no memory.
#[inline(always)]
fn ask_to_read(from: *const u8) {
    // SAFETY: prefetches never fault, whatever the address, and change no register or flag.
    unsafe {
        asm!(
            "prefetcht0 [{from}]", "prefetcht0 [{from} + 64]",
            from = in(reg) from, options(nostack, preserves_flags, readonly),
        );
    }
}

/// The same to write them. A processor without the instruction passes over it.
#[inline(always)]
fn ask_to_write(to: *mut u8) {
    // SAFETY: as above.
    unsafe {
        asm!(
            "prefetchw [{to}]", "prefetchw [{to} + 64]",
            to = in(reg) to, options(nostack, preserves_flags, readonly),
        );
    }
}

/// `PAST`: past the caches.
///
/// # Safety
/// As for [`copy`], with [`BLOCK`] bytes. With `PAST` the target's begin at a line.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy_block<const PAST: bool>(to: *mut u8, from: *const u8) {
    let (to, from) = (to.cast::<__m256i>(), from.cast::<__m256i>());
    // SAFETY: four times 32 bytes, which the caller vouches for. Only stores past the caches need alignment.
    unsafe {
        let lanes = [0, 1, 2, 3].map(|lane| _mm256_loadu_si256(from.add(lane)));
        for (lane, bytes) in lanes.into_iter().enumerate() {
            if PAST {
                _mm256_stream_si256(to.add(lane), bytes);
            } else {
                _mm256_storeu_si256(to.add(lane), bytes);
            }
        }
    }
}

const LINE: usize = 64;
const BLOCK: usize = 128;
/// Shorter ranges are the C library's, as far as they go into the caches: twice their length fits the first-level cache, where
/// it is ahead.
const BY_BLOCKS: usize = 32 << 10;
/// How far ahead lines are asked for; see the tables above. AMD's processors fetch far ahead by themselves.
static AHEAD: LazyLock<usize> = LazyLock::new(|| if is_amd() { 256 } else { 2 << 10 });
/// The same for what is read to be written past the caches.
const PAST_AHEAD: usize = 1 << 10;

/// True on a processor of AMD's, which says "AuthenticAMD" of itself.
fn is_amd() -> bool {
    #[allow(unused_unsafe, reason = "it is safe from Rust 1.94 on")]
    // SAFETY: every x86-64 processor has it.
    let vendor = unsafe { __cpuid(0) };
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_around_a_block_and_the_distance_ahead_are_copied_exactly() {
        if !is_supported() {
            return;
        }
        let from: Vec<u8> = (0..41_000u32).map(|i| ((i * 7) >> 2) as u8).collect();
        for len in (0..300).chain(2000..2400).chain([4095, 8192, 8500]).chain([BY_BLOCKS, 40_000]) {
            for shift in [0, 1, 63] {
                for way in [copy, copy_past] {
                    let mut to = vec![0xee_u8; 41_000];
                    // SAFETY: both vectors hold more than `shift + len` bytes; AVX2 is there.
                    unsafe { way(to.as_mut_ptr().add(shift), from.as_ptr().add(3), len) };
                    assert!(to[shift..shift + len] == from[3..3 + len], "{len} bytes to {shift}");
                    assert!(to[..shift].iter().chain(&to[shift + len..]).all(|&byte| byte == 0xee));
                }
            }
        }
    }
}
