//! In which order contributions are combined.

use crate::plan::{Collective, Spec};

/// The shape of a combination: which contributions were combined with which, whatever the side. A number that two shapes
/// share only by chance, one in 2^64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order(u64);

impl Order {
    /// The contribution of `rank`.
    pub(super) fn of(rank: u32) -> Self {
        Self(mix(u64::from(rank) + 1, 0))
    }

    /// Both combined. Every operation commutes to the last bit.
    pub(super) fn with(self, other: Self) -> Self {
        Self(mix(self.0.min(other.0), self.0.max(other.0)))
    }

    /// All contributions in the canonical order.
    pub(super) fn canonical(ranks: u32) -> Self {
        let core = 1 << ranks.max(1).ilog2();
        let folded = ranks.max(1) - core;
        let mut level: Vec<Self> = (0..core)
            .map(|place| {
                if place < folded {
                    Self::of(2 * place).with(Self::of(2 * place + 1))
                } else {
                    Self::of(place + folded)
                }
            })
            .collect();
        while level.len() > 1 {
            level = level.chunks(2).map(|pair| pair[0].with(pair[1])).collect();
        }
        level[0]
    }
}

/// In which orders results are combined, told rank by rank and from their first element on.
pub(super) struct Orders {
    canonical: Order,
    are_canonical: bool,
    /// Those on rank 0, where all ranks are to have the same.
    first: Option<Runs>,
}

impl Orders {
    pub(super) fn of(spec: &Spec) -> Self {
        let first = (spec.collective == Collective::AllReduce).then(Runs::default);
        Self { canonical: Order::canonical(spec.ranks.0), are_canonical: true, first }
    }

    /// True if all so far are the canonical one.
    pub(super) fn are_canonical(&self) -> bool {
        self.are_canonical
    }

    /// The next elements of a rank's result. False if they are to have the order of another rank's, and have not.
    pub(super) fn note(&mut self, rank: u32, (from, to): (u64, u64), order: Order) -> bool {
        self.are_canonical &= order == self.canonical;
        match &mut self.first {
            Some(first) if rank == 0 => {
                first.add(to, order);
                true
            }
            Some(first) => first.has((from, to), order),
            None => true,
        }
    }
}

/// Orders of elements in a row, and where each ends.
#[derive(Default)]
struct Runs {
    ends: Vec<(u64, Order)>,
    /// The one that was looked at last.
    at: usize,
}

impl Runs {
    /// The next elements, up to `to`.
    fn add(&mut self, to: u64, order: Order) {
        match self.ends.last_mut() {
            Some((end, last)) if *last == order => *end = to,
            _ => self.ends.push((to, order)),
        }
    }

    /// Whether those elements have that order; to be asked from the first on, of each rank anew.
    fn has(&mut self, (from, to): (u64, u64), order: Order) -> bool {
        if from == 0 {
            self.at = 0;
        }
        while self.ends.get(self.at).is_some_and(|(end, _)| *end <= from) {
            self.at += 1;
        }
        // Two in a row differ, so that no more than one can be right.
        self.ends.get(self.at).is_some_and(|(end, first)| *end >= to && *first == order)
    }
}

/// Of the family of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b.rotate_left(32) ^ 0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(b);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
