//! `qpair devices`: the RDMA devices of this machine, their ports, identifiers and limits.

use std::fmt::{self, Write};

use clap::Args;
use qpair::verbs::{
    Context, Device, DeviceAttributes, GidEntry, GidKind, LinkLayer, OpenError, PortAttributes, PortState,
};
use serde::Serialize;
use thiserror::Error;

use crate::output::{PrintError, print, print_object};
use crate::size::Size;
use crate::table;

/// Lists the RDMA devices of this machine.
///
/// The software device `soft0` is always there and needs no hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qpair devices
  qpair devices -v                 limits and all identifiers
  qpair devices --json | jq .      one object per device")]
pub struct DevicesArgs {
    /// Show limits and abilities, and every identifier of every port
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object per device, with everything
    #[arg(long)]
    json: bool,
}

/// The devices could not be listed.
#[derive(Debug, Error)]
pub enum DevicesError {
    /// A device is there and does not open.
    #[error("device {device}: {source}")]
    Open {
        /// The device's name.
        device: String,
        /// Why.
        source: OpenError,
    },
    /// The list could not be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

/// A device as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    node_guid: String,
    firmware: String,
    limits: Limits,
    ports: Vec<Port>,
}

#[derive(Debug, Serialize)]
struct Limits {
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_cqe: u32,
    max_mr: u32,
    max_srq_wr: u32,
    max_mr_size: u64,
    max_message: u32,
    max_inline: u32,
    atomics_with_cpu: bool,
    read_reduce: bool,
}

#[derive(Debug, Serialize)]
struct Port {
    number: u8,
    state: String,
    link_layer: String,
    lid: u16,
    max_mtu: u32,
    active_mtu: u32,
    gids: Vec<GidRow>,
}

#[derive(Debug, Serialize)]
struct GidRow {
    index: u32,
    gid: String,
    kind: String,
}

/// Prints the list.
///
/// # Errors
/// [`DevicesError`] if a device does not open or printing fails.
pub fn run(args: &DevicesArgs) -> Result<(), DevicesError> {
    let mut listed = Vec::new();
    for device in Device::list() {
        let context =
            device.open().map_err(|source| DevicesError::Open { device: device.name().to_owned(), source })?;
        listed.push(Listed::new(&context));
    }
    if args.json {
        listed.iter().try_for_each(print_object)?;
    } else if args.verbose {
        let blocks: Vec<String> = listed.iter().map(ToString::to_string).collect();
        print(blocks.join("\n").trim_end())?;
    } else {
        print(&overview(&listed))?;
    }
    Ok(())
}

impl Listed {
    fn new(context: &Context) -> Self {
        let attributes = context.attributes();
        let numbers = 1..=attributes.ports;
        Listed {
            name: context.name().to_owned(),
            node_guid: format!("{:016x}", attributes.node_guid),
            firmware: attributes.firmware.clone(),
            limits: Limits::new(&attributes),
            ports: numbers.filter_map(|number| Some(Port::new(number, &context.port(number)?))).collect(),
        }
    }
}

impl Limits {
    fn new(from: &DeviceAttributes) -> Self {
        Limits {
            max_qp: from.max_qp,
            max_qp_wr: from.max_qp_wr,
            max_sge: from.max_sge,
            max_cqe: from.max_cqe,
            max_mr: from.max_mr,
            max_srq_wr: from.max_srq_wr,
            max_mr_size: from.max_mr_size,
            max_message: from.max_message,
            max_inline: from.max_inline,
            atomics_with_cpu: from.atomics_with_cpu,
            read_reduce: from.read_reduce,
        }
    }

