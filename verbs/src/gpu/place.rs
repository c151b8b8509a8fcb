//! Where an address points to: the processor's memory, or a GPU's.

/// The owner of an address. CUDA gives the memory of the processor and of all GPUs addresses of one space, so that this is
/// all that is needed beside an address to reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(u8);

impl Place {
    /// Memory of the processor.
    pub(crate) const HOST: Place = Place(0);

    /// Memory of the GPU of that ordinal.
    pub(super) fn gpu(ordinal: u8) -> Place {
        debug_assert!(ordinal < MAX_GPUS as u8);
        Place(ordinal + 1)
    }

    #[inline(always)]
    pub(crate) fn is_host(self) -> bool {
        self == Place::HOST
    }

    /// The GPU's ordinal.
    pub(super) fn ordinal(self) -> Option<u8> {
        self.0.checked_sub(1)
    }

    /// What the number of an arena says of its place. Numbers of the processor's arenas have none of these bits.
    #[inline(always)]
    pub(crate) fn of_arena(arena: u32) -> Place {
        Place((arena >> ARENA_BITS) as u8)
    }

    /// `number` as the number of an arena at this place.
    pub(crate) fn arena(self, number: u32) -> u32 {
        u32::from(self.0) << ARENA_BITS | number & ARENA_MASK
    }
}

/// GPUs of one process, as many as CUDA's own enumeration gives in practice.
pub(super) const MAX_GPUS: usize = 64;
/// Arenas are numbered in the bits below.
const ARENA_BITS: u32 = 24;
/// Greatest number of an arena.
pub(crate) const ARENA_MASK: u32 = (1 << ARENA_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_arena_tells_its_place() {
        for place in [Place::HOST, Place::gpu(0), Place::gpu(MAX_GPUS as u8 - 1)] {
            assert_eq!(Place::of_arena(place.arena(77)), place);
            assert_eq!(place.arena(77) & ARENA_MASK, 77);
        }
        assert!(Place::HOST.is_host() && !Place::gpu(0).is_host());
    }
}
