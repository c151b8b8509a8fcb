//! A path between two ports, as a request tells it.

use super::bits::{Reader, Writer};

/// A path between two ports. Over RoCE the local identifiers mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Local identifiers: of the sender of the request, and of its receiver.
    pub lids: [u16; 2],
    /// Global identifiers, in the same order.
    pub gids: [[u8; 16]; 2],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate, a code of 6 bits.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Both ends are of one subnet.
    pub subnet_local: bool,
    /// How long an acknowledgment may take, 4.096 us x 2^n, 5 bits.
    pub ack_timeout: u8,
}

impl Path {
    pub(super) fn read(from: &mut Reader<'_>) -> Self {
        let lids = [from.take(16) as u16, from.take(16) as u16];
        let gids = [from.array(), from.array()];
        let flow_label = from.take(20) as u32;
        from.skip(6);
        let rate = from.take(6) as u8;
        let (traffic_class, hop_limit, service_level) = (from.byte(), from.byte(), from.take(4) as u8);
        let subnet_local = from.flag();
        from.skip(3);
        let ack_timeout = from.take(5) as u8;
        from.skip(3);
        Path { lids, gids, flow_label, rate, traffic_class, hop_limit, service_level, subnet_local, ack_timeout }
    }

    pub(super) fn write(&self, to: &mut Writer<'_>) {
        to.put(16, self.lids[0]).put(16, self.lids[1]).array(&self.gids[0]).array(&self.gids[1]);
        to.put(20, self.flow_label).skip(6).put(6, self.rate);
        to.put(8, self.traffic_class).put(8, self.hop_limit).put(4, self.service_level);
        to.flag(self.subnet_local).skip(3).put(5, self.ack_timeout).skip(3);
    }
}
