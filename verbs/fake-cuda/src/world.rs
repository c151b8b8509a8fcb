//! Everything that exists: devices, what was made on them, and the address space.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::code::{self, Code, Outcome};
use crate::device::Device;
use crate::kernel::{Function, Module};
use crate::script::{Script, plain};
use crate::space::Space;
use crate::stream::{Event, Stream};
use crate::vmm::Physical;

/// All state of the library, but for what threads have of their own.
#[derive(Default)]
pub(crate) struct World {
    /// The process that has called `cuInit`.
    pub(crate) initialised: Option<u32>,
    pub(crate) driver_version: u32,
    pub(crate) devices: Vec<Device>,
    pub(crate) space: Space,
    /// What lives, by its handle. No handle comes twice.
    pub(crate) objects: BTreeMap<u64, Object>,
    /// What destroyed ones were called.
    dead: HashMap<u64, (usize, String)>,
    handles: u64,
    /// Counts what was given to streams.
    pub(crate) sequence: u64,
}

/// What lives.
pub(crate) struct Object {
    pub(crate) device: usize,
    pub(crate) number: u64,
    pub(crate) state: State,
}

pub(crate) enum State {
    Stream(Stream),
    Event(Event),
    Module(Module),
    Function(Function),
    Physical(Physical),
}

/// The world, for this thread alone.
pub(crate) struct Locked(Option<MutexGuard<'static, World>>);

thread_local! {
    /// The contexts of the thread, the current one last; 0 for none.
    pub(crate) static CONTEXTS: RefCell<Vec<u64>> = RefCell::default();
    /// What captures of other threads forbid it: `CUstreamCaptureMode`.
    pub(crate) static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
    /// Failures of whatever this thread calls next.
    pub(crate) static SCRIPT: RefCell<Script> = RefCell::default();
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::of_environment()));
/// Streams were let go.
static LET_GO: Condvar = Condvar::new();

/// Locks the world.
pub(crate) fn world() -> Locked {
    Locked(Some(WORLD.lock().unwrap_or_else(PoisonError::into_inner)))
}

impl Locked {
    /// Lets others have the world until streams are let go, or it is time to look at words that streams wait for: whoever
    /// writes those tells nobody.
    pub(crate) fn wait(&mut self) {
        let wait = |guard| LET_GO.wait_timeout(guard, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        self.0 = self.0.take().map(wait);
    }

    /// Wakes who waits.
    pub(crate) fn wake(&self) {
        LET_GO.notify_all();
    }
}

impl Deref for Locked {
    type Target = World;

    fn deref(&self) -> &World {
        self.0.as_ref().expect("taken only while it waits")
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().expect("taken only while it waits")
    }
}

impl World {
    fn of_environment() -> World {
        let number = |name| std::env::var(name).ok().and_then(|text| text.trim().parse::<u32>().ok());
        let driver_version = number("FAKE_CUDA_DRIVER_VERSION").unwrap_or(12040);
        let mut world = World { driver_version, ..World::default() };
        for _ in 0..number("FAKE_CUDA_DEVICES").unwrap_or(1) {
            world.add_device();
        }
        world
    }

    /// Makes a device, and tells its ordinal.
    pub(crate) fn add_device(&mut self) -> usize {
        let ordinal = self.devices.len();
        let context = self.next_handle();
        self.devices.push(Device::new(ordinal, context));
        for hidden in 0..2 {
            let handle = self.add(ordinal, State::Stream(Stream::hidden()));
            self.devices[ordinal].default_streams[hidden] = handle;
        }
        ordinal
    }

    /// The device of an ordinal.
    pub(crate) fn device(&self, ordinal: c_int) -> Outcome<usize> {
        usize::try_from(ordinal).ok().filter(|device| *device < self.devices.len()).ok_or(code::INVALID_DEVICE)
    }

    /// Whether two devices, which may be one, reach each other's memory.
    pub(crate) fn reach(&self, one: usize, other: usize) -> bool {
        one == other || [one, other].iter().all(|device| self.devices[*device].settings.get("peer") != 0)
    }

    /// The device of a context.
    pub(crate) fn device_of(&self, context: u64) -> Option<usize> {
        self.devices.iter().position(|device| device.context.handle == context)
    }

    /// The device of the thread's current context, which has to be alive.
    pub(crate) fn current(&self) -> Outcome<usize> {
        let context = CONTEXTS.with_borrow(|contexts| contexts.last().copied()).unwrap_or(0);
        let device = self.device_of(context).ok_or(code::INVALID_CONTEXT)?;
        if self.devices[device].context.retained == 0 {
            return Err(code::CONTEXT_IS_DESTROYED);
        }
        Ok(device)
    }

    fn next_handle(&mut self) -> u64 {
        self.handles += 1;
        HANDLES + self.handles * 16
    }

    /// Takes in something new, and gives it a handle.
    pub(crate) fn add(&mut self, device: usize, state: State) -> u64 {
        let handle = self.next_handle();
        let number = self.devices[device].number(state.kind());
        self.objects.insert(handle, Object { device, number, state });
        handle
    }

