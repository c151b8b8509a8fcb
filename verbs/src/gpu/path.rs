//! How a device reaches GPU memory.

use std::fmt;
use std::path::Path;

/// The way by which a device reaches GPU memory, and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationPath {
    pub(crate) way: Way,
    /// Why better ways were not taken; empty if there is none.
    pub(crate) why: String,
}

/// See [`RegistrationPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Software,
    DmaBuf,
    PeerMemory,
    Staging,
}

impl RegistrationPath {
    pub(crate) fn software() -> Self {
        RegistrationPath { way: Way::Software, why: String::new() }
    }

    /// Its name: `software` for the software device, `dma-buf`, `peermem` for the kernel module nvidia-peermem, or `staging`
    /// where the device does not reach the memory, and bytes go by a [`GpuStage`](crate::GpuStage).
    pub fn name(&self) -> &'static str {
        match self.way {
            Way::Software => "software",
            Way::DmaBuf => "dma-buf",
            Way::PeerMemory => "peermem",
            Way::Staging => "staging",
        }
    }

    /// Whether the device reaches the memory itself.
    pub fn is_direct(&self) -> bool {
        self.way != Way::Staging
    }

    /// Why a better way was not taken; empty if none is better.
    pub fn reason(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for RegistrationPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.why.is_empty() { Ok(()) } else { write!(f, " ({})", self.why) }
    }
}

/// How what a NIC wrote into GPU memory becomes visible to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flush {
    /// It is visible once its completion was polled.
    NotNeeded,
    /// It was made visible now.
    Done,
    /// Neither the driver nor the machine sees to it: a READ of one byte of the memory over a queue pair to itself does, once it
    /// completes.
    ReadBack,
}

/// Whether the kernel module is loaded that lets NICs register GPU memory by its address: as QPAIR_PEERMEM says, or where modules are
/// listed.
pub(crate) fn has_peermem() -> bool {
    match std::env::var("QPAIR_PEERMEM").as_deref() {
        Ok("1") => return true,
        Ok("0") => return false,
        Err(_) | Ok("") => {}
        Ok(other) => tracing::warn!(
            "QPAIR_PEERMEM is `{other}`, and counts for nothing: write 1 where nvidia-peermem is loaded, 0 where not"
        ),
    }
    MODULES.iter().any(|path| Path::new(path).exists())
}

/// That of NVIDIA's driver, and that which it was before.
const MODULES: [&str; 2] = ["/sys/module/nvidia_peermem/version", "/sys/module/nv_peer_mem/version"];
