//! Where a rail is: a device, a port of it, and a row of that's GID table.

use std::fmt;
use std::net::IpAddr;

use qpair_verbs::{Context, GidKind, Inquiry, PortAttributes, QpAddress, QpBuilder};

use crate::cm::Fabric;
use crate::worker::error::WorkerError;

/// One way from a worker's host to the network: a device, a port of it, and the address that packets have there. The peer's
/// rail of the same number is at the other end.
///
/// ```
/// use qpair_transport::{Config, Rail};
///
/// // Two networks, of which each end has an address.
/// let rails = [Rail::address("10.1.0.7".parse()?), Rail::address("10.2.0.7".parse()?)];
/// let config = Config::default().rails(rails);
/// // Two NICs.
/// let rails = ["mlx5_0", "mlx5_1"].map(Rail::device);
/// # let _ = (config, rails);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// The worker's own, unless it is named.
    device: Option<String>,
    port: u8,
    row: Row,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    /// The one that the device is used with anyway.
    Preferred,
    Index(u32),
    Address(IpAddr),
}

/// A rail that was found.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct Place {
    /// Among the worker's devices; 0 is its own.
    device: usize,
    port: u8,
    row: Option<u32>,
    fabric: Fabric,
}

impl Rail {
    /// Port 1 of a device, with the address that queue pairs have there by default.
    pub fn device(name: impl Into<String>) -> Rail {
        Rail { device: Some(name.into()), ..Rail::port(1) }
    }

    /// A port of the worker's device, from 1, with the address that queue pairs have there by default.
    pub fn port(number: u8) -> Rail {
        Rail { device: None, port: number, row: Row::Preferred }
    }

    /// The row of port 1's GID table, of the worker's device, that has that address.
    pub fn address(address: IpAddr) -> Rail {
        Rail { device: None, port: 1, row: Row::Address(address) }
    }

    /// Another port of its device.
    #[must_use]
    pub fn on_port(self, number: u8) -> Rail {
        Rail { port: number, ..self }
    }

    /// The row `index` of the port's GID table.
    #[must_use]
    pub fn gid_index(self, index: u32) -> Rail {
        Rail { row: Row::Index(index), ..self }
    }

    /// The device, if one is named.
    pub(in crate::worker) fn device_name(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Where it is. `number`: the rail's own, for people. `contexts`: the devices that are open, the worker's own first; the
    /// rail's may be added.
    pub(super) fn find(&self, number: usize, contexts: &mut Vec<Context>) -> Result<Place, WorkerError> {
        let named = |context: &Context| self.device.as_deref().is_none_or(|name| name == context.name());
        let device = match contexts.iter().position(named) {
            Some(device) => device,
            None => {
                // It may be open by another of its names.
                let context = Context::open(self.device.as_deref().unwrap_or_default())?;
                let same = contexts.iter().position(|open| open.name() == context.name());
                same.unwrap_or_else(|| {
                    contexts.push(context);
                    contexts.len() - 1
                })
            }
        };
        let context = &contexts[device];
        let missing = |has: String| {
            let (rail, device) = (self.clone(), context.name().to_owned());
            WorkerError::NoRail { number, rail, device, has }
        };
        if number == 0 && device != 0 {
            return Err(WorkerError::FirstRail { rail: self.clone(), device: contexts[0].name().to_owned() });
        }
        let port = context.port(self.port).ok_or_else(|| missing(ports(context)))?;
        let row = match self.row {
            Row::Preferred => None,
            Row::Index(index) if port.gids.iter().any(|gid| gid.index == index) => Some(index),
            Row::Address(address) => Some(row_of(&port, address).ok_or_else(|| missing(rows(&port)))?),
            Row::Index(_) => return Err(missing(rows(&port))),
        };
        Ok(Place { device, port: self.port, row, fabric: Fabric::of(port.link_layer) })
    }
}

impl Place {
    /// The number of its device; 0 is the worker's own.
    pub(super) fn device(&self) -> usize {
        self.device
    }

    /// What the port is on.
    pub(super) fn fabric(&self) -> Fabric {
        self.fabric
    }

    /// A queue pair there.
    pub(in crate::worker) fn of(&self, builder: QpBuilder) -> QpBuilder {
        let builder = builder.port(self.port);
        match self.row {
            Some(row) => builder.gid_index(row),
            None => builder,
        }
    }

    /// Asks the peer to whom a queue pair there shall be connected.
    pub(super) fn ask(&self, inquiry: &mut Inquiry, context: &Context, address: &QpAddress) {
        inquiry.ask_from(context, self.port, self.row, address);
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "{device}, ")?;
        }
        match self.row {
            Row::Preferred => write!(f, "port {}", self.port),
            Row::Index(index) => write!(f, "row {index} of port {}", self.port),
            Row::Address(address) => write!(f, "address {address} of port {}", self.port),
        }
    }
}

/// The row that has that address; a row for RoCEv2 before others.
fn row_of(port: &PortAttributes, address: IpAddr) -> Option<u32> {
    let bytes = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let rows = port.gids.iter().filter(|row| row.gid.0 == bytes);
    rows.max_by_key(|row| row.kind == GidKind::RoceV2).map(|row| row.index)
}

fn rows(port: &PortAttributes) -> String {
    let rows: Vec<_> = port.gids.iter().map(|row| format!("row {}: {}", row.index, row.gid)).collect();
    if rows.is_empty() { "no row".to_owned() } else { rows.join(", ") }
}

fn ports(context: &Context) -> String {
    match context.attributes().ports {
        1 => "port 1".to_owned(),
        ports => format!("ports 1 to {ports}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_is_not_there_is_refused_with_what_is() {
        let mut contexts = vec![Context::open("soft0").unwrap()];
        let mut find = |rail: Rail, number| rail.find(number, &mut contexts).map_err(|error| error.to_string());
        assert!(find(Rail::port(1), 0).is_ok() && find(Rail::device("soft0").gid_index(0), 0).is_ok());
        let error = find(Rail::port(1).on_port(3), 1).unwrap_err();
        assert!(error.starts_with("rail 1: device soft0 has no port 3; it has port 1"), "{error}");
        let error = find(Rail::address("192.0.2.77".parse().unwrap()), 0).unwrap_err();
        assert!(error.contains("no address 192.0.2.77 of port 1; it has row 0: "), "{error}");
        let error = find(Rail::port(1).gid_index(4000), 0).unwrap_err();
        assert!(error.contains("no row 4000 of port 1; it has row 0: "), "{error}");
        let error = find(Rail::device("no-such-nic"), 1).unwrap_err();
        assert!(error.contains("no-such-nic"), "{error}");
    }

    #[test]
    fn rows_for_rocev2_go_before_others_of_the_same_address() {
        use qpair_verbs::{Gid, GidEntry};
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        let mut port = Context::open("soft0").unwrap().port(1).unwrap();
        let row = |index, kind| GidEntry { index, gid: Gid(gid), kind, ..port.gids[0].clone() };
        port.gids = vec![row(2, GidKind::RoceV1), row(5, GidKind::RoceV2), row(6, GidKind::RoceV1)];
        assert_eq!(row_of(&port, address), Some(5));
        assert_eq!(row_of(&port, "10.0.0.2".parse().unwrap()), None);
    }
}
