//! Making long payloads readable for a peer: where they lie, or as a copy.

use bytes::Bytes;
use qpair_verbs::{Access, ExposedRegion, MemoryError, RemoteSlice};

use super::post::{Body, Pieces};
use crate::engine::{Readable, RemoteMemory};
use crate::worker::Worker;
use crate::worker::endpoint::Carried;
use crate::worker::memory::{InUse, Payload};

impl Worker {
    /// Makes a long payload readable for the peer.
    pub(super) fn expose(&mut self, payload: Payload) -> Result<(Carried, Readable), (MemoryError, Payload)> {
        let exposed = match payload {
            Payload::Gpu(buffer) => {
                let len = buffer.len() as u64;
                return match self.prepare_gpu(buffer.gpu()) {
                    Ok(()) => Ok((Carried::Gpu(buffer), Readable::InParts(len))),
                    Err(error) => Err((error, Payload::Gpu(buffer))),
                };
            }
            Payload::Exposed(remote) => {
                let readable = if remote.has_keys() { remote } else { self.rails.remote(remote.remote, |_| None) };
                Ok((Carried::Remote(remote), readable))
            }
            Payload::Buffer(buffer) => {
                let len = buffer.len();
                match buffer.expose(Access::REMOTE_READ) {
                    Ok(region) => {
                        let readable = self.rails.remote(region.remote(0..len), |pd| region.rkey_in(pd));
                        Ok((Carried::Region(region), readable))
                    }
                    Err(failed) => {
                        // A device may keep it for ever.
                        let left = failed.buffer.map_or(Payload::Bytes(Bytes::new()), Payload::Buffer);
                        Err((failed.error, left))
                    }
                }
            }
            Payload::Bytes(bytes) => self.expose_bytes(bytes),
            Payload::Gather(pieces) => match self.copy_and_expose(&Pieces::Many(&pieces)) {
                Ok((region, readable)) => Ok((Carried::Copy(region, Payload::Gather(pieces)), readable)),
                Err(error) => Err((error, Payload::Gather(pieces))),
            },
        };
        exposed.map(|(carried, remote)| (carried, remote.into()))
    }

    /// Makes long `Bytes` readable for the peer: where they lie, or as a copy where that is faster.
    fn expose_bytes(&mut self, bytes: Bytes) -> Result<(Carried, RemoteMemory), (MemoryError, Payload)> {
        let registered = self.registrations.acquire_registered(&bytes);
        if let Some((registration, remote)) = registered {
            let readable = self.registered(&registration, remote);
            return Ok((Carried::Shared(registration, bytes), readable));
        }
        // What can not be had in the one way may be in the other.
        let copies_first = bytes.len() < self.in_place_from;
        if copies_first && let Ok((region, readable)) = self.copy_and_expose(&Pieces::One(&bytes)) {
            return Ok((Carried::Copy(region, Payload::Bytes(bytes)), readable));
        }
        let error = match self.registrations.acquire(&bytes) {
            Ok((registration, remote)) => {
                let readable = self.registered(&registration, remote);
                return Ok((Carried::Shared(registration, bytes), readable));
            }
            Err(error) => error,
        };
        if !copies_first && let Ok((region, readable)) = self.copy_and_expose(&Pieces::One(&bytes)) {
            return Ok((Carried::Copy(region, Payload::Bytes(bytes)), readable));
        }
        Err((error, Payload::Bytes(bytes)))
    }

    fn registered(&self, registration: &InUse, remote: RemoteSlice) -> RemoteMemory {
        self.rails.remote(remote, |pd| self.registrations.rkey_in(registration, pd))
    }

    /// Copies a payload into a buffer of the pool, for the peer to read.
    fn copy_and_expose(&mut self, body: &Pieces<'_>) -> Result<(ExposedRegion, RemoteMemory), MemoryError> {
        let len = body.bytes();
        let mut buffer = self.pool.copy(len)?;
        let size = buffer.len();
        body.put(&mut buffer[..len]);
        match buffer.expose(Access::REMOTE_READ) {
            Ok(region) => {
                self.counters.bytes_copied += len as u64;
                let readable = self.rails.remote(region.remote(0..len), |pd| region.rkey_in(pd));
                Ok((region, readable))
            }
            Err(failed) => {
                match failed.buffer {
                    Some(buffer) => self.pool.give_copy(buffer),
                    None => self.pool.lose_copies(size),
                }
                Err(failed.error)
            }
        }
    }
}
