//! How a test steers the library: through functions of the shared library that is loaded, whose state it is.
//!
//! ```no_run
//! use qpair_fake_cuda::{code, control};
//!
//! # fn main() -> Result<(), control::Error> {
//! // From here on the process has a `libcuda.so`.
//! let device = control::add_device()?;
//! device.fail("cuMemAlloc", 2, code::OUT_OF_MEMORY)?;
//! // ... use the device of that ordinal ...
//! device.assert_clean();
//! # Ok(())
//! # }
//! ```

use std::ffi::{CString, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::code::Code;
use crate::interface::{self, text};

/// A device of the loaded library, by its ordinal. Any number of values may stand for one device.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    ordinal: c_int,
}

/// Why the library could not be steered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The shared library is not where Cargo puts it.
    #[error("no {FILE} in {}: build the package qpair-fake-cuda first", .0.display())]
    NotBuilt(PathBuf),
    /// The shared library can not be loaded, or is another one.
    #[error("can not load the shared library")]
    Load(#[from] libloading::Error),
    /// A function refused: an unknown device, setting, object or address.
    #[error("{function}({what}): {source}")]
    Refused {
        /// The function.
        function: &'static str,
        /// What it was asked for.
        what: String,
        /// Its errno.
        source: std::io::Error,
    },
}

/// The shared library that Cargo built beside the running program.
///
/// # Errors
/// [`Error::NotBuilt`] where there is none.
pub fn library_path() -> Result<PathBuf, Error> {
    let program = std::env::current_exe().unwrap_or_default();
    let near = program.ancestors().skip(1).take(3).flat_map(|folder| [folder.join("deps"), folder.to_owned()]);
    let found = near.map(|folder| folder.join(FILE)).find(|file| file.is_file());
    found.ok_or_else(|| Error::NotBuilt(program.parent().map(PathBuf::from).unwrap_or_default()))
}

/// Loads the library, for as long as the process runs: from then on it is the process's `libcuda.so`. Whatever looks for
/// that before finds the real one, or none.
///
/// # Errors
/// [`Error`] if it can not be loaded.
pub fn load() -> Result<&'static libloading::Library, Error> {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    // SAFETY: the library of this crate, whose initializers do nothing.
    let library = unsafe { libloading::Library::new(library_path()?)? };
    Ok(LIBRARY.get_or_init(|| library))
}

/// One more device.
///
/// # Errors
/// [`Error`] if the library can not be loaded.
pub fn add_device() -> Result<Device, Error> {
    // SAFETY: it takes nothing.
    Ok(Device { ordinal: unsafe { (functions()?.add_device)() } })
}

/// Lets the next calls, of this thread, of a function fail, whatever device it is for, or none: `cuInit`,
/// `cuDeviceGetCount`. 0 times is all.
///
/// # Errors
/// [`Error`] if the library can not be loaded.
pub fn fail_here(symbol: &str, times: u32, code: Code) -> Result<(), Error> {
    let symbol = c_string(symbol);
    // SAFETY: a C string.
    let result = unsafe { (functions()?.fail)(-1, symbol.as_ptr(), 1, times, code) };
    check("fake_cuda_fail", result, String::new)
}

/// What captures of graphs by other threads forbid the calling one: `CUstreamCaptureMode`, 0 at first. Changes nothing.
///
/// # Errors
/// [`Error`] if the library can not be loaded.
pub fn capture_mode() -> Result<u32, Error> {
    let library = load()?;
    // SAFETY: the function of that name has that type.
    let exchange =
        unsafe { library.get::<unsafe extern "C" fn(*mut u32) -> Code>(b"cuThreadExchangeStreamCaptureMode")? };
    let mut mode = 0;
    // SAFETY: a local, to be read and written; what was exchanged is put back.
    unsafe {
        exchange(&mut mode);
        exchange(&mut { mode });
    }
    Ok(mode)
}

/// Bytes of device memory as they are now, whatever streams have still to do.
///
/// # Errors
/// [`Error::Refused`] if there is no such memory.
pub fn peek(address: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    // SAFETY: a local of that length.
    let result = unsafe { (functions()?.peek)(address, bytes.as_mut_ptr(), len) };
    check("fake_cuda_peek", result, || format!("{address:#x}")).map(|()| bytes)
}

