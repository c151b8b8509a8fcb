//! Plans of every algorithm: executed on real data under random schedules, verified, and broken on
//! purpose. Set `QPAIR_TEST_SEED` to repeat the schedules of a failure.

mod catalog;
mod cost;
mod execution;
mod executor;
mod faults;
mod format;
mod mutations;
#[path = "../random/mod.rs"]
mod random;
mod size;
mod tune;
