//! Copies that need not be made: what they would copy goes straight into the messages that give it away.

use super::steps::{Span, Step};
use crate::pieces::Pieces;
use crate::plan::{Buffer, Program, What};

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
