//! REP: accepts a connection. IBA 12.6.8.

use super::bits::{Reader, Writer};
use super::ids::Pair;
use crate::types::{Psn, Qpn};

/// Accepts a connection (REP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Numbers of the connection.
    pub ids: Pair,
    /// Q_Key of the sender's queue pair; 0 but for datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sequence number that the receiver sends from.
    pub starting_psn: Psn,
    /// READs and atomics that the sender answers at once.
    pub responder_resources: u8,
    /// Those that it may have under way.
    pub initiator_depth: u8,
    /// How long the sender's device may take to acknowledge, 4.096 us x 2^n, 5 bits.
    pub ack_delay: u8,
    /// What became of the alternate path, 2 bits.
    pub failover: u8,
    /// The sender uses the credits of acknowledgments.
    pub flow_control: bool,
    /// RNR retries of the receiver's requests, 3 bits; 7: without end.
    pub rnr_retry_count: u8,
    /// The sender's queue pair takes receives from a shared queue.
    pub shared_receives: bool,
    /// GUID of the sender's device.
    pub ca_guid: u64,
    /// What the application says.
    pub private: [u8; Reply::PRIVATE],
}

impl Reply {
    /// Bytes of private data.
    pub const PRIVATE: usize = 196;

    pub(super) fn read(from: &mut Reader<'_>) -> Self {
        let (ids, qkey, qpn) = (Pair::read(from), from.take(32) as u32, Qpn(from.take(24) as u32));
        from.skip(8 + 32);
        let starting_psn = Psn::new(from.take(24) as u32);
        from.skip(8);
        let (responder_resources, initiator_depth) = (from.byte(), from.byte());
        let (ack_delay, failover, flow_control) = (from.take(5) as u8, from.take(2) as u8, from.flag());
        let (rnr_retry_count, shared_receives) = (from.take(3) as u8, from.flag());
        from.skip(4);
        Reply {
            ids,
            qkey,
            qpn,
            starting_psn,
            responder_resources,
            initiator_depth,
            ack_delay,
            failover,
            flow_control,
            rnr_retry_count,
            shared_receives,
            ca_guid: from.take(64),
            private: from.array(),
        }
    }

    pub(super) fn write(&self, to: &mut Writer<'_>) {
        self.ids.write(to);
        to.put(32, self.qkey).put(24, self.qpn.0).skip(8 + 32).put(24, self.starting_psn.get()).skip(8);
        to.put(8, self.responder_resources).put(8, self.initiator_depth);
        to.put(5, self.ack_delay).put(2, self.failover).flag(self.flow_control);
        to.put(3, self.rnr_retry_count).flag(self.shared_receives).skip(4);
        to.put(64, self.ca_guid).array(&self.private);
    }
}
