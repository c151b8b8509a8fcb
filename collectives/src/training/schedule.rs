//! In which order a stage of a pipeline works.

/// What a stage does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The forward pass of a micro-batch.
    Forward(usize),
    /// Its backward pass.
    Backward(usize),
}

/// The order of 1F1B ("one forward, one backward", PipeDream-Flush): a stage does as many forward passes as there are stages
/// after it, then one forward and one backward pass in turn, then the backward passes that are left. So it keeps what is
/// needed of at most `stages - stage` micro-batches, however many there are; and of `micro_batches + stages - 1` turns of the
/// last stage, `stages - 1` are idle.
///
/// ```
/// use qpair_collectives::training::{Work::{Backward, Forward}, one_forward_one_backward};
///
/// let first_of_two: Vec<_> = one_forward_one_backward(0, 2, 3).collect();
/// assert_eq!(first_of_two, [Forward(0), Forward(1), Backward(0), Forward(2), Backward(1), Backward(2)]);
/// ```
pub fn one_forward_one_backward(stage: usize, stages: usize, micro_batches: usize) -> impl Iterator<Item = Work> {
    let ahead = stages.saturating_sub(stage + 1).min(micro_batches);
    let warm_up = (0..ahead).map(Work::Forward);
    let steady = (ahead..micro_batches).flat_map(move |micro| [Work::Forward(micro), Work::Backward(micro - ahead)]);
    let rest = (micro_batches - ahead..micro_batches).map(Work::Backward);
    warm_up.chain(steady).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pass_comes_once_and_in_order() {
        for stages in 1..6 {
            for stage in 0..stages {
                for micro_batches in 0..8 {
                    let work: Vec<_> = one_forward_one_backward(stage, stages, micro_batches).collect();
                    let forward: Vec<_> = work.iter().filter(|work| matches!(work, Work::Forward(_))).collect();
                    assert_eq!(forward.len(), micro_batches);
                    let (mut done, mut back) = (0, 0);
                    for work in work {
                        match work {
                            Work::Forward(micro) => done = (micro == done).then_some(done + 1).unwrap(),
                            Work::Backward(micro) => back = (micro == back && back < done).then_some(back + 1).unwrap(),
                        }
                        assert!(done - back <= stages - stage, "more is kept than should be");
                    }
                    assert_eq!((done, back), (micro_batches, micro_batches));
                }
            }
        }
    }
}
