//! Unpredictable numbers for keys, queue pair numbers and tokens, from the kernel's generator in small batches.

use std::cell::RefCell;

struct Pool {
    bytes: [u8; 256],
    next: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; 256], next: 256 }) };
}

pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    POOL.with_borrow_mut(|pool| {
        if pool.next + N > pool.bytes.len() {
            refill(&mut pool.bytes);
            pool.next = 0;
        }
        let mut out = [0; N];
        out.copy_from_slice(&pool.bytes[pool.next..pool.next + N]);
        pool.next += N;
        out
    })
}

pub(crate) fn u16() -> u16 {
    u16::from_le_bytes(bytes())
}

pub(crate) fn u32() -> u32 {
    u32::from_le_bytes(bytes())
}

fn refill(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        // The kernel's generator fails on no Linux that has memfd_create; keys without it would be guessable.
        unreachable!("the kernel gave no random numbers: {error}");
    }
}
