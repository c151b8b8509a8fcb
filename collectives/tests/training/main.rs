//! The helpers for training, on ranks that are threads.

mod buckets;
mod dispatch;
#[path = "../group/mod.rs"]
mod group;
#[path = "../meeting/mod.rs"]
mod meeting;
mod pipeline;
mod quorum;
#[path = "../random/mod.rs"]
mod random;
mod replicas;
mod shards;
mod staleness;
mod support;
