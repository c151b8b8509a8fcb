//! The field's small values as types: keys, numbers, sizes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The remote key of a region or memory window; whoever presents it may access that memory.
///
/// All 32 bits are unpredictable on the software device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rkey(pub u32);

/// A queue pair number, 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Qpn(pub u32);

macro_rules! circular {
    ($($(#[$doc:meta])* $name:ident, $unit:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub struct $name(u32);

        impl $name {
            /// Keeps the low 24 bits of `value`.
            pub const fn new(value: u32) -> Self {
                $name(value & MASK)
            }

            /// The number, below 2^24.
            pub const fn get(self) -> u32 {
                self.0
            }

            #[doc = concat!("The number `count` ", $unit, " later, modulo 2^24.")]
            #[must_use]
            pub const fn advance(self, count: u32) -> Self {
                $name::new(self.0.wrapping_add(count))
            }

            #[doc = concat!("The number `count` ", $unit, " before, modulo 2^24.")]
            #[must_use]
            pub const fn back(self, count: u32) -> Self {
                $name::new(self.0.wrapping_sub(count))
            }

            #[doc = concat!("Number of ", $unit, " from `earlier` to this one, modulo 2^24.")]
            pub const fn since(self, earlier: $name) -> u32 {
                self.0.wrapping_sub(earlier.0) & MASK
            }

            #[doc = concat!("Number of ", $unit, " from `other` to this one, negative where it is older: the nearer way")]
            /// round, -2^23 to 2^23 - 1. IBA 9.7.2 counts the older half as duplicates and the newer as gaps.
            pub const fn relative_to(self, other: $name) -> i32 {
                // The sign bit of 24 goes to that of 32 and back.
                ((self.0.wrapping_sub(other.0) << 8).cast_signed()) >> 8
            }
        }
    )*};
}

circular! {
    /// A packet sequence number, 24 bits; arithmetic on it wraps.
    Psn, "packets";
    /// A message sequence number, 24 bits: how many messages a responder has done, or which one a requester's is. Arithmetic
    /// on it wraps.
    Msn, "messages";
}

/// A path MTU in bytes: 256, 512, 1024, 2048 or 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        256 << (self as u32)
    }
}

macro_rules! hex_number {
    ($($name:ident, $width:literal, $value:expr;)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value: fn(&$name) -> u32 = $value;
                write!(f, concat!("0x{:0", $width, "x}"), value(self))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    )*};
}

hex_number! {
    Rkey, "8", |k| k.0;
    Qpn, "6", |n| n.0;
    Psn, "6", |p| p.get();
    Msn, "6", |m| m.get();
}

const MASK: u32 = 0x00ff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_at_24_bits() {
        assert_eq!(Psn::new(0x00ff_ffff).advance(2).get(), 1);
        assert_eq!(Psn::new(0x0100_0005).get(), 5);
        assert_eq!(Psn::new(1).since(Psn::new(0x00ff_ffff)), 2);
        assert_eq!(Psn::new(1).back(2).get(), 0x00ff_ffff);
    }

    #[test]
    fn the_nearer_way_tells_old_from_new() {
        let ahead = |from: u32, by: u32| Psn::new(from).advance(by).relative_to(Psn::new(from));
        for from in [0, 5, 0x007f_ffff, 0x00ff_ffff] {
            assert_eq!([ahead(from, 0), ahead(from, 1), ahead(from, 0x007f_ffff)], [0, 1, 0x007f_ffff]);
            assert_eq!([ahead(from, 0x0080_0000), ahead(from, 0x00ff_ffff)], [-0x0080_0000, -1]);
        }
    }

    #[test]
    fn mtu_bytes() {
        assert_eq!([Mtu::B256.bytes(), Mtu::B1024.bytes(), Mtu::B4096.bytes()], [256, 1024, 4096]);
    }
}
