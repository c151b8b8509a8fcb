//! The algorithms under test.

use qpair_collectives::{Elements, Grain, Plan, Ranks, algorithms};

/// An algorithm with all parameters but ranks, length and grain.
#[derive(Debug, Clone, Copy)]
pub enum Case {
    Ring,
    RecursiveDoubling,
    Direct,
    Binomial,
    Chain,
    Exchange,
    Flat,
    Barrier,
    ExchangeBarrier,
}

pub const ALL: [Case; 9] = [
    Case::Ring,
    Case::RecursiveDoubling,
    Case::Direct,
    Case::Exchange,
    Case::Flat,
    Case::Binomial,
    Case::Chain,
    Case::Barrier,
    Case::ExchangeBarrier,
];

pub const ALL_REDUCE: [Case; 4] = [Case::Ring, Case::RecursiveDoubling, Case::Direct, Case::Exchange];

/// A plan with segments of `segment` elements; a broadcast's root is the middle rank.
pub fn plan(case: Case, n: u32, len: u64, segment: u64) -> Plan {
    let (ranks, elements) = (Ranks(n), Elements(len));
    let grain = Grain { element_size: 8, segment };
    match case {
        Case::Ring => algorithms::ring_all_reduce(ranks, elements, grain),
        Case::RecursiveDoubling => algorithms::recursive_doubling_all_reduce(ranks, elements, grain),
        Case::Direct => algorithms::direct_all_reduce(ranks, elements, grain),
        Case::Binomial => algorithms::binomial_broadcast(ranks, n / 2, elements, grain),
        Case::Chain => algorithms::chain_broadcast(ranks, n / 2, elements, grain),
        Case::Exchange => algorithms::exchange_all_reduce(ranks, elements, grain),
        Case::Flat => algorithms::flat_broadcast(ranks, n / 2, elements, grain),
        Case::Barrier => algorithms::dissemination_barrier(ranks),
        Case::ExchangeBarrier => algorithms::exchange_barrier(ranks),
    }
}
