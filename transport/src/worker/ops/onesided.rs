//! One-sided operations: the peer's program takes no part.

use qpair_verbs::calc::Calc;
use qpair_verbs::{GpuBuffer, Local, PostError, QpType};

use crate::engine::RemoteMemory;
use crate::worker::Worker;
use crate::worker::endpoint::{InFlight, OneSided, Reach, Stage, Unposted};
use crate::worker::error::{OneSidedError, OneSidedFailure};
use crate::worker::ids::{EndpointId, OpId};
use crate::worker::memory::Target;
use crate::worker::work_id::{Job, wr_id};

impl Worker {
    /// Reads `remote` into the first bytes of `into`, or combines it with them; for memory of a GPU that is not registered, by
    /// memory of the worker's pool, which must have as much. [`Event::Got`](crate::Event::Got)
    /// follows. The peer must have exposed it with `REMOTE_READ`, or the connection breaks.
    ///
    /// # Errors
    /// [`OneSidedError`] with the memory; [`OneSidedFailure::WouldBlock`] while there is no room for another request, and
    /// [`OneSidedFailure::NoKey`] where the connection goes on over a device for which `remote` has no key.
    #[inline]
    pub fn get(
        &mut self,
        ep: EndpointId,
        remote: impl Into<RemoteMemory>,
        into: impl Into<Local>,
        calc: Option<Calc>,
    ) -> Result<OpId, OneSidedError> {
        let (remote, into) = (remote.into(), into.into());
        match calc {
            // Not what the device can do.
            calc if matches!(into, Local::Gpu(_)) || (calc.is_some() && !self.read_reduce) => {
                self.get_and_combine(ep, remote, Target::new(into, calc))
            }
            calc => self.one_sided(ep, Reach::Read(calc), into, &remote, OneSided::Get { remote, calc }),
        }
    }

    /// Writes the first bytes of `from` to `remote`; of memory of a GPU that is not registered, a copy of
    /// them in memory of the worker's pool, which must have as much.
    /// [`Event::Put`](crate::Event::Put) follows. A message that is sent
    /// after it on the same connection is delivered after the data is in place. The peer must have exposed it with
    /// `REMOTE_WRITE`, or the connection breaks.
    ///
    /// # Errors
    /// As [`get`](Worker::get).
    #[inline]
    pub fn put(
        &mut self,
        ep: EndpointId,
        from: impl Into<Local>,
        remote: impl Into<RemoteMemory>,
    ) -> Result<OpId, OneSidedError> {
        let (remote, from) = (remote.into(), from.into());
        match from {
            Local::Gpu(buffer) => self.copy_and_put(ep, buffer, remote),
            from => self.one_sided(ep, Reach::Write, from, &remote, OneSided::Put { remote, own: None }),
        }
    }

    /// Writes out of a slab of the pool that the first bytes of a GPU's memory are copied into.
    #[cold]
    fn copy_and_put(&mut self, ep: EndpointId, from: GpuBuffer, remote: RemoteMemory) -> Result<OpId, OneSidedError> {
        let refused = |error, from: GpuBuffer| Err(OneSidedError { error, memory: from.into() });
        let limit = from.len();
        let Some(len) = usize::try_from(remote.len()).ok().filter(|&len| len <= limit) else {
            let end = usize::try_from(remote.len()).unwrap_or(usize::MAX);
            return refused(PostError::Range { start: 0, end, len: limit }.into(), from);
        };
        // Before it is copied, which takes a while.
        let may = match self.endpoints.get(ep) {
            None => Err(OneSidedFailure::Closed(ep)),
            Some(endpoint) if !endpoint.up => Err(not_up(&endpoint.stage, ep)),
            Some(endpoint) if !endpoint.link.has_slot() => Err(OneSidedFailure::WouldBlock),
            Some(endpoint) => endpoint.name(&remote).map(|_| ()).map_err(OneSidedFailure::from),
        };
        if let Err(error) = may {
            return refused(error, from);
        }
        let no_memory = |error: &dyn std::fmt::Display| OneSidedFailure::Memory(error.to_string().into());
        let mut slab = match self.slab(len) {
            Ok(Some(slab)) => slab,
            Ok(None) => return refused(OneSidedFailure::WouldBlock, from),
            Err(error) => return refused(no_memory(&error), from),
        };
        let pooled = slab.len();
        // Of the pool: nobody else has it.
        let copied = slab.get_mut().map_or(Ok(()), |room| from.read(0, &mut room[..len]));
        if let Err(error) = copied {
            self.pool.give_slab(slab);
            return refused(no_memory(&error), from);
        }
        match self.one_sided(ep, Reach::Write, slab.into(), &remote, OneSided::Put { remote, own: None }) {
            Ok(op) => {
                if let Some(last) = self.endpoints.get_mut(ep).and_then(|endpoint| endpoint.reads.back_mut()) {
                    last.what = OneSided::Put { remote, own: Some((from.into(), pooled)) };
                }
                Ok(op)
            }
            Err(OneSidedError { error, memory }) => {
                self.give_back(memory);
                refused(error, from)
            }
        }
    }

