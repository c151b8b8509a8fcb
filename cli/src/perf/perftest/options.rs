//! Options that perftest has and the software device's own way of measuring has not.

use clap::{Args, ValueEnum};
use qpair::verbs::{Mtu, QpType};
use serde::{Deserialize, Serialize};

use crate::period::Period;

/// What perftest's options of the same letters mean.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options as perftest has them (for RDMA devices; on soft0 they choose its way too)")]
pub struct PerftestOptions {
    /// Service of the queue pairs [default: RC]
    #[arg(short = 'c', long, value_enum, ignore_case = true, value_name = "SERVICE")]
    pub connection: Option<Service>,
    /// Queue pairs [default: 1]
    #[arg(short = 'q', long, visible_alias = "qp", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub qps: Option<u32>,
    /// Both sides send
    #[arg(short = 'b', long)]
    pub bidirectional: bool,
    /// Receives posted at once on a queue pair [default: 512; with UC and UD as many as messages, up to 16000 or what the
    /// device has: a message that finds none is lost]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub rx_depth: Option<u32>,
    /// Messages up to so many bytes are copied into the request [default: for latency what the device takes, at most 220
    /// for WRITE, 236 for SEND, 188 with UD; 0 for bandwidth]
    #[arg(short = 'I', long, visible_alias = "inline_size", value_name = "BYTES")]
    pub inline: Option<u32>,
    /// READs and atomics under way at once on a queue pair [default: what the device has]
    #[arg(short = 'o', long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub outs: Option<u8>,
    /// Atomic operation [default: FETCH_AND_ADD]
    #[arg(short = 'A', long, visible_alias = "atomic_type", value_enum, ignore_case = true, value_name = "OPERATION")]
    pub atomic: Option<AtomicOperation>,
    /// Sleep until something completes, instead of polling
    #[arg(short = 'e', long)]
    pub events: bool,
    /// With --duration: do not measure the first and last so much of it [default: a quarter, in whole seconds]
    #[arg(short = 'f', long, value_name = "TIME", requires = "duration")]
    pub margin: Option<Period>,
    /// Do not look for the best bandwidth over any part of a run (above 20000 messages on each queue
    /// pair it is not looked for)
    #[arg(short = 'N', long = "no-peak", visible_alias = "noPeak")]
    pub no_peak: bool,
    /// Port of the device [default: 1]
    #[arg(short = 'i', long, value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: Option<u8>,
    /// Row of the port's GID table [default: RoCEv2, of the network that the TCP connection takes]
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<u32>,
    /// Path MTU in bytes [default: the port's]
    #[arg(short = 'm', long, value_parser = mtu, value_name = "256|512|1024|2048|4096")]
    pub mtu: Option<Mtu>,
    /// Bandwidth in Gb/s (10^9 bits) instead of MiB/s
    #[arg(long = "report_gbits", visible_alias = "report-gbits")]
    pub report_gbits: bool,
}

/// A service, as it is called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Service {
    /// Reliable connection
    Rc,
    /// Unreliable connection: WRITE and SEND
    Uc,
    /// Unreliable datagram: SEND, at most one MTU
    Ud,
}

/// An atomic operation, as perftest calls it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "SCREAMING_SNAKE")]
#[serde(rename_all = "snake_case")]
pub enum AtomicOperation {
    /// Adds 1
    #[default]
    FetchAndAdd,
    /// Swaps 0 for 1
    CmpAndSwap,
}

impl AtomicOperation {
    /// perftest's name.
    pub fn name(self) -> &'static str {
        match self {
            AtomicOperation::FetchAndAdd => "FETCH_AND_ADD",
            AtomicOperation::CmpAndSwap => "CMP_AND_SWAP",
        }
    }
}

impl From<Service> for QpType {
    fn from(service: Service) -> Self {
        match service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        }
    }
}

impl PerftestOptions {
    /// The number of the port, counted from 1.
    pub fn port(&self) -> u8 {
        self.ib_port.unwrap_or(1)
    }

    /// True if any is given.
    pub fn any(&self) -> bool {
        let PerftestOptions {
            connection, qps, rx_depth, inline, outs, atomic, margin, ib_port, gid_index, mtu, ..
        } = self;
        self.bidirectional
            || self.events
            || self.no_peak
            || self.report_gbits
            || connection.is_some()
            || qps.is_some()
            || rx_depth.is_some()
            || inline.is_some()
            || outs.is_some()
            || atomic.is_some()
            || margin.is_some()
            || ib_port.is_some()
            || gid_index.is_some()
            || mtu.is_some()
    }

    /// Those that a serving process on this machine needs, as arguments: what its client does not tell it.
    pub fn for_server(&self) -> Vec<String> {
        let mut line = Vec::new();
        let mut give = |option: &str, value: Option<String>| {
            if let Some(value) = value {
                line.extend([option.to_owned(), value]);
            }
        };
        give("--connection", self.connection.map(|service| super::names::service_name(service.into()).to_owned()));
        // It gives more to its client where it was told so itself.
        give("--qps", self.qps.map(|qps| qps.to_string()));
        give("--rx-depth", self.rx_depth.map(|depth| depth.to_string()));
        give("--inline", self.inline.map(|bytes| bytes.to_string()));
        give("--outs", self.outs.map(|outs| outs.to_string()));
        give("--ib-port", self.ib_port.map(|port| port.to_string()));
        give("--gid-index", self.gid_index.map(|index| index.to_string()));
        give("--mtu", self.mtu.map(|mtu| mtu.bytes().to_string()));
        if self.events {
            line.push("--events".to_owned());
        }
        line
    }
}

/// The MTU of a size in bytes.
///
/// # Errors
/// A text that says which there are.
pub fn mtu(text: &str) -> Result<Mtu, String> {
    MTUS.into_iter()
        .find(|mtu| text.parse() == Ok(mtu.bytes()))
        .ok_or_else(|| "an MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned())
}

/// The greatest MTU of at most so many bytes; the least if there is none.
pub fn mtu_of(bytes: u32) -> Mtu {
    MTUS.into_iter().rev().find(|mtu| mtu.bytes() <= bytes).unwrap_or(Mtu::B256)
}

const MTUS: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_their_sizes() {
        assert_eq!(mtu("1024"), Ok(Mtu::B1024));
        assert!(mtu("1000").is_err() && mtu("3").is_err() && mtu("").is_err());
        assert_eq!([mtu_of(4096), mtu_of(1500), mtu_of(1)], [Mtu::B4096, Mtu::B1024, Mtu::B256]);
    }
}
