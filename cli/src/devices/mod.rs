//! `qpair devices`: the RDMA devices of this machine, their ports, identifiers, limits and abilities.
//! A row per port, sections with everything, or an object per device.

mod details;
mod listed;
mod names;

use std::path::Path;

use clap::Args;
use qpair::verbs::{Device, OpenError};
use thiserror::Error;

use crate::doctor::system::{RdmaDevice, rdma_devices};
use crate::output::{PrintError, print, print_object};
use crate::table;
use details::details;
use listed::{Listed, Port};

/// Lists the RDMA devices of this machine.
///
/// The software device `soft0` is always there and needs no hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair devices
  qpair devices -v                 limits, abilities and all identifiers
  qpair devices -v mlx5_0          of one device
  qpair devices --json | jq .      one object per device")]
pub struct DevicesArgs {
    /// Only this device
    device: Option<String>,
    /// Show limits and abilities, and every identifier of every port
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object per device, with everything
    #[arg(long)]
    json: bool,
}

/// The devices could not be listed, or not all of them.
#[derive(Debug, Error)]
pub enum DevicesError {
    /// A device does not open, or is not there.
    #[error(transparent)]
    Open(#[from] OpenError),
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
    let (mut listed, mut refused) = (Vec::new(), Vec::new());
    if let Some(name) = &args.device {
        listed.push(Listed::open(name, &kernel)?);
    } else {
        for device in Device::list() {
            match Listed::open(device.name(), &kernel) {
                Ok(device) => listed.push(device),
                Err(error) => refused.push(error),
            }
        }
    }
    show(args, &listed)?;
    if args.device.is_none() && !args.json {
        let known: Vec<String> = Device::list().iter().map(|device| device.name().to_owned()).collect();
        unknown(&kernel, &known).map_or(Ok(()), |remark| print(&remark))?;
    }
    if refused.is_empty() { Ok(()) } else { Err(DevicesError::Some(refused)) }
}

fn show(args: &DevicesArgs, listed: &[Listed]) -> Result<(), PrintError> {
    if args.json {
        listed.iter().try_for_each(print_object)
    } else if args.verbose {
        let blocks: Vec<String> = listed.iter().map(details).collect();
        print(blocks.join("\n").trim_end())
    } else {
        print(&overview(listed))
    }
}

/// Devices that the kernel has and libibverbs does not find.
fn unknown(kernel: &[RdmaDevice], known: &[String]) -> Option<String> {
    let names: Vec<&str> = kernel
        .iter()
        .map(|device| device.name.as_str())
        .filter(|name| !known.iter().any(|known| known == name))
        .collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    (!names.is_empty())
        .then(|| format!("\n{} {verb} there, but can not be used; `qpair doctor` tells why.", names.join(", ")))
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
    fn devices_that_libibverbs_does_not_find_are_told() {
        let kernel = ["rxe0", "rxe1"].map(|name| RdmaDevice { name: name.to_owned(), ..RdmaDevice::default() });
        let known = ["soft0".to_owned(), "rxe1".to_owned()];
        let text = unknown(&kernel, &known).expect("one is not known");
        assert_eq!(text, "\nrxe0 is there, but can not be used; `qpair doctor` tells why.");
        assert!(unknown(&kernel, &[]).expect("both").starts_with("\nrxe0, rxe1 are there"));
        assert_eq!(unknown(&kernel[1..], &known), None);
    }
}
