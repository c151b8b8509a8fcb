//! An end, and how its queue pairs are made.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use qpair_roce::congestion::{DcqcnParameters, Rate};
use qpair_roce::wire::{Addresses, Flow, PORT};
use qpair_roce::{
    DatagramConfig, Datagrams, Mtu, Port, Psn, Qpn, QueuePair, ReliableConfig, ReliableConnection, Route,
    UnreliableConfig, UnreliableConnection,
};

use super::device::{Device, Local};
use super::op::Setup;

/// One end.
pub struct End {
    pub port: Port<Local>,
    pub device: Device,
    pub addresses: Addresses,
    /// Number of the last request that it sent on its reliable connection.
    pub sent: Psn,
}

impl End {
    /// End `own`, with all its queue pairs.
    pub fn new(now: Instant, own: usize, setup: &Setup) -> Self {
        let addresses = if setup.is_v6 {
            Addresses::V6([1; 16].into(), [2; 16].into())
        } else {
            Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        };
        let addresses = if own == 0 { addresses } else { addresses.reversed() };
        let mut port = Port::new();
        if setup.is_controlled {
            port.control_congestion(DcqcnParameters::new(Rate::from_gbps(1)));
        }
        let mut end = End { port, device: Device::new(setup.counts), addresses, sent: first(setup, own) };
        QPNS.into_iter().for_each(|qpn| end.open(now, own, qpn, setup));
        end
    }

    /// Makes a queue pair.
    pub fn open(&mut self, now: Instant, own: usize, qpn: Qpn, setup: &Setup) {
        let psns = [first(setup, own), first(setup, 1 - own)];
        let queue_pair = if qpn == QPNS[0] {
            let config = ReliableConfig {
                mtu: Mtu::B256,
                ack_timeout: Some(Duration::from_micros(500)),
                retry_count: setup.retries,
                rnr_retry: setup.rnr_retries,
                max_reads: setup.reads[own] % 8,
                reads_answered: setup.reads[1 - own] % 8,
                send_depth: DEPTH,
                window: setup.window.into(),
                ..ReliableConfig::new(qpn, qpn, psns[0], psns[1])
            };
            QueuePair::Reliable(ReliableConnection::new(config), self.route())
        } else if qpn == QPNS[1] {
            let config = UnreliableConfig::new(qpn, qpn, psns[0], psns[1]);
            let config = UnreliableConfig { mtu: Mtu::B256, send_depth: DEPTH, ..config };
            QueuePair::Unreliable(UnreliableConnection::new(config), self.route())
        } else {
            let config = DatagramConfig { mtu: Mtu::B256, send_depth: DEPTH, ..DatagramConfig::new(qpn, QKEY) };
            QueuePair::Datagrams(Datagrams::new(config))
        };
        self.port.add(now, queue_pair).expect("a free number");
        self.device.posted.insert(qpn, VecDeque::new());
    }

    /// Closes and removes a queue pair; nothing is left of it.
    pub fn remove(&mut self, qpn: Qpn) {
        let End { port, device, .. } = self;
        port.close(qpn, device);
        assert!(device.failed.contains(&qpn) && device.taken.iter().all(|(_, by)| *by != qpn), "{:?}", device.taken);
        device.failed.retain(|failed| *failed != qpn);
        assert!(port.remove(qpn).is_some());
        let left = device.posted.remove(&qpn);
        assert_eq!(left, Some(VecDeque::new()), "these did not complete");
    }

    /// Where its packets go.
    pub fn route(&self) -> Route {
        Route { addresses: self.addresses, source_port: SOURCE_PORT, traffic_class: 0, hop_limit: 64 }
    }
}

fn first(setup: &Setup, own: usize) -> Psn {
    Psn::new(i32::from(setup.psns[own]).cast_unsigned())
}

/// Packets between such addresses.
pub fn flow(addresses: Addresses) -> Flow {
    Flow { addresses, source_port: SOURCE_PORT, destination_port: PORT }
}

/// A reliable connection, an unreliable one, and datagrams.
pub const QPNS: [Qpn; 3] = [Qpn(0x10), Qpn(0x11), Qpn(0x12)];
pub const QKEY: u32 = 0x1111_1111;
pub const SOURCE_PORT: u16 = 50_000;
const DEPTH: u32 = 8;
