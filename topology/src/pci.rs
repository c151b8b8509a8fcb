//! PCI: addresses, and what a PCIe link carries.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Bandwidth;

/// Where a PCI function is: `domain:bus:device.function`, as in `0000:17:00.1`.
///
/// Addresses are ordered as numbers, which is the order that all lists of this crate keep. Domains
/// have more than four digits on some hypervisors.
///
/// ```
/// let nic: qpair_topology::PciAddress = "0000:4b:00.1".parse()?;
/// assert_eq!(nic.bus, 0x4b);
/// assert_eq!("4B:00.1".parse(), Ok(nic));
/// # Ok::<(), qpair_topology::ParsePciAddressError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// The domain, also called segment.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device, less than 32.
    pub device: u8,
    /// The function, less than 8.
    pub function: u8,
}

impl PciAddress {
    /// Of its four numbers; device and function are cut to their 5 and 3 bits.
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Self {
        Self { domain, bus, device: device & 31, function: function & 7 }
    }

    /// True of functions of one device, which share its link.
    pub fn same_device(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Text that is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no PCI address: write it as 0000:17:00.0, in hexadecimal; the domain may be left out")]
pub struct ParsePciAddressError(String);

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // What can not be an address is not kept whole: it may be megabytes of a hostile file.
        let fail = || ParsePciAddressError(text.chars().take(40).collect());
        let number = |part: &str, digits: usize, below: u32| {
            let fits = !part.is_empty() && part.len() <= digits && part.bytes().all(|b| b.is_ascii_hexdigit());
            fits.then(|| u32::from_str_radix(part, 16).ok()).flatten().filter(|&n| n < below)
        };
        let (front, function) = text.trim().rsplit_once('.').ok_or_else(fail)?;
        let (front, device) = front.rsplit_once(':').ok_or_else(fail)?;
        let (domain, bus) = front.rsplit_once(':').unwrap_or(("0", front));
        Ok(Self {
            domain: number(domain, 8, u32::MAX).ok_or_else(fail)?,
            bus: number(bus, 2, 256).ok_or_else(fail)? as u8,
            device: number(device, 2, 32).ok_or_else(fail)? as u8,
            function: number(function, 1, 8).ok_or_else(fail)? as u8,
        })
    }
}

impl TryFrom<String> for PciAddress {
    type Error = ParsePciAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

/// A generation of PCIe. In files it is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum PcieGeneration {
    /// 2.5 GT/s.
    Gen1,
    /// 5 GT/s.
    Gen2,
    /// 8 GT/s.
    Gen3,
    /// 16 GT/s.
    Gen4,
    /// 32 GT/s.
    Gen5,
    /// 64 GT/s.
    Gen6,
}

impl PcieGeneration {
    /// All, slowest first.
    pub const ALL: [Self; 6] = [Self::Gen1, Self::Gen2, Self::Gen3, Self::Gen4, Self::Gen5, Self::Gen6];

    /// Of its signalling rate in tenths of GT/s: 25, 50, 80, 160, 320, 640. `None` for other rates.
    pub fn of_rate(tenths_of_gigatransfers: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|g| g.rate() == tenths_of_gigatransfers)
    }

    /// Of its number, 1 to 6.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|g| g.number() == number)
    }

    /// Of the text that Linux and topology files have: `16.0 GT/s PCIe`, `8 GT/s`. `None` for
    /// `Unknown` and anything else.
    pub fn of_speed(text: &str) -> Option<Self> {
        let number = text.trim().split_once(" GT/s")?.0;
        let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
        let tenths = tenths.bytes().next().filter(u8::is_ascii_digit)? - b'0';
        Self::of_rate(whole.parse::<u32>().ok()?.checked_mul(10)?.checked_add(tenths.into())?)
    }

    /// Its number, 1 to 6.
    pub const fn number(self) -> u32 {
        self as u32 + 1
    }

    /// Its signalling rate in tenths of GT/s.
    pub const fn rate(self) -> u32 {
        match self {
            Self::Gen1 => 25,
            Self::Gen2 => 50,
            Self::Gen3 => 80,
            Self::Gen4 => 160,
            Self::Gen5 => 320,
            Self::Gen6 => 640,
        }
    }

    /// What one lane carries in one direction once line code and packet headers are paid. From Gen3
    /// on about three quarters of the signalling rate, as large transfers reach; Gen1 and Gen2 lose
    /// more, since their line code takes a fifth.
    pub const fn lane(self) -> Bandwidth {
        Bandwidth::from_mb(match self {
            Self::Gen1 => 190,
            Self::Gen2 => 380,
            Self::Gen3 => 750,
            Self::Gen4 => 1_500,
            Self::Gen5 => 3_000,
            Self::Gen6 => 6_000,
        })
    }
}

