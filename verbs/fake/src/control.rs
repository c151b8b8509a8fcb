//! How a test steers the library: through functions of the shared library that is loaded, whose state it is.
//!
//! ```no_run
//! use qpair_fake_ibverbs::control::{Device, library_path};
//!
//! # fn main() -> Result<(), qpair_fake_ibverbs::control::Error> {
//! let device = Device::new("leaves0")?;
//! device.fail("ibv_destroy_qp", 1, 16)?;
//! // ... open "leaves0" through the library at library_path() ...
//! assert_eq!(device.violations(), "");
//! # Ok(())
//! # }
//! ```

use std::ffi::{CString, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::interface::{self, ATTRIBUTES, Forged, element, field, text};

/// A device of the loaded library, by its name. Any number of values may stand for one device.
#[derive(Clone, Debug)]
pub struct Device {
    name: CString,
}

/// Why the library could not be steered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The shared library is not where Cargo puts it.
    #[error("no {FILE} in {}: build the package qpair-fake-ibverbs first", .0.display())]
    NotBuilt(PathBuf),
    /// The shared library can not be loaded, or is another one.
    #[error("can not load the shared library")]
    Load(#[from] libloading::Error),
    /// A function refused: an unknown device, setting or object.
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

/// A completion that a test makes up, or what it changes in one: the fields that are set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    forged: Forged,
}

/// What an asynchronous event is about. Queue pairs go by their number, the others by their handle; 0 is the oldest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The port of that number; in each context of the device.
    Port(u32),
    /// A queue pair.
    Qp(u32),
    /// A completion queue.
    Cq(u32),
    /// A shared receive queue.
    Srq(u32),
}

