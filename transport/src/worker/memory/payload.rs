//! What can be sent.

use bytes::Bytes;
use qpair_verbs::{Buffer, GpuBuffer, RemoteSlice};

use crate::engine::RemoteMemory;

/// The contents of one message.
///
/// Up to the eager limit it is copied when sent. Above it, a `Buffer` is exposed to the peer, which reads it without
/// any copy in between. So are `Bytes` that are [registered](crate::Worker::register), or long enough to be registered where
/// they lie ([`Config::in_place`](crate::Config::in_place)); others are copied into a buffer of the worker's pool first.
#[derive(Debug)]
pub enum Payload {
    /// Shared bytes.
    Bytes(Bytes),
    /// Several pieces, sent one behind the other as one message. Copied once, whatever their length.
    Gather(Vec<Bytes>),
    /// Registered memory, sent whole. [`Event::Sent`](crate::Event::Sent) gives it back.
    Buffer(Buffer),
    /// A range of a region that the application exposed with `REMOTE_READ` and keeps until
    /// [`Event::Sent`](crate::Event::Sent). Always read by the peer, whatever its length.
    Exposed(RemoteMemory),
    /// Memory of a GPU that is not registered, sent whole. It goes by slots of pinned memory, whether the device reaches the GPU or
    /// not: [`prepare_gpu`](crate::Worker::prepare_gpu) makes them. [`Event::Sent`](crate::Event::Sent) gives it back.
    ///
    /// Where the device reaches it ([`ProtectionDomain::gpu_path`](qpair_verbs::ProtectionDomain::gpu_path)), registering it and
    /// sending part of the region, as above, saves both copies.
    ///
    /// A peer that is offered a part may read all slots of the GPU from then on, whosever messages go by them, as long as the
    /// worker lives: memory that one peer must not see of another's goes by workers of their own.
    Gpu(GpuBuffer),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Payload::Bytes(bytes) => bytes.len() as u64,
            Payload::Gather(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Payload::Buffer(buffer) => buffer.len() as u64,
            Payload::Exposed(remote) => remote.len(),
            Payload::Gpu(buffer) => buffer.len() as u64,
        }
    }

    /// True if there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Payload::Bytes(bytes)
    }
}

impl From<Vec<Bytes>> for Payload {
    fn from(pieces: Vec<Bytes>) -> Self {
        Payload::Gather(pieces)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Bytes(bytes.into())
    }
}

impl From<&'static [u8]> for Payload {
    fn from(bytes: &'static [u8]) -> Self {
        Payload::Bytes(Bytes::from_static(bytes))
    }
}

impl From<Buffer> for Payload {
    fn from(buffer: Buffer) -> Self {
        Payload::Buffer(buffer)
    }
}

impl From<GpuBuffer> for Payload {
    fn from(buffer: GpuBuffer) -> Self {
        Payload::Gpu(buffer)
    }
}

impl From<RemoteMemory> for Payload {
    fn from(remote: RemoteMemory) -> Self {
        Payload::Exposed(remote)
    }
}

impl From<RemoteSlice> for Payload {
    fn from(remote: RemoteSlice) -> Self {
        Payload::Exposed(remote.into())
    }
}