    /// The memory that a WRITE was of, which is done or will not be.
    pub(in crate::worker) fn own_memory(&mut self, own: Option<(Local, usize)>, memory: Local) -> Local {
        match own {
            Some((own, pooled)) => {
                self.unstage(memory, pooled);
                own
            }
            None => memory,
        }
    }

    /// Reads into a slab of the pool, from which the bytes are put into their place or combined later: for devices that can not, and memory that they do not know.
    #[cold]
    fn get_and_combine(&mut self, ep: EndpointId, remote: RemoteMemory, target: Target) -> Result<OpId, OneSidedError> {
        let refused = |error, target: Target| Err(OneSidedError { error, memory: target.memory });
        if let Err(error) = combinable(&target, remote.len()) {
            return refused(error.into(), target);
        }
        let len = remote.len() as usize;
        let slab = match self.slab(len) {
            Ok(Some(slab)) => slab,
            Ok(None) => return refused(OneSidedFailure::WouldBlock, target),
            Err(error) => return refused(OneSidedFailure::Memory(error.to_string().into()), target),
        };
        let pooled = slab.len();
        match self.one_sided(ep, Reach::Read(None), slab.into(), &remote, OneSided::Get { remote, calc: None }) {
            Ok(op) => {
                if let Some(last) = self.endpoints.get_mut(ep).and_then(|endpoint| endpoint.reads.back_mut()) {
                    last.what = OneSided::Combine { target, remote, pooled };
                }
                Ok(op)
            }
            Err(OneSidedError { error, memory }) => {
                self.give_back(memory);
                refused(error, target)
            }
        }
    }

    /// Writes a copy of `data` to `remote`, which is as long, if the device takes so much with the request itself. No event
    /// follows: [`flush`](Worker::flush) tells when it is in place. A message that is sent after it on the same connection is
    /// delivered after the data is in place.
    ///
    /// # Errors
    /// [`OneSidedFailure`]; [`OneSidedFailure::WouldBlock`] while there is no room for another request, and
    /// [`PostError`] for more data than the device takes.
    #[inline]
    pub fn put_copy(
        &mut self,
        ep: EndpointId,
        data: &[u8],
        remote: impl Into<RemoteMemory>,
    ) -> Result<(), OneSidedFailure> {
        let remote = remote.into();
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return Err(OneSidedFailure::Closed(ep)) };
        if !endpoint.up {
            return Err(not_up(&endpoint.stage, ep));
        }
        let name = endpoint.name(&remote)?;
        let Some(qp) = &mut endpoint.qp else { return Err(endpoint.why_not().into()) };
        let Some(work) = endpoint.link.take_send_slot() else { return Err(OneSidedFailure::WouldBlock) };
        let request = qp.write_inline(data, name).id(wr_id(Job::Send, ep, work.number));
        let request = if work.signal { request.signaled() } else { request };
        match request.post() {
            Ok(()) => {
                endpoint.link.keep_write(work, remote, data);
                Ok(())
            }
            Err(rejected) => {
                endpoint.link.untake_slot(work);
                Err(rejected.error.into())
            }
        }
    }

    #[inline]
    pub(in crate::worker) fn one_sided(
        &mut self,
        ep: EndpointId,
        reach: Reach,
        memory: Local,
        remote: &RemoteMemory,
        what: OneSided,
    ) -> Result<OpId, OneSidedError> {
        let number = self.op();
        let refused = |error, memory| Err(OneSidedError { error, memory });
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return refused(OneSidedFailure::Closed(ep), memory) };
        if !endpoint.up {
            return refused(not_up(&endpoint.stage, ep), memory);
        }
        match endpoint.reach(reach, memory, remote) {
            Ok(order) => {
                endpoint.reads.push_back(InFlight { number, order, awaited: true, len: remote.len(), what });
                Ok(OpId::new(number, Some(ep)))
            }
            Err((Unposted::Post(PostError::SendQueueFull { .. }), memory)) => {
                refused(OneSidedFailure::WouldBlock, memory)
            }
            Err((error, memory)) => refused(error.into(), memory),
        }
    }
}

/// Why nothing can be posted on a connection that is not up.
#[cold]
pub(super) fn not_up(stage: &Stage, ep: EndpointId) -> OneSidedFailure {
    match stage {
        Stage::Ending { .. } => OneSidedFailure::Closed(ep),
        _ => OneSidedFailure::WouldBlock,
    }
}

/// Whether so many bytes can be combined with the memory.
fn combinable(target: &Target, len: u64) -> Result<(), PostError> {
    let limit = target.memory.len();
    let size = target.calc.map_or(1, |calc| calc.data_type().size());
    match usize::try_from(len) {
        Ok(len) if len <= limit && !len.is_multiple_of(size) => Err(PostError::PartialElement { len, size }),
        Ok(len) if len <= limit => {
            let what = "a READ that is combined with this memory";
            target.check().map_err(|_| PostError::NotSupported { what, qp_type: QpType::Rc })
        }
        _ => Err(PostError::Range { start: 0, end: usize::try_from(len).unwrap_or(usize::MAX), len: limit }),
    }
}
