//! Atomics on the peer's memory, by its device: the peer's program takes no part.

use qpair_verbs::{Local, PostError};

use crate::engine::RemoteMemory;
use crate::worker::Worker;
use crate::worker::endpoint::{OneSided, Reach};
use crate::worker::error::{OneSidedError, OneSidedFailure};
use crate::worker::event::Event;
use crate::worker::ids::{EndpointId, OpId};

impl Worker {
    /// Adds `add` to the 8 bytes at `remote`, modulo 2^64 and in the byte order of the peer's processor.
    /// [`Event::Fetched`](crate::Event::Fetched) follows with what was there before. The peer must have exposed them with
    /// `REMOTE_ATOMIC`, at an address that is a multiple of 8, or the connection breaks.
    ///
    /// It is atomic with respect to other atomics through the same device of the peer; and where the peer's device is the
    /// software device, to the peer's own atomic accesses too.
    ///
    /// # Errors
    /// [`OneSidedFailure`]; [`OneSidedFailure::WouldBlock`] while there is no room for another request.
    ///
    /// ```
    /// use qpair_transport::{Config, Event, Flow, Worker};
    /// use qpair_verbs::Access;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// let server = worker.listen("127.0.0.1:0")?;
    /// let counter = worker.domain().expose(8, Access::REMOTE_ATOMIC)?;
    /// let ep = worker.connect(server.local_addr())?;
    /// worker.run(|event, worker| match event {
    ///     Event::Connected { .. } => {
    ///         worker.fetch_add(ep, counter.remote(0..8), 5).expect("there is room");
    ///         Flow::Continue
    ///     }
    ///     Event::Fetched { value, .. } => {
    ///         assert_eq!(value, 0, "what was there before");
    ///         Flow::Stop
    ///     }
    ///     _ => Flow::Continue,
    /// })?;
    /// assert_eq!(counter.load(0)?, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fetch_add(
        &mut self,
        ep: EndpointId,
        remote: impl Into<RemoteMemory>,
        add: u64,
    ) -> Result<OpId, OneSidedFailure> {
        self.fetch(ep, &remote.into(), Reach::FetchAdd(add))
    }

    /// Writes `swap` to the 8 bytes at `remote` if `compare` is there. [`Event::Fetched`](crate::Event::Fetched) follows with
    /// what was there before: `compare`, if it was swapped. The rest is as of [`fetch_add`](Worker::fetch_add).
    ///
    /// # Errors
    /// As [`fetch_add`](Worker::fetch_add).
    pub fn compare_swap(
        &mut self,
        ep: EndpointId,
        remote: impl Into<RemoteMemory>,
        compare: u64,
        swap: u64,
    ) -> Result<OpId, OneSidedFailure> {
        self.fetch(ep, &remote.into(), Reach::CompareSwap { compare, swap })
    }

    fn fetch(&mut self, ep: EndpointId, remote: &RemoteMemory, reach: Reach) -> Result<OpId, OneSidedFailure> {
        let len = usize::try_from(remote.len()).unwrap_or(usize::MAX);
        if len != WORD {
            return Err(PostError::Range { start: 0, end: len, len: WORD }.into());
        }
        let slab = match self.slab(WORD) {
            Ok(Some(slab)) => slab,
            Ok(None) => return Err(OneSidedFailure::WouldBlock),
            Err(error) => return Err(OneSidedFailure::Memory(error.to_string().into())),
        };
        let what = OneSided::Fetch { pooled: slab.len() };
        self.one_sided(ep, reach, slab.into(), remote, what).map_err(|OneSidedError { error, memory }| {
            self.give_back(memory);
            error
        })
    }

    /// An atomic is done.
    pub(in crate::worker) fn fetched(&mut self, op: OpId, ep: EndpointId, memory: Local) -> Event {
        let word = match &memory {
            Local::Slab(slab) => slab.first_chunk::<WORD>().copied(),
            _ => None,
        };
        self.give_back(memory);
        Event::Fetched { op, ep, value: u64::from_ne_bytes(word.unwrap_or_default()) }
    }

    /// Memory of the pool that came back from the device.
    pub(in crate::worker) fn give_back(&mut self, memory: Local) {
        if let Local::Slab(slab) = memory {
            self.pool.give_slab(slab);
        }
    }
}

/// Bytes that an atomic is about.
const WORD: usize = 8;
