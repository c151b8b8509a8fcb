//! One-sided operations: the peer's program takes no part.

use qpair_verbs::calc::Calc;
use qpair_verbs::{Local, PostError, RemoteSlice};

use super::Worker;
use super::endpoint::{OneSided, Reach, Stage};
use super::error::{OneSidedError, OneSidedFailure};
use super::ids::{EndpointId, OpId};

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
        self.one_sided(ep, Reach::Read(calc), into.into(), remote, OneSided::Get)
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

    #[inline]
    fn one_sided(
        &mut self,
        ep: EndpointId,
        reach: Reach,
        memory: Local,
        remote: RemoteSlice,
        what: fn(OpId) -> OneSided,
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
