//! Operations that were started to be waited for later.

use std::fmt;
use std::time::Duration;

use qpair_verbs::calc::{Element, ReduceOp};
use qpair_verbs::{GpuEvent, GpuHold};

use super::buffer::CommBuffer;
use super::comm::Communicator;
use super::keys::roles;
use super::location::Location;
use super::operands::{Ended, Events, Operands, Ticket};
use crate::error::CollectiveError;
use crate::execute::{Block, Key};
use crate::plan::{Collective, Counts};

/// Starts operations; see [`Communicator::start`].
#[must_use = "it starts nothing before it is told what"]
#[derive(Clone, Debug)]
pub struct Start<'a> {
    comm: &'a Communicator,
    limit: Option<Duration>,
    after: Option<Box<Events>>,
}

/// An operation under way, with its buffers: a [`CommBuffer`] where the result replaces what is given, else a pair, of what
/// is given and what the result is put into.
///
/// It makes progress within calls of its communicator, and peers read what they need meanwhile. Dropping it does not
/// cancel it, since the other ranks count on it: it is carried out before what comes after it. As the communicator is dropped it
/// has 5 s, or the time of [`set_timeout`](Communicator::set_timeout) if that is less, while nothing comes; where the other ranks do
/// not come to it, the communicator ends on all of them.
#[must_use = "the buffer is inside; `wait` gives it back"]
#[derive(Debug)]
pub struct Pending<'a, B: Held> {
    comm: &'a Communicator,
    /// `None` once it was waited for.
    ticket: Option<Ticket>,
    buffers: std::marker::PhantomData<B>,
}

/// An operation that did not come about, with its buffers. What is in them is not specified, unless the operation
/// could not even be started.
#[derive(Debug)]
pub struct OperationFailed<B> {
    /// Why.
    pub error: CollectiveError,
    /// The buffer, or buffers, which are the caller's again.
    pub buffer: B,
}

/// The buffers of an operation under way: a [`CommBuffer`], or a pair of them.
pub trait Held: sealed::Held {}

impl<T: Element, L: Location> Held for CommBuffer<T, L> {}
impl<T: Element, L: Location> Held for (CommBuffer<T, L>, CommBuffer<T, L>) {}

mod sealed {
    use super::{Block, CommBuffer, Element, Location};

    pub trait Held: Sized {
        #[doc(hidden)]
        fn belongs_to(&self, owner: u64) -> bool;
        #[doc(hidden)]
        fn lengths(&self) -> [usize; 2];
        #[doc(hidden)]
        fn into_memory(self) -> [Option<Block>; 2];
        #[doc(hidden)]
        fn from_memory(input: Option<Block>, data: Option<Block>, owner: u64) -> Self;
    }

    impl<T: Element, L: Location> Held for CommBuffer<T, L> {
        fn belongs_to(&self, owner: u64) -> bool {
            self.owner() == owner
        }

        fn lengths(&self) -> [usize; 2] {
            [0, self.len()]
        }

        fn into_memory(mut self) -> [Option<Block>; 2] {
            [None, self.take().map(L::lend)]
        }

        fn from_memory(input: Option<Block>, data: Option<Block>, owner: u64) -> Self {
            // What is sent was given.
            CommBuffer::new(data.or(input).and_then(L::back), owner)
        }
    }

    impl<T: Element, L: Location> Held for (CommBuffer<T, L>, CommBuffer<T, L>) {
        fn belongs_to(&self, owner: u64) -> bool {
            self.0.owner() == owner && self.1.owner() == owner
        }

        fn lengths(&self) -> [usize; 2] {
            [self.0.len(), self.1.len()]
        }

        fn into_memory(mut self) -> [Option<Block>; 2] {
            [self.0.take().map(L::lend), self.1.take().map(L::lend)]
        }

        fn from_memory(input: Option<Block>, data: Option<Block>, owner: u64) -> Self {
            (CommBuffer::new(input.and_then(L::back), owner), CommBuffer::new(data.and_then(L::back), owner))
        }
    }
}

impl Communicator {
    /// Starts an operation and goes on: it is waited for later. Those started are carried out in order, but for transfers: what
    /// is received does not wait for what is sent, however many sends are started before it.
    ///
    /// They go on within calls of this communicator alone. Who waits in another meanwhile may keep ranks waiting that wait for
    /// these: see [`split`](Self::split).
    ///
    /// ```
    /// # use qpair_collectives::{Communicator, ReduceOp};
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let gradient = comm.buffer::<f64>(1 << 10)?;
    /// let pending = comm.start().all_reduce(gradient, ReduceOp::Sum)?; // the buffer is inside
    /// // compute ...
    /// let gradient = pending.wait()?;
    /// # assert_eq!(gradient.len(), 1 << 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(&self) -> Start<'_> {
        Start { comm: self, limit: None, after: None }
    }
}

