//! The system's allocator with a count: shows that a stretch of code allocates nothing. A program that declares this
//! module uses it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocations of this process so far, on all threads.
#[allow(dead_code, reason = "a program uses one of the two counts")]
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Allocations of this thread so far.
#[allow(dead_code, reason = "a program uses one of the two counts")]
pub fn allocations_here() -> u64 {
    HERE.get()
}

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came, and that keeps the contract; counting touches no memory
// of the caller. Growing in place or not, `realloc` comes through `alloc` too.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        HERE.set(HERE.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}
