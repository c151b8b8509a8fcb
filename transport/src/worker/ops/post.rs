//! Posting a message: its header, and what follows it.

use bytes::Bytes;
use qpair_verbs::{Local, MemoryError, PostError, QpState};

use crate::engine::{Frame, HEADER_BYTES};
use crate::worker::datagram::{Datagrams, line_of};
use crate::worker::endpoint::Endpoint;
use crate::worker::error::ResourceError;
use crate::worker::memory::Pool;
use crate::worker::work_id::{Job, wr_id};

/// What follows a header.
pub(in crate::worker) trait Body {
    /// Length in bytes.
    fn bytes(&self) -> usize;
    /// Copies it to `into`, which is as long.
    fn put(&self, into: &mut [u8]);
}

impl Body for [u8] {
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn put(&self, into: &mut [u8]) {
        into.copy_from_slice(self);
    }
}

/// The contents of a payload that is copied.
pub(super) enum Pieces<'a> {
    One(&'a [u8]),
    /// One behind the other.
    Many(&'a [Bytes]),
}

impl Body for Pieces<'_> {
    #[inline(always)]
    fn bytes(&self) -> usize {
        match self {
            Pieces::One(bytes) => bytes.len(),
            Pieces::Many(pieces) => pieces.iter().map(Bytes::len).sum(),
        }
    }

    #[inline(always)]
    fn put(&self, mut into: &mut [u8]) {
        match self {
            Pieces::One(bytes) => into.copy_from_slice(bytes),
            Pieces::Many(pieces) => {
                for piece in *pieces {
                    let (here, rest) = into.split_at_mut(piece.len());
                    here.copy_from_slice(piece);
                    into = rest;
                }
            }
        }
    }
}

/// Of a message that is a header alone.
pub(super) const NOTHING: &[u8] = &[];

/// Whether a message with `len` bytes behind its header can be put together: once it has its place among others it has to go, or
/// the connection ends. If not, the connection waits for memory.
///
/// # Errors
/// [`MemoryError`] if none is to come back.
#[inline(always)]
pub(in crate::worker) fn has_memory(
    endpoint: &mut Endpoint,
    pool: &mut Pool,
    max_inline: usize,
    len: usize,
) -> Result<bool, MemoryError> {
    let whole = HEADER_BYTES + len;
    if whole <= max_inline || endpoint.is_of_datagrams() {
        return Ok(true);
    }
    pool.has_message(endpoint.id.index, &mut endpoint.is_starved, whole)
}

/// The same of a message that does not wait, and of a connection that is up.
///
/// # Errors
/// As for [`has_memory`].
#[inline(always)]
pub(super) fn has_memory_now(
    endpoint: &Endpoint,
    pool: &mut Pool,
    max_inline: usize,
    len: usize,
) -> Result<bool, MemoryError> {
    let whole = HEADER_BYTES + len;
    if whole <= max_inline || endpoint.qp.is_none() { Ok(true) } else { pool.has_message_now(whole) }
}

/// Puts a message together and posts it: inline, or from memory of the pool where the device takes no such inline. The
/// frame comes by value, so that it need not be in memory.
#[inline(always)]
pub(in crate::worker) fn post(
    endpoint: &mut Endpoint,
    scratch: &mut [u8],
    pool: &mut Pool,
    max_inline: usize,
    datagrams: &mut Option<Box<Datagrams>>,
    frame: Frame,
    body: &(impl Body + ?Sized),
) -> Result<(), ResourceError> {
    let len = HEADER_BYTES + body.bytes();
    if len > max_inline {
        return post_buffer(endpoint, pool, datagrams, frame, body);
    }
    let Some(qp) = &mut endpoint.qp else { return post_datagram(endpoint, datagrams, frame, body) };
    let message = &mut scratch[..len];
    let Some((header, rest)) = message.split_first_chunk_mut::<HEADER_BYTES>() else { return Err(not_connected()) };
    frame.header.emit(header);
    body.put(rest);
    let request = qp.send_inline(message).id(wr_id(Job::Send, endpoint.id, frame.work.number));
    let request = if frame.work.signal { request.signaled() } else { request };
    request.post().map_err(|rejected| rejected.error)?;
    endpoint.link.keep(frame.header.kind, frame.work.number, frame.header.sequence, message);
    Ok(())
}

#[cold]
fn post_buffer(
    endpoint: &mut Endpoint,
    pool: &mut Pool,
    datagrams: &mut Option<Box<Datagrams>>,
    frame: Frame,
    body: &(impl Body + ?Sized),
) -> Result<(), ResourceError> {
    if endpoint.qp.is_none() {
        return post_datagram(endpoint, datagrams, frame, body);
    }
    let len = HEADER_BYTES + body.bytes();
    let mut buffer = pool.message(len)?;
    if let Some((header, rest)) = buffer.split_first_chunk_mut::<HEADER_BYTES>() {
        frame.header.emit(header);
        body.put(&mut rest[..len - HEADER_BYTES]);
    }
    endpoint.link.keep(frame.header.kind, frame.work.number, frame.header.sequence, &buffer[..len]);
    let Some(qp) = &mut endpoint.qp else {
        pool.give_message(buffer);
        return Err(not_connected());
    };
    let bytes = buffer.len();
    let id = wr_id(Job::SendBuffer, endpoint.id, frame.work.number);
    let posted = qp.send(buffer).range(0..len).id(id).signaled().post();
    let Err(rejected) = posted else {
        endpoint.copied += bytes;
        return Ok(());
    };
    let (error, memory) = rejected.into_parts();
    if let Local::Buffer(buffer) = memory {
        pool.give_message(buffer);
    }
    Err(error.into())
}

#[cold]
#[inline(never)]
fn post_datagram(
    endpoint: &mut Endpoint,
    datagrams: &mut Option<Box<Datagrams>>,
    frame: Frame,
    body: &(impl Body + ?Sized),
) -> Result<(), ResourceError> {
    let index = endpoint.id.index;
    let Some((line, datagrams)) = line_of(endpoint, datagrams) else { return Err(not_connected()) };
    datagrams.post(line, index, &frame, body)
}

#[cold]
fn not_connected() -> ResourceError {
    ResourceError::Post(PostError::State(QpState::Init))
}
