//! The functions by which tests steer the library: their types, as both sides use them. What returns a `c_int` returns 0
//! or an errno. A device is its ordinal; -1 is the calling thread.

use std::ffi::{c_char, c_int};

/// What [`Text`] tells.
pub(crate) mod text {
    pub(crate) const CALLS: u32 = 0;
    pub(crate) const VIOLATIONS: u32 = 1;
    pub(crate) const LIVE: u32 = 2;
}

/// `fake_cuda_add_device`: the ordinal of a new device.
pub(crate) type AddDevice = unsafe extern "C" fn() -> c_int;
/// `fake_cuda_reset`: forgets settings, scripts and records.
pub(crate) type Reset = unsafe extern "C" fn(device: c_int) -> c_int;
/// `fake_cuda_set`: a setting by name.
pub(crate) type Set = unsafe extern "C" fn(device: c_int, name: *const c_char, value: u64) -> c_int;
/// `fake_cuda_set_attribute`: a `CUdevice_attribute` by number.
pub(crate) type SetAttribute = unsafe extern "C" fn(device: c_int, attribute: u32, value: c_int) -> c_int;
/// `fake_cuda_get`: a setting, `used` for the bytes allocated, `urgent_streams`, or `calls.NAME`.
pub(crate) type Get = unsafe extern "C" fn(device: c_int, name: *const c_char, value: *mut u64) -> c_int;
/// `fake_cuda_fail`: the `nth` call from now of a function fails, and `times - 1` after it; 0 times is for ever.
pub(crate) type Fail =
    unsafe extern "C" fn(device: c_int, symbol: *const c_char, nth: u32, times: u32, code: u32) -> c_int;
/// `fake_cuda_fault`: the `nth` kernel launched from now fails when it runs, and the context with it.
pub(crate) type Fault = unsafe extern "C" fn(device: c_int, nth: u32, code: u32) -> c_int;
/// `fake_cuda_hold`: nothing is done in a stream, or in any of the device with 0, until it is let go.
pub(crate) type Hold = unsafe extern "C" fn(device: c_int, stream: u64, hold: c_int) -> c_int;
/// `fake_cuda_peek`: bytes of device memory as they are now.
pub(crate) type Peek = unsafe extern "C" fn(from: u64, to: *mut u8, len: usize) -> c_int;
/// `fake_cuda_poke`: writes bytes of device memory now, as another device on the bus may.
pub(crate) type Poke = unsafe extern "C" fn(to: u64, from: *const u8, len: usize) -> c_int;
/// `fake_cuda_copy`: gives the device's default stream a copy between two addresses of devices.
pub(crate) type Copy = unsafe extern "C" fn(device: c_int, to: u64, from: u64, len: usize) -> c_int;
/// `fake_cuda_text`: lines, as many bytes as fit; returns how many there are.
pub(crate) type Text = unsafe extern "C" fn(device: c_int, what: u32, to: *mut c_char, room: usize) -> usize;
