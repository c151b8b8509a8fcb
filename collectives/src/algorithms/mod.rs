//! The algorithms, one file each: pure functions from rank count, vector length and grain to a
//! [`Plan`](crate::Plan). Each says how many steps it takes and what it puts on the wire.

mod binomial;
mod chain;
mod direct;
mod dissemination;
mod exchange;
mod flat;
mod recursive_doubling;
mod ring;
mod split;

pub use binomial::binomial_broadcast;
pub use chain::chain_broadcast;
pub use direct::direct_all_reduce;
pub use dissemination::dissemination_barrier;
pub use exchange::{exchange_all_reduce, exchange_barrier};
pub use flat::flat_broadcast;
pub use recursive_doubling::recursive_doubling_all_reduce;
pub use ring::ring_all_reduce;
