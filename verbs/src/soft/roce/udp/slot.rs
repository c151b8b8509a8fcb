//! A slot: the right of a device to the packets whose destination has the slot's number in its lowest bits.

use std::io;
use std::os::fd::OwnedFd;

use super::SLOTS;
use super::place::{Place, What};
use crate::soft::random_u32;

/// A slot that this process has until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u32,
    place: Place,
    /// What has the name that says so; nothing is received from it.
    _claim: OwnedFd,
}

impl Slot {
    /// Claims a slot; `None` if all are taken. No port is used yet.
    pub(crate) fn claim() -> io::Result<Option<Self>> {
        Slot::claim_at(Place::roce())
    }

    pub(super) fn claim_at(place: Place) -> io::Result<Option<Self>> {
        // Not always the same ones: packets may still come for who had a slot before.
        let start = random_u32();
        for number in (0..SLOTS).map(|step| start.wrapping_add(step) % SLOTS) {
            if let Some(claim) = place.bind(What::Slot(number))? {
                return Ok(Some(Slot { number, place, _claim: claim }));
            }
        }
        Ok(None)
    }

    /// Its number, below [`SLOTS`]: the lowest bits of the numbers of all queue pairs of the device.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }
}
