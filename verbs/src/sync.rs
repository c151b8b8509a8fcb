//! Atomics of the lock-free parts: the standard ones, or loom's when the model is checked.

#[cfg(all(loom, test))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Takes a lock, whatever became of who had it: what they guard is whole between any two statements.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits at `changed` until `look` finds something, until `deadline` at most. With one that has passed it looks once.
pub(crate) fn wait<T, R>(
    of: &std::sync::Mutex<T>,
    changed: &std::sync::Condvar,
    deadline: Option<std::time::Instant>,
    mut look: impl FnMut(&mut T) -> Option<R>,
) -> Option<R> {
    let mut guard = lock(of);
    loop {
        if let Some(found) = look(&mut guard) {
            return Some(found);
        }
        guard = match deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now())) {
            None => changed.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner),
            Some(left) if left.is_zero() => return None,
            Some(left) => changed.wait_timeout(guard, left).unwrap_or_else(std::sync::PoisonError::into_inner).0,
        };
    }
}

/// `std`'s cell with loom's interface.
#[cfg(not(all(loom, test)))]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(loom, test)))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
