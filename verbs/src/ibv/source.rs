//! Where completions come from: the plain queue, or the extended one, which tells when each was.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use qpair_verbs_sys as sys;

use super::cq_shared::CqShared;
use crate::error::CqError;

/// How a completion queue is polled.
#[derive(Debug)]
pub(super) enum Source {
    Plain(sys::HotOps),
    Timed(Box<Timed>),
}

/// An extended queue, with the calls that read a completion.
pub(super) struct Timed {
    start: unsafe extern "C" fn(*mut sys::ibv_cq_ex, *mut sys::ibv_poll_cq_attr) -> i32,
    next: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> i32,
    end: unsafe extern "C" fn(*mut sys::ibv_cq_ex),
    opcode: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> sys::ibv_wc_opcode,
    vendor_err: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u32,
    byte_len: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u32,
    imm: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u32,
    qp_num: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u32,
    src_qp: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u32,
    flags: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u32,
    timestamp: unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> u64,
}

impl Source {
    /// The calls of an extended queue; `None` if some are absent.
    ///
    /// # Safety
    /// `cq` is alive, and was made by `ibv_create_cq_ex` with [`WANTED`](super::timed::WANTED).
    pub(super) unsafe fn timed(cq: NonNull<sys::ibv_cq_ex>) -> Option<Self> {
        // SAFETY: alive, by the caller; its calls are set once and for all.
        let calls = unsafe { cq.as_ref() };
        Some(Source::Timed(Box::new(Timed {
            start: calls.start_poll?,
            next: calls.next_poll?,
            end: calls.end_poll?,
            opcode: calls.read_opcode?,
            vendor_err: calls.read_vendor_err?,
            byte_len: calls.read_byte_len?,
            imm: calls.read_imm_data?,
            qp_num: calls.read_qp_num?,
            src_qp: calls.read_src_qp?,
            flags: calls.read_wc_flags?,
            timestamp: calls.read_completion_ts?,
        })))
    }

    /// Takes what the device has, as far as there is room: the number of completions that were put there.
    ///
    /// # Errors
    /// [`CqError::Device`].
    #[inline(always)]
    pub(super) fn poll<const N: usize>(
        &self,
        cq: &CqShared,
        batch: &mut [MaybeUninit<sys::ibv_wc>; N],
        times: &mut [u64],
    ) -> Result<usize, CqError> {
        match self {
            Source::Plain(ops) => {
                // SAFETY: the queue is alive, and there is room for so many completions.
                let count = unsafe { (ops.poll_cq)(cq.raw(), N as i32, batch.as_mut_ptr().cast()) };
                match usize::try_from(count) {
                    Ok(found) if found <= N => Ok(found),
                    // More than it was asked for: what it wrote where is anybody's guess.
                    _ => Err(CqError::Device { code: count }),
                }
            }
            Source::Timed(calls) => calls.poll(cq.raw().cast(), batch, times),
        }
    }
}

impl Timed {
    #[cold]
    fn poll(
        &self,
        cq: *mut sys::ibv_cq_ex,
        batch: &mut [MaybeUninit<sys::ibv_wc>],
        times: &mut [u64],
    ) -> Result<usize, CqError> {
        let mut attributes = sys::ibv_poll_cq_attr { comp_mask: 0 };
        let (mut count, room) = (0, batch.len());
        // SAFETY: the queue is alive and polled by its one owner. Nothing is read but between a start or next that says
        // that there is a completion, and the end.
        unsafe {
            let mut status = (self.start)(cq, &raw mut attributes);
            if status == libc::ENOENT {
                return Ok(0);
            }
            if status != 0 {
                return Err(CqError::Device { code: status });
            }
            for (place, time) in batch.iter_mut().zip(times) {
                place.write(self.read(cq));
                *time = (self.timestamp)(cq);
                count += 1;
                if count == room {
                    break;
                }
                status = (self.next)(cq);
                if status != 0 {
                    break;
                }
            }
            (self.end)(cq);
            if status != 0 && status != libc::ENOENT && count == 0 {
                return Err(CqError::Device { code: status });
            }
        }
        Ok(count)
    }

    /// The completion that the queue stands at. Of a failed one there is little to read.
    ///
    /// # Safety
    /// The queue stands at a completion.
    unsafe fn read(&self, cq: *mut sys::ibv_cq_ex) -> sys::ibv_wc {
        // SAFETY: all zeroes is a valid value of these plain numbers.
        let mut wc: sys::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: by the caller; all of this was asked for when the queue was made.
        unsafe {
            (wc.wr_id, wc.status) = ((*cq).wr_id, (*cq).status);
            wc.qp_num = (self.qp_num)(cq);
            if wc.status != sys::IBV_WC_SUCCESS {
                wc.vendor_err = (self.vendor_err)(cq);
                return wc;
            }
            (wc.opcode, wc.byte_len, wc.wc_flags) = ((self.opcode)(cq), (self.byte_len)(cq), (self.flags)(cq));
            if wc.wc_flags & (sys::IBV_WC_WITH_IMM | sys::IBV_WC_WITH_INV) != 0 {
                wc.__bindgen_anon_1.imm_data = (self.imm)(cq);
            }
            wc.src_qp = (self.src_qp)(cq);
        }
        wc
    }
}

impl std::fmt::Debug for Timed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Timed")
    }
}