/// An operation that was started, or its buffers.
type Started<'a, B> = Result<Pending<'a, B>, OperationFailed<B>>;

impl<'a> Start<'a> {
    /// Gives the operation a time of its own, from its start to its end, beside what
    /// [`set_timeout`](Communicator::set_timeout) says of a peer of which nothing comes. Where it is over and nothing comes,
    /// the communicator ends on all ranks, with [`CollectiveError::TimedOut`], which says what each rank waits for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use qpair_collectives::{Communicator, ReduceOp};
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let loss = comm.buffer::<f32>(1)?;
    /// let loss = comm.start().within(Duration::from_secs(2)).all_reduce(loss, ReduceOp::Avg)?.wait()?;
    /// # assert_eq!(loss[0], 0.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn within(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Has the operation begin once a stream of a GPU has come to that event: what fills the vector need not be waited for
    /// before the operation is started, nor the operation before more is computed. Those that are started later stay behind it.
    ///
    /// ```no_run
    /// # use qpair_collectives::{CommBuffer, Communicator, OnGpu, ReduceOp};
    /// # use qpair_verbs::Gpu;
    /// # fn backward(_: &mut CommBuffer<f32, OnGpu>) -> *mut std::ffi::c_void { std::ptr::null_mut() }
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let gpu = Gpu::open(0)?;
    /// let mut gradient = comm.gpu_buffer::<f32>(gpu, 1 << 20)?;
    /// let stream = backward(&mut gradient); // starts kernels that write it
    /// // SAFETY: the stream is one of that GPU, and stays.
    /// let written = unsafe { gpu.record_in(stream) }?;
    /// let pending = comm.start().after(&written).all_reduce(gradient, ReduceOp::Avg)?;
    /// // start the kernels of the layer below ...
    /// let gradient = pending.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A stream that does not come to the event within the time of the communicator's
    /// [`set_timeout`](Communicator::set_timeout), or the [own](Self::within) of this or an operation behind it, ends the
    /// communicator on all ranks with [`CollectiveError::RankFailed`], which says so; so does work of the stream that fails. The
    /// vector is given back then, and the stream may still be about to write it: wait for the event before it is used.
    ///
    /// Called again, it names one more event, and the operation begins after all of them.
    pub fn after(mut self, event: &GpuEvent) -> Self {
        self.after.get_or_insert_with(|| Box::new(Events(Vec::new()))).0.push(event.clone());
        self
    }

    /// Starts what [`Communicator::all_reduce`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, if it belongs to another communicator; so with all that follow.
    pub fn all_reduce<T: Element, L: Location>(
        self,
        vector: CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Started<'a, CommBuffer<T, L>> {
        let key = self.comm.whole::<T, L>(Collective::AllReduce, vector.len(), true, Some(op));
        self.begin(vector, key)
    }

    /// Starts what [`Communicator::all_reduce_into`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffers, if they belong to another communicator, or lengths do not fit; so with all
    /// pairs that follow.
    pub fn all_reduce_into<T: Element, L: Location>(
        self,
        input: CommBuffer<T, L>,
        output: CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Started<'a, (CommBuffer<T, L>, CommBuffer<T, L>)> {
        let key = self.comm.whole::<T, L>(Collective::AllReduce, input.len(), false, Some(op));
        self.begin((input, output), key)
    }

