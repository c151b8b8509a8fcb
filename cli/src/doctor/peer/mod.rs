//! Two machines beside each other: each says what it has, in one line of JSON over TCP, and the client compares.

mod compare;
mod exchange;
mod reach;
mod serve;
mod summary;

use std::net::SocketAddr;
use std::net::ToSocketAddrs;

use super::finding::{Finding, Section};
use super::system::System;

pub use exchange::{ExchangeError, Patience};
pub use serve::{ServeError, serve};
pub use summary::Summary;

/// Asks the machine at `host` what it has, and compares. That nobody answers, or not sensibly, is a finding.
pub fn compare_with(system: &System, host: &str, port: u16, patience: Patience) -> Vec<Finding> {
    let ours = Summary::new(system);
    let asked = (host, port).to_socket_addrs().map_err(ExchangeError::Resolve).and_then(|addresses| {
        let addresses: Vec<SocketAddr> = addresses.collect();
        exchange::ask(&addresses, &ours, patience)
    });
    match asked {
        Ok(theirs) => compare::compare(&ours, &theirs, host),
        Err(error) => {
            let finding = Finding::problem(Section::Peer, "peer", error.to_string()).on(host);
            if matches!(error, ExchangeError::Resolve(_)) {
                return vec![finding.fix("here, with a name that leads there", [format!("getent hosts {host}")])];
            }
            vec![finding.fix(format!("on {host}"), [format!("qpair doctor --serve --bind ADDRESS --port {port}")])]
        }
    }
}
