//! The helpers for training, on ranks that are threads.

mod buckets;
mod dispatch;
mod pipeline;
mod quorum;
mod replicas;
mod shards;
mod staleness;
mod support;