    /// Starts what [`Communicator::broadcast`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, also if there is no such root.
    pub fn broadcast<T: Element, L: Location>(
        self,
        vector: CommBuffer<T, L>,
        root: usize,
    ) -> Started<'a, CommBuffer<T, L>> {
        let root = self.comm.root(root);
        let key = root.map(|root| self.comm.whole::<T, L>(Collective::Broadcast { root }, vector.len(), true, None));
        self.begin_if(vector, key)
    }

    /// Starts what [`Communicator::reduce_scatter`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, also if its length is not a multiple of the number of ranks.
    pub fn reduce_scatter<T: Element, L: Location>(
        self,
        vector: CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Started<'a, CommBuffer<T, L>> {
        let key = self.comm.blocks::<T, L>(Collective::ReduceScatter, vector.len(), true, Some(op));
        self.begin_if(vector, key)
    }

    /// Starts what [`Communicator::reduce_scatter_into`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffers.
    pub fn reduce_scatter_into<T: Element, L: Location>(
        self,
        input: CommBuffer<T, L>,
        output: CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Started<'a, (CommBuffer<T, L>, CommBuffer<T, L>)> {
        let counts = Counts::Even(output.len() as u64);
        let key = self.comm.key::<T, L>(Collective::ReduceScatter, counts, false, Some(op));
        self.begin((input, output), key)
    }

    /// Starts what [`Communicator::all_gather`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, also if its length is not a multiple of the number of ranks.
    pub fn all_gather<T: Element, L: Location>(self, vector: CommBuffer<T, L>) -> Started<'a, CommBuffer<T, L>> {
        let key = self.comm.blocks::<T, L>(Collective::AllGather, vector.len(), true, None);
        self.begin_if(vector, key)
    }

    /// Starts what [`Communicator::all_gather_into`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffers.
    pub fn all_gather_into<T: Element, L: Location>(
        self,
        input: CommBuffer<T, L>,
        output: CommBuffer<T, L>,
    ) -> Started<'a, (CommBuffer<T, L>, CommBuffer<T, L>)> {
        let counts = Counts::Even(input.len() as u64);
        let key = self.comm.key::<T, L>(Collective::AllGather, counts, false, None);
        self.begin((input, output), key)
    }

    /// Starts what [`Communicator::all_to_all_into`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffers.
    pub fn all_to_all_into<T: Element, L: Location>(
        self,
        input: CommBuffer<T, L>,
        output: CommBuffer<T, L>,
    ) -> Started<'a, (CommBuffer<T, L>, CommBuffer<T, L>)> {
        let key = self.comm.blocks::<T, L>(Collective::AllToAll, input.len(), false, None);
        self.begin_if((input, output), key)
    }

    /// Starts what [`Communicator::all_to_all_v`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffers.
    pub fn all_to_all_v<T: Element, L: Location>(
        self,
        input: CommBuffer<T, L>,
        gives: &[usize],
        output: CommBuffer<T, L>,
        gets: &[usize],
    ) -> Started<'a, (CommBuffer<T, L>, CommBuffer<T, L>)> {
        let key = self.comm.pairs::<T, L>(gives, gets);
        self.begin_if((input, output), key)
    }

    /// Starts what [`Communicator::send`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, also if `to` is no other rank.
    pub fn send<T: Element, L: Location>(self, vector: CommBuffer<T, L>, to: usize) -> Started<'a, CommBuffer<T, L>> {
        let key = self.comm.transfer::<T, L>(vector.len(), Some(to), None);
        self.begin_if(vector, key)
    }

    /// Starts what [`Communicator::recv`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, also if `from` is no other rank.
    pub fn recv<T: Element, L: Location>(self, vector: CommBuffer<T, L>, from: usize) -> Started<'a, CommBuffer<T, L>> {
        let key = self.comm.transfer::<T, L>(vector.len(), None, Some(from));
        self.begin_if(vector, key)
    }

    fn begin_if<B: Held>(self, buffers: B, key: Result<Key, CollectiveError>) -> Started<'a, B> {
        match key {
            Ok(key) => self.begin(buffers, key),
            Err(error) => Err(OperationFailed { error, buffer: buffers }),
        }
    }

    fn begin<B: Held>(self, buffers: B, key: Key) -> Started<'a, B> {
        let (comm, me) = (self.comm, self.comm.rank() as u32);
        let [input, data] = roles(&key.spec, me, buffers.lengths());
        let fits = if buffers.belongs_to(comm.id()) {
            comm.check_lengths(&key.spec, input, data)
        } else {
            Err(CollectiveError::ForeignBuffer)
        };
        if let Err(error) = fits {
            return Err(OperationFailed { error, buffer: buffers });
        }
        let [input, data] = roles(&key.spec, me, buffers.into_memory());
        let operands = Operands::new(input, data).within(self.limit).after(self.after);
        let ticket = Some(comm.core().borrow_mut().start(key, operands));
        Ok(Pending { comm, ticket, buffers: std::marker::PhantomData })
    }
}

