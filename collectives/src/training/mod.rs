//! What training on several ranks is made of: gradients in buckets, optimizer states in shards, tokens to experts, stages in
//! a pipeline, steps that run ahead. Built on the operations of a [`Communicator`](crate::Communicator) alone.
//!
//! | Training | Helper | Operations |
//! |---|---|---|
//! | data parallel | [`GradientBuckets`], in memory of the processor or of a GPU | all-reduce of buckets, while the backward pass goes on |
//! | ZeRO-1, 2 and 3 | [`Shards`] | all-reduce or reduce-scatter, all-gather |
//! | mixture of experts | [`Dispatch`] | all-to-all of counts and of rows, there and back |
//! | pipeline parallel | [`Pipeline`] | transfers between neighbours |
//! | bounded staleness | [`Staleness`] | all-reduces, several under way |
//! | parameter server with a quorum | [`quorum`] | transfers to and from the server |
//! | start and checkpoint | [`broadcast_parameters`], [`reduce_checkpoint`], [`Shards::checkpoint`] | broadcast, reduce, gather |

mod alike;
mod assign;
mod buckets;
mod dispatch;
mod error;
mod grants;
mod pipeline;
pub mod quorum;
mod replicas;
mod routed;
mod schedule;
mod shards;
mod slot;
mod staleness;

pub use buckets::{BUCKET_BYTES, GradientBuckets, Gradients};
pub use dispatch::Dispatch;
pub use error::{BucketError, DispatchError};
pub use pipeline::{Pipeline, Stage};
pub use replicas::{broadcast_parameters, reduce_checkpoint};
pub use routed::Routed;
pub use schedule::{Work, one_forward_one_backward};
pub use shards::Shards;
pub use staleness::{Slowest, Staleness};
