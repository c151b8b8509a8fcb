//! Everything about a device in sections, for people. What a device does not tell is left out.

use std::fmt::Write;

use super::listed::{Abilities, GidRow, Limits, Listed, Port};
use crate::size::Size;
use crate::text::{amount, wrap};

/// The device with its abilities, limits and ports.
pub fn details(device: &Listed) -> String {
    let mut text = format!("{}\n", device.name);
    section(&mut text, 2, &identity(device));
    text.push_str("  abilities\n");
    section(&mut text, 4, &abilities(&device.abilities));
    text.push_str("  limits\n");
    section(&mut text, 4, &limits(&device.limits));
    for port in &device.ports {
        let _ = writeln!(text, "  port {}", port.number);
        section(&mut text, 4, &port_rows(port));
        text.push_str(&gids(port));
    }
    text
}

/// A name, and a value if there is one.
pub type Row = (&'static str, Option<String>);

/// Names, and their values in a column of its own, wrapped.
pub fn section(text: &mut String, indent: usize, rows: &[Row]) {
    let room = COLUMN - indent;
    for (name, value) in rows.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        for (index, line) in wrap(value, WIDTH - COLUMN).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:indent$}{name:room$}{line}", "");
        }
    }
}

fn identity(device: &Listed) -> Vec<Row> {
    let hardware = device.vendor_id != 0 || device.vendor_part_id != 0;
    let numbers =
        || format!("0x{:04x}, part {}, version {}", device.vendor_id, device.vendor_part_id, device.hw_version);
    vec![
        ("description", device.description.clone()),
        ("driver", device.driver.clone()),
        ("firmware", told(&device.firmware)),
        ("vendor", hardware.then(numbers)),
        ("node GUID", Some(device.node_guid.clone())),
        (
            "system image GUID",
            Some(device.sys_image_guid.clone()).filter(|guid| guid.chars().any(|c| !"0:".contains(c))),
        ),
        ("PCI address", device.pci.clone()),
        ("NUMA node", device.numa_node.map(|node| node.to_string())),
    ]
}

fn abilities(of: &Abilities) -> Vec<Row> {
    let pages = of.page_sizes.iter().map(|size| Size(*size).to_string()).collect::<Vec<_>>();
    // Every size from the smallest on is said shorter.
    let all_above = of.page_sizes.windows(2).all(|pair| pair[0].checked_mul(2) == Some(pair[1])) && pages.len() > 8;
    let pages = match (pages.first(), all_above) {
        (Some(first), true) => {
            format!("{first} and all powers of two above, to 2^{}", of.page_sizes[pages.len() - 1].ilog2())
        }
        _ => pages.join(", "),
    };
    let timestamps = match (of.timestamp_bits, of.core_clock_khz) {
        (0, _) => None,
        (bits, 0) => Some(format!("{bits} bits")),
        (bits, clock) => Some(format!("{bits} bits at {clock} kHz")),
    };
    let paging = if of.on_demand_paging.is_empty() { "no".to_owned() } else { of.on_demand_paging.join("; ") };
    vec![
        ("atomics", Some(of.atomics.clone())),
        ("READ combined into memory", Some(if of.read_reduce { "yes" } else { "no" }.to_owned())),
        ("on-demand paging", Some(paging)),
        ("completion timestamps", timestamps),
        ("completion vectors", number(of.completion_vectors)),
        ("acknowledges within", (of.ack_delay_us > 0.0).then(|| format!("{:.1} us", of.ack_delay_us))),
        ("page sizes", told(&pages)),
        ("flags", told(&of.flags.join(" "))),
    ]
}

fn limits(of: &Limits) -> Vec<Row> {
    vec![
        ("queue pairs", number(of.max_qp)),
        ("work requests in a queue", number(of.max_qp_wr)),
        ("pieces in a work request", number(of.max_sge)),
        ("pieces in a READ", number(of.max_sge_read)),
        ("longest inline data", bytes(of.max_inline.into())),
        ("READs and atomics answered", number(of.max_rd_atomic)),
        ("READs and atomics under way", number(of.max_init_rd_atomic)),
        ("completion queues", number(of.max_cq)),
        ("completion queue entries", number(of.max_cqe)),
        ("shared receive queues", number(of.max_srq)),
        ("shared receive queue requests", number(of.max_srq_wr)),
        ("pieces in a shared receive", number(of.max_srq_sge)),
        ("protection domains", number(of.max_pd)),
        ("remote keys", number(of.max_mr)),
        ("longest region", bytes(of.max_mr_size)),
        ("memory windows", number(of.max_mw)),
        ("address handles", number(of.max_ah)),
        ("partition keys", number(of.max_pkeys)),
        ("longest message", bytes(of.max_message.into())),
    ]
}

