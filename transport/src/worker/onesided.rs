//! One-sided operations: the peer's program takes no part.

use qpair_verbs::calc::Calc;
use qpair_verbs::{Local, RemoteSlice};

use super::Worker;
use super::endpoint::{Job, OneSided, wr_id};
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
        self.one_sided(ep, remote, into.into(), Some(calc))
    }

    /// Writes the first bytes of `from` to `remote`. [`Event::Put`](crate::Event::Put) follows. A message that is sent
    /// after it on the same connection is delivered after the data is in place. The peer must have exposed it with
    /// `REMOTE_WRITE`, or the connection breaks.
    ///
    /// # Errors
    /// As [`get`](Worker::get).
    #[inline]
    pub fn put(&mut self, ep: EndpointId, from: impl Into<Local>, remote: RemoteSlice) -> Result<OpId, OneSidedError> {
        self.one_sided(ep, remote, from.into(), None)
    }

    #[inline]
    fn one_sided(
        &mut self,
        ep: EndpointId,
        remote: RemoteSlice,
        memory: Local,
        read: Option<Option<Calc>>,
    ) -> Result<OpId, OneSidedError> {
        let op = OpId(self.op());
        let refused = |error, memory| Err(OneSidedError { error, memory });
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return refused(OneSidedFailure::Closed(ep), memory) };
        if !endpoint.up {
            return refused(OneSidedFailure::WouldBlock, memory);
        }
        let Some(work) = endpoint.link.take_slot() else { return refused(OneSidedFailure::WouldBlock, memory) };
        let Some(qp) = &mut endpoint.qp else { return refused(OneSidedFailure::Closed(ep), memory) };
        let len = remote.len as usize;
        let request = match read {
            Some(None) => qp.read(memory, remote),
            Some(Some(calc)) => qp.read_reduce(memory, remote, calc),
            None => qp.write(memory, remote),
        };
        let id = wr_id(Job::Read, endpoint.id, work.number);
        match request.range(0..len).id(id).signaled().post() {
            Ok(()) => {
                endpoint.reads.push_back(if read.is_some() { OneSided::Get(op) } else { OneSided::Put(op) });
                Ok(op)
            }
            Err(rejected) => {
                endpoint.link.untake_slot(work);
                let (error, memory) = rejected.into_parts();
                refused(error.into(), memory)
            }
        }
    }
}
