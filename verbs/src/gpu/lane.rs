//! Work on GPU memory: copies, reductions and fills, each done when the call returns.
//!
//! Each thread has a stream of its own on each GPU, so that threads do not wait for each other's work.

use std::cell::RefCell;
use std::ffi::c_void;

use super::capture::until_allowed;
use super::device::Device;
use super::driver::{Address, Handle};
use super::place::{MAX_GPUS, Place};
use crate::calc::{self, Calc, DataType, Scale};
use crate::error::GpuError;

/// An address and whose memory it is.
type Spot = (*mut u8, Place);

/// A thread's ways, by the GPU's ordinal.
struct Lanes([Option<Lane>; MAX_GPUS]);

/// A thread's way to one GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    stream: Handle,
    /// Memory of the GPU that what a kernel does not take where it is goes by; 0 before it is needed.
    scratch: Address,
    /// A word of the GPU's memory that a kernel answers by; 0 before it is needed.
    word: Address,
    /// For one use: the thread ends, and has given its own back.
    lent: bool,
}

thread_local! {
    static LANES: RefCell<Lanes> = const { RefCell::new(Lanes([None; MAX_GPUS])) };
}

impl Drop for Lanes {
    fn drop(&mut self) {
        for (ordinal, lane) in self.0.iter_mut().enumerate() {
            if let (Some(lane), Some(device)) = (lane.take(), Device::of(Place::gpu(ordinal as u8))) {
                device.give_lane(lane);
            }
        }
    }
}

impl Lane {
    /// One of a stream, without scratch.
    pub(super) fn new(stream: Handle) -> Self {
        Lane { stream, scratch: 0, word: 0, lent: false }
    }

    pub(super) fn stream(self) -> Handle {
        self.stream
    }

    /// A word of the GPU, if it was made [with it](Lane::with_word).
    pub(super) fn word(self) -> Address {
        self.word
    }

    /// This thread's way to a GPU.
    fn of(device: &Device) -> Result<Lane, GpuError> {
        let own = LANES.try_with(|lanes| match &mut lanes.borrow_mut().0[device.ordinal()] {
            Some(lane) => Ok(*lane),
            none => Ok(*none.insert(device.take_lane()?)),
        });
        own.unwrap_or_else(|_| Ok(Lane { lent: true, ..device.take_lane()? }))
    }

    /// The same, with [`SCRATCH`] bytes of the GPU's memory. The context is this thread's.
    fn with_scratch(device: &Device) -> Result<Lane, GpuError> {
        Self::with(device, SCRATCH, |lane| &mut lane.scratch)
    }

    /// The same, with a word.
    pub(super) fn with_word(device: &Device) -> Result<Lane, GpuError> {
        Self::with(device, size_of::<u64>(), |lane| &mut lane.word)
    }

    fn with(device: &Device, len: usize, part: fn(&mut Lane) -> &mut Address) -> Result<Lane, GpuError> {
        let mut lane = Self::of(device)?;
        if *part(&mut lane) == 0 {
            // SAFETY: the context is this thread's.
            *part(&mut lane) = unsafe { device.driver.alloc(len) }?;
            if !lane.lent {
                LANES.with_borrow_mut(|lanes| lanes.0[device.ordinal()] = Some(lane));
            }
        }
        Ok(lane)
    }

    /// Waits until all that its stream was given is done. An error is that of work that has failed, or of a context that is lost with
    /// all that ran in it. The context is this thread's.
    pub(super) fn settle(self, device: &Device) -> Result<(), GpuError> {
        // SAFETY: the stream is of this context, and stays with the process.
        until_allowed(|| unsafe { device.driver.synchronize(self.stream) })
    }

    /// Waits for what was started, whether or not all of it was: memory that work is under way on is not given back.
    pub(super) fn wait(self, device: &Device, started: Result<(), GpuError>) -> Result<(), GpuError> {
        let waited = self.settle(device);
        if self.lent {
            device.give_lane(Lane { lent: false, ..self });
        }
        started.and(waited)
    }
}

