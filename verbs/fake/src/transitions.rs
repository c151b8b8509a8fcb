//! Which changes of a queue pair's state the kernel accepts, and with which attributes.

use std::ffi::c_int;

use qpair_verbs_sys::*;

/// Refuses a change that is not legal, that lacks an attribute, or that has one too many.
pub(crate) fn check(kind: u32, from: u32, to: u32, mask: u32) -> Result<(), c_int> {
    let (required, optional) = legal(kind, from, to).ok_or(libc::EINVAL)?;
    let given = mask & !IBV_QP_STATE;
    if given & required == required && given & !(required | optional) == 0 { Ok(()) } else { Err(libc::EINVAL) }
}

/// Attributes that a change needs, and those that it may have.
fn legal(kind: u32, from: u32, to: u32) -> Option<(u32, u32)> {
    let reliable = kind == IBV_QPT_RC;
    let (connected, datagram) = (reliable || kind == IBV_QPT_UC, kind == IBV_QPT_UD);
    if !connected && !datagram {
        return None;
    }
    let pick = |rc: u32, uc: u32, ud: u32| match kind {
        IBV_QPT_RC => rc,
        IBV_QPT_UC => uc,
        _ => ud,
    };
    let first = IBV_QP_PKEY_INDEX | IBV_QP_PORT | if datagram { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
    let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    let changeable = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
    let sending = pick(changeable | IBV_QP_MIN_RNR_TIMER, changeable, IBV_QP_CUR_STATE | IBV_QP_QKEY);
    let limited = IBV_QP_RATE_LIMIT;
    match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_ERR) => None,
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((first, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, first)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some((
            pick(path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, path, 0),
            IBV_QP_PKEY_INDEX | if datagram { IBV_QP_QKEY } else { IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS },
        )),
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            Some((IBV_QP_SQ_PSN | if reliable { retries } else { 0 }, sending | limited))
        }
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => Some((0, sending | limited)),
        (IBV_QPS_SQE, IBV_QPS_RTS) if !reliable => {
            Some((0, IBV_QP_CUR_STATE | if datagram { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS }))
        }
        (IBV_QPS_RTS, IBV_QPS_SQD) => Some((0, IBV_QP_EN_SQD_ASYNC_NOTIFY)),
        (IBV_QPS_SQD, IBV_QPS_SQD) => {
            let drained = IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;
            let retries = IBV_QP_PORT
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER;
            Some((0, pick(drained | retries, drained, IBV_QP_PKEY_INDEX | IBV_QP_QKEY)))
        }
        _ => None,
    }
}
