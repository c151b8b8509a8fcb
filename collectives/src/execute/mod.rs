//! Runs plans over the transport: each plan is compiled once for this rank, then run by counting dependencies; a short one, with
//! nothing else under way, in an order that was found when it was compiled.
//! In steady state a step costs no allocation, lock or look-up by hash.

mod asking;
mod block;
mod cache;
mod call;
mod compile;
mod differ;
mod direct;
mod engine;
mod exec;
mod faults;
mod fuse;
mod local;
mod lower;
mod memory;
mod net;
mod numbers;
mod reach;
mod run;
mod slots;
mod source;
mod staged;
mod stash;
mod steps;
mod straight;
mod strangers;
mod tag;
mod turns;
mod wait;
mod words;

#[cfg(test)]
mod tests;

pub(crate) use block::Block;
pub(crate) use cache::PlanCache;
pub use call::Call;
pub(crate) use call::size;
pub(crate) use compile::{Compiled, Key, has_too_many_messages};
pub(crate) use engine::{Engine, Runs};
pub(crate) use memory::{Grace, Memory};
pub(crate) use net::{Net, NetSettings};
pub(crate) use numbers::stream;
pub(crate) use run::{Buffers, Kept, Run};
pub(crate) use source::OwnPlan;
pub(crate) use straight::{Course, Straight};
pub(crate) use tag::MAX_RANKS;
pub(crate) use wait::{Patience, TimeLimit, Wait};
