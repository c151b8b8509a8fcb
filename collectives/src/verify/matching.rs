//! Which receive takes which message.

use std::collections::HashMap;

use super::error::VerifyError;
use crate::plan::Plan;

/// For every message step of every rank, the step at the peer which is its other side.
pub(crate) struct Matching {
    partners: Vec<Vec<u32>>,
}

impl Matching {
    /// Matches the k-th send from a to b with the k-th receive at b from a.
    ///
    /// # Errors
    /// A side that is left over, or lengths that differ.
    pub(crate) fn of(plan: &Plan) -> Result<Self, VerifyError> {
        let mut partners: Vec<_> = plan.programs.iter().map(|p| vec![NONE; p.len()]).collect();
        // By sender and receiver: the sends, last first once all are in.
        let mut sends: HashMap<(u32, u32), Vec<u32>> = HashMap::new();
        for (rank, program) in plan.by_rank() {
            for (step, kind) in program.numbered().filter(|(_, kind)| kind.is_send()) {
                let peer = kind.peer().unwrap_or(rank);
                sends.entry((rank, peer)).or_default().push(step);
            }
        }
        sends.values_mut().for_each(|steps| steps.reverse());
        for (rank, program) in plan.by_rank() {
            for (step, kind) in program.numbered().filter(|(_, kind)| kind.is_recv()) {
                let peer = kind.peer().unwrap_or(rank);
                let send = sends.get_mut(&(peer, rank)).and_then(Vec::pop);
                let other = plan.program(peer);
                let (Some(peer_step), Some(other)) = (send, other) else {
                    return Err(VerifyError::Unmatched { rank, step, peer });
                };
                let sent = other.kind(peer_step).map_or(0, |kind| kind.elements());
                if sent != kind.elements() {
                    return Err(VerifyError::MessageLength {
                        rank,
                        step,
                        expected: kind.elements(),
                        peer,
                        peer_step,
                        sent,
                    });
                }
                partners[rank as usize][step as usize] = peer_step;
                partners[peer as usize][peer_step as usize] = step;
            }
        }
        let left = sends.iter().filter_map(|(&(rank, peer), steps)| steps.last().map(|&step| (rank, step, peer)));
        match left.min() {
            Some((rank, step, peer)) => Err(VerifyError::Unmatched { rank, step, peer }),
            None => Ok(Self { partners }),
        }
    }

    /// The other side of a message step.
    pub(crate) fn partner(&self, rank: u32, step: u32) -> u32 {
        self.partners[rank as usize][step as usize]
    }
}

/// For a step that is no message.
const NONE: u32 = u32::MAX;
