//! Memory of an operation: ordinary while its messages are copied, exposed while peers reach it.

use std::time::Duration;

use qpair_verbs::calc::{Calc, combine};
use qpair_verbs::{Access, Buffer, ExposedRegion, Local, MemoryError, ProtectionDomain, RemoteSlice};

use super::compile::Span;

/// Memory of an operation.
#[derive(Debug, Default)]
pub(crate) enum Memory {
    /// No bytes.
    #[default]
    None,
    /// Ours alone.
    Plain(Buffer),
    /// Peers may read and write it.
    Exposed(ExposedRegion),
}

impl Memory {
    /// Lets peers read and write it.
    pub(super) fn expose(&mut self) -> Result<(), MemoryError> {
        *self = match std::mem::take(self) {
            Memory::Plain(buffer) => match buffer.expose(Access::REMOTE_READ | Access::REMOTE_WRITE) {
                Ok(region) => Memory::Exposed(region),
                Err(failed) => {
                    *self = Memory::Plain(failed.buffer);
                    return Err(failed.error);
                }
            },
            other => other,
        };
        Ok(())
    }

    /// Takes it back from the peers. Where a peer that does not run is in the middle of reading it, gives other memory
    /// with the same contents, and keeps the first from use.
    pub(crate) fn into_buffer(self, domain: &ProtectionDomain) -> Option<Buffer> {
        let mut region = match self {
            Memory::None => return None,
            Memory::Plain(buffer) => return Some(buffer),
            Memory::Exposed(region) => region,
        };
        for _ in 0..REVOKE_ATTEMPTS {
            match region.revoke() {
                Ok(buffer) => return Some(buffer),
                Err(failed) => region = failed.region,
            }
            std::thread::sleep(REVOKE_PAUSE);
        }
        tracing::error!(rkey = %region.rkey(), "a peer sits in the middle of reading memory; it is withheld");
        let mut copy = domain.alloc(region.len()).ok()?;
        let copied = region.read(0, &mut copy);
        std::mem::forget(region);
        copied.ok().map(|()| copy)
    }

    /// The bytes of a span, if no peer can reach them.
    #[inline]
    pub(super) fn bytes(&self, span: Span) -> Option<&[u8]> {
        match self {
            Memory::Plain(buffer) => buffer.get(span.start..span.start + span.len),
            Memory::None if span.len == 0 => Some(&[]),
            Memory::None | Memory::Exposed(_) => None,
        }
    }

    /// Its name for peers, if they may reach it.
    pub(super) fn remote(&self) -> Option<RemoteSlice> {
        match self {
            Memory::Exposed(region) => Some(region.remote(0..region.len())),
            Memory::None | Memory::Plain(_) => None,
        }
    }

    /// A span as the local memory of a read or write, if peers may reach it.
    #[inline]
    pub(super) fn local(&self, span: Span) -> Option<Local> {
        match self {
            Memory::Exposed(region) => Some(Local::Region(region.local(span.start..span.start + span.len))),
            Memory::None | Memory::Plain(_) => None,
        }
    }

    /// Puts `from` into a span, or combines it with what is there. The lengths are equal.
    #[inline]
    pub(super) fn put(&mut self, span: Span, from: &[u8], calc: Option<Calc>) -> Result<(), String> {
        match self {
            Memory::Plain(buffer) => {
                let into = buffer.get_mut(span.start..span.start + span.len).ok_or("a span outside the buffer")?;
                match calc {
                    Some(calc) => combine(calc, into, from).map_err(|error| error.to_string()),
                    None if into.len() == from.len() => {
                        into.copy_from_slice(from);
                        Ok(())
                    }
                    None => Err("a message of another length than its receive".into()),
                }
            }
            Memory::Exposed(region) => {
                let slice = region.local(span.start..span.start + span.len);
                let done = match calc {
                    Some(calc) => slice.combine(0, calc, from),
                    None => slice.write(0, from),
                };
                done.map_err(|error| error.to_string())
            }
            Memory::None if from.is_empty() => Ok(()),
            Memory::None => Err("a message for no memory".into()),
        }
    }

    /// Copies out a part of a span, which may be exposed.
    pub(super) fn read(&self, start: usize, into: &mut [u8]) -> Result<(), String> {
        match self {
            Memory::Plain(buffer) => {
                let from = buffer.get(start..start + into.len()).ok_or("a span outside the buffer")?;
                into.copy_from_slice(from);
                Ok(())
            }
            Memory::Exposed(region) => region.read(start, into).map_err(|error| error.to_string()),
            Memory::None => Err("a copy from no memory".into()),
        }
    }
}

/// One second in all: a peer that runs is done with a read long before.
const REVOKE_ATTEMPTS: u32 = 100;
const REVOKE_PAUSE: Duration = Duration::from_millis(10);
