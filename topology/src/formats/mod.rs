//! Formats in which machines are exchanged: JSON, the topology files of NCCL, those of hwloc, and a
//! loader that tells them apart.

mod hwloc;
mod json;
mod load;
mod nccl;
mod parts;
#[cfg(test)]
mod tests;
mod xml;

pub use hwloc::HwlocError;
pub use json::JsonError;
pub use load::{Format, LoadError, ReadError};
pub use nccl::NcclError;
pub use xml::XmlError;

/// How large a file may be. Real ones are far smaller: the largest machines take a megabyte of hwloc's
/// XML. What a reader holds is at most a few times the size of the file.
pub mod format_limits {
    /// Bytes of a file.
    pub const FILE: usize = 16 << 20;
    /// Elements of an XML file one in the other.
    pub const DEPTH: usize = 128;
    /// Elements of an XML file.
    pub const ELEMENTS: usize = 200_000;
    /// Attributes of an element.
    pub const ATTRIBUTES: usize = 64;
    /// Attributes of an XML file.
    pub const ALL_ATTRIBUTES: usize = 1_000_000;
    /// Bytes of an attribute.
    pub const VALUE: usize = 64 << 10;
}
