//! Results of calls that are told apart.

use std::ops::RangeInclusive;

/// `CUresult` of memory that is used up.
pub(in crate::gpu) const OUT_OF_MEMORY: i32 = 2;
/// `CUresult` of what the device does not have.
pub(in crate::gpu) const NOT_SUPPORTED: i32 = 801;
/// `CUresult` of a context that was given access before.
pub(in crate::gpu) const PEER_ACCESS_ENABLED: i32 = 704;
/// `CUresult` of devices of which one does not reach the other, and of one that reaches as many as it can.
pub(in crate::gpu) const PEER_ACCESS_UNSUPPORTED: i32 = 217;
pub(in crate::gpu) const TOO_MANY_PEERS: i32 = 711;
/// `CUresult` of an event that a stream has not come to.
pub(in crate::gpu) const NOT_READY: i32 = 600;

/// `CUresult` of calls that are refused because a graph is being captured: from `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to
/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
pub(in crate::gpu) const REFUSALS: RangeInclusive<i32> = 900..=908;
