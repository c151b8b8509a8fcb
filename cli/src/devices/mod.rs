//! `qpair devices`: the RDMA devices of this machine, their ports, identifiers, limits and abilities; and the GPUs that this
//! program can use. A row per port and per GPU, sections with everything, or an object per device and GPU.

mod details;
mod gpus;
mod listed;
mod names;
mod unusable;

use std::path::Path;

use clap::Args;
use qpair::verbs::{self, Device, OpenError};
use serde::Serialize;
use thiserror::Error;

use crate::doctor::system::{RdmaDevice, rdma_devices};
use crate::gpus::find;
use crate::output::{PrintError, print, print_object};
use crate::table;
use details::details;
use listed::{Listed, Port};
use unusable::{Unusable, remark};

/// Lists the RDMA devices of this machine.
///
/// The software device `soft0` is always there and needs no hardware. Where this program was built for memory of GPUs, the
/// GPUs follow, with the path by which each device reaches their memory; these are objects without `usable`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair devices
  qpair devices -v                 limits, abilities and all identifiers
  qpair devices -v mlx5_0          of one device
  qpair devices --json | jq 'select(.usable) | .name'
  qpair devices --json | jq 'select(.gpu != null) | .registration'")]
pub struct DevicesArgs {
    /// Only this device
    device: Option<String>,
    /// Show limits and abilities, and every identifier of every port
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object per device, with everything; of one that can not be used, why
    #[arg(long)]
    json: bool,
}

/// The devices could not be listed, or not all of them.
#[derive(Debug, Error)]
pub enum DevicesError {
    /// A device does not open, or is not there.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The kernel has a device of that name, and libibverbs does not find it.
    #[error("{0} is there, but libibverbs does not list it; `qpair doctor` tells why")]
    Unlisted(String),
    /// Some devices do not open. Those that do were listed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: "))]
    Some(Vec<OpenError>),
    /// The list could not be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

/// Prints the list.
///
/// # Errors
/// [`DevicesError`] if a device does not open or printing fails. Devices that open are listed nevertheless.
pub fn run(args: &DevicesArgs) -> Result<(), DevicesError> {
    let kernel = rdma_devices(Path::new("/"));
    if let Some(name) = &args.device {
        let listed = Listed::open(name, &kernel).map_err(|error| not_opened(error, &kernel))?;
        return Ok(show(args, &[listed], &[])?);
    }
    let (mut listed, mut refused, mut unusable) = (Vec::new(), Vec::new(), Vec::new());
    let known: Vec<String> = Device::list().iter().map(|device| device.name().to_owned()).collect();
    for name in &known {
        match Listed::open(name, &kernel) {
            Ok(device) => listed.push(device),
            Err(error) => {
                unusable.push(Unusable::refused(name, &error));
                refused.push(error);
            }
        }
    }
    let library = verbs::library().err().map(|error| error.to_string());
    let unlisted = Unusable::unlisted(&kernel, &known, library.as_deref());
    let remark = remark(&unlisted);
    unusable.extend(unlisted);
    show(args, &listed, &unusable)?;
    let names: Vec<String> = listed.iter().map(|device| device.name.clone()).collect();
    gpus::show(&find(&names), args.json, args.verbose)?;
    if !args.json {
        remark.map_or(Ok(()), |remark| print(&remark))?;
    }
    if refused.is_empty() { Ok(()) } else { Err(DevicesError::Some(refused)) }
}

/// Why a device that was named is not listed.
fn not_opened(error: OpenError, kernel: &[RdmaDevice]) -> DevicesError {
    match error {
        OpenError::NotFound { name, .. } if kernel.iter().any(|device| device.name == name) => {
            DevicesError::Unlisted(name)
        }
        error => error.into(),
    }
}

/// A device that can be used, as an object.
#[derive(Debug, Serialize)]
struct Object<'a> {
    usable: bool,
    #[serde(flatten)]
    device: &'a Listed,
}

/// Prints what can be used; as objects also what can not.
fn show(args: &DevicesArgs, listed: &[Listed], unusable: &[Unusable]) -> Result<(), PrintError> {
    if args.json {
        listed.iter().try_for_each(|device| print_object(&Object { usable: true, device }))?;
        unusable.iter().try_for_each(print_object)
    } else if args.verbose {
        let blocks: Vec<String> = listed.iter().map(details).collect();
        print(blocks.join("\n").trim_end())
    } else {
        print(&overview(listed))
    }
}

/// One row per port.
fn overview(devices: &[Listed]) -> String {
    let header = ["device", "port", "state", "link layer", "MTU (B)", "netdev", "GID"];
    let ports = devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let rows = ports.map(|(device, port)| {
        let or_dash = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".to_owned());
        vec![
            device.name.clone(),
            port.number.to_string(),
            state(port),
            port.link_layer.clone(),
            port.active_mtu.to_string(),
            or_dash(port.netdev.as_ref()),
            port.preferred_gid.map_or_else(|| "-".to_owned(), |index| gid(port, index)),
        ]
    });
    table::whole(&header, rows.collect())
}

/// The state, with that of the link where it says more.
fn state(port: &Port) -> String {
    if port.state == "active" { port.state.clone() } else { format!("{} ({})", port.state, port.physical_state) }
}

fn gid(port: &Port, index: u32) -> String {
    let row = port.gids.iter().find(|row| row.index == index);
    row.map_or_else(|| "-".to_owned(), |row| row.gid.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Listed {
        Listed::open("soft0", &[]).expect("the software device is always there")
    }

    #[test]
    fn the_overview_has_a_row_per_port() {
        let mut device = device();
        // Which addresses the machine has is not known here.
        (device.ports[0].netdev, device.ports[0].preferred_gid) = (None, Some(0));
        let mut second = device.ports[0].clone();
        (second.number, second.state, second.physical_state) = (2, "down".to_owned(), "polling".to_owned());
        (second.netdev, second.preferred_gid) = (Some("eth0".to_owned()), None);
        device.ports.push(second);
        let text = overview(&[device]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("soft0") && lines[1].contains("active") && lines[1].contains("fe80::"), "{text}");
        assert!(lines[2].contains("down (polling)") && lines[2].ends_with("eth0    -"), "{text}");
    }

    #[test]
    fn a_device_that_only_the_kernel_has_is_no_unknown_name() {
        let kernel = [RdmaDevice { name: "rxe0".to_owned(), ..RdmaDevice::default() }];
        let error = |name: &str| {
            let not_found =
                OpenError::NotFound { name: name.to_owned(), known: "soft0".to_owned(), note: String::new() };
            not_opened(not_found, &kernel).to_string()
        };
        assert_eq!(error("rxe0"), "rxe0 is there, but libibverbs does not list it; `qpair doctor` tells why");
        assert_eq!(error("rxe1"), "no RDMA device is called `rxe1`; there are: soft0");
    }
}
