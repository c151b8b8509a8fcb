//! The functions by which tests steer the library: their types, as both sides use them.

use std::ffi::{c_char, c_int};

/// A completion that a test makes up, or what it changes in one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Forged {
    /// Which of the following count: a sum of [`field`]'s bits.
    pub(crate) fields: u32,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) qp_num: u32,
    pub(crate) byte_len: u32,
    pub(crate) wc_flags: u32,
    pub(crate) imm_data: u32,
    pub(crate) vendor_err: u32,
    pub(crate) wr_id: u64,
}

/// Bits of [`Forged::fields`].
pub(crate) mod field {
    pub(crate) const STATUS: u32 = 1;
    pub(crate) const OPCODE: u32 = 1 << 1;
    pub(crate) const QP_NUM: u32 = 1 << 2;
    pub(crate) const BYTE_LEN: u32 = 1 << 3;
    pub(crate) const WC_FLAGS: u32 = 1 << 4;
    pub(crate) const IMM_DATA: u32 = 1 << 5;
    pub(crate) const VENDOR_ERR: u32 = 1 << 6;
    pub(crate) const WR_ID: u32 = 1 << 7;
    /// The completion is not delivered.
    pub(crate) const DROP: u32 = 1 << 8;
    /// The completion is delivered twice.
    pub(crate) const TWICE: u32 = 1 << 9;
}

/// What an event is about.
pub(crate) mod element {
    pub(crate) const PORT: u32 = 0;
    pub(crate) const QP: u32 = 1;
    pub(crate) const CQ: u32 = 2;
    pub(crate) const SRQ: u32 = 3;
}

/// What [`Text`] tells.
pub(crate) mod text {
    pub(crate) const CALLS: u32 = 0;
    pub(crate) const VIOLATIONS: u32 = 1;
    pub(crate) const LIVE: u32 = 2;
}

/// The variable in the environment that names a folder for devices' attributes, which stands for /sys/class/infiniband.
pub(crate) const ATTRIBUTES: &str = "FAKE_IBVERBS_ATTRIBUTES";

/// `fake_ibverbs_add_device`: 0, or EEXIST.
pub(crate) type AddDevice = unsafe extern "C" fn(device: *const c_char) -> c_int;
/// `fake_ibverbs_reset`: forgets scripts, records and counts.
pub(crate) type Reset = unsafe extern "C" fn(device: *const c_char) -> c_int;
/// `fake_ibverbs_set`: a setting by name.
pub(crate) type Set = unsafe extern "C" fn(device: *const c_char, name: *const c_char, value: u64) -> c_int;
/// `fake_ibverbs_get`: a setting, or a count.
pub(crate) type Get = unsafe extern "C" fn(device: *const c_char, name: *const c_char, value: *mut u64) -> c_int;
/// `fake_ibverbs_fail`: the `nth` call from now of a function fails, and `times - 1` after it; 0 times is for ever.
pub(crate) type Fail =
    unsafe extern "C" fn(device: *const c_char, symbol: *const c_char, nth: u32, times: u32, errno: c_int) -> c_int;
/// `fake_ibverbs_forge`: changes the `nth` completion from now.
pub(crate) type Forge = unsafe extern "C" fn(device: *const c_char, nth: u32, forged: *const Forged) -> c_int;
/// `fake_ibverbs_inject`: a completion of nothing, on the CQ of that handle, or on the device's first with 0.
pub(crate) type Inject = unsafe extern "C" fn(device: *const c_char, cq: u32, forged: *const Forged) -> c_int;
/// `fake_ibverbs_poll_returns`: the next poll that finds something returns this number, whatever it wrote.
pub(crate) type PollReturns = unsafe extern "C" fn(device: *const c_char, value: c_int) -> c_int;
/// `fake_ibverbs_event`: an asynchronous event, now.
pub(crate) type Event = unsafe extern "C" fn(device: *const c_char, event: u32, element: u32, number: u32) -> c_int;
/// `fake_ibverbs_cm_event`: an event of rdma_cm about the id of that handle, or about the device's oldest with 0.
pub(crate) type CmEvent = unsafe extern "C" fn(device: *const c_char, event: u32, status: c_int, handle: u32) -> c_int;
/// `fake_ibverbs_break_cm`: event channels hang up.
pub(crate) type BreakCm = unsafe extern "C" fn() -> c_int;
/// `fake_ibverbs_set_gid`: an entry of the GID table.
pub(crate) type SetGid =
    unsafe extern "C" fn(device: *const c_char, index: u32, gid: *const u8, gid_type: u32, ifindex: u32) -> c_int;
/// `fake_ibverbs_remove`: takes the device away.
pub(crate) type Remove = unsafe extern "C" fn(device: *const c_char) -> c_int;
/// `fake_ibverbs_run`: does what was held back.
pub(crate) type Run = unsafe extern "C" fn(device: *const c_char) -> c_int;
/// `fake_ibverbs_text`: lines, as many bytes as fit; returns how many there are.
pub(crate) type Text = unsafe extern "C" fn(device: *const c_char, what: u32, to: *mut c_char, room: usize) -> usize;