/// The shared library that Cargo built beside the running program.
///
/// # Errors
/// [`Error::NotBuilt`] where there is none.
pub fn library_path() -> Result<PathBuf, Error> {
    if let Some(named) = std::env::var_os("FAKE_IBVERBS_LIBRARY") {
        return Ok(named.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let near = program.ancestors().skip(1).take(3).flat_map(|folder| [folder.join("deps"), folder.to_owned()]);
    let found = near.map(|folder| folder.join(FILE)).find(|file| file.is_file());
    found.ok_or_else(|| Error::NotBuilt(program.parent().map(PathBuf::from).unwrap_or_default()))
}

/// Lets the next calls, of this thread, of a function that belongs to no device fail: `ibv_get_device_list` or
/// `ibv_fork_init`.
///
/// # Errors
/// [`Error`] if the library can not be loaded.
pub fn fail_here(symbol: &str, times: u32, errno: i32) -> Result<(), Error> {
    let (device, symbol) = (CString::default(), c_string(symbol));
    // SAFETY: C strings.
    let result = unsafe { (functions()?.fail)(device.as_ptr(), symbol.as_ptr(), 1, times, errno) };
    check("fake_ibverbs_fail", result, || "no device".to_owned())
}

/// Has all event channels of librdmacm hang up, as where the kernel's module is gone.
///
/// # Errors
/// [`Error`] if the library can not be loaded.
pub fn break_cm() -> Result<(), Error> {
    // SAFETY: it takes nothing.
    check("fake_ibverbs_break_cm", unsafe { (functions()?.break_cm)() }, String::new)
}

impl Device {
    /// A device of this name, made now if there is none.
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded, or refuses the name: up to 63 bytes, not empty.
    pub fn new(name: &str) -> Result<Device, Error> {
        let device = Device { name: c_string(name) };
        // SAFETY: a C string.
        match unsafe { (functions()?.add_device)(device.name.as_ptr()) } {
            libc::EEXIST => Ok(device),
            result => device.check("fake_ibverbs_add_device", result, "").map(|()| device),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or("")
    }

    /// Forgets what was set and scripted, the calls and violations; objects and their handles stay.
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded.
    pub fn reset(&self) -> Result<(), Error> {
        // SAFETY: a C string.
        self.check("fake_ibverbs_reset", unsafe { (functions()?.reset)(self.name.as_ptr()) }, "")
    }

    /// Changes what the device claims or does: a setting of `settings.rs`, such as `port_state`, `active_mtu`,
    /// `max_locked`, or of a feature: 0 for absent, 2 for a null function pointer. What concerns contexts and their
    /// functions holds for those opened later.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown setting.
    pub fn set(&self, setting: &str, value: u64) -> Result<(), Error> {
        let key = c_string(setting);
        // SAFETY: C strings.
        let result = unsafe { (functions()?.set)(self.name.as_ptr(), key.as_ptr(), value) };
        self.check("fake_ibverbs_set", result, setting)
    }

    /// A setting, or a count: `live.qp`, `created.mr`, `destroyed.cq`; the kinds are context, pd, td, mr, mw, channel,
    /// cq, srq, qp and ah. `waiting` counts the calls that wait as the setting `neighbours` has them.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown one.
    pub fn get(&self, what: &str) -> Result<u64, Error> {
        let (key, mut value) = (c_string(what), 0);
        // SAFETY: C strings, and a local to be written to.
        let result = unsafe { (functions()?.get)(self.name.as_ptr(), key.as_ptr(), &mut value) };
        self.check("fake_ibverbs_get", result, what).map(|()| value)
    }

    /// Lets the `nth` call from now of a function fail, 1 being the next. Beside the functions of C there are
    /// `post_send_wr` and `post_recv_wr`, which count work requests within the lists posted. `ibv_poll_cq` returns the
    /// errno negated.
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded.
    pub fn fail(&self, symbol: &str, nth: u32, errno: i32) -> Result<(), Error> {
        self.fail_times(symbol, nth, 1, errno)
    }

    /// As [`Device::fail`], for so many calls one after the other; 0 is all.
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded.
    pub fn fail_times(&self, symbol: &str, nth: u32, times: u32, errno: i32) -> Result<(), Error> {
        let c_symbol = c_string(symbol);
        // SAFETY: C strings.
        let result = unsafe { (functions()?.fail)(self.name.as_ptr(), c_symbol.as_ptr(), nth, times, errno) };
        self.check("fake_ibverbs_fail", result, symbol)
    }

    /// Changes the `nth` completion from now, 1 being the next.
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded.
    pub fn forge(&self, nth: u32, completion: Completion) -> Result<(), Error> {
        // SAFETY: a C string, and a local.
        let result = unsafe { (functions()?.forge)(self.name.as_ptr(), nth, &completion.forged) };
        self.check("fake_ibverbs_forge", result, "")
    }

    /// Puts a completion of nothing on a queue: that of the handle, or the oldest with 0.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such queue.
    pub fn inject(&self, cq: u32, completion: Completion) -> Result<(), Error> {
        // SAFETY: a C string, and a local.
        let result = unsafe { (functions()?.inject)(self.name.as_ptr(), cq, &completion.forged) };
        self.check("fake_ibverbs_inject", result, "a queue")
    }

    /// Lets the next poll that finds something return this number, whatever it found.
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded.
    pub fn poll_returns(&self, value: i32) -> Result<(), Error> {
        // SAFETY: a C string.
        self.check("fake_ibverbs_poll_returns", unsafe { (functions()?.poll_returns)(self.name.as_ptr(), value) }, "")
    }

    /// Raises an asynchronous event of any number, known or not.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such object.
    pub fn event(&self, event: u32, about: About) -> Result<(), Error> {
        let (kind, number) = match about {
            About::Port(number) => (element::PORT, number),
            About::Qp(number) => (element::QP, number),
            About::Cq(handle) => (element::CQ, handle),
            About::Srq(handle) => (element::SRQ, handle),
        };
        // SAFETY: a C string.
        let result = unsafe { (functions()?.event)(self.name.as_ptr(), event, kind, number) };
        self.check("fake_ibverbs_event", result, "an object")
    }

    /// Raises an event of rdma_cm of any number, with a status, about the id of that handle, which its calls name, or about
    /// the oldest with 0.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such id.
    pub fn cm_event(&self, event: u32, status: i32, handle: u32) -> Result<(), Error> {
        // SAFETY: a C string.
        let result = unsafe { (functions()?.cm_event)(self.name.as_ptr(), event, status, handle) };
        self.check("fake_ibverbs_cm_event", result, "an id")
    }

    /// Sets an entry of the GID table: the type is 0 for InfiniBand, 1 for RoCE v1, 2 for RoCE v2, or what no one knows.
    /// Zeros empty it.
    ///
    /// # Errors
    /// [`Error::Refused`] past the end of the table.
    pub fn set_gid(&self, index: u32, gid: [u8; 16], gid_type: u32, ifindex: u32) -> Result<(), Error> {
        // SAFETY: a C string, and 16 bytes.
        let result = unsafe { (functions()?.set_gid)(self.name.as_ptr(), index, gid.as_ptr(), gid_type, ifindex) };
        self.check("fake_ibverbs_set_gid", result, "an entry")
    }

    /// Takes the device away, as the kernel does with one that is unplugged or reset: all that was made from it is gone, what
    /// destroys it and all other calls say EIO from then on, its contexts are told that it has failed and of nothing more, and a
    /// moment later its attributes go (drivers/infiniband/core: ib_uverbs_remove_one, __ib_unregister_device).
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded.
    pub fn remove(&self) -> Result<(), Error> {
        // SAFETY: a C string.
        self.check("fake_ibverbs_remove", unsafe { (functions()?.remove)(self.name.as_ptr()) }, "")?;
        if let Some(folder) = std::env::var_os(ATTRIBUTES) {
            let attributes = Path::new(&folder).join(self.name());
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                let _ = std::fs::remove_dir_all(attributes);
            });
        }
        Ok(())
    }

    /// Does the sends that the setting `defer` holds back.
    ///
    /// # Errors
    /// [`Error`] if the library can not be loaded.
    pub fn run(&self) -> Result<(), Error> {
        // SAFETY: a C string.
        self.check("fake_ibverbs_run", unsafe { (functions()?.run)(self.name.as_ptr()) }, "")
    }

    /// The calls so far, one per line: the function, the object (`qp3`), what matters of the arguments, and ` -> errno`
    /// if it failed. Queries and polls that go well are not among them.
    pub fn calls(&self) -> String {
        self.text(text::CALLS)
    }

    /// What was done that no caller may do, one per line: use of a destroyed object, a region deregistered while it is
    /// posted, a queue that overran, a channel destroyed with ids on it, events acknowledged that were not read.
    pub fn violations(&self) -> String {
        self.text(text::VIOLATIONS)
    }

    /// The objects that exist, one per line.
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
            // SAFETY: a C string, and as much memory as it says.
            let len = unsafe { (functions.text)(self.name.as_ptr(), what, bytes.as_mut_ptr().cast(), bytes.len()) };
            if len <= bytes.len() {
                bytes.truncate(len);
                return String::from_utf8_lossy(&bytes).into_owned();
            }
            bytes.resize(len + (1 << 12), 0);
        }
    }

    fn check(&self, function: &'static str, result: i32, what: &str) -> Result<(), Error> {
        check(function, result, || [self.name(), what].join(" ").trim_end().to_owned())
    }
}