/// Writes device memory now, as another device on the bus may.
///
/// # Errors
/// [`Error::Refused`] if there is no such memory.
pub fn poke(address: u64, bytes: &[u8]) -> Result<(), Error> {
    // SAFETY: a slice.
    let result = unsafe { (functions()?.poke)(address, bytes.as_ptr(), bytes.len()) };
    check("fake_cuda_poke", result, || format!("{address:#x}"))
}

impl Device {
    /// The device of an ordinal.
    pub fn of(ordinal: i32) -> Device {
        Device { ordinal }
    }

    /// Its ordinal.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Forgets what was set and scripted, the calls and violations; what was made stays.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn reset(&self) -> Result<(), Error> {
        // SAFETY: it takes a number.
        self.check("fake_cuda_reset", unsafe { (functions()?.reset)(self.ordinal) }, "")
    }

    /// Changes what the device does: a setting of `settings.rs`, such as `memory`, `queries`,
    /// `pageable_waits`, `alloc_offset`, `peer`.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown setting.
    pub fn set(&self, setting: &str, value: u64) -> Result<(), Error> {
        let key = c_string(setting);
        // SAFETY: a C string.
        let result = unsafe { (functions()?.set)(self.ordinal, key.as_ptr(), value) };
        self.check("fake_cuda_set", result, setting)
    }

    /// Changes what the device claims to be: a `CUdevice_attribute`, by its number.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<(), Error> {
        // SAFETY: it takes numbers.
        let result = unsafe { (functions()?.set_attribute)(self.ordinal, attribute, value) };
        self.check("fake_cuda_set_attribute", result, "")
    }

    /// A setting, or `used`, the bytes of its memory in use, or `urgent_streams`, those that are of the greatest priority.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown one.
    pub fn get(&self, what: &str) -> Result<u64, Error> {
        let (key, mut value) = (c_string(what), 0);
        // SAFETY: a C string, and a local to be written to.
        let result = unsafe { (functions()?.get)(self.ordinal, key.as_ptr(), &mut value) };
        self.check("fake_cuda_get", result, what).map(|()| value)
    }

    /// How often a function was called; with or without its version, `cuMemAlloc_v2` or `cuMemAlloc`.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn count(&self, symbol: &str) -> Result<u64, Error> {
        self.get(&format!("calls.{symbol}"))
    }

    /// Lets the `nth` call from now of a function fail, 1 being the next.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn fail(&self, symbol: &str, nth: u32, code: Code) -> Result<(), Error> {
        self.fail_times(symbol, nth, 1, code)
    }

    /// As [`Device::fail`], for so many calls one after the other; 0 is all.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn fail_times(&self, symbol: &str, nth: u32, times: u32, code: Code) -> Result<(), Error> {
        let c_symbol = c_string(symbol);
        // SAFETY: a C string.
        let result = unsafe { (functions()?.fail)(self.ordinal, c_symbol.as_ptr(), nth, times, code) };
        self.check("fake_cuda_fail", result, symbol)
    }

    /// Lets the `nth` kernel launched from now fail when it runs. Who waits for it gets the code, and so does every call
    /// in the context from then on, until the last has released it.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn fault(&self, nth: u32, code: Code) -> Result<(), Error> {
        // SAFETY: it takes numbers.
        self.check("fake_cuda_fault", unsafe { (functions()?.fault)(self.ordinal, nth, code) }, "")
    }

    /// Does nothing more in any stream, until [`Device::let_go`]: queries find nothing done, and who waits, waits.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn hold(&self) -> Result<(), Error> {
        self.holding(0, true)
    }

    /// Goes on.
    ///
    /// # Errors
    /// [`Error`] if there is no such device.
    pub fn let_go(&self) -> Result<(), Error> {
        self.holding(0, false)
    }

    /// Holds one stream, by its handle, or lets it go.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such stream.
    pub fn hold_stream(&self, stream: u64, hold: bool) -> Result<(), Error> {
        self.holding(stream, hold)
    }

    /// Gives the default stream a copy between two addresses of devices, as a program's own kernels would be given to it.
    ///
    /// # Errors
    /// [`Error`] if there is no such device. What is wrong with the addresses is found when it is done.
    pub fn copy_later(&self, to: u64, from: u64, len: usize) -> Result<(), Error> {
        // SAFETY: it takes numbers, and looks the addresses up.
        let result = unsafe { (functions()?.copy)(self.ordinal, to, from, len) };
        self.check("fake_cuda_copy", result, "a stream")
    }

    fn holding(&self, stream: u64, hold: bool) -> Result<(), Error> {
        // SAFETY: it takes numbers.
        let result = unsafe { (functions()?.hold)(self.ordinal, stream, c_int::from(hold)) };
        self.check("fake_cuda_hold", result, "a stream")
    }

    /// The calls so far, one per line, with ` -> ` and the error if they failed; without those that found something not
    /// ready.
    pub fn calls(&self) -> String {
        self.text(text::CALLS)
    }

    /// What was done that no caller may do, one per line: use of what was freed or destroyed, of addresses beyond an
    /// allocation or without a right to them, freeing what a stream has still to use.
    pub fn violations(&self) -> String {
        self.text(text::VIOLATIONS)
    }

    /// What is left, one per line: memory, reservations, mappings, handles, openings, registrations, streams, events,
    /// modules, the primary context.
    pub fn live(&self) -> String {
        self.text(text::LIVE)
    }

    /// Asserts that nothing is left and nothing was done wrong.
    ///
    /// # Panics
    /// If something is, or was.
    pub fn assert_clean(&self) {
        assert_eq!((self.live(), self.violations()), (String::new(), String::new()), "calls:\n{}", self.calls());
    }

    fn text(&self, what: u32) -> String {
        let Ok(functions) = functions() else { return String::new() };
        let mut bytes = vec![0u8; 1 << 12];
        loop {
            // SAFETY: as much memory as it says.
            let len = unsafe { (functions.text)(self.ordinal, what, bytes.as_mut_ptr().cast(), bytes.len()) };
            if len <= bytes.len() {
                bytes.truncate(len);
                return String::from_utf8_lossy(&bytes).into_owned();
            }
            bytes.resize(len + (1 << 12), 0);
        }
    }

    fn check(&self, function: &'static str, result: i32, what: &str) -> Result<(), Error> {
        check(function, result, || format!("{} {what}", self.ordinal).trim_end().to_owned())
    }
}

