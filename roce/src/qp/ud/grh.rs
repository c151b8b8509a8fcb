//! What a receive has before a datagram: where it came from.

/// The first 40 bytes of a receive for datagrams, the place of a global route header (GRH). In RoCEv2 the IP header is there
/// (A17): one of IPv6 fills it, one of IPv4 its last 20 bytes, behind zeros (`union rdma_network_hdr` of the
/// kernel's `ib_verbs.h`; `ibv_init_ah_from_wc` reads it so).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh([u8; Grh::LEN]);

impl Grh {
    /// Bytes of a receive that it takes.
    pub const LEN: usize = 40;

    /// With the IPv4 header of a packet, which has no options.
    pub fn v4(header: &[u8; 20]) -> Self {
        let mut bytes = [0; Grh::LEN];
        bytes[20..].copy_from_slice(header);
        Grh(bytes)
    }

    /// With the IPv6 header of a packet.
    pub const fn v6(header: &[u8; Grh::LEN]) -> Self {
        Grh(*header)
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &[u8; Grh::LEN] {
        &self.0
    }
}
