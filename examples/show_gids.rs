//! Lists the GIDs of all RDMA devices: by which addresses peers can reach them.
//!
//! ```text
//! cargo run --example show_gids
//! ```
//!
//! Prints a row for each used entry of each port's GID table; `*` marks the one that queue pairs take by default:
//!
//! ```text
//! DEV      PORT  INDEX  GID                                      IPv4             KIND        NETDEV
//! soft0    1     0      fe80::23a5:57d1:6b2a:9c1b                -                RoceV2      - *
//! rxe0     1     0      fe80::5054:ff:fe00:1                     -                RoceV2      eth0
//! rxe0     1     1      ::ffff:10.77.0.11                        10.77.0.11       RoceV2      eth0 *
//! ```
//!
//! A device that is not listed: `qpair doctor` tells what is missing.

use qpair::verbs::{Device, library};

fn main() {
    if let Err(error) = library() {
        eprintln!("only the software device: {error}");
    }
    println!("DEV      PORT  INDEX  {:<40} {:<16} KIND        NETDEV", "GID", "IPv4");
    for device in Device::list() {
        let context = match device.open() {
            Ok(context) => context,
            Err(error) => {
                eprintln!("{error}");
                continue;
            }
        };
        for number in 1..=context.attributes().ports {
            let Some(port) = context.port(number) else { continue };
            let preferred = port.preferred_gid(None).map(|row| row.index);
            for row in &port.gids {
                let ipv4 = row.gid.ipv4().map_or("-".to_owned(), |address| address.to_string());
                let netdev = row.netdev.as_deref().unwrap_or("-");
                let mark = if Some(row.index) == preferred { " *" } else { "" };
                let (name, gid, kind) = (device.name(), row.gid.to_string(), format!("{:?}", row.kind));
                println!("{name:<8} {number:<5} {:<6} {gid:<40} {ipv4:<16} {kind:<11} {netdev}{mark}", row.index);
            }
        }
    }
}
