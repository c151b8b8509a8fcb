//! Room for inline data, of which devices do not tell how much they have: found by making queue pairs.

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::{fmt, io};

use qpair_verbs_sys as sys;

use super::handle::{Handle, made};
use crate::error::CreateError;

/// What was found out.
pub(super) struct Found {
    /// Bytes that a queue pair has room for, up to [`MOST`].
    pub(super) len: u32,
    /// True if it will be the same another time: nothing but the device's limits stood in the way of more.
    pub(super) lasting: bool,
}

/// The room that the device's queue pairs have: those of RC, or of UD where there is no RC.
pub(super) fn greatest(handle: &Handle) -> Found {
    let library = handle.library;
    let none = |error: &io::Error| Found { len: 0, lasting: is_lasting(error) };
    // SAFETY: the context is open; what is made is given back below, in reverse.
    unsafe {
        let pd = match made((library.ibv_alloc_pd)(handle.ctx())) {
            Ok(pd) => pd,
            Err(error) => return none(&error),
        };
        let found = match made((library.ibv_create_cq)(handle.ctx(), 4, null_mut(), null_mut(), 0)) {
            Ok(cq) => {
                let found = probe(|qp_type, len| make(handle, (pd.as_ptr(), cq.as_ptr()), qp_type, len));
                (library.ibv_destroy_cq)(cq.as_ptr());
                found
            }
            Err(error) => none(&error),
        };
        (library.ibv_dealloc_pd)(pd.as_ptr());
        found
    }
}

fn probe(make: impl Fn(u32, u32) -> io::Result<u32>) -> Found {
    let mut lasting = true;
    for qp_type in [sys::IBV_QPT_RC, sys::IBV_QPT_UD] {
        for len in TRIED {
            match make(qp_type, len) {
                Ok(given) => return Found { len: granted(len, given).min(MOST), lasting },
                Err(error) => lasting &= is_lasting(&error),
            }
        }
    }
    Found { len: 0, lasting }
}

/// Makes a queue pair with so much room and gives it back; the room that it had, as the device says.
///
/// # Safety
/// Domain and queue are alive.
unsafe fn make(
    handle: &Handle,
    (pd, cq): (*mut sys::ibv_pd, *mut sys::ibv_cq),
    qp_type: u32,
    len: u32,
) -> io::Result<u32> {
    // SAFETY: all zeroes is a valid value of these plain attributes.
    let mut attributes = unsafe { MaybeUninit::<sys::ibv_qp_init_attr>::zeroed().assume_init() };
    (attributes.send_cq, attributes.recv_cq, attributes.qp_type) = (cq, cq, qp_type);
    attributes.cap =
        sys::ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: len };
    // SAFETY: domain and queue are alive, by the caller.
    let qp = made(unsafe { (handle.library.ibv_create_qp)(pd, &raw mut attributes) })?;
    // SAFETY: just made, and nothing was posted.
    unsafe { (handle.library.ibv_destroy_qp)(qp.as_ptr()) };
    Ok(attributes.cap.max_inline_data)
}

/// The room that a queue pair has, by what was asked for and what the device says that it gave. Some providers give more, some
/// less without a word (libhns where it has 32 bytes at most), and some say 0 where they gave what was asked for.
fn granted(asked: u32, given: u32) -> u32 {
    if given == 0 { asked } else { given }
}

/// Whether a refusal tells of the device, and not of what it is short of at this moment.
fn is_lasting(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS))
}

/// Room for inline data in a queue pair that was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes that there is room for.
    pub(super) len: u32,
    /// Bytes that were to be had room for.
    wanted: u32,
}

impl Room {
    /// Makes a queue pair by `make`, with room for so many bytes; `make` tells how much the device says that it gave. Room makes
    /// each slot longer, so that devices have less of it in deep queues: where it was not `asked` for, but is the default, a
    /// queue pair with less is made then.
    ///
    /// # Errors
    /// The first that `make` gave.
    pub(super) fn fit<T>(
        wanted: u32,
        asked: bool,
        make: impl Fn(u32) -> Result<(T, u32), CreateError>,
    ) -> Result<(T, Room), CreateError> {
        let make = |len| make(len).map(|(made, given)| (made, Room { len: granted(len, given).min(len), wanted }));
        let error = match make(wanted) {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        let too_long = match &error {
            CreateError::Exhausted { .. } | CreateError::Memlock { .. } => true,
            CreateError::System { source, .. } => source.raw_os_error() == Some(libc::EINVAL),
            _ => false,
        };
        let less = TRIED.into_iter().filter(|&len| !asked && too_long && len < wanted);
        let mut made = less.filter_map(|len| make(len).ok());
        made.next().ok_or(error)
    }
}

/// For people: nothing if there is as much as there was to be.
impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.len == self.wanted {
            return Ok(());
        }
        write!(
            f,
            "; room for {} bytes of inline data, not {}: the device has no more for queues this deep",
            self.len, self.wanted
        )
    }
}

/// What queue pairs reserve by default at most: room for it makes each slot of a send queue longer.
const MOST: u32 = 256;
const TRIED: [u32; 5] = [MOST, 128, 64, 32, 0];