/// Starts a copy on a stream of `device`, whose context is this thread's.
///
/// # Safety
/// Both ranges are memory of their places for `len` bytes, until the stream was waited for.
pub(super) unsafe fn start_copy(
    device: &Device,
    (to, to_place): (Address, Place),
    (from, from_place): (Address, Place),
    len: usize,
    stream: Handle,
) -> Result<(), GpuError> {
    // SAFETY: by the caller's word.
    unsafe {
        match (Device::of(to_place), Device::of(from_place)) {
            // Of what one does not reach, the driver finds a way.
            (Some(one), Some(other)) if to_place != from_place => {
                one.meet(other);
                device.driver.copy_between((to, one.context()), (from, other.context()), len, stream)
            }
            _ => device.driver.copy(to, from, len, stream),
        }
    }
}

/// Copies between memory of which at least one is a GPU's. All of it is there when this returns.
///
/// # Safety
/// Both ranges are memory of their places for `len` bytes, and do not overlap.
#[cold]
pub(crate) unsafe fn copy((to, to_place): Spot, (from, from_place): Spot, len: usize) -> Result<(), GpuError> {
    if len == 0 {
        return Ok(());
    }
    let device = either(to_place, from_place)?;
    let lane = Lane::of(device)?;
    let _entered = device.enter()?;
    // SAFETY: by the caller's word; the stream is waited for.
    let started =
        unsafe { start_copy(device, (to as Address, to_place), (from as Address, from_place), len, lane.stream) };
    lane.wait(device, started)
}

/// Combines `len` bytes of `from` into `to`, of which at least one is a GPU's: `to = to op from`.
///
/// # Errors
/// [`GpuError::NotCalculated`] of a program's own operation, [`GpuError::Elements`], [`GpuError::Driver`].
///
/// # Safety
/// As [`copy`].
#[cold]
pub(crate) unsafe fn combine(to: Spot, from: Spot, len: usize, calc: Calc) -> Result<(), GpuError> {
    let size = calc.data_type().size();
    if !len.is_multiple_of(size) {
        return Err(GpuError::Elements { len, address: to.0 as u64, size });
    }
    if !to.1.is_host() {
        // SAFETY: passed on to the caller.
        return unsafe { combine_on_gpu(to, from, len, calc) };
    }
    // The result is the processor's: so is the arithmetic.
    let mut part = [0_u64; PART / 8];
    let part = part.as_mut_ptr().cast::<u8>();
    for done in (0..len).step_by(PART) {
        let len = PART.min(len - done);
        // SAFETY: `part` has room for it, and both ranges go on as far, by the caller's word.
        unsafe {
            copy((part, Place::HOST), (from.0.wrapping_add(done), from.1), len)?;
            let to = to.0.add(done);
            calc::combine_raw(calc, to, to, part, len);
        }
    }
    Ok(())
}

/// # Safety
/// As [`combine`]; `to` is a GPU's.
unsafe fn combine_on_gpu(to: Spot, from: Spot, len: usize, calc: Calc) -> Result<(), GpuError> {
    let device = either(to.1, Place::HOST)?;
    let kernel = device.kernels.combine(device, calc)?;
    let is_aligned = |at: Spot| (at.0 as usize).is_multiple_of(calc.data_type().size());
    let _entered = device.enter()?;
    if to.1 == from.1 && is_aligned(to) && is_aligned(from) {
        let lane = Lane::of(device)?;
        // SAFETY: by the caller's word; the stream is waited for.
        let started =
            unsafe { launch_combine(device, kernel, (to.0 as Address, from.0 as Address), len, calc, lane.stream) };
        return lane.wait(device, started);
    }
    let lane = Lane::with_scratch(device)?;
    // What kernels do not take where it is goes by the scratch: one half for each side.
    let (theirs, ours) = (lane.scratch, lane.scratch + PIECE as Address);
    let started = (0..len).step_by(PIECE).try_for_each(|done| {
        let len = PIECE.min(len - done);
        let (to_at, from_at) = (to.0 as Address + done as Address, from.0 as Address + done as Address);
        // SAFETY: each half has room for it and is this thread's; the stream keeps the order, and is waited for.
        unsafe {
            start_copy(device, (theirs, to.1), (from_at, from.1), len, lane.stream)?;
            if is_aligned(to) {
                return launch_combine(device, kernel, (to_at, theirs), len, calc, lane.stream);
            }
            device.driver.copy(ours, to_at, len, lane.stream)?;
            launch_combine(device, kernel, (ours, theirs), len, calc, lane.stream)?;
            device.driver.copy(to_at, ours, len, lane.stream)
        }
    });
    lane.wait(device, started)
}

