//! What the verbs layer says of the devices, which /sys does not tell.

use std::path::Path;

use qpair::verbs::{self, Device};

use super::library::{LibraryFile, LoadedLibrary, private_interface};
use super::root::Root;

/// A device, and what opening it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedDevice {
    /// Its name.
    pub name: String,
    /// Its ports, or why it does not open.
    pub ports: Result<Vec<OpenPort>, String>,
}

/// A port of an opened device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPort {
    /// Its number, from 1.
    pub number: u32,
    /// Present MTU in bytes.
    pub active_mtu: u32,
    /// Greatest MTU in bytes.
    pub max_mtu: u32,
}

/// Loads libibverbs.
pub fn load() -> Result<LoadedLibrary, String> {
    let library = verbs::library().map_err(|error| error.to_string())?;
    let path = library.path.display().to_string();
    let interface = private_interface(&Root::new(Path::new("/")), &path);
    let file = LibraryFile { path, rdma_core: library.rdma_core, interface };
    Ok(LoadedLibrary { file, missing: library.missing })
}

/// Opens each device in turn.
pub fn open_all() -> Vec<OpenedDevice> {
    Device::list().iter().map(|device| OpenedDevice { name: device.name().to_owned(), ports: ports(device) }).collect()
}

fn ports(device: &Device) -> Result<Vec<OpenPort>, String> {
    let context = device.open().map_err(|error| error.to_string())?;
    let numbers = 1..=context.attributes().ports;
    let ports = numbers.filter_map(|number| {
        let port = context.port(number)?;
        let (active_mtu, max_mtu) = (port.active_mtu.bytes(), port.max_mtu.bytes());
        Some(OpenPort { number: number.into(), active_mtu, max_mtu })
    });
    Ok(ports.collect())
}