    /// What a handle stands for. Use of what was destroyed is a violation.
    pub(crate) fn object(&mut self, symbol: &str, handle: u64) -> Outcome<&mut Object> {
        if !self.objects.contains_key(&handle) {
            if let Some((device, name)) = self.dead.get(&handle) {
                let line = format!("{symbol}: {name} was destroyed before");
                self.devices[*device].violations.push(line);
            }
            return Err(code::INVALID_HANDLE);
        }
        Ok(self.objects.get_mut(&handle).expect("looked for above"))
    }

    /// Takes it out.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<State> {
        let object = self.objects.remove(&handle)?;
        self.dead.insert(handle, (object.device, object.name()));
        Some(object.state)
    }

    /// Notes something that no caller may do.
    pub(crate) fn violation(&mut self, device: usize, symbol: &str, what: impl fmt::Display) {
        self.devices[device].violations.push(format!("{symbol}: {what}"));
    }

    /// What of a device is left, as lines.
    pub(crate) fn live(&self, device: usize) -> Vec<String> {
        let retained = self.devices[device].context.retained;
        let context = (retained > 0).then(|| format!("primary context retained {retained} times"));
        let of_device = self.objects.values().filter(|object| object.device == device && object.state.counts());
        context.into_iter().chain(self.space.names(device)).chain(of_device.map(Object::name)).collect()
    }
}

impl Object {
    /// What it is, and its number.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.state.kind(), self.number)
    }
}

impl State {
    fn kind(&self) -> &'static str {
        match self {
            State::Stream(stream) if stream.hidden => "default stream",
            State::Stream(_) => "stream",
            State::Event(_) => "event",
            State::Module(_) => "module",
            State::Function(_) => "function",
            State::Physical(_) => "handle",
        }
    }

    /// Whether its owner has to destroy it.
    fn counts(&self) -> bool {
        match self {
            State::Stream(stream) => !stream.hidden && !stream.gone,
            State::Physical(physical) => physical.handles > 0,
            State::Function(_) => false,
            State::Event(_) | State::Module(_) => true,
        }
    }
}

/// What a call needs before it is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs {
    /// `cuInit`; it belongs to the device of the current context, or else to the first.
    Init,
    /// A device.
    Device(c_int),
    /// `cuInit`; it belongs to the device of what has this handle or address, or else as for [`Needs::Init`].
    Of(u64),
    /// A current context without an error.
    Context,
    /// A current context. If it has an error, the call does what it can and reports that.
    Ending,
}

/// A call of a function: counts it, fails where it has to, and else does it.
pub(crate) fn call(symbol: &'static str, needs: Needs, does: impl FnOnce(&mut Locked, usize) -> Outcome<()>) -> Code {
    let mut world = world();
    let result = begin(&mut world, symbol, needs).and_then(|device| {
        let done = does(&mut world, device);
        let error = world.devices[device].context.error.filter(|_| matches!(needs, Needs::Ending));
        let result = done.and(error.map_or(Ok(()), Err));
        world.devices[device].record(symbol, result);
        result
    });
    result.err().unwrap_or(code::SUCCESS)
}

fn begin(world: &mut World, symbol: &'static str, needs: Needs) -> Outcome<usize> {
    SCRIPT.with_borrow_mut(|script| script.call(symbol))?;
    if world.initialised != Some(std::process::id()) {
        return Err(code::NOT_INITIALIZED);
    }
    let device = match needs {
        Needs::Init | Needs::Of(_) if world.devices.is_empty() => return Err(code::NO_DEVICE),
        Needs::Init => world.current().unwrap_or(0),
        Needs::Of(what) => {
            let object = world.objects.get(&what).map(|object| object.device);
            let range = || world.space.find(what).map(|(_, range)| range.device);
            object.or_else(range).or_else(|| world.current().ok()).unwrap_or(0)
        }
        Needs::Device(ordinal) => world.device(ordinal)?,
        Needs::Context | Needs::Ending => world.current()?,
    };
    *world.devices[device].counts.entry(plain(symbol).to_owned()).or_default() += 1;
    let error = world.devices[device].context.error.filter(|_| matches!(needs, Needs::Context));
    let captures = world.devices[device].settings.get("capturing") != 0;
    let refused = (captures && is_refused(plain(symbol))).then_some(code::STREAM_CAPTURE_UNSUPPORTED);
    let result = world.devices[device].script.call(symbol).and(error.or(refused).map_or(Ok(()), Err));
    if result.is_err() {
        world.devices[device].record(symbol, result);
    }
    result.map(|()| device)
}

/// Whether a call is refused while a graph is captured: to threads that are not in the relaxed mode, if it may be unsafe; to all, if it
/// is about all streams.
fn is_refused(symbol: &str) -> bool {
    symbol == "cuCtxSynchronize" || UNSAFE.contains(&symbol) && CAPTURE_MODE.get() != RELAXED
}

/// Calls that may be unsafe while a graph is captured, of those that this project makes.
const UNSAFE: [&str; 9] = [
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuModuleLoadData",
];

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const RELAXED: u32 = 2;

/// Between two looks at words that streams wait for.
const LOOK: Duration = Duration::from_micros(500);

/// Where handles begin: at no address that anything has.
const HANDLES: u64 = 0xfa4e_0000_0000_0000;
