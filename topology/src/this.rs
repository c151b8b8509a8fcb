//! The machine that this process runs on.

use std::env;
use std::sync::{Arc, OnceLock};

use crate::{LoadError, Machine, Sysfs};

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
        if let Some(machine) = THIS.get() {
            return Ok(machine.clone());
        }
        let named = env::var_os("QPAIR_TOPOLOGY").filter(|path| !path.is_empty());
        let machine = named.map_or_else(|| Ok(Self::discover(&Sysfs::this_machine())), Self::load)?;
        Ok(THIS.get_or_init(|| Arc::new(machine)).clone())
    }
}
