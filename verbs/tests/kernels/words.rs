//! Kernels that change a word.

use crate::run::kernels;

#[test]
fn fetch_add_adds_and_says_what_was() {
    let Some(kernels) = kernels() else { return };
    let mut word = 7;
    for add in [0, 1, u64::MAX, 1 << 63, 1 << 63, 0x0123_4567_89ab_cdef] {
        let was = word;
        assert_eq!(kernels.fetch_add(&mut word, add), was);
        assert_eq!(word, was.wrapping_add(add));
    }
}

#[test]
fn compare_swap_replaces_what_is_equal_only() {
    let Some(kernels) = kernels() else { return };
    let mut word = 1 << 40 | 5;
    for (compare, swap) in [(5, 9), (1 << 40 | 5, u64::MAX), (u64::MAX >> 1, 3), (u64::MAX, 0), (0, 1 << 63)] {
        let was = word;
        assert_eq!(kernels.compare_swap(&mut word, compare, swap), was);
        assert_eq!(word, if was == compare { swap } else { was });
    }
}
