//! Panics of what is not this library's: owners of memory, wakers, and subscribers of the log.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does something; where that panics, it is an error that says so of `who`. What is used in it is made for threads that end at any
/// place.
pub(crate) fn as_error<R>(who: &str, act: impl FnOnce() -> R) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        // It may be of a type whose drop panics.
        std::mem::forget(panic);
        io::Error::other(format!("{who} panicked"))
    })
}
