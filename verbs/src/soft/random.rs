//! Unpredictable numbers for keys, queue pair numbers and device numbers, from the kernel's generator. None is kept ahead
//! here: a process that forks would draw the same numbers as its parent.

pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    if let Err(error) = getrandom::fill(&mut out) {
        // The kernel's generator fails on no Linux that has memfd_create; keys without it would be guessable.
        unreachable!("the kernel gave no random numbers: {error}");
    }
    out
}

pub(crate) fn u32() -> u32 {
    u32::from_le_bytes(bytes())
}
