//! Streams that wait for what the processor does.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::device::{Device, Gpu};
use super::driver::{Address, Handle, NOT_SUPPORTED};
use crate::aside;
use crate::error::GpuError;
use crate::sync::lock;

/// A stream that is held: what it is given from then on begins once the hold is [released](GpuHold::release), or dropped. It
/// is the other half of a [`GpuEvent`](super::GpuEvent), by which the processor waits for a stream.
///
/// ```no_run
/// # use qpair_verbs::{Gpu, GpuError};
/// # fn start_kernels() {}
/// let hold = Gpu::open(0)?.hold()?; // the default stream
/// start_kernels(); // they begin ...
/// // something else ...
/// hold.release(); // ... now
/// # Ok::<(), GpuError>(())
/// ```
///
/// The stream waits on the GPU, and takes no processor. Whatever the processor, or a peer that it has heard of, has written
/// before the release is visible to what begins then, but for what NICs wrote into memory of some GPUs: see below. A hold that is
/// never dropped, as one that is forgotten, holds the stream for as long as the process lives.
///
/// # What NICs write
/// What a NIC, not the software device, wrote into GPU memory is visible to what begins then where the GPU orders such writes
/// ([`GpuAttributes::writes_ordered`](super::GpuAttributes::writes_ordered)), or where its streams can flush them
/// ([`FlushOptions::stream`](super::FlushOptions::stream)), as the stream does that was held. On a GPU with a flush by the processor
/// alone, or with none, it may be seen late: call [`GpuRegion::flush`](super::GpuRegion::flush) before the release, and where that
/// is [`Flush::ReadBack`](super::Flush::ReadBack) do the READ. Collectives see to it.
///
/// # Who waits for whom
/// Until the release, all that waits for the stream waits as well. If the release is behind one of these, that is for ever; in
/// another thread of the process they may have locks of the driver meanwhile that the releasing thread needs for a copy or a kernel:
/// - `cuStreamSynchronize`, `cudaDeviceSynchronize`, and copies that block, in that stream or in one that waits for it;
/// - `cuMemFree`, `cudaFree`, unpinning of the processor's memory and closing of memory that another process has shared by other
///   libraries, which wait for all streams; so may taking memory, the first use of a kernel, which loads it, and the first copy between two GPUs, which lets
///   them reach each other: do once what the thread does under a hold
///   before there is one. So it is with the first atomic of a peer on a word of the GPU that comes by the network, which the software
///   device takes a word of its memory for;
/// - the default stream of the older kind (`CU_STREAM_LEGACY`), which is [`hold`](Gpu::hold)'s: every stream that was made
///   without `CU_STREAM_NON_BLOCKING` waits for it. Those of this library do not. It is one for all threads of a process: ranks that
///   are threads and share a GPU hold each other up by it, so give each a stream of its own;
/// - streams in the same of the GPU's queues, of which there are `CUDA_DEVICE_MAX_CONNECTIONS`, 8 unless the environment says
///   otherwise and 32 at most: hold few streams at a time. Copies and kernels of this library go by such queues too. With one queue,
///   as some training programs set it, they are behind any held stream: hold none there while this library has something to do on
///   the GPU, as collectives have.
///
/// Memory that a [`GpuBuffer`](super::GpuBuffer) has of its own, and of peers that this library has opened, is given back once no
/// stream of that GPU is held: so long it is kept, by a thread of this library. Memory of the processor that this library has
/// pinned is unpinned once no stream of any GPU is.
///
/// CUDA does not know of this order. What has to do with each other on the GPU by events or streams has that order too.
pub struct GpuHold {
    device: &'static Device,
    word: Word,
}

/// A word in memory of the processor that streams of a GPU wait for.
#[derive(Clone, Copy)]
struct Word {
    /// It belongs to whoever has taken this, and to streams that still have to see what it had before.
    here: &'static AtomicU32,
    /// The same for the GPU.
    there: Address,
    /// What it has, or what it is to have when the stream goes on. It only rises, so that a stream which comes late sees all that
    /// it waits for.
    value: u32,
}

/// The words of a GPU, which stay with the process.
#[derive(Default)]
pub(super) struct Words {
    of: Mutex<Kept>,
    /// Holds that there are.
    held: AtomicUsize,
}

#[derive(Default)]
struct Kept {
    /// Those that nobody has. The one that was given back first is taken first, so that a stream which comes late is not passed by
    /// half the numbers that there are.
    free: VecDeque<Word>,
    /// How many there are with those that are taken.
    all: usize,
}

