//! Device memory: files in memory, read and written through their descriptors. No mapping of them can be read or written
//! by a CPU here, so code that follows a device pointer faults. Host memory is reached through the kernel too: a pointer
//! to nowhere is an error.

use std::ffi::{CString, c_int};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::{self, Outcome};

/// One piece of device memory.
#[derive(Debug)]
pub(crate) struct Backing {
    file: File,
    pub(crate) len: u64,
    pub(crate) device: usize,
    /// What it counts in the device's use, until it is gone.
    charge: Option<Charge>,
}

/// Bytes of a device in use.
#[derive(Debug)]
struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

/// Some bytes of the unified address space.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Of device memory, from an offset.
    Device(Arc<Backing>, u64, usize),
    /// Of host memory, at an address.
    Host(u64, usize),
}

impl Backing {
    /// New memory of a device, zeroed; `bytes` of it count.
    pub(crate) fn new(name: &str, device: usize, len: u64, used: &Arc<AtomicU64>, bytes: u64) -> Outcome<Backing> {
        let name = CString::new(name).map_err(|_| code::OPERATING_SYSTEM)?;
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(code::OPERATING_SYSTEM);
        }
        // SAFETY: made just now, and nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len).map_err(|_| code::OUT_OF_MEMORY)?;
        used.fetch_add(bytes, Ordering::Relaxed);
        Ok(Backing { file, len, device, charge: Some(Charge { used: used.clone(), bytes }) })
    }

    /// Memory of another process, or of this one, that its file stands for.
    pub(crate) fn of(file: File, device: usize) -> Outcome<Backing> {
        let len = file.metadata().map_err(|_| code::INVALID_VALUE)?.len();
        Ok(Backing { file, len, device, charge: None })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.file.as_raw_fd()
    }

    /// What tells its file from any other that exists.
    pub(crate) fn inode(&self) -> u64 {
        inode(&self.file)
    }

    /// A descriptor of its own, with a position of its own: the offset.
    pub(crate) fn export(&self, offset: u64) -> Outcome<c_int> {
        let path = format!("/proc/self/fd/{}", self.fd());
        let file = File::options().read(true).write(true).open(path).map_err(|_| code::OPERATING_SYSTEM)?;
        // SAFETY: an open descriptor.
        let at = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, libc::SEEK_SET) };
        if at < 0 { Err(code::OPERATING_SYSTEM) } else { Ok(std::os::fd::IntoRawFd::into_raw_fd(file)) }
    }

    /// Maps a part to an address of [`Arena`], without any right to it.
    pub(crate) fn map(&self, at: u64, len: u64, offset: u64) -> Outcome<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the caller has the address from an arena, where nothing but such mappings is.
        let mapped = unsafe {
            libc::mmap(pointer(at).cast(), len as usize, libc::PROT_NONE, flags, self.fd(), offset as libc::off_t)
        };
        if mapped == libc::MAP_FAILED { Err(code::OUT_OF_MEMORY) } else { Ok(()) }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(charge) = &self.charge {
            charge.used.fetch_sub(charge.bytes, Ordering::Relaxed);
        }
    }
}

/// What tells a file from any other that exists.
pub(crate) fn inode(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| std::os::unix::fs::MetadataExt::ino(&metadata))
}

/// Takes a mapping of [`Backing::map`] away; the addresses stay taken.
pub(crate) fn unmap(at: u64, len: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as for `map`.
    unsafe { libc::mmap(pointer(at).cast(), len as usize, libc::PROT_NONE, flags, -1, 0) };
}

/// The bytes of pieces, one after the other.
pub(crate) fn gather(pieces: &[Piece]) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in pieces {
        let from = bytes.len();
        match piece {
            Piece::Device(backing, offset, len) => {
                bytes.resize(from + len, 0);
                let done = backing.file.read_exact_at(&mut bytes[from..], *offset);
                done.map_err(|_| code::ILLEGAL_ADDRESS)?;
            }
            Piece::Host(address, len) => {
                bytes.resize(from + len, 0);
                host(Way::Read, *address, bytes[from..].as_mut_ptr(), *len)?;
            }
        }
    }
    Ok(bytes)
}

/// The number at pieces of 8 bytes at most.
pub(crate) fn word(pieces: &[Piece]) -> Outcome<u64> {
    let (bytes, mut word) = (gather(pieces)?, [0; 8]);
    word.get_mut(..bytes.len()).ok_or(code::INVALID_VALUE)?.copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(word))
}