impl<B: Held> Pending<'_, B> {
    /// Does what can be done at once. True if the operation is done, so that [`wait`](Self::wait) returns at once.
    ///
    /// Who only tests does not wait: an operation that is to end where nothing comes needs [a time of its own](Start::within).
    pub fn test(&mut self) -> bool {
        let mut core = self.comm.core().borrow_mut();
        core.progress();
        self.ticket.is_none_or(|ticket| core.is_done(ticket))
    }

    /// Has a stream of a GPU go on once the operation has ended: what the stream was given since it was [held](GpuHold) begins
    /// after that, and finds the result, without this thread's waiting for it. Any number of streams may wait. With
    /// [`after`](Start::after) a whole step is given to a stream at once:
    ///
    /// ```no_run
    /// # use qpair_collectives::{CommBuffer, Communicator, ReduceOp};
    /// # use qpair_verbs::Gpu;
    /// # fn backward(_: u64) -> *mut std::ffi::c_void { std::ptr::null_mut() }
    /// # fn update(_: u64) {}
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let gpu = Gpu::open(0)?;
    /// let gradient = comm.gpu_buffer::<f32>(gpu, 1 << 20)?;
    /// let address = gradient.address();
    /// let stream = backward(address); // starts kernels that write it
    /// // SAFETY: the stream is one of that GPU, and stays.
    /// let written = unsafe { gpu.record_in(stream) }?;
    /// let pending = comm.start().after(&written).all_reduce(gradient, ReduceOp::Avg)?;
    /// // SAFETY: as above.
    /// pending.before(unsafe { gpu.hold_in(stream) }?);
    /// update(address); // starts kernels that read it: they begin once it is reduced
    /// let gradient = pending.wait()?; // sees to the operation; the kernels may still run
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The stream goes on in any case, and sooner or later: also where the operation fails, runs out of time or is aborted, where it
    /// is [dropped](Pending) and the operation ends with the communicator, and as the thread panics. Of that [`wait`](Self::wait)
    /// tells, the stream does not; what is in the buffers then is not specified, and what the stream makes of it is to be thrown away.
    ///
    /// The buffers stay this program's to keep: what the stream is to read has to live until it has, as an event tells. A `Pending` that
    /// is dropped takes them along.
    ///
    /// The operation moves on within calls of its communicator, as always. So does the stream: before this thread waits for the stream
    /// it has to [`wait`](Self::wait) for the operation, or to [`test`](Self::test) it until that is true. What else waits for a stream
    /// that is held stands at [`GpuHold`].
    ///
    /// What is recorded in a stream behind a hold waits for it too, and so does an operation that begins [after](Start::after) such an
    /// event: it does not go beside the one that the stream is held for. Where several are to be under way together, call this after
    /// the last [`record`](qpair_verbs::Gpu::record), or hold a second stream, and record in the first.
    ///
    /// Before the first hold of a program, run operations of the kinds there will be without one, as many at once, and as long, as will
    /// be under way: the GPU's kernels are loaded then, and each operation under way beside others takes memory of its own, for which a
    /// driver may wait for all streams. The memory is kept for those to come. What is to be freed while a communicator holds streams, as
    /// the buffers of a `Pending` that was dropped, is freed once it holds none. That does not count what the program itself holds or
    /// what is held for another communicator: hold streams for one communicator of a thread at a time, or drop no `Pending` meanwhile.
    pub fn before(&self, hold: GpuHold) {
        self.comm.core().borrow_mut().hold(self.ticket.into_iter(), hold);
    }

    /// [`before`](Self::before) for all of several, which one hold is for.
    pub(crate) fn all_before<'p>(comm: &Communicator, pending: impl Iterator<Item = &'p Self>, hold: GpuHold)
    where
        Self: 'p,
    {
        comm.core().borrow_mut().hold(pending.filter_map(|pending| pending.ticket), hold);
    }

    /// Waits until the operation is done, and gives the buffers, with the result.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffers.
    pub fn wait(mut self) -> Result<B, OperationFailed<B>> {
        let Some(ticket) = self.ticket.take() else { return Ok(B::from_memory(None, None, self.comm.id())) };
        let Ended { input, data, result } = self.comm.core().borrow_mut().wait_for(ticket);
        let buffers = B::from_memory(input, data, self.comm.id());
        match result {
            Ok(()) => Ok(buffers),
            Err(error) => Err(OperationFailed { error, buffer: buffers }),
        }
    }
}

impl<B: Held> Drop for Pending<'_, B> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.comm.core().borrow_mut().forget(ticket);
        }
    }
}

impl<B> fmt::Display for OperationFailed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> std::error::Error for OperationFailed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
