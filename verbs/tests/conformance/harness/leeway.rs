//! What devices may do in more than one way. The software devices are held to one way; others to what the InfiniBand
//! specification (1.4) leaves open, which is named here and nowhere else.

use std::sync::OnceLock;
use std::time::Duration;

use qpair_verbs::{Completion, CompletionQueue, WcStatus};

use super::LIMIT;

/// What software devices promise beyond the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Connecting asks the peer's device, and fails where the peer is not there.
    PeersAreLookedUp,
    /// A refused request raises an event at the side that refused it.
    AccessErrorsAreTold,
    /// Keys and queue pair numbers can not be guessed.
    NumbersAreRandom,
    /// Users' processes do the device's work for each other.
    ServedByProcesses,
}

impl Promise {
    /// Whether the device gives it.
    pub(super) fn is_given(self) -> bool {
        match self {
            Promise::PeersAreLookedUp | Promise::ServedByProcesses => is_soft(),
            Promise::AccessErrorsAreTold | Promise::NumbersAreRandom => is_ours(),
        }
    }

    /// What a device that does not give it can not do, and why it need not.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Promise::PeersAreLookedUp => "looking its peer up (connecting is a local matter)",
            Promise::AccessErrorsAreTold => {
                "raising an event where it refuses a request (rdma_rxe, seen in Linux 6.12)"
            }
            Promise::NumbersAreRandom => {
                "numbers that can not be guessed (kernel and adapter choose them, mostly in order)"
            }
            Promise::ServedByProcesses => "being served by processes (kernel and adapter do all)",
        }
    }
}

/// The device that the cases run on.
pub fn device() -> &'static str {
    static DEVICE: OnceLock<String> = OnceLock::new();
    DEVICE.get_or_init(|| std::env::var("QPAIR_TEST_DEVICE").unwrap_or_else(|_| "soft0".to_owned()))
}

/// The device of processes that are a far side. `QPAIR_TEST_FAR_DEVICE` names it; else it is the same.
pub fn far_device() -> &'static str {
    static DEVICE: OnceLock<String> = OnceLock::new();
    DEVICE.get_or_init(|| std::env::var("QPAIR_TEST_FAR_DEVICE").unwrap_or_else(|_| device().to_owned()))
}

/// Whether that is a software device of this project's own, on its shared memory wire.
pub fn is_soft() -> bool {
    is_ours() && !over_network()
}

/// Whether both sides are software devices of this project's own, on whichever wire.
pub fn is_ours() -> bool {
    [device(), far_device()].iter().all(|device| device.starts_with("soft"))
}

/// Whether software devices meet over the network: even on one host, or since the other side is none.
pub fn over_network() -> bool {
    device() != far_device() || std::env::var_os("QPAIR_NO_SHARED_MEMORY").is_some_and(|value| value == "1")
}

/// Whether one of the devices is Linux' rdma_rxe; `vendor` is that of the near one.
pub(super) fn is_rxe(vendor: u32) -> bool {
    vendor == 0x00ff_ffff || far_device().starts_with("rxe")
}

/// How often to do what finds more the more often it is done: less often where each takes a system call or a network.
pub fn turns(soft: u32) -> u32 {
    if is_soft() { soft } else { soft.div_ceil(5) }
}

/// How long that may take which a software device has done when posting returns.
pub fn at_once() -> Duration {
    if is_soft() { Duration::ZERO } else { LIMIT }
}

/// The completion of what was just posted.
#[track_caller]
pub fn take(cq: &mut CompletionQueue) -> Completion<'_> {
    if is_soft() { cq.poll().unwrap().expect("a completion") } else { cq.wait_for(LIMIT).expect("a completion") }
}

fn choose(soft: &'static [WcStatus], any: &'static [WcStatus]) -> &'static [WcStatus] {
    if is_soft() { soft } else { any }
}

/// Of a request that the peer's queue pair is not open for, whatever its memory allows: an invalid request, or as if the
/// memory did not allow it.
pub fn service_refused() -> &'static [WcStatus] {
    choose(&[WcStatus::REM_ACCESS_ERR], &[WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR])
}

/// Of a message longer than its receive: an invalid request, or, once its bytes find no place, an error in the
/// responder's own work.
pub fn too_long() -> &'static [WcStatus] {
    choose(&[WcStatus::REM_INV_REQ_ERR], &[WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR])
}

/// Of the receive that is too small, which may count as an error of the queue pair's own work.
pub fn too_small() -> &'static [WcStatus] {
    choose(&[WcStatus::LOC_LEN_ERR], &[WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR])
}

/// Of a receive at a queue pair that refused a request: one that the request would have taken may tell why.
pub fn behind_refused() -> &'static [WcStatus] {
    choose(&[WcStatus::WR_FLUSH_ERR], &[WcStatus::WR_FLUSH_ERR, WcStatus::REM_ACCESS_ERR])
}

/// Of a bind that is refused. rdma_rxe (seen in Linux 6.12) may flush the request before it tells why.
pub fn bind_refused() -> &'static [WcStatus] {
    choose(&[WcStatus::MW_BIND_ERR], &[WcStatus::MW_BIND_ERR, WcStatus::WR_FLUSH_ERR])
}
