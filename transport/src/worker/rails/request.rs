//! The number of a request on a rail, by which its completion is known.

use crate::worker::ids::EndpointId;
use crate::worker::work_id::ENDPOINT_BITS;

/// Whose a request on a rail is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneWork {
    pub(super) ep: EndpointId,
    pub(super) rail: usize,
    pub(super) is_probe: bool,
}

impl LaneWork {
    pub(super) fn id(self) -> u64 {
        let LaneWork { ep, rail, is_probe } = self;
        u64::from(ep.index)
            | (rail as u64) << ENDPOINT_BITS
            | u64::from(is_probe) << PROBE_BIT
            | u64::from(ep.generation) << 32
    }

    pub(super) fn of(id: u64) -> LaneWork {
        LaneWork {
            ep: EndpointId { index: id as u32 & ((1 << ENDPOINT_BITS) - 1), generation: (id >> 32) as u32 },
            rail: (id >> ENDPOINT_BITS) as usize & (RAILS - 1),
            is_probe: id >> PROBE_BIT & 1 == 1,
        }
    }
}

/// Numbers of rails are below.
const RAILS: usize = 1 << 4;
const PROBE_BIT: u32 = ENDPOINT_BITS + RAILS.trailing_zeros();

const _: () = assert!(PROBE_BIT < 32 && crate::cm::RAILS_LIMIT <= RAILS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_requests_round_trip() {
        for (index, generation, rail, is_probe) in [(0, 1, 0, false), ((1 << ENDPOINT_BITS) - 1, u32::MAX, 15, true)] {
            let work = LaneWork { ep: EndpointId { index, generation }, rail, is_probe };
            assert_eq!(LaneWork::of(work.id()), work);
        }
    }
}