/// Starts a reduction by its kernel.
///
/// # Safety
/// Both ranges are memory that the device reaches; its context is this thread's.
pub(super) unsafe fn launch_combine(
    device: &Device,
    kernel: Handle,
    (mut to, mut from): (Address, Address),
    len: usize,
    calc: Calc,
    stream: Handle,
) -> Result<(), GpuError> {
    let mut count = (len / calc.data_type().size()) as u64;
    let mut into = to;
    let mut args: [*mut c_void; 4] =
        [(&raw mut into).cast(), (&raw mut to).cast(), (&raw mut from).cast(), (&raw mut count).cast()];
    // SAFETY: the kernel takes these four; the driver copies them before it returns.
    unsafe { device.driver.launch(kernel, grid(device, len), BLOCK, stream, args.as_mut_ptr()) }
}

/// Scales GPU memory.
///
/// # Safety
/// `at` is memory of its GPU for `len` bytes.
pub(crate) unsafe fn scale(at: Spot, len: usize, data_type: DataType, scale: Scale) -> Result<(), GpuError> {
    let size = data_type.size();
    if !len.is_multiple_of(size) || !(at.0 as usize).is_multiple_of(size) {
        return Err(GpuError::Elements { len, address: at.0 as u64, size });
    }
    // What the processor refuses is refused here, by the same words.
    calc::scale(data_type, &mut [], scale).map_err(|error| GpuError::NotCalculated { what: error.to_string() })?;
    let device = either(at.1, Place::HOST)?;
    let lane = Lane::of(device)?;
    let kernel = device.kernels.scale(device, data_type, scale)?;
    let (mut vector, mut count) = (at.0 as Address, (len / size) as u64);
    let (mut divisor, mut factor, mut whole) = match scale {
        Scale::Divide(count) => (count, 0.0, 0),
        Scale::Multiply(factor) => (0, factor, factor as i128 as i64),
    };
    let third: *mut c_void = match scale {
        Scale::Divide(_) => (&raw mut divisor).cast(),
        Scale::Multiply(_) if data_type.is_integer() => (&raw mut whole).cast(),
        Scale::Multiply(_) => (&raw mut factor).cast(),
    };
    let mut args = [(&raw mut vector).cast(), (&raw mut count).cast(), third];
    let _entered = device.enter()?;
    // SAFETY: the kernel takes these three; the driver copies them before it returns.
    let started = unsafe { device.driver.launch(kernel, grid(device, len), BLOCK, lane.stream, args.as_mut_ptr()) };
    lane.wait(device, started)
}

/// Sets bytes of GPU memory.
///
/// # Safety
/// `to` is memory of the GPU for `len` bytes.
pub(super) unsafe fn fill(device: &Device, to: Address, value: u8, len: usize) -> Result<(), GpuError> {
    let lane = Lane::of(device)?;
    let _entered = device.enter()?;
    // SAFETY: by the caller's word; the stream is waited for.
    let started = unsafe { device.driver.set(to, value, len, lane.stream) };
    lane.wait(device, started)
}

/// The GPU that works where two places meet: that of the target if it is one.
pub(super) fn either(to: Place, from: Place) -> Result<&'static Device, GpuError> {
    let device = Device::of(to).or_else(|| Device::of(from));
    device.ok_or(GpuError::NoDevice { ordinal: to.ordinal().or(from.ordinal()).unwrap_or(0).into(), count: 0 })
}

/// Blocks for `len` bytes of a vector: each thread has 64 bytes to do, up to as many as the GPU runs at once.
fn grid(device: &Device, len: usize) -> u32 {
    let wanted = len.div_ceil(64 * BLOCK as usize).max(1);
    wanted.min(device.attributes().multiprocessors.max(1) as usize * BLOCKS_AT_ONCE) as u32
}

/// Threads of a block.
const BLOCK: u32 = 512;
/// Blocks of that size that a multiprocessor runs at once.
const BLOCKS_AT_ONCE: usize = 4;
/// What goes by a GPU's scratch at once: enough to hide that each piece starts a kernel. A multiple of every element's size.
const PIECE: usize = 2 << 20;
const SCRATCH: usize = 2 * PIECE;
/// What comes from a GPU to be combined here: of the stack.
const PART: usize = 16 << 10;