impl From<PcieGeneration> for u32 {
    fn from(generation: PcieGeneration) -> Self {
        generation.number()
    }
}

impl TryFrom<u32> for PcieGeneration {
    type Error = UnknownPcieGeneration;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        Self::of_number(number).ok_or(UnknownPcieGeneration(number))
    }
}

/// A number that is no generation of PCIe that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} is no generation of PCIe: there are 1 to 6")]
pub struct UnknownPcieGeneration(u32);

/// The PCIe link of a device to what is above it. What is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PcieLink {
    /// The generation that both ends run at.
    pub generation: Option<PcieGeneration>,
    /// The number of lanes that both ends have. Zero, and what exceeds 32, are unknown.
    pub width: Option<u8>,
}

impl PcieLink {
    /// Nothing is known: a virtual machine's devices, virtual functions.
    pub const UNKNOWN: Self = Self { generation: None, width: None };

    /// A link of known generation and width.
    pub const fn new(generation: PcieGeneration, width: u8) -> Self {
        Self { generation: Some(generation), width: Some(width) }
    }

    /// The same with a width that no link has made unknown.
    #[must_use]
    pub fn checked(self) -> Self {
        Self { width: self.width.filter(|w| (1..=32).contains(w)), ..self }
    }

    /// True if generation and width are known.
    pub fn is_known(self) -> bool {
        self.generation.is_some() && self.width.is_some()
    }

    /// The link between a device and the port above it: of each the lesser, where both are known.
    #[must_use]
    pub fn limited_by(self, other: Self) -> Self {
        fn lesser<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        Self { generation: lesser(self.generation, other.generation), width: lesser(self.width, other.width) }
    }

    /// What it carries in one direction. What is unknown is taken as the fastest there is, Gen6 and
    /// 16 lanes: an unknown link must not turn a choice against links that are known, and builders
    /// of machines give a NIC the lanes that it needs.
    pub fn bandwidth(self) -> Bandwidth {
        let link = self.checked();
        link.generation.unwrap_or(PcieGeneration::Gen6).lane().times(link.width.unwrap_or(16).into())
    }
}

/// `PCIe 4 x16`, with `?` for what is not known.
impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation {
            Some(generation) => write!(f, "PCIe {}", generation.number())?,
            None => f.write_str("PCIe ?")?,
        }
        match self.width {
            Some(width) => write!(f, " x{width}"),
            None => f.write_str(" x?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["0000:17:00.0", "ffff:ff:1f.7", "10000:e1:00.0"] {
            assert_eq!(text.parse::<PciAddress>().map(|a| a.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "17", "00:20.0", "0000:17:00", "0000:17:00.8", "0:0:0:0.0", "+1:00.0", "0000:117:00.0", "::."]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
        let long = "x".repeat(1 << 20).parse::<PciAddress>().map_err(|e| e.to_string().len());
        assert!(long.is_err_and(|length| length < 200));
    }

    #[test]
    fn speeds_are_read_in_all_spellings() {
        assert_eq!(PcieGeneration::of_speed("8 GT/s"), Some(PcieGeneration::Gen3));
        assert_eq!(PcieGeneration::of_speed("32.0 GT/s PCIe"), Some(PcieGeneration::Gen5));
        assert_eq!(PcieGeneration::of_speed("2.5 GT/s"), Some(PcieGeneration::Gen1));
        assert_eq!(PcieGeneration::of_speed("Unknown"), None);
        assert_eq!(PcieGeneration::of_speed("4294967295 GT/s"), None);
        assert_eq!(PcieGeneration::of_speed("429496729.9 GT/s"), None);
    }

    #[test]
    fn a_link_is_as_fast_as_its_slower_end() {
        let device = PcieLink::new(PcieGeneration::Gen5, 16);
        let port = PcieLink::new(PcieGeneration::Gen4, 8);
        assert_eq!(device.limited_by(port).bandwidth(), Bandwidth::from_gb(12));
        assert_eq!(device.limited_by(PcieLink::UNKNOWN), device);
        assert_eq!(PcieLink { generation: None, width: Some(0) }.bandwidth(), Bandwidth::from_gb(96));
    }
}
