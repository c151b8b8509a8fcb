//! The C functions, by what they are about. Each does its work with the world locked and returns what C returns: an
//! errno, or a pointer that is null with errno set.

mod cm;
mod completion;
mod control;
mod data;
mod extended;
mod library;
mod poll_ex;
mod protection;
mod query;
mod queue_pair;
mod srq_ah;
mod unsupported;

use std::ffi::c_int;

/// The result of a function that returns an errno.
fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// The result of a function that returns a pointer.
fn pointer<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// The result of a function that returns -1 and sets errno.
fn minus_one(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn set_errno(errno: c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// A C structure that is never freed: its address stays its name, also of one destroyed.
fn structure<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// A C structure of zeros.
///
/// # Safety
/// Zero is a value of each field.
unsafe fn zeroed<T>() -> T {
    // SAFETY: as the caller says.
    unsafe { std::mem::zeroed() }
}
