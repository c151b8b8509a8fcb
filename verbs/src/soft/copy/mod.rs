//! The device's copy engine: copies that other threads and processes may watch or disturb.
//! `long` has the loops for ranges beyond the first-level cache, of which `choice` takes one.

#[cfg(target_arch = "x86_64")]
mod choice;
#[cfg(target_arch = "x86_64")]
mod long;

use std::hint::black_box;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Copies one word to where it is aligned: watchers see all of it or nothing. So does the copy, where the source is aligned.
macro_rules! word {
    ($atomic:ty, $word:ty, $to:expr, $from:expr) => {{
        let value = if ($from as usize).is_multiple_of(size_of::<$word>()) {
            <$atomic>::from_ptr($from.cast_mut().cast()).load(Ordering::Relaxed)
        } else {
            $from.cast::<$word>().read_unaligned()
        };
        <$atomic>::from_ptr($to.cast()).store(value, Ordering::Release);
    }};
}

/// Copies `len` bytes as a NIC would: whoever writes the source or reads the target meanwhile sees old or new bytes.
///
/// The copy itself is an opaque call, so that the compiler assumes nothing of the bytes. The last 8 bytes are stored
/// after all others, which programs rely on that watch the end of a buffer, as they do with NICs.
///
/// # Safety
/// Both ranges are mapped for `len` bytes. They may overlap.
#[inline]
pub(crate) unsafe fn device_copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: each arm stays within the `len` bytes that the caller vouches for.
    unsafe {
        match len {
            0 => {}
            2 if (to as usize).is_multiple_of(2) => word!(AtomicU16, u16, to, from),
            4 if (to as usize).is_multiple_of(4) => word!(AtomicU32, u32, to, from),
            8 if (to as usize).is_multiple_of(8) => word!(AtomicU64, u64, to, from),
            1..=8 => {
                let mut bytes = [0; 8];
                for (i, byte) in bytes[..len].iter_mut().enumerate() {
                    *byte = from.add(i).read_volatile();
                }
                for (i, byte) in bytes[..len].iter().enumerate() {
                    to.add(i).write_volatile(*byte);
                }
            }
            _ => {
                let body = len - 8;
                let tail = from.add(body).cast::<u64>().read_unaligned();
                OPAQUE(to, from, body);
                std::sync::atomic::fence(Ordering::Release);
                to.add(body).cast::<u64>().write_unaligned(tail);
            }
        }
    }
}

type Copy = unsafe extern "C" fn(*mut u8, *const u8, usize);

/// `memmove` behind a pointer that the compiler does not see through.
static OPAQUE: Copy = copy_out_of_line;

#[inline(never)]
unsafe extern "C" fn copy_out_of_line(to: *mut u8, from: *const u8, len: usize) {
    let (to, from, len) = black_box((to, from, len));
    #[cfg(target_arch = "x86_64")]
    if choice::is_long(len) && (to as usize).abs_diff(from as usize) >= len && long::is_supported() {
        // SAFETY: the caller of `device_copy` vouches for both ranges, and they lie apart.
        return unsafe { choice::copy(to, from, len) };
    }
    // SAFETY: the caller of `device_copy` vouches for both ranges.
    unsafe { std::ptr::copy(from, to, len) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn long_ranges_may_overlap() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        for (to, from) in [(0, 1), (1, 0), (0, 5000), (5000, 0), (100, 100)] {
            let mut moved = bytes.clone();
            // SAFETY: 90,000 bytes from 5,000 on lie within the vector.
            unsafe { device_copy(moved.as_mut_ptr().add(to), moved.as_ptr().add(from), 90_000) };
            assert!(moved[to..to + 90_000] == bytes[from..from + 90_000], "from {from} to {to}");
        }
    }

    #[test]
    fn whoever_watches_a_word_sees_all_of_it_or_nothing() {
        /// # Safety
        /// As of the atomic's `from_ptr`.
        unsafe fn look(at: *mut u8, len: usize) -> u64 {
            // SAFETY: passed on to the caller.
            unsafe {
                match len {
                    2 => AtomicU16::from_ptr(at.cast()).load(Ordering::Relaxed).into(),
                    4 => AtomicU32::from_ptr(at.cast()).load(Ordering::Relaxed).into(),
                    _ => AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed),
                }
            }
        }
        for (len, shift) in [(2, 0), (2, 1), (4, 0), (4, 1), (8, 0), (8, 1)] {
            let (place, over) = (AtomicU64::new(0), AtomicBool::new(false));
            let whole = u64::MAX >> (64 - 8 * len);
            let torn = std::thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    let mut torn = None;
                    while !over.load(Ordering::Relaxed) {
                        // SAFETY: 8 aligned bytes that this test keeps; all access to them is atomic and of this size.
                        let seen = unsafe { look(place.as_ptr().cast(), len) };
                        torn = torn.or((seen != 0 && seen != whole).then_some(seen));
                    }
                    torn
                });
                for turn in 0..100_000 {
                    let from = [if turn % 2 == 0 { 0xff_u8 } else { 0 }; 16];
                    // SAFETY: `len + shift` is at most 9 bytes of the source; the target has 8.
                    unsafe { device_copy(place.as_ptr().cast(), from.as_ptr().add(shift), len) };
                }
                over.store(true, Ordering::Relaxed);
                watcher.join().unwrap()
            });
            assert_eq!(torn, None, "{len} bytes");
        }
    }

    #[test]
    fn every_length_is_copied_exactly() {
        let from: Vec<u8> = (0..300u32).map(|i| (i * 7) as u8).collect();
        for len in 0..=256 {
            for shift in 0..3 {
                let mut to = vec![0xee_u8; 300];
                // SAFETY: both vectors hold 300 bytes, more than `shift + len`.
                unsafe { device_copy(to.as_mut_ptr().add(shift), from.as_ptr().add(1), len) };
                assert_eq!(to[shift..shift + len], from[1..1 + len]);
                assert!(to[..shift].iter().chain(&to[shift + len..]).all(|&byte| byte == 0xee));
            }
        }
    }
}