impl Gpu {
    /// Holds the default stream; see [`GpuHold`] for what waits for that one.
    ///
    /// # Errors
    /// As [`hold_in`](Self::hold_in).
    pub fn hold(&self) -> Result<GpuHold, GpuError> {
        // SAFETY: the default stream is always there.
        unsafe { self.hold_in(std::ptr::null_mut()) }
    }

    /// Holds `stream`, a `CUstream` or `cudaStream_t`, such as that of another library: what it is given from now on begins once the
    /// hold is released or dropped.
    ///
    /// It costs one call of the driver, `cuStreamWaitValue32` in its second version, which `cuda.h` has without condition for words
    /// of 4 bytes. The word was set aside before; the first hold, and the first of more at a time than ever, set some aside.
    ///
    /// # Errors
    /// [`GpuError::NoHold`] where the GPU or its driver can not do that, [`GpuError::Driver`]. The stream is not held then.
    ///
    /// # Safety
    /// The stream is alive, and of this GPU's primary context, which is the one that CUDA's runtime uses. It is not being captured
    /// into a graph.
    pub unsafe fn hold_in(&self, stream: *mut c_void) -> Result<GpuHold, GpuError> {
        let device = self.device();
        let _entered = device.enter()?;
        // Where the call fails after all was given to the stream, dropping it lets that go on.
        let mut hold = GpuHold { device, word: device.words.take(device)? };
        device.words.held.fetch_add(1, Ordering::SeqCst);
        hold.word.value = hold.word.value.wrapping_add(1);
        let Word { there, value, .. } = hold.word;
        // What a NIC wrote is visible then too, where the GPU can see to that.
        let flush = device.attributes().flush.stream && !device.attributes().writes_ordered;
        // SAFETY: the context is this thread's, and the stream one of it, by the caller's word; the word stays with the process.
        match unsafe { device.driver.wait_for_word(Handle(stream), there, value, flush) } {
            Ok(()) => Ok(hold),
            Err(GpuError::Driver { code: NOT_SUPPORTED, .. }) => Err(GpuError::NoHold { ordinal: device.ordinal() }),
            Err(error) => Err(error),
        }
    }
}

impl GpuHold {
    /// Lets the stream go on.
    pub fn release(self) {}

    /// The GPU whose stream it is.
    pub fn gpu(&self) -> Gpu {
        Gpu::on(self.device)
    }
}

impl Drop for GpuHold {
    fn drop(&mut self) {
        self.word.here.store(self.word.value, Ordering::Release);
        self.device.words.give_back(self.word);
        if self.device.words.held.fetch_sub(1, Ordering::SeqCst) == 1 {
            aside::look_again();
        }
    }
}

impl Device {
    /// True if none of its streams is held by this library: who waits for all of them, as to give memory back, waits for no release
    /// then.
    pub(super) fn is_unheld(&self) -> bool {
        self.words.held.load(Ordering::SeqCst) == 0
    }
}

/// Drops what waits for the streams of all GPUs when it is dropped: once none is held, and where that may be waited for.
pub(crate) fn give_back<T: Send + 'static>(value: T) {
    aside::drop_once(|| Device::all().all(Device::is_unheld), value);
}

impl fmt::Debug for GpuHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuHold(of GPU {})", self.device.ordinal())
    }
}

impl Words {
    /// One that nobody has. The device's context is this thread's.
    fn take(&self, device: &Device) -> Result<Word, GpuError> {
        let mut kept = lock(&self.of);
        let Kept { free, all } = &mut *kept;
        if let Some(word) = free.pop_front() {
            return Ok(word);
        }
        // SAFETY: the context is this thread's, and stays with the process, as the memory does.
        let (here, there) = unsafe {
            let here = device.driver.alloc_pinned(WORDS * APART)?;
            // What of it can not be used is not freed: that may wait for streams that are held.
            (here, device.driver.pinned_address(here)?)
        };
        // All come back without taking memory.
        *all += WORDS;
        free.reserve(*all);
        for at in 0..WORDS {
            // SAFETY: within the memory, aligned as it is; nobody else has it, and it stays with the process.
            let here = unsafe {
                let here = here.byte_add(at * APART).cast::<AtomicU32>();
                here.write(AtomicU32::new(0));
                &*here
            };
            free.push_back(Word { here, there: there + (at * APART) as Address, value: 0 });
        }
        // There are some.
        free.pop_front().ok_or(GpuError::NoHold { ordinal: device.ordinal() })
    }

    fn give_back(&self, word: Word) {
        lock(&self.of).free.push_back(word);
    }
}

/// Words that are set aside at once: of a page.
const WORDS: usize = 64;
/// Bytes between two, so that a GPU which looks at one does not get in the way of who writes another.
const APART: usize = 64;