fn port_rows(port: &Port) -> Vec<Row> {
    let rate = port.lanes.zip(port.lane_rate_mbps).map(|(lanes, rate)| {
        let gbps = |mbps: u32| f64::from(mbps) / 1000.0;
        let plural = if lanes == 1 { "" } else { "s" };
        let whole = gbps(u32::from(lanes).saturating_mul(rate));
        format!("{whole} Gbit/s ({lanes} lane{plural} of {})", gbps(rate))
    });
    let manager = format!("LID {}, service level {}", port.subnet_manager_lid, port.subnet_manager_level);
    let path_bits = if port.lid_mask_bits > 0 { format!(" ({} path bits)", port.lid_mask_bits) } else { String::new() };
    vec![
        ("state", Some(port.state.clone())),
        ("physical state", Some(port.physical_state.clone())),
        ("link layer", Some(port.link_layer.clone())),
        ("interface", port.netdev.clone()),
        ("rate", rate),
        ("MTU", Some(format!("{} B (at most {} B)", port.active_mtu, port.max_mtu))),
        ("longest message", bytes(port.max_message.into())),
        ("LID", (port.lid != 0).then(|| format!("{}{path_bits}", port.lid))),
        ("subnet manager", (port.subnet_manager_lid != 0).then_some(manager)),
        ("capability flags", (port.capability_flags != 0).then(|| format!("0x{:08x}", port.capability_flags))),
        ("partition keys", told(&port.pkeys.join(" "))),
        ("wrong partition keys so far", number(port.bad_pkeys)),
        ("wrong Q_Keys so far", number(port.qkey_violations)),
        ("GIDs in use", Some(format!("{} of {}", port.gids.len(), port.gid_table_len))),
    ]
}

/// The rows of the GID table in columns; the one that is taken unless told otherwise is marked.
fn gids(port: &Port) -> String {
    let widest = |width: fn(&GidRow) -> usize| port.gids.iter().map(width).max().unwrap_or(0);
    let (numbers, names) = (widest(|row| row.index.to_string().len()), widest(|row| row.gid.len()));
    let mut text = String::new();
    for GidRow { index, gid, kind, netdev } in &port.gids {
        let netdev = netdev.as_ref().map_or(String::new(), |netdev| format!(", {netdev}"));
        let mark = if port.preferred_gid == Some(*index) { ", preferred" } else { "" };
        let _ = writeln!(text, "    GID {index:<numbers$}  {gid:names$}  {kind}{netdev}{mark}");
    }
    text
}

fn told(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(value: u32) -> Option<String> {
    (value != 0).then(|| value.to_string())
}

/// Bytes, in short too where that is exact.
fn bytes(count: u64) -> Option<String> {
    match count {
        0 => None,
        u64::MAX => Some("without limit".to_owned()),
        _ if count.trailing_zeros() >= 10 => Some(format!("{count} B ({})", amount(count))),
        _ => Some(format!("{count} B")),
    }
}

/// Where values begin.
const COLUMN: usize = 34;
const WIDTH: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    /// The software device, without the machine's network.
    fn device() -> Listed {
        let mut device = Listed::open("soft0", &[]).expect("the software device is always there");
        let port = &mut device.ports[0];
        port.gids.truncate(1);
        (port.gid_table_len, port.preferred_gid) = (1, Some(0));
        device
    }

    #[test]
    fn the_details_show_limits_abilities_and_identifiers() {
        let text = details(&device());
        for part in
            ["node GUID", "  abilities\n    atomics", "  limits\n    queue pairs", "longest inline data", "GID 0"]
        {
            assert!(text.contains(part), "{part} not in {text}");
        }
        assert!(text.contains("  RoCE v2, preferred\n"), "{text}");
        assert!(!text.contains("subnet manager"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH && !line.ends_with(' ')), "{text}");
    }

    #[test]
    fn hardware_shows_what_it_tells() {
        let mut device = device();
        (device.vendor_id, device.vendor_part_id, device.hw_version) = (0x2c9, 4129, 1);
        (device.pci, device.numa_node) = (Some("0000:c1:00.0".to_owned()), Some(1));
        device.abilities.page_sizes = (12..63).map(|bit| 1 << bit).collect();
        (device.abilities.timestamp_bits, device.abilities.core_clock_khz) = (64, 156_250);
        device.abilities.flags = (0..20).map(|bit| format!("FLAG_NUMBER_{bit}")).collect();
        let port = &mut device.ports[0];
        (port.lanes, port.lane_rate_mbps) = (Some(4), Some(25_000));
        (port.lid, port.lid_mask_bits, port.subnet_manager_lid) = (7, 2, 1);
        port.gids[0].netdev = Some("ens1".to_owned());
        let text = details(&device);
        for part in [
            "0x02c9, part 4129, version 1",
            "0000:c1:00.0",
            "64 bits at 156250 kHz",
            "4K and all powers of two above, to 2^62",
            "100 Gbit/s (4 lanes of 25)",
            "7 (2 path bits)",
            "LID 1, service level 0",
            "  RoCE v2, ens1, preferred\n",
        ] {
            assert!(text.contains(part), "{part} not in {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn sizes_are_in_bytes_and_short() {
        assert_eq!(bytes(220).as_deref(), Some("220 B"));
        assert_eq!(bytes(1 << 30).as_deref(), Some("1073741824 B (1 GiB)"));
        assert_eq!((bytes(0), bytes(u64::MAX).as_deref()), (None, Some("without limit")));
    }
}
