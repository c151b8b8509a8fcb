//! The machine that this process runs on.

use std::env;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::{LoadError, Machine, NoGpuDriver, Sysfs};

impl Machine {
    /// The machine that this process runs on, as far as the process can use it. It is discovered at the first call, and the
    /// same from then on.
    ///
    /// QPAIR_TOPOLOGY in the environment names a file, or a folder, to [load](Machine::load) it from instead: for virtual
    /// machines whose PCI tree does not show what hangs where.
    ///
    /// ```
    /// let machine = qpair_topology::Machine::this()?;
    /// assert_eq!(machine, qpair_topology::Machine::this()?);
    /// # Ok::<(), qpair_topology::LoadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What QPAIR_TOPOLOGY names can not be read, or is no machine. Without it there is always a machine, if an empty one.
    pub fn this() -> Result<Arc<Self>, LoadError> {
        static THIS: OnceLock<Arc<Machine>> = OnceLock::new();
        kept(&THIS, Sysfs::this_machine)
    }

    /// The same without what the driver of GPUs tells, which may take seconds to be asked: where GPUs and NVLinks do not
    /// matter.
    ///
    /// # Errors
    ///
    /// As [`Machine::this`].
    pub fn this_without_driver() -> Result<Arc<Self>, LoadError> {
        static THIS: OnceLock<Arc<Machine>> = OnceLock::new();
        kept(&THIS, || Sysfs::this_machine().gpu_driver(NoGpuDriver))
    }

    /// What QPAIR_TOPOLOGY names, if anything.
    pub fn named_by_environment() -> Option<PathBuf> {
        env::var_os("QPAIR_TOPOLOGY").filter(|path| !path.is_empty()).map(PathBuf::from)
    }
}

fn kept(kept: &OnceLock<Arc<Machine>>, sysfs: impl FnOnce() -> Sysfs) -> Result<Arc<Machine>, LoadError> {
    if let Some(machine) = kept.get() {
        return Ok(machine.clone());
    }
    let named = Machine::named_by_environment();
    let machine = named.map_or_else(|| Ok(Machine::discover(&sysfs())), Machine::load)?;
    Ok(kept.get_or_init(|| Arc::new(machine)).clone())
}
