//! What parts carry: figures that follow from what they are, where no file or system says more.

use super::parts::{Cpu, GpuLinkKind, Nic, NicKind, Port, PortState};
use crate::Bandwidth;

impl Cpu {
    /// What the link to another socket carries in one direction, estimated from maker and model:
    /// two or three links of the generation, less what coherence and small packets take. The order
    /// of processors is right, the figures are rough; describe the link where it is known better.
    pub fn socket_bandwidth(&self) -> Bandwidth {
        let arch = self.arch.as_deref().unwrap_or_default();
        let vendor = self.vendor.as_deref().unwrap_or_default();
        Bandwidth::from_gb(match (arch, vendor, family(self.family.unwrap_or(0)), self.model.unwrap_or(0)) {
            // NVLink-C2C between two Grace, and X-Bus between two POWER9.
            ("arm64" | "aarch64", ..) => 32,
            ("ppc64" | "ppc64le", ..) => 32,
            // Zen 4 and later have four links of 32 GT/s; before, of 16 to 18 GT/s.
            (_, "AuthenticAMD", family, model) if family >= 26 || family == 25 && model >= 0x10 => 32,
            (_, "AuthenticAMD", ..) => 16,
            (_, "GenuineIntel", 6, model) if model >= 0x8f => 32,
            (_, "GenuineIntel", 6, 0x6a | 0x6c) => 16,
            (_, "GenuineIntel", 6, model) if model >= 0x55 => 10,
            (_, "GenuineIntel", 6, 1..) => 8,
            _ => 10,
        })
    }

    /// What the link to another node of the same socket carries in one direction.
    pub fn package_bandwidth(&self) -> Bandwidth {
        self.socket_bandwidth().times(3)
    }
}

/// The family as processors and Linux count it. Topology files of NCCL and RCCL set the extended family
/// beside the base one, where the two are to be added: 0x8f, or 143, is 8 + 15, which is 23. No family
/// of its own is that large.
const fn family(number: u32) -> u32 {
    if number > 0x1f && number & 15 == 15 { 15 + (number >> 4) } else { number }
}

impl Port {
    /// True if data passes, as far as is known.
    pub fn carries_data(&self) -> bool {
        matches!(self.state, PortState::Active | PortState::Unknown)
    }
}

impl Nic {
    /// True if some port carries data.
    pub fn is_usable(&self) -> bool {
        self.ports.iter().any(Port::carries_data)
    }

    /// True unless it is known to have no reliable connections of the InfiniBand kind, which are made by addresses.
    pub fn has_reliable_connections(&self) -> bool {
        matches!(self.kind, NicKind::ChannelAdapter | NicKind::Unknown)
    }

    /// What its ports carry together in one direction: of a bond its active members, as far as their
    /// rates are known, else the ports that are not down. Unlimited where no rate is known.
    pub fn bandwidth(&self) -> Bandwidth {
        if !self.is_usable() {
            return Bandwidth::ZERO;
        }
        let members = self.bond.iter().filter(|member| member.active).filter_map(|member| member.mbit);
        let bond: Bandwidth = members.map(Bandwidth::from_mbit).sum();
        if bond > Bandwidth::ZERO {
            return bond;
        }
        let ports = self.ports.iter().filter(|port| port.carries_data());
        ports.map(|port| port.mbit.map_or(Bandwidth::UNLIMITED, Bandwidth::from_mbit)).sum()
    }
}

impl GpuLinkKind {
    /// What one NVLink of a generation, 1 to 5, carries in one direction: about 85 of 100 bytes of
    /// the nominal 20, 25, 25, 25 and 50 GB/s, since packets have headers.
    pub const fn nvlink(generation: u32) -> Bandwidth {
        Bandwidth::from_gb(match generation {
            0 | 1 => 17,
            2..=4 => 21,
            _ => 42,
        })
    }

    /// What one xGMI link carries in one direction: three quarters of the nominal 64 GB/s of the
    /// MI300 family, 50 of the MI200 family, and 46 of what came before.
    pub const fn xgmi(cdna: u32) -> Bandwidth {
        Bandwidth::from_gb(match cdna {
            0 | 1 => 34,
            2 => 37,
            _ => 48,
        })
    }

    /// What C2C carries in one direction: of the nominal 450 GB/s, five sixths.
    pub const fn c2c() -> Bandwidth {
        Bandwidth::from_gb(375)
    }
}
