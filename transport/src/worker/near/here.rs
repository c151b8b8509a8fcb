//! What the host says: the machine, the devices that can be opened, and where the thread is.

use std::env;

use qpair_topology::{CpuSet, Machine};
use qpair_verbs::Device;
use rustix::thread;

use super::NearError;
use super::nics::Nics;

/// What rails are chosen by.
pub(super) struct Here<'a> {
    pub(super) machine: &'a Machine,
    /// The names of devices that can be opened.
    pub(super) devices: Vec<String>,
    pub(super) nics: Nics,
    /// The processors that the thread may run on.
    pub(super) cpus: CpuSet,
    /// The one that it runs on.
    pub(super) cpu: u32,
}

impl<'a> Here<'a> {
    /// For the calling thread.
    pub(super) fn of(machine: &'a Machine) -> Result<Here<'a>, NearError> {
        let nics = Nics::parse(&env::var("QPAIR_NICS").unwrap_or_default())?;
        // Where the machine has no NIC, libibverbs is not loaded.
        let has_nics = machine.nics().iter().any(|nic| !nic.software);
        let devices = if has_nics { Device::list() } else { Vec::new() };
        let devices = devices.iter().map(|device| device.name().to_owned()).collect();
        // A host with more processors than the set has room for tells nothing.
        let set = thread::sched_getaffinity(None).ok();
        let may = |cpu: &usize| set.as_ref().is_some_and(|set| set.is_set(*cpu));
        let cpus = (0..thread::CpuSet::MAX_CPU).filter(may).map(|cpu| cpu as u32).collect();
        Ok(Here { machine, devices, nics, cpus, cpu: thread::sched_getcpu() as u32 })
    }

    /// True if a device of that name can be opened.
    pub(super) fn lists(&self, name: &str) -> bool {
        self.devices.iter().any(|device| device == name)
    }
}
