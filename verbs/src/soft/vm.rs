//! Copies to and from memory of another process that is not mapped here: process_vm_writev(2) and process_vm_readv(2).
//!
//! They take its number, which the system gives to another process one day: the link says right before each whether it is that
//! of its peer still.

use std::io;

/// Writes `len` bytes at `from` to address `to` of process `pid`.
///
/// # Safety
/// `from` is readable for `len` bytes. The other process's memory is that process's own affair: the kernel checks it. `pid` is
/// what the peer's link gave just now.
pub(crate) unsafe fn write(pid: i32, to: u64, from: *const u8, len: usize) -> io::Result<()> {
    transfer(len, |done| {
        let local = libc::iovec { iov_base: from.wrapping_add(done).cast_mut().cast(), iov_len: len - done };
        let remote =
            libc::iovec { iov_base: (to as usize).wrapping_add(done) as *mut libc::c_void, iov_len: len - done };
        // SAFETY: the local part is readable by the caller's word.
        unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) }
    })
}

/// Reads `len` bytes at address `from` of process `pid` to `to`.
///
/// # Safety
/// `to` is writable for `len` bytes. `pid` as for [`write()`].
pub(crate) unsafe fn read(pid: i32, to: *mut u8, from: u64, len: usize) -> io::Result<()> {
    transfer(len, |done| {
        let local = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: len - done };
        let remote =
            libc::iovec { iov_base: (from as usize).wrapping_add(done) as *mut libc::c_void, iov_len: len - done };
        // SAFETY: the local part is writable by the caller's word.
        unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) }
    })
}

/// True if the error says that this process may not copy so at all: the system forbids it, or the other process has no
/// number here.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES | libc::ESRCH))
}

/// Repeats a transfer until all of it is done: the kernel may stop early.
fn transfer(len: usize, mut step: impl FnMut(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match usize::try_from(step(done)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => done += moved,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
