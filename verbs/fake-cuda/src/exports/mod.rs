//! The C functions, by what they are about. Each does its work with the world locked and returns a `CUresult`.

mod context;
mod control;
mod copy;
mod library;
mod memory;
mod module;
mod pointer;
mod share;
mod stream;
mod virtual_memory;

use crate::code::{self, Outcome};

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` is null, or the caller's to be written to.
unsafe fn put<T>(to: *mut T, value: T) -> Outcome<()> {
    if to.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: as the caller says.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads what the caller gives.
///
/// # Safety
/// `from` is null, or the caller's to be read.
unsafe fn take<T: Copy>(from: *const T) -> Outcome<T> {
    if from.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: as the caller says.
    Ok(unsafe { from.read_unaligned() })
}

/// What has to hold for a value.
fn valid(holds: bool) -> Outcome<()> {
    if holds { Ok(()) } else { Err(code::INVALID_VALUE) }
}

/// What a device has to support.
fn supported(supports: bool) -> Outcome<()> {
    if supports { Ok(()) } else { Err(code::NOT_SUPPORTED) }
}
