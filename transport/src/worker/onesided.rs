//! One-sided operations: the peer's program takes no part.

use qpair_verbs::calc::Calc;
use qpair_verbs::{Local, PostError, QpType, RemoteSlice};

use super::Worker;
use super::endpoint::{Combining, OneSided, Reach, Stage};
use super::error::{OneSidedError, OneSidedFailure};
use super::ids::{EndpointId, OpId};
use super::target::Target;

impl Worker {
    /// Reads `remote` into the first bytes of `into`, or combines it with them. [`Event::Got`](crate::Event::Got)
    /// follows. The peer must have exposed it with `REMOTE_READ`, or the connection breaks.
    ///
    /// # Errors
    /// [`OneSidedError`] with the memory; [`OneSidedFailure::WouldBlock`] while there is no room for another request.
    #[inline]
    pub fn get(
        &mut self,
        ep: EndpointId,
        remote: RemoteSlice,
        into: impl Into<Local>,
        calc: Option<Calc>,
    ) -> Result<OpId, OneSidedError> {
        match calc {
            Some(calc) if !self.read_reduce => {
                self.get_and_combine(ep, remote, Target { memory: into.into(), calc: Some(calc) })
            }
            _ => self.one_sided(ep, Reach::Read(calc), into.into(), remote, OneSided::Get),
        }
    }

    /// Writes the first bytes of `from` to `remote`. [`Event::Put`](crate::Event::Put) follows. A message that is sent
    /// after it on the same connection is delivered after the data is in place. The peer must have exposed it with
    /// `REMOTE_WRITE`, or the connection breaks.
    ///
    /// # Errors
    /// As [`get`](Worker::get).
    #[inline]
    pub fn put(&mut self, ep: EndpointId, from: impl Into<Local>, remote: RemoteSlice) -> Result<OpId, OneSidedError> {
        self.one_sided(ep, Reach::Write, from.into(), remote, OneSided::Put)
    }

    /// Reads into a slab of the pool, from which the bytes are combined later: for devices that can not.
    #[cold]
    fn get_and_combine(&mut self, ep: EndpointId, remote: RemoteSlice, target: Target) -> Result<OpId, OneSidedError> {
        let refused = |error, target: Target| Err(OneSidedError { error, memory: target.memory });
        if let Err(error) = combinable(&target, remote.len) {
            return refused(error.into(), target);
        }
        let len = remote.len as usize;
        let slab = match self.pool.slab(len) {
            Ok(Some(slab)) => slab,
            Ok(None) => return refused(OneSidedFailure::WouldBlock, target),
            Err(error) => return refused(OneSidedFailure::Memory(error.to_string().into()), target),
        };
        let pooled = slab.len();
        match self.one_sided(ep, Reach::Read(None), slab.into(), remote, OneSided::Get) {
            Ok(op) => {
                if let Some(last) = self.endpoints.get_mut(ep).and_then(|endpoint| endpoint.reads.back_mut()) {
                    *last = OneSided::Combine(Combining { op, target, len, pooled });
                }
                Ok(op)
            }
            Err(OneSidedError { error, memory }) => {
                self.give_back(memory);
                refused(error, target)
            }
        }
    }

    #[inline]
    pub(super) fn one_sided(
        &mut self,
        ep: EndpointId,
        reach: Reach,
        memory: Local,
        remote: RemoteSlice,
        what: impl FnOnce(OpId) -> OneSided,
    ) -> Result<OpId, OneSidedError> {
        let op = OpId(self.op());
        let refused = |error, memory| Err(OneSidedError { error, memory });
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return refused(OneSidedFailure::Closed(ep), memory) };
        if !endpoint.up {
            let ending = matches!(endpoint.stage, Stage::Ending { .. });
            return refused(if ending { OneSidedFailure::Closed(ep) } else { OneSidedFailure::WouldBlock }, memory);
        }
        match endpoint.reach(reach, memory, remote) {
            Ok(()) => {
                endpoint.reads.push_back(what(op));
                Ok(op)
            }
            Err((PostError::SendQueueFull { .. }, memory)) => refused(OneSidedFailure::WouldBlock, memory),
            Err((error, memory)) => refused(error.into(), memory),
        }
    }
}

/// Whether so many bytes can be combined with the memory.
fn combinable(target: &Target, len: u64) -> Result<(), PostError> {
    let limit = target.memory.len();
    let size = target.calc.map_or(1, |calc| calc.data_type.size());
    match usize::try_from(len) {
        Ok(len) if len <= limit && !len.is_multiple_of(size) => Err(PostError::PartialElement { len, size }),
        Ok(len) if len <= limit => {
            let what = "a READ that is combined with this memory";
            target.check().map_err(|_| PostError::NotSupported { what, qp_type: QpType::Rc })
        }
        _ => Err(PostError::Range { start: 0, end: usize::try_from(len).unwrap_or(usize::MAX), len: limit }),
    }
}