/// Changes the word of 8 bytes at one piece, atomically for all processes that have its memory: what `change` returns.
pub(crate) fn change(pieces: &[Piece], change: impl FnOnce(&AtomicU64) -> u64) -> Outcome<u64> {
    let [piece] = pieces else { return Err(code::ILLEGAL_ADDRESS) };
    match piece {
        Piece::Device(backing, offset, 8) => {
            let (page, at) = (offset / PAGE * PAGE, (offset % PAGE) as usize);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping of a page of the file, which has the word: its memory was resolved.
            let mapped = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    PAGE as usize,
                    rights,
                    libc::MAP_SHARED,
                    backing.fd(),
                    page as libc::off_t,
                )
            };
            if mapped == libc::MAP_FAILED {
                return Err(code::OPERATING_SYSTEM);
            }
            // SAFETY: the word is in the page, at a multiple of 8, and is accessed by system calls otherwise.
            let before = change(unsafe { AtomicU64::from_ptr(mapped.cast::<u8>().add(at).cast()) });
            // SAFETY: mapped above, and nobody else has it.
            unsafe { libc::munmap(mapped, PAGE as usize) };
            Ok(before)
        }
        // SAFETY: pinned memory of this process, at a multiple of 8, by the word of who launched the kernel.
        Piece::Host(address, 8) => Ok(change(unsafe { AtomicU64::from_ptr(pointer(*address).cast()) })),
        _ => Err(code::ILLEGAL_ADDRESS),
    }
}

/// Writes bytes to pieces, which are as long together.
pub(crate) fn scatter(pieces: &[Piece], mut bytes: &[u8]) -> Outcome<()> {
    for piece in pieces {
        match piece {
            Piece::Device(backing, offset, len) => {
                backing.file.write_all_at(&bytes[..*len], *offset).map_err(|_| code::ILLEGAL_ADDRESS)?;
                bytes = &bytes[*len..];
            }
            Piece::Host(address, len) => {
                host(Way::Write, *address, bytes[..*len].as_ptr().cast_mut(), *len)?;
                bytes = &bytes[*len..];
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

/// Copies between this process's memory at an address, which may be wrong, and a buffer, which is right.
fn host(way: Way, address: u64, buffer: *mut u8, len: usize) -> Outcome<()> {
    let mut done = 0;
    while done < len {
        // SAFETY: within the buffer.
        let local = libc::iovec { iov_base: unsafe { buffer.add(done) }.cast(), iov_len: len - done };
        let remote = libc::iovec { iov_base: pointer(address + done as u64).cast(), iov_len: len - done };
        // SAFETY: the kernel checks the remote side as it would another process's; the local one is the buffer.
        let moved = unsafe {
            match way {
                Way::Read => libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0),
                Way::Write => libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0),
            }
        };
        match usize::try_from(moved) {
            Ok(moved) if moved > 0 => done += moved,
            _ if matches!(errno(), libc::EPERM | libc::ENOSYS) => {
                // SAFETY: where the kernel does not let us ask it, the caller of the driver's function vouches for it.
                unsafe {
                    match way {
                        Way::Read => std::ptr::copy(pointer(address + done as u64), buffer.add(done), len - done),
                        Way::Write => std::ptr::copy(buffer.add(done), pointer(address + done as u64), len - done),
                    }
                }
                return Ok(());
            }
            _ => return Err(code::ILLEGAL_ADDRESS),
        }
    }
    Ok(())
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An address as the system calls take it.
pub(crate) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Addresses that are taken for ever, of which device pointers are made. None is given twice, so a pointer to what was
/// freed is known as such.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    taken: Vec<std::ops::Range<u64>>,
    next: u64,
}

impl Arena {
    /// As many addresses, at a multiple of an alignment, which is a power of two.
    pub(crate) fn take(&mut self, len: u64, alignment: u64) -> Outcome<u64> {
        let place = |next: u64| next.checked_next_multiple_of(alignment.max(GAP));
        let fits = |arena: &Arena| {
            let end = arena.taken.last()?.end;
            let at = place(arena.next)?;
            (at.checked_add(len)? <= end).then_some(at)
        };
        let at = match fits(self) {
            Some(at) => at,
            None => {
                self.reserve(len.checked_add(alignment).ok_or(code::OUT_OF_MEMORY)?)?;
                fits(self).ok_or(code::OUT_OF_MEMORY)?
            }
        };
        // At least a page between two, so that what runs over the end of one is not in the next.
        self.next = at + len + 1;
        Ok(at)
    }

    /// Whether it is an address of devices.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.taken.iter().any(|range| range.contains(&address))
    }

    fn reserve(&mut self, len: u64) -> Outcome<()> {
        let len = len.max(CHUNK).next_multiple_of(GAP) + GAP;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(code::OUT_OF_MEMORY);
        }
        let at = at.expose_provenance() as u64;
        self.taken.push(at..at + len);
        self.next = at;
        Ok(())
    }
}

/// What allocations and reservations are apart from each other at least, as large pages are.
const GAP: u64 = 2 << 20;

/// Addresses taken at once.
const CHUNK: u64 = 64 << 30;

/// The pages that the host has.
pub(crate) const PAGE: u64 = 4096;
