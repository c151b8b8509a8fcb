//! How near two parts are, in the words of `nvidia-smi topo -m`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How near two parts are. Lesser is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PathClass {
    /// The part itself.
    Loc,
    /// Over links of GPUs: NVLink, xGMI, or C2C to the processor beside.
    Nvl,
    /// Over at most one PCIe switch.
    Pix,
    /// Over several PCIe switches, and no host bridge.
    Pxb,
    /// Over a link to another GPU, and from there over PCIe switches.
    Pxn,
    /// Over a PCIe host bridge.
    Phb,
    /// Between host bridges of a NUMA node, or NUMA nodes of a socket.
    Node,
    /// Between sockets.
    Sys,
    /// Over the network.
    Net,
}

impl PathClass {
    /// All, nearest first.
    pub const ALL: [Self; 9] =
        [Self::Loc, Self::Nvl, Self::Pix, Self::Pxb, Self::Pxn, Self::Phb, Self::Node, Self::Sys, Self::Net];

    /// Its short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Net => "NET",
        }
    }

    /// What it means, for a legend.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Loc => "the part itself",
            Self::Nvl => "links of GPUs: NVLink, xGMI or C2C",
            Self::Pix => "at most one PCIe switch",
            Self::Pxb => "several PCIe switches, and no host bridge",
            Self::Pxn => "a link to another GPU, and PCIe switches from there",
            Self::Phb => "a PCIe host bridge",
            Self::Node => "host bridges of a NUMA node, or NUMA nodes of a socket",
            Self::Sys => "the link between sockets",
            Self::Net => "the network",
        }
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