fn check(function: &'static str, result: i32, what: impl FnOnce() -> String) -> Result<(), Error> {
    match result {
        0 => Ok(()),
        errno => Err(Error::Refused { function, what: what(), source: std::io::Error::from_raw_os_error(errno) }),
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty, $bit:ident;)*) => {
        impl Completion {
            /// One of which nothing is set.
            pub fn new() -> Completion {
                Completion::default()
            }

            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, value: $kind) -> Completion {
                    self.forged.$name = value;
                    self.forged.fields |= field::$bit;
                    self
                }
            )*

            /// It is not delivered at all.
            #[must_use]
            pub fn dropped(mut self) -> Completion {
                self.forged.fields |= field::DROP;
                self
            }

            /// It is delivered twice.
            #[must_use]
            pub fn twice(mut self) -> Completion {
                self.forged.fields |= field::TWICE;
                self
            }
        }
    };
}

setters! {
    /// Its status, of `enum ibv_wc_status` or not.
    status: u32, STATUS;
    /// Its opcode, of `enum ibv_wc_opcode` or not.
    opcode: u32, OPCODE;
    /// The queue pair's number.
    qp_num: u32, QP_NUM;
    /// The bytes of a receive.
    byte_len: u32, BYTE_LEN;
    /// Its flags.
    wc_flags: u32, WC_FLAGS;
    /// The immediate data, in network byte order, or the invalidated key.
    imm_data: u32, IMM_DATA;
    /// The vendor's error code.
    vendor_err: u32, VENDOR_ERR;
    /// The number of the work request.
    wr_id: u64, WR_ID;
}

/// The functions of the loaded library.
struct Functions {
    add_device: interface::AddDevice,
    reset: interface::Reset,
    set: interface::Set,
    get: interface::Get,
    fail: interface::Fail,
    forge: interface::Forge,
    inject: interface::Inject,
    poll_returns: interface::PollReturns,
    event: interface::Event,
    cm_event: interface::CmEvent,
    break_cm: interface::BreakCm,
    set_gid: interface::SetGid,
    remove: interface::Remove,
    run: interface::Run,
    text: interface::Text,
}

fn functions() -> Result<&'static Functions, Error> {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    if let Some(functions) = FUNCTIONS.get() {
        return Ok(functions);
    }
    let path: OsString = library_path()?.into();
    // SAFETY: the library of this crate, whose initializers do nothing; it stays loaded.
    let library: &'static libloading::Library = Box::leak(Box::new(unsafe { libloading::Library::new(path)? }));
    macro_rules! get {
        ($name:literal) => {
            // SAFETY: both sides take the type from `interface`.
            unsafe { *library.get($name)? }
        };
    }
    let functions = Functions {
        add_device: get!(b"fake_ibverbs_add_device"),
        reset: get!(b"fake_ibverbs_reset"),
        set: get!(b"fake_ibverbs_set"),
        get: get!(b"fake_ibverbs_get"),
        fail: get!(b"fake_ibverbs_fail"),
        forge: get!(b"fake_ibverbs_forge"),
        inject: get!(b"fake_ibverbs_inject"),
        poll_returns: get!(b"fake_ibverbs_poll_returns"),
        event: get!(b"fake_ibverbs_event"),
        cm_event: get!(b"fake_ibverbs_cm_event"),
        break_cm: get!(b"fake_ibverbs_break_cm"),
        set_gid: get!(b"fake_ibverbs_set_gid"),
        remove: get!(b"fake_ibverbs_remove"),
        run: get!(b"fake_ibverbs_run"),
        text: get!(b"fake_ibverbs_text"),
    };
    Ok(FUNCTIONS.get_or_init(|| functions))
}

/// A C string of a text up to its first zero.
fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or("")).unwrap_or_default()
}

const FILE: &str = "libqpair_fake_ibverbs.so";
