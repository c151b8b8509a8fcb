//! The numbers of work requests and receives: what a completion belongs to.

use super::ids::EndpointId;

/// What a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// A message that went inline, or a CLOSE.
    Send = 0,
    /// A message that went from a buffer of the pool.
    SendBuffer = 1,
    /// A READ or WRITE.
    Read = 2,
    /// A keepalive probe.
    Probe = 3,
}

/// The number of a receive for that endpoint.
#[inline]
pub(crate) fn receive_id(id: EndpointId) -> u64 {
    u64::from(id.index) | u64::from(id.generation) << 32
}

/// The number of a receive for any endpoint. No endpoint's own is the same: generations are not zero.
pub(crate) const SHARED_RECEIVE: u64 = 0;

/// A work request's number: the lowest bits of its running number, then endpoint, generation and job.
#[inline]
pub(crate) fn wr_id(job: Job, id: EndpointId, number: u32) -> u64 {
    let generation = id.generation & GENERATION_MASK;
    u64::from(number & NUMBER_MASK)
        | u64::from(id.index) << NUMBER_BITS
        | u64::from(generation) << (NUMBER_BITS + ENDPOINT_BITS)
        | (job as u64) << 62
}

/// The parts of a work request's number.
#[inline]
pub(crate) fn parse_wr_id(wr_id: u64) -> WorkId {
    let job = match wr_id >> 62 {
        0 => Job::Send,
        1 => Job::SendBuffer,
        2 => Job::Read,
        _ => Job::Probe,
    };
    WorkId {
        job,
        index: (wr_id >> NUMBER_BITS) as usize & ((1 << ENDPOINT_BITS) - 1),
        generation: (wr_id >> (NUMBER_BITS + ENDPOINT_BITS)) as u32 & GENERATION_MASK,
        number: wr_id as u32 & NUMBER_MASK,
    }
}

/// What a work request's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    pub(crate) job: Job,
    pub(crate) index: usize,
    generation: u32,
    /// The lowest bits of the running number.
    pub(crate) number: u32,
}

impl WorkId {
    /// True if it is that connection's.
    #[inline]
    pub(crate) fn is_of(&self, id: EndpointId) -> bool {
        id.generation & GENERATION_MASK == self.generation
    }
}

/// Far more than a send queue has slots, so that the running number can be made out.
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
/// Endpoints of a worker.
pub(crate) const ENDPOINT_BITS: u32 = 20;
const GENERATION_MASK: u32 = (1 << (62 - NUMBER_BITS - ENDPOINT_BITS)) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_numbers_round_trip() {
        for job in [Job::Send, Job::SendBuffer, Job::Read, Job::Probe] {
            let id = EndpointId { index: (1 << ENDPOINT_BITS) - 1, generation: 0xffff_ffff };
            let work = parse_wr_id(wr_id(job, id, 0xdead_beef));
            assert_eq!((work.job, work.index, work.number), (job, id.index as usize, 0xad_beef));
            assert!(work.is_of(id) && !work.is_of(EndpointId { generation: 0xffff_fffe, ..id }));
        }
    }
}
