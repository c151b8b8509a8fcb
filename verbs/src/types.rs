//! The field's small values as types: keys, numbers, addresses, access rights.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{BitOr, BitOrAssign};

pub use qpair_roce::{Mtu, Psn, Qpn, Rkey};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A global identifier: 128 bits, printed as an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address that a RoCE GID stands for (`::ffff:a.b.c.d`), if it does.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The IP address that a RoCE GID stands for.
    ///
    /// ```
    /// use std::net::{IpAddr, Ipv4Addr};
    ///
    /// use qpair_verbs::Gid;
    ///
    /// let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    /// assert_eq!(Gid::from(address).to_string(), "::ffff:10.0.0.1");
    /// assert_eq!(Gid::from(address).ip(), address);
    /// ```
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// True for fe80::/64, which reaches no further than the link.
    pub fn is_link_local(self) -> bool {
        self.0[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0]
    }

    /// Leading bits that two have in common, 0 to 128.
    pub fn common_prefix(self, other: Gid) -> u32 {
        (u128::from_be_bytes(self.0) ^ u128::from_be_bytes(other.0)).leading_zeros()
    }
}

/// The RoCE GID of an address: one of IPv4 is mapped into IPv6. IBA A17.4.4.1.
impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Gid(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What a GID table entry stands for. Values that this crate does not know are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1 (Ethertype 0x8915).
    RoceV1,
    /// RoCE version 2 (UDP port 4791).
    RoceV2,
    /// A code that this crate does not know.
    Unknown(u32),
}

/// One row of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Position in the table; `sgid_index` elsewhere.
    pub index: u32,
    /// The identifier.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidKind,
    /// The network interface that it comes from; `None` where there is none, or the system does not tell.
    pub netdev: Option<String>,
}

/// The service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// The state of a queue pair, as the device last told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just made; nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue drains (hardware only).
    Sqd,
    /// The send queue stopped on an error (UC and UD on hardware).
    Sqe,
    /// Everything posted is flushed.
    Err,
    /// A code that this crate does not know.
    Unknown(u32),
}

impl QpState {
    /// The state for a code of `enum ibv_qp_state`.
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqd,
            5 => QpState::Sqe,
            6 => QpState::Err,
            other => QpState::Unknown(other),
        }
    }

    /// The code of `enum ibv_qp_state`.
    pub const fn code(self) -> u32 {
        match self {
            QpState::Reset => 0,
            QpState::Init => 1,
            QpState::Rtr => 2,
            QpState::Rts => 3,
            QpState::Sqd => 4,
            QpState::Sqe => 5,
            QpState::Err => 6,
            QpState::Unknown(other) => other,
        }
    }
}

/// What a remote peer may do with a region. Combine with `|`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Access(u32);

impl Access {
    /// Nothing remote.
    pub const NONE: Access = Access(0);
    /// The peer may write (RDMA WRITE). `IBV_ACCESS_REMOTE_WRITE`.
    pub const REMOTE_WRITE: Access = Access(1 << 1);
    /// The peer may read (RDMA READ). `IBV_ACCESS_REMOTE_READ`.
    pub const REMOTE_READ: Access = Access(1 << 2);
    /// The peer may do atomics. `IBV_ACCESS_REMOTE_ATOMIC`.
    pub const REMOTE_ATOMIC: Access = Access(1 << 3);
    /// Memory windows may be bound to the region. `IBV_ACCESS_MW_BIND`.
    pub const WINDOW_BIND: Access = Access(1 << 4);
    /// Read, write and atomics.
    pub const REMOTE_ALL: Access = Access(0b1110);

    /// True if every right of `other` is in `self`.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits, as in `enum ibv_access_flags`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Bits that are no right of peers are refused: a device would take them for other flags.
impl<'de> Deserialize<'de> for Access {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u32::deserialize(deserializer)?;
        if bits & !ALL_ACCESS.0 != 0 {
            return Err(D::Error::custom(format_args!("{bits:#x} has bits that are no right of peers")));
        }
        Ok(Access(bits))
    }
}

/// Each right that there is.
const ALL_ACCESS: Access = Access(Access::REMOTE_ALL.0 | Access::WINDOW_BIND.0);

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Access) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Access, &str); 4] = [
            (Access::REMOTE_WRITE, "REMOTE_WRITE"),
            (Access::REMOTE_READ, "REMOTE_READ"),
            (Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
            (Access::WINDOW_BIND, "WINDOW_BIND"),
        ];
        let mut first = true;
        for (right, name) in NAMES {
            if self.contains(right) {
                write!(f, "{}{name}", if first { "" } else { " | " })?;
                first = false;
            }
        }
        if first { f.write_str("NONE") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_prints_its_names() {
        assert_eq!(format!("{:?}", Access::REMOTE_READ | Access::REMOTE_WRITE), "REMOTE_WRITE | REMOTE_READ");
        assert_eq!(format!("{:?}", Access::NONE), "NONE");
        assert!(Access::REMOTE_ALL.contains(Access::REMOTE_ATOMIC));
        assert!(!Access::REMOTE_READ.contains(Access::REMOTE_WRITE));
    }

    #[test]
    fn only_rights_of_peers_are_taken_from_elsewhere() {
        for access in [Access::NONE, Access::REMOTE_READ, ALL_ACCESS] {
            let text = serde_json::to_string(&access).unwrap();
            assert_eq!(serde_json::from_str::<Access>(&text).unwrap(), access);
        }
        for foreign in (0..32).map(|bit| 1_u32 << bit).filter(|bit| bit & ALL_ACCESS.0 == 0) {
            let with_right = foreign | Access::REMOTE_READ.0;
            assert!(serde_json::from_str::<Access>(&with_right.to_string()).is_err(), "{foreign:#x}");
        }
    }

    #[test]
    fn state_codes_round_trip() {
        for code in 0..20 {
            assert_eq!(QpState::from_code(code).code(), code);
        }
    }
}
