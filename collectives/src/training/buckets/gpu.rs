//! Gradients in memory of a GPU.

use std::ops::Range;

use qpair_verbs::calc::{Element, ReduceOp};
use qpair_verbs::{Gpu, GpuBuffer, GpuError, GpuEvent, GpuHold, MemoryError};

use super::{BUCKET_BYTES, GradientBuckets, Gradients};
use crate::communicator::{CommBuffer, Communicator, OnGpu, Pending};
use crate::error::CollectiveError;
use crate::training::error::BucketError;

impl<'a, T: Element> GradientBuckets<'a, T, OnGpu> {
    /// As [`new`](GradientBuckets::new), in memory of a GPU. Kernels write gradients to their [places](Self::address), and events
    /// tell when; with a [hold](Self::before) the stream goes on to the update by itself.
    ///
    /// ```no_run
    /// # use std::ffi::c_void;
    /// # use qpair_collectives::{Communicator, OnGpu};
    /// # use qpair_collectives::training::GradientBuckets;
    /// # use qpair_verbs::Gpu;
    /// # fn backward(_layer: usize, _gradient: u64, _stream: *mut c_void) {}
    /// # fn step(comm: &Communicator, gpu: Gpu, stream: *mut c_void) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut buckets = GradientBuckets::<f32, OnGpu>::on_gpu(comm, gpu, &[4096, 4096, 1000])?;
    /// for layer in (0..3).rev() {
    ///     backward(layer, buckets.address(layer)?, stream); // a kernel that writes there
    ///     // SAFETY: the stream is one of that GPU, and stays.
    ///     let written = unsafe { gpu.record_in(stream) }?;
    ///     buckets.add_written(layer, &written)?; // reduced once its bucket is full and the stream has come so far
    /// }
    /// // SAFETY: as above.
    /// buckets.before(unsafe { gpu.hold_in(stream) }?)?;
    /// // Give the stream the kernels that update the weights.
    /// buckets.finish()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`on_gpu_with`](Self::on_gpu_with).
    pub fn on_gpu(comm: &'a Communicator, gpu: Gpu, lengths: &[usize]) -> Result<Self, CollectiveError> {
        Self::on_gpu_with(comm, gpu, lengths, BUCKET_BYTES, ReduceOp::Avg)
    }

    /// As [`with`](GradientBuckets::with), in memory of a GPU.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is no memory.
    pub fn on_gpu_with(
        comm: &'a Communicator,
        gpu: Gpu,
        lengths: &[usize],
        bucket_bytes: usize,
        op: ReduceOp,
    ) -> Result<Self, CollectiveError> {
        Self::of(comm, lengths, bucket_bytes, op, |len| comm.gpu_buffer(gpu, len))
    }

    /// Where a parameter's gradient is to be written, which has what an earlier step left in it. Waits until its bucket is not
    /// under way. 0 for one without elements.
    ///
    /// # Errors
    /// [`BucketError::NoSuchParameter`], and those of an all-reduce.
    pub fn address(&mut self, param: usize) -> Result<u64, BucketError> {
        let place = self.parameter(param)?.place.clone();
        let vector = self.buckets[place.bucket].vector.wait()?;
        Ok(address(vector, place.range))
    }

    /// Gives the gradient of a parameter that a stream writes, or has written, to its [place](Self::address): `written` is an
    /// event of that stream behind it. Its bucket is reduced once the GPU has come to all events that were given for it.
    ///
    /// # Errors
    /// [`BucketError`]. What comes of a stream that does not come to the event is told by [`finish`](Self::finish).
    pub fn add_written(&mut self, param: usize, written: &GpuEvent) -> Result<(), BucketError> {
        self.give(param, |_, _| Ok(()), Some(written))
    }

    /// Gives the gradient of a parameter, which is in memory of a GPU from element `start` of it on. It is copied before this
    /// returns, and not behind what streams still do: the first gradient of a step has to come after kernels have read those of
    /// the step before, as [`before`](Self::before) has it.
    ///
    /// # Errors
    /// [`BucketError`]; [`Collective`](BucketError::Collective) also if there are fewer elements, or the GPU could not copy them.
    pub fn add_from(&mut self, param: usize, from: &GpuBuffer, start: usize) -> Result<(), BucketError> {
        let put = |vector: &mut CommBuffer<T, OnGpu>, place: Range<usize>| {
            Ok(vector.copy_from(place.start, from, start, place.len()).map_err(MemoryError::from)?)
        };
        self.give(param, put, None)
    }

    /// Gives the gradient of a parameter, which is in memory of the processor. It is copied before this returns, as by
    /// [`add_from`](Self::add_from).
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn add(&mut self, param: usize, gradient: &[T]) -> Result<(), BucketError> {
        self.check_length(param, gradient.len())?;
        let put = |vector: &mut CommBuffer<T, OnGpu>, place: Range<usize>| {
            Ok(vector.write(place.start, gradient).map_err(MemoryError::from)?)
        };
        self.give(param, put, None)
    }

    /// Gives zeros as the gradient of a parameter that this rank did not use in this step. They are there before this returns, as by
    /// [`add_from`](Self::add_from).
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn skip(&mut self, param: usize) -> Result<(), BucketError> {
        let zeros = vec![T::default(); self.parameter(param)?.place.range.len()];
        self.add(param, &zeros)
    }

    /// Holds a stream up until all gradients of the step are reduced, all of which were given. What
    /// [`Pending::before`](crate::Pending::before) says of holds is true of this one.
    ///
    /// What the stream does then with the gradients it may still be doing when [`finish`](Self::finish) returns. Kernels of the
    /// same stream that write those of the next step come behind it by themselves. [`add`](Self::add), [`add_from`](Self::add_from)
    /// and [`skip`](Self::skip) do not, nor does the reduction of a bucket that has only such: before the first of these, wait
    /// for an event that was recorded behind the update.
    ///
    /// # Errors
    /// [`BucketError::Missing`] if this rank has not given all; then the step goes on, and the stream too.
    pub fn before(&self, hold: GpuHold) -> Result<(), BucketError> {
        self.check_complete()?;
        let under_way = self.buckets.iter().filter_map(|bucket| bucket.vector.under_way());
        Pending::all_before(self.comm, under_way, hold);
        Ok(())
    }
}

impl<T: Element> Gradients<'_, '_, T, OnGpu> {
    /// Where the reduced gradient of a parameter is, for kernels; until the next step begins. 0 for one without elements.
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn address(&self, param: usize) -> u64 {
        let (vector, place) = self.place(param);
        vector.map_or(0, |vector| address(vector, place))
    }

    /// Copies the reduced gradient of a parameter, or its first elements, to memory of the processor.
    ///
    /// # Errors
    /// [`GpuError::Range`] if it has fewer elements, [`GpuError::Driver`].
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn read(&self, param: usize, into: &mut [T]) -> Result<(), GpuError> {
        let (vector, place) = self.place(param);
        if into.len() > place.len() {
            return Err(GpuError::Range { start: 0, end: into.len(), len: place.len() });
        }
        vector.map_or(Ok(()), |vector| vector.read(place.start, into))
    }
}

/// Where elements of a vector are: 0 for none.
fn address<T: Element>(vector: &CommBuffer<T, OnGpu>, elements: Range<usize>) -> u64 {
    if elements.is_empty() { 0 } else { vector.address() + (elements.start * T::TYPE.size()) as u64 }
}