    fn rows(&self) -> [(&'static str, String); 11] {
        let yes_or_no = |yes| if yes { "yes" } else { "no" }.to_owned();
        [
            ("queue pairs", self.max_qp.to_string()),
            ("work requests in a queue", self.max_qp_wr.to_string()),
            ("pieces in a work request", self.max_sge.to_string()),
            ("completion queue entries", self.max_cqe.to_string()),
            ("remote keys", self.max_mr.to_string()),
            ("shared receive queue requests", self.max_srq_wr.to_string()),
            ("longest region", bytes(self.max_mr_size)),
            ("longest message", bytes(self.max_message.into())),
            ("longest inline data", bytes(self.max_inline.into())),
            ("atomics towards the CPU too", yes_or_no(self.atomics_with_cpu)),
            ("READ combined into memory", yes_or_no(self.read_reduce)),
        ]
    }
}

impl Port {
    fn new(number: u8, from: &PortAttributes) -> Self {
        Port {
            number,
            state: state_name(from.state),
            link_layer: link_layer_name(from.link_layer),
            lid: from.lid,
            max_mtu: from.max_mtu.bytes(),
            active_mtu: from.active_mtu.bytes(),
            gids: from.gids.iter().map(GidRow::new).collect(),
        }
    }
}

impl GidRow {
    fn new(from: &GidEntry) -> Self {
        GidRow { index: from.index, gid: from.gid.to_string(), kind: gid_kind_name(from.kind) }
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        writeln!(f, "  {:<31}{}", "node GUID", self.node_guid)?;
        writeln!(f, "  {:<31}{}", "firmware", self.firmware)?;
        self.limits.rows().iter().try_for_each(|(name, value)| writeln!(f, "  {name:<31}{value}"))?;
        for port in &self.ports {
            writeln!(f, "  port {}", port.number)?;
            writeln!(f, "    {:<29}{}", "state", port.state)?;
            writeln!(f, "    {:<29}{}", "link layer", port.link_layer)?;
            writeln!(f, "    {:<29}{} B (at most {} B)", "MTU", port.active_mtu, port.max_mtu)?;
            if port.lid != 0 {
                writeln!(f, "    {:<29}{}", "LID", port.lid)?;
            }
            for row in &port.gids {
                writeln!(f, "    {:<29}{} ({})", format!("GID {}", row.index), row.gid, row.kind)?;
            }
        }
        Ok(())
    }
}

/// One row per port.
fn overview(devices: &[Listed]) -> String {
    let header = ["device", "port", "state", "link layer", "MTU (B)", "GID 0", "firmware"];
    let ports = devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let rows = ports.map(|(device, port)| {
        vec![
            device.name.clone(),
            port.number.to_string(),
            port.state.clone(),
            port.link_layer.clone(),
            port.active_mtu.to_string(),
            port.gids.first().map_or("none".to_owned(), |row| row.gid.clone()),
            device.firmware.clone(),
        ]
    });
    table::whole(&header, rows.collect())
}

fn bytes(count: u64) -> String {
    let mut text = format!("{count} B");
    let short = Size(count).to_string();
    if short != count.to_string() {
        // Writing to a string does not fail.
        let _ = write!(text, " ({short})");
    }
    text
}

fn state_name(state: PortState) -> String {
    match state {
        PortState::Down => "down".to_owned(),
        PortState::Init => "init".to_owned(),
        PortState::Armed => "armed".to_owned(),
        PortState::Active => "active".to_owned(),
        PortState::Unknown(code) => format!("code {code}"),
    }
}

fn link_layer_name(layer: LinkLayer) -> String {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand".to_owned(),
        LinkLayer::Ethernet => "Ethernet".to_owned(),
        LinkLayer::SharedMemory => "shared memory".to_owned(),
        LinkLayer::Unknown(code) => format!("code {code}"),
    }
}

fn gid_kind_name(kind: GidKind) -> String {
    match kind {
        GidKind::InfiniBand => "InfiniBand".to_owned(),
        GidKind::RoceV1 => "RoCE v1".to_owned(),
        GidKind::RoceV2 => "RoCE v2".to_owned(),
        GidKind::Unknown(code) => format!("code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Listed {
        let context = Context::open("soft0").expect("the software device is always there");
        Listed::new(&context)
    }

    #[test]
    fn the_overview_has_a_row_per_port() {
        let text = overview(&[device()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].contains("soft0") && lines[1].contains("active"), "{text}");
    }

    #[test]
    fn the_details_show_limits_and_identifiers() {
        let text = device().to_string();
        for part in ["longest inline data", "GID 0", "node GUID"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_object_has_what_the_details_have() {
        let value = serde_json::to_value(device()).expect("plain data");
        assert_eq!(value["name"], "soft0");
        assert_eq!(value["ports"][0]["state"], "active");
        assert!(value["limits"]["max_inline"].as_u64().expect("a number") > 0);
    }

    #[test]
    fn sizes_are_in_bytes_and_short() {
        assert_eq!(bytes(220), "220 B");
        assert_eq!(bytes(1 << 30), "1073741824 B (1G)");
    }
}