fn check(function: &'static str, result: i32, what: impl FnOnce() -> String) -> Result<(), Error> {
    match result {
        0 => Ok(()),
        errno => Err(Error::Refused { function, what: what(), source: std::io::Error::from_raw_os_error(errno) }),
    }
}

/// The functions of the loaded library.
struct Functions {
    add_device: interface::AddDevice,
    reset: interface::Reset,
    set: interface::Set,
    set_attribute: interface::SetAttribute,
    get: interface::Get,
    fail: interface::Fail,
    fault: interface::Fault,
    hold: interface::Hold,
    copy: interface::Copy,
    peek: interface::Peek,
    poke: interface::Poke,
    text: interface::Text,
}

fn functions() -> Result<&'static Functions, Error> {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    if let Some(functions) = FUNCTIONS.get() {
        return Ok(functions);
    }
    let library = load()?;
    macro_rules! get {
        ($name:literal) => {
            // SAFETY: both sides take the type from `interface`.
            unsafe { *library.get($name)? }
        };
    }
    let functions = Functions {
        add_device: get!(b"fake_cuda_add_device"),
        reset: get!(b"fake_cuda_reset"),
        set: get!(b"fake_cuda_set"),
        set_attribute: get!(b"fake_cuda_set_attribute"),
        get: get!(b"fake_cuda_get"),
        fail: get!(b"fake_cuda_fail"),
        fault: get!(b"fake_cuda_fault"),
        hold: get!(b"fake_cuda_hold"),
        copy: get!(b"fake_cuda_copy"),
        peek: get!(b"fake_cuda_peek"),
        poke: get!(b"fake_cuda_poke"),
        text: get!(b"fake_cuda_text"),
    };
    Ok(FUNCTIONS.get_or_init(|| functions))
}

/// A C string of a text up to its first zero.
fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or("")).unwrap_or_default()
}

const FILE: &str = "libqpair_fake_cuda.so";
