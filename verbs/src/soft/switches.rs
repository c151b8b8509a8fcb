//! Switches that turn off what a system may refuse, so that the ways around it can be tried anywhere.

/// `QPAIR_NO_PROCESS_VM=1`: memory that can not be mapped goes through the bounce area at once.
pub(crate) fn no_process_vm() -> bool {
    is_on("QPAIR_NO_PROCESS_VM")
}

/// `QPAIR_NO_MEMBARRIER=1`: every light barrier is a fence.
pub(crate) fn no_membarrier() -> bool {
    is_on("QPAIR_NO_MEMBARRIER")
}

/// `QPAIR_NO_SHARED_MEMORY=1`: what leads to shared memory is left out of addresses, so that connections to this process go
/// over the network even on one host.
pub(crate) fn no_shared_memory() -> bool {
    is_on("QPAIR_NO_SHARED_MEMORY")
}

/// `QPAIR_NO_PINNING=1`: memory that peers allocated is not pinned for GPUs where it is mapped.
pub(crate) fn no_pinning() -> bool {
    is_on("QPAIR_NO_PINNING")
}

/// `QPAIR_NO_PEER_ACCESS=1`: no GPU is let in to another's memory, so that CUDA's driver copies between them by way of the processor's.
pub(crate) fn no_peer_access() -> bool {
    is_on("QPAIR_NO_PEER_ACCESS")
}

fn is_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}
