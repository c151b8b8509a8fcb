//! Copies that need not be made, as what they would copy goes straight into the messages that give it away; or not yet, as it is
//! combined with a message that has not come.

use super::lower::Way;
use super::steps::{Span, Step};
use crate::pieces::Pieces;
use crate::plan::{Buffer, Graph, Program, What};

/// Finds copies to scratch that only sends read, which wait for nothing else: they may as well take the data when the copy
/// would. Gives the sends, by copy.
pub(super) fn fuse(steps: &mut [Step], program: &Program) -> Vec<u32> {
    let is_copy =
        |step: &Step| step.what == What::Copy && step.src.buffer == Buffer::Data && step.dst.buffer == Buffer::Scratch;
    // The copy that makes what a send gives away, if that is all the send waits for.
    let copy_of = |number: u32, step: &Step| match program.deps(number).only() {
        Some(copy) if step.what == What::Send => {
            let made = &steps[copy as usize];
            (is_copy(made) && made.dst == step.src).then_some(copy)
        }
        _ => None,
    };
    // Sends that take what a copy makes, by copy; and scratch that is read or written in any other way.
    let mut takers: Vec<(u32, u32)> = Vec::new();
    let mut spoiled = Pieces::new(u64::MAX, false);
    let mut spoil = |span: &Span| {
        if span.buffer == Buffer::Scratch {
            spoiled.set(span.start as u64, span.end(), true);
        }
    };
    for (number, step) in (0..).zip(steps.iter()) {
        match copy_of(number, step) {
            Some(copy) => takers.push((copy, number)),
            None => spoil(&step.src),
        }
        if !is_copy(step) {
            spoil(&step.dst);
        }
    }
    takers.sort_unstable();
    let mut is_kept = |copy: &Step| {
        let unspoiled = |_, _, &spoiled: &bool| if spoiled { Err(()) } else { Ok(()) };
        spoiled.read(copy.dst.start as u64, copy.dst.end(), unspoiled).is_ok()
    };
    let mut given = Vec::new();
    let mut ranges = Vec::new();
    let mut takers = takers.into_iter().peekable();
    for (copy, _) in (0..).zip(steps.iter()).filter(|(_, step)| is_copy(step) && is_kept(step)) {
        let start = given.len() as u32;
        while let Some((other, taker)) = takers.next_if(|&(other, _)| other <= copy) {
            // Others are of copies that are spoiled.
            given.extend((other == copy).then_some(taker));
        }
        ranges.push((copy, (start, given.len() as u32)));
    }
    for (copy, range) in ranges {
        steps[copy as usize].sends = range;
    }
    given
}

/// Has copies made just before what is read from a peer is combined with them, which finds them in the cache then, and not all of
/// them first.
pub(super) fn join(steps: &mut [Step], program: &Program, graph: &Graph) {
    for (number, _) in program.numbered() {
        let step = steps[number as usize];
        let Some(copy) = program.deps(number).only() else { continue };
        let made = steps[copy as usize];
        let is_made_for_it = made.what == What::Copy
            && made.dst == step.dst
            && program.deps(copy).is_empty()
            && *graph.dependents(copy) == [number];
        if step.what == What::RecvReduce && matches!(step.way, Way::Read { .. }) && is_made_for_it {
            steps[number as usize].src = made.src;
            let nothing = |span: Span| Span { len: 0, ..span };
            let Step { src, dst, .. } = &mut steps[copy as usize];
            (*src, *dst) = (nothing(made.src), nothing(made.dst));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Nodes, Recipe, Shape};
    use crate::execute::steps::step;
    use crate::plan::{Collective, Elements, Ranks, Spec};

    /// What `fuse` finds by a look at every pair of steps.
    fn fused_by_pairs(steps: &[Step], program: &Program) -> Vec<(usize, Vec<u32>)> {
        let overlap = |a: &Span, b: &Span| {
            a.buffer == b.buffer && a.len > 0 && a.start < b.start + b.len && b.start < a.start + a.len
        };
        let is_copy = |step: &Step| {
            step.what == What::Copy && step.src.buffer == Buffer::Data && step.dst.buffer == Buffer::Scratch
        };
        let copy_of = |number: usize| match program.deps(number as u32).only() {
            Some(copy) if steps[number].what == What::Send => {
                let made = &steps[copy as usize];
                (is_copy(made) && made.dst == steps[number].src).then_some(copy as usize)
            }
            _ => None,
        };
        let spoils = |number: usize, copy: &Step| {
            let step = &steps[number];
            overlap(&step.src, &copy.dst) && copy_of(number).is_none()
                || overlap(&step.dst, &copy.dst) && !is_copy(step)
        };
        let numbers = 0..steps.len();
        let copies = numbers.clone().filter(|&copy| is_copy(&steps[copy]));
        let kept = copies.filter(|&copy| !numbers.clone().any(|other| spoils(other, &steps[copy])));
        kept.map(|copy| {
            (copy, numbers.clone().filter(|&send| copy_of(send) == Some(copy)).map(|send| send as u32).collect())
        })
        .collect()
    }

    #[test]
    fn copies_that_only_sends_read_are_found_as_by_a_look_at_every_pair() {
        let mut found = 0;
        for algorithm in Algorithm::ALL {
            for collective in Collective::ALL {
                for ordered in [false, true] {
                    let spec = Spec::new(collective, Ranks(6), Elements(9), 8);
                    let shape = Shape { segment: 4, ordered, nodes: Nodes::Of(2), ..Shape::default() };
                    let Ok(recipe) = Recipe::with(spec, algorithm, shape) else { continue };
                    let program = recipe.program(3);
                    let plain = program.steps().iter().map(|at| step(&at.kind, 0, 0, 8)).collect::<Vec<_>>();
                    let mut steps = plain.clone();
                    let given = fuse(&mut steps, &program);
                    let sends = |at: usize| &given[steps[at].sends.0 as usize..steps[at].sends.1 as usize];
                    let expected = fused_by_pairs(&plain, &program);
                    assert_eq!(expected.iter().map(|(_, sends)| sends.len()).sum::<usize>(), given.len());
                    assert!(
                        expected.iter().all(|(copy, expected)| sends(*copy) == expected),
                        "{algorithm} {collective}"
                    );
                    found += given.len();
                }
            }
        }
        assert!(found > 10, "{found}");
    }
}
