//! The base transport header (BTH), which begins every packet. IBA 9.2.

use super::bytes::{array, be16, be24};
use super::error::WireError;
use super::opcode::Opcode;
use crate::types::{Psn, Qpn};

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet does.
    pub opcode: Opcode,
    /// Asks the receiver for an event.
    pub solicited: bool,
    /// State of path migration: set where there is none to come, or none at all (IBA 17.2.8). Linux' rdma_rxe sends it clear, and
    /// passes it over; NICs set it, and some take packets without it by a slow way.
    pub migration: bool,
    /// Bytes after the payload that make its length a multiple of 4: 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Congestion was met on the way (FECN; in RoCEv2 the IP header tells that, by ECN).
    pub forward_congestion: bool,
    /// Tells a sender of congestion (BECN): set in CNPs.
    pub backward_congestion: bool,
    /// Queue pair that the packet goes to.
    pub destination: Qpn,
    /// Asks for an acknowledgment.
    pub ack_request: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header of the default partition, without path migration, and with all else clear.
    pub const fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Self {
        Bth {
            opcode,
            solicited: false,
            migration: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            forward_congestion: false,
            backward_congestion: false,
            destination,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header that `bytes` begin with. Reserved bits are ignored.
    ///
    /// # Errors
    /// [`WireError::Truncated`]; [`WireError::Version`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let at = array::<{ Bth::LEN }>(bytes, 0)?;
        let flags = at[1];
        if flags & 0x0f != 0 {
            return Err(WireError::Version { version: flags & 0x0f });
        }
        Ok(Bth {
            opcode: Opcode(at[0]),
            solicited: flags & SOLICITED != 0,
            migration: flags & MIGRATION != 0,
            pad: flags >> PAD_SHIFT & 3,
            pkey: be16(&at, 2),
            forward_congestion: at[4] & FECN != 0,
            backward_congestion: at[4] & BECN != 0,
            destination: Qpn(be24(&at, 5)),
            ack_request: at[8] & ACK_REQUEST != 0,
            psn: Psn::new(be24(&at, 9)),
        })
    }

    /// The header's bytes. Of `pad` the lowest two bits count.
    #[inline]
    pub fn emit(&self) -> [u8; Bth::LEN] {
        let flag = |set, bit| if set { bit } else { 0 };
        let [pkey0, pkey1] = self.pkey.to_be_bytes();
        let [_, qpn0, qpn1, qpn2] = self.destination.0.to_be_bytes();
        let [_, psn0, psn1, psn2] = self.psn.get().to_be_bytes();
        [
            self.opcode.0,
            flag(self.solicited, SOLICITED) | flag(self.migration, MIGRATION) | (self.pad & 3) << PAD_SHIFT,
            pkey0,
            pkey1,
            flag(self.forward_congestion, FECN) | flag(self.backward_congestion, BECN),
            qpn0,
            qpn1,
            qpn2,
            flag(self.ack_request, ACK_REQUEST),
            psn0,
            psn1,
            psn2,
        ]
    }
}

/// The default partition, as a full member.
pub const DEFAULT_PKEY: u16 = 0xffff;

const SOLICITED: u8 = 0x80;
const MIGRATION: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
